package carrier

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bowline/wire"
)

// rawServer accepts one TCP connection, upgrades it by hand and hands it to
// the test.
type rawServer struct {
	url      string
	requests chan *http.Request
	sockets  chan net.Conn
}

func startRawServer(t *testing.T, answerExtra string) *rawServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	s := &rawServer{url: "ws://" + l.Addr().String() + testPath, requests: make(chan *http.Request, 4), sockets: make(chan net.Conn, 4)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			socket, err := l.Accept()
			if err != nil {
				return
			}
			s.serve(t, socket, answerExtra)
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
		close(s.sockets)
		for socket := range s.sockets {
			if err := socket.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

func (s *rawServer) serve(t *testing.T, socket net.Conn, answerExtra string) {
	if err := socket.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Error(err)
	}
	r, err := http.ReadRequest(bufio.NewReaderSize(socket, 1<<12))
	if err != nil {
		t.Errorf("no request: %v", err)
		return
	}
	s.requests <- r
	answer := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		acceptKey(r.Header.Get("Sec-WebSocket-Key")) + "\r\n\r\n" + answerExtra
	if _, err := io.WriteString(socket, answer); err != nil {
		t.Error(err)
	}
	s.sockets <- socket
}

func (s *rawServer) socket(t *testing.T) net.Conn {
	t.Helper()
	select {
	case socket := <-s.sockets:
		t.Cleanup(func() {
			if err := socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
		return socket
	case <-time.After(patience):
		t.Fatal("nobody dialled in time")
		return nil
	}
}

func dialTest(t *testing.T, url string) Conn {
	t.Helper()
	c, err := Dial(t.Context(), url, DialOptions{MaxFrame: testLimit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return c
}

func dialled(t *testing.T) (socket net.Conn, c Conn) {
	t.Helper()
	s := startRawServer(t, "")
	c = dialTest(t, s.url)
	return s.socket(t), c
}

func TestUpgradeRequest(t *testing.T) {
	t.Parallel()
	s := startRawServer(t, frameOf(0x81, false, "with the answer"))
	header := http.Header{"X-Extra": {"1"}}
	c, err := Dial(t.Context(), s.url, DialOptions{MaxFrame: testLimit, Header: header})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	r := <-s.requests
	for _, name := range []string{"Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol", "Origin"} {
		if r.Header.Get(name) != "" {
			t.Errorf("the request has %s", name)
		}
	}
	if r.Header.Get("X-Extra") != "1" || r.URL.Path != testPath || "ws://"+r.Host+testPath != s.url {
		t.Errorf("request %+v", r)
	}
	// Bytes behind the answer are the first frame.
	wantMessage(t, c, "with the answer")
}

func TestClientMessages(t *testing.T) {
	t.Parallel()
	socket, c := dialled(t)
	for _, message := range []string{"", "x", strings.Repeat("y", 126), strings.Repeat("z", testLimit)} {
		errs := make(chan error, 1)
		go func() {
			_, err := io.WriteString(socket, frameOf(0x8A, false, "pong")+frameOf(0x81, false, message))
			errs <- err
		}()
		wantMessage(t, c, message)
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	// What it writes is one masked text frame each.
	peer := newServerConn(socket, bufio.NewReader(socket), testLimit)
	for _, message := range []string{"", "hello", strings.Repeat("w", 5_000)} {
		errs := make(chan error, 1)
		go func() { errs <- c.WriteMessage(t.Context(), []byte(message)) }()
		wantMessage(t, peer, message)
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

func TestClientAnswersPing(t *testing.T) {
	t.Parallel()
	socket, c := dialled(t)
	send(t, socket, frameOf(0x89, false, "are you there")+frameOf(0x81, false, "after"))
	wantMessage(t, c, "after")
	head := make([]byte, 6)
	if _, err := io.ReadFull(socket, head); err != nil {
		t.Fatal(err)
	}
	if head[0] != 0x8A || head[1] != maskBit|13 {
		t.Fatalf("the answer to a ping begins %x", head[:2])
	}
	payload := make([]byte, 13)
	if _, err := io.ReadFull(socket, payload); err != nil {
		t.Fatal(err)
	}
	unmask(payload, [4]byte(head[2:]))
	if string(payload) != "are you there" {
		t.Errorf("pong of %q", payload)
	}
}

// Whatever ends a connection, the authority sees the socket end and not one
// byte before that: no close frame.
func TestClientEndsWithoutAByte(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		name, frame string
		code        wire.Code
	}{
		{"close", frameOf(0x88, false, "\x03\xe8bye"), wire.CodeUnavailable},
		{"empty close", frameOf(0x88, false, ""), wire.CodeUnavailable},
		{"close with a bad code", frameOf(0x88, false, "\x00\x01"), wire.CodeUnavailable},
		{"binary", frameOf(0x82, false, "x"), wire.CodeProtocol},
		{"fragment", frameOf(0x01, false, "x"), wire.CodeProtocol},
		{"continuation", frameOf(0x80, false, "x"), wire.CodeProtocol},
		{"compressed", frameOf(0xC1, false, "x"), wire.CodeProtocol},
		{"masked", frameOf(0x81, true, "x"), wire.CodeProtocol},
		{"reserved opcode", frameOf(0x83, false, "x"), wire.CodeUnavailable},
		{"long ping", frameOf(0x89, false, strings.Repeat("p", 126)), wire.CodeUnavailable},
		{"one byte too long", frameOf(0x81, false, strings.Repeat("x", testLimit+1)), wire.CodeProtocol},
		{"absurdly long", "\x81\x7f\x7f\xff\xff\xff\xff\xff\xff\xff", wire.CodeProtocol},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			socket, c := dialled(t)
			send(t, socket, frameOf(0x81, false, "before")+f.frame)
			wantMessage(t, c, "before")
			_, err := readWithin(t, c)
			wantCode(t, err, f.code)
			receiveEnd(t, socket)
			wantCode(t, c.WriteMessage(t.Context(), []byte("x")), f.code)
		})
	}
	t.Run("our close", func(t *testing.T) {
		t.Parallel()
		socket, c := dialled(t)
		for range 2 {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		receiveEnd(t, socket)
	})
	t.Run("read given up", func(t *testing.T) {
		t.Parallel()
		socket, c := dialled(t)
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() {
			_, err := c.ReadMessage(ctx)
			errs <- err
		}()
		cancel()
		wantCode(t, <-errs, wire.CodeUnavailable)
		receiveEnd(t, socket)
	})
	t.Run("peer goes away", func(t *testing.T) {
		t.Parallel()
		socket, c := dialled(t)
		if err := socket.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := readWithin(t, c)
		wantCode(t, err, wire.CodeUnavailable)
	})
}

// The gate must find the close frame wherever the library's buffer cuts.
func TestGateAtEveryCut(t *testing.T) {
	t.Parallel()
	before := "GET / HTTP/1.1\r\n\r\n" + frameOf(0x81, true, "hi") + frameOf(0x81, true, strings.Repeat("l", 300)) + frameOf(0x8A, true, "")
	stream := before + frameOf(0x88, true, "\x03\xe8") + frameOf(0x81, true, "never")
	for one := 1; one < len(stream); one++ {
		for _, two := range []int{one, one + 1, one + 2, len(stream)} {
			two = min(two, len(stream))
			var out strings.Builder
			g := newGate(writerConn{w: &out}, testLimit)
			var err error
			for _, part := range []string{stream[:one], stream[one:two], stream[two:]} {
				if _, err = io.WriteString(g, part); err != nil {
					break
				}
			}
			if !errors.Is(err, errCloseSwallowed) {
				t.Fatalf("cut at %d and %d: %v", one, two, err)
			}
			if out.String() != before {
				t.Fatalf("cut at %d and %d: %d bytes pass, want %d", one, two, out.Len(), len(before))
			}
		}
	}
}

type writerConn struct {
	net.Conn
	w io.Writer
}

func (c writerConn) Write(b []byte) (int, error) { return c.w.Write(b) }
func (writerConn) Close() error                  { return nil }

func TestParseTarget(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url  string
		want Target
	}{
		{"ws://127.0.0.1:8080/a/b", Target{false, "127.0.0.1", 8080, "/a/b"}},
		{"ws://127.0.0.1", Target{false, "127.0.0.1", 80, "/"}},
		{"wss://example.com", Target{true, "example.com", 443, "/"}},
		{"wss://example.com/", Target{true, "example.com", 443, "/"}},
		{"wss://example.com:1/%41@:", Target{true, "example.com", 1, "/%41@:"}},
		{"ws://[::1]:65535/x", Target{false, "::1", 65535, "/x"}},
		{"wss://[2001:db8::1]/x", Target{true, "2001:db8::1", 443, "/x"}},
		{"ws://localhost:80/", Target{false, "localhost", 80, "/"}},
	} {
		got, err := ParseTarget(c.url)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", c.url, got, err)
		}
		if again, err := ParseTarget(got.String()); err != nil || again != got {
			t.Errorf("%s is written %s, which is %+v (%v)", c.url, got, again, err)
		}
	}
	for _, url := range []string{
		"", "ws:", "ws://", "ws:///path", "http://x", "https://x", "WS://x", "//x", "x", "ws:/x", "wss:x",
		"ws://x:0/", "ws://x:65536/", "ws://x:/", "ws://x:a/", "ws://x:-1/", "ws://x:+1/", "ws://x: 1/", "ws://x:1:2/",
		"ws://user@x/", "ws://user:pw@x/", "ws://@x/", "ws://x%41/", "ws://[fe80::1%25eth0]/", "ws://[fe80::1%eth0]/",
		"ws://::1/", "ws://::1:80/", "ws://2001:db8::1/", "ws://[::1/", "ws://::1]/", "ws://[]/", "ws://[x]/", "ws://[127.0.0.1]/",
		"ws://[::1]x/", "ws://[::1]:/", "ws://[::1]:0/", "ws://[::1]80/", "ws://a[::1]/",
		"ws://x/?", "ws://x?a=b", "ws://x/#f", "ws://x#f", `ws://x\y/`, "ws://x/a b", "ws://x/\t", "ws://x/\n", " ws://x/", "ws://x/ ", "ws://x\x00/", "ws://x/\x7f",
		"ws://ex\u00e4mple/", "ws://x/\u00e4", "ws://x/\u2028",
	} {
		got, err := ParseTarget(url)
		if err == nil {
			t.Errorf("%q is taken as %+v", url, got)
			continue
		}
		wantCode(t, err, wire.CodeConfigInvalid)
		if strings.Contains(err.Error(), "pw") {
			t.Errorf("the error shows the URL: %v", err)
		}
	}
}

// fixedResolver answers once and fails the test when it is asked again.
type fixedResolver struct {
	t     *testing.T
	addrs []string
	asked int
}

func (r *fixedResolver) LookupNetIP(_ context.Context, _, _ string) ([]netip.Addr, error) {
	if r.asked++; r.asked > 1 {
		r.t.Error("the name was looked up again")
	}
	if len(r.addrs) == 0 {
		return nil, errors.New("no such host")
	}
	var out []netip.Addr
	for _, a := range r.addrs {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func TestResolve(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url   string
		addrs string
		want  string
		code  wire.Code
	}{
		{"ws://name/", "127.0.0.1 ::1 127.0.0.1 ::ffff:127.0.0.1", "127.0.0.1 ::1", ""},
		{"ws://name/", "127.0.0.1 10.0.0.1", "", wire.CodeConfigInvalid},
		{"ws://name/", "::ffff:10.0.0.1", "", wire.CodeConfigInvalid},
		{"ws://name/", "127.9.9.9", "127.9.9.9", ""},
		{"wss://name/", "10.0.0.2 10.0.0.1 10.0.0.2", "10.0.0.1 10.0.0.2", ""},
		{"wss://name/", "", "", wire.CodeUnavailable},
		{"ws://10.0.0.1/", "", "", wire.CodeConfigInvalid},
		{"ws://[::1]/", "", "::1", ""},
		{"ws://[::ffff:127.0.0.1]/", "", "127.0.0.1", ""},
		{"ws://0.0.0.0/", "", "", wire.CodeConfigInvalid},
	} {
		target, err := ParseTarget(c.url)
		if err != nil {
			t.Fatal(err)
		}
		p, err := target.Resolve(t.Context(), &fixedResolver{t: t, addrs: strings.Fields(c.addrs)})
		if c.code != "" {
			wantCode(t, err, c.code)
			continue
		}
		if err != nil {
			t.Errorf("%s with %s: %v", c.url, c.addrs, err)
			continue
		}
		var got []string
		for _, a := range p.Addrs() {
			got = append(got, a.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s with %s: pinned %v, want %s", c.url, c.addrs, got, c.want)
		}
	}
}

// recordingDialer notes what is dialled; it refuses the addresses in refuse.
type recordingDialer struct {
	refuse  string
	dialled []string
}

func (d *recordingDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d.dialled = append(d.dialled, address)
	if strings.HasPrefix(address, d.refuse) {
		return nil, errors.New("refused by the test")
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func TestPinnedAddressesAreDialledInOrder(t *testing.T) {
	t.Parallel()
	s := startRawServer(t, "")
	port := s.url[strings.LastIndex(s.url, ":")+1 : strings.LastIndex(s.url, "/durable")]
	target, err := ParseTarget("ws://some.name:" + port + testPath)
	if err != nil {
		t.Fatal(err)
	}
	p, err := target.Resolve(t.Context(), &fixedResolver{t: t, addrs: []string{"127.0.0.1", "::1", "127.0.0.0"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time without asking DNS
		d := &recordingDialer{refuse: "127.0.0.0:"}
		c, err := p.Dial(t.Context(), DialOptions{MaxFrame: testLimit, Dialer: d})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		s.socket(t)
		if r := <-s.requests; r.Host != "some.name:"+port {
			t.Errorf("Host is %q", r.Host)
		}
		if got := strings.Join(d.dialled, " "); got != "127.0.0.0:"+port+" 127.0.0.1:"+port {
			t.Errorf("dialled %s", got)
		}
	}
}

// A proxy named in the environment must not see a runner's connection.
func TestNoProxy(t *testing.T) {
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, "http://127.0.0.1:9/")
	}
	s := startRawServer(t, "")
	dialTest(t, s.url)
	s.socket(t)
}

func TestDialFailures(t *testing.T) {
	t.Parallel()
	answers := func(raw string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := hijack(w, http.StatusBadRequest)
			if err != nil {
				t.Error(err)
				return
			}
			_, err = io.WriteString(conn, raw)
			if err = errors.Join(err, conn.Close()); err != nil {
				t.Error(err)
			}
		}))
		t.Cleanup(server.Close)
		return "ws" + strings.TrimPrefix(server.URL, "http") + "/x"
	}
	for name, url := range map[string]string{
		"404":          answers(rawNotFound),
		"200":          answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
		"redirect":     answers("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"),
		"wrong accept": answers("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: AAAA\r\n\r\n"),
		"nothing":      answers(""),
	} {
		_, err := Dial(t.Context(), url, DialOptions{MaxFrame: testLimit})
		if err == nil {
			t.Errorf("%s: connected", name)
			continue
		}
		if wire.CodeOf(err) != wire.CodeUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := Dial(t.Context(), "http://x", DialOptions{MaxFrame: testLimit})
	wantCode(t, err, wire.CodeConfigInvalid)
}

// writeBundle writes a CA bundle with exactly these permissions.
func writeBundle(t *testing.T, mode os.FileMode, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTLS(t *testing.T) {
	t.Parallel()
	conns := make(chan Conn, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := Accept(w, r, AcceptOptions{MaxFrame: testLimit})
		if err != nil {
			t.Error(err)
			return
		}
		conns <- c
	}))
	server.Config.ErrorLog = nil
	t.Cleanup(server.Close)
	url := "wss" + strings.TrimPrefix(server.URL, "https") + "/any"

	_, err := Dial(t.Context(), url, DialOptions{MaxFrame: testLimit})
	wantCode(t, err, wire.CodeUnavailable) // nobody vouches for the certificate

	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	config, err := TLSWithCABundle(writeBundle(t, 0o600, bundle))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), url, DialOptions{MaxFrame: testLimit, TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	peer := <-conns
	if err := c.WriteMessage(t.Context(), []byte("up")); err != nil {
		t.Fatal(err)
	}
	wantMessage(t, peer, "up")
	if err := peer.WriteMessage(t.Context(), []byte("down")); err != nil {
		t.Fatal(err)
	}
	wantMessage(t, c, "down")
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	_, err = readWithin(t, peer)
	wantCode(t, err, wire.CodeUnavailable)
	if err := peer.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if config.MinVersion < tls.VersionTLS12 {
		t.Error("TLS below 1.2 is allowed")
	}
}

func TestCABundleRules(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	good := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(writeBundle(t, 0o600, good), link); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	padded := append([]byte(strings.Repeat("\n", maxCABundle-len(good))), good...)
	for name, c := range map[string]struct {
		path string
		ok   bool
	}{
		"private":           {writeBundle(t, 0o600, good), true},
		"read-only":         {writeBundle(t, 0o400, good), true},
		"at the limit":      {writeBundle(t, 0o600, padded), true},
		"beyond the limit":  {writeBundle(t, 0o600, append(padded, '\n')), false},
		"group may read":    {writeBundle(t, 0o640, good), false},
		"others may read":   {writeBundle(t, 0o604, good), false},
		"others may run it": {writeBundle(t, 0o601, good), false},
		"symbolic link":     {link, false},
		"directory":         {t.TempDir(), false},
		"named pipe":        {pipe, false},
		"missing":           {filepath.Join(t.TempDir(), "none"), false},
		"empty":             {writeBundle(t, 0o600, nil), false},
		"no certificate":    {writeBundle(t, 0o600, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")), false},
	} {
		_, err := TLSWithCABundle(c.path)
		if c.ok != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && wire.CodeOf(err) != wire.CodeConfigInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
