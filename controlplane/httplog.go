package controlplane

import (
	"bytes"
	"context"
	"log/slog"
)

// httpLog takes what net/http has to say. A panic of a handler and a listener
// that fails are for the operator; what a peer did (a TLS handshake that came to
// nothing, a header that is none) anybody can make happen as often as he likes,
// so it must not grow the log.
type httpLog struct{ log *slog.Logger }

func (l httpLog) Write(line []byte) (int, error) {
	level := slog.LevelDebug
	for _, ours := range []string{"http: panic", "http: Accept error", "http: superfluous"} {
		if bytes.HasPrefix(line, []byte(ours)) {
			level = slog.LevelWarn
		}
	}
	l.log.Log(context.Background(), level, "http server", "text", string(bytes.TrimSpace(line)))
	return len(line), nil
}
