package controlplane

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestPeersDoNotGrowTheLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := httpLog{slog.New(slog.NewTextHandler(&out, nil))}
	for _, line := range []string{
		"http: TLS handshake error from 203.0.113.7:4711: EOF\n",
		"http: panic serving 203.0.113.7:4711: bug: x\ngoroutine 1 [running]:\n",
	} {
		if n, err := l.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%d of %d, %v", n, len(line), err)
		}
	}
	if s := out.String(); strings.Contains(s, "handshake") || !strings.Contains(s, "bug: x") {
		t.Errorf("logged: %s", s)
	}
}
