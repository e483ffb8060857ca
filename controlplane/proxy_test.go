package controlplane

import (
	"net/http"
	"testing"
)

// What a peer writes into X-Forwarded-For must not choose the address it is
// counted under.
func TestSpoofedForwardedFor(t *testing.T) {
	t.Parallel()
	if clientAddress(&Options{}) != nil {
		t.Error("without a proxy the header is believed")
	}
	read := clientAddress(&Options{BehindProxy: true})
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{nil, "10.0.0.1"},
		{[]string{"203.0.113.7"}, "203.0.113.7"},
		{[]string{"made-up, 203.0.113.7"}, "203.0.113.7"},
		{[]string{"made-up", "203.0.113.7"}, "203.0.113.7"},
		{[]string{"made-up", "more, 203.0.113.7:4711"}, "203.0.113.7"},
		{[]string{"[2001:db8::1]:4711"}, "2001:db8::1"},
		{[]string{"2001:db8::1"}, "2001:db8::1"},
		{[]string{""}, "10.0.0.1"},
		{[]string{"made-up, "}, "10.0.0.1"},
	} {
		r := &http.Request{RemoteAddr: "10.0.0.1:55555", Header: http.Header{"X-Forwarded-For": c.lines}}
		if got := read(r); got != c.want {
			t.Errorf("%q: %s, want %s", c.lines, got, c.want)
		}
	}
}
