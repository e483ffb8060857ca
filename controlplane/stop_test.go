package controlplane

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// A request whose body never comes must not keep a server from stopping in
// order.
func TestStopWithAnEndlessRequest(t *testing.T) {
	t.Parallel()
	r := serve(t, Options{Data: t.TempDir(), Launch: LaunchNone})
	token, err := os.ReadFile(r.ready.AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	var d net.Dialer
	c, err := d.DialContext(within(t), "tcp", strings.TrimPrefix(r.ready.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := fmt.Fprintf(c, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"+
		"Expect: 100-continue\r\n\r\n", strings.TrimSpace(string(token))); err != nil {
		t.Fatal(err)
	}
	// The interim answer comes when the handler begins to read the body.
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	r.stop()
}
