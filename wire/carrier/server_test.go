package carrier

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bowline/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testPath  = "/durableRecovery/connect"
	testLimit = 1 << 16
	testKey   = "dGhlIHNhbXBsZSBub25jZQ=="
	// patience is how long a test waits for something that must happen.
	patience = 10 * time.Second
)

const upgradeRequest = "GET " + testPath + "?any=query HTTP/1.1\r\nHost: somewhere.else\r\nOrigin: https://evil.example\r\n" +
	"Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + testKey + "\r\n" +
	"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nSec-WebSocket-Protocol: chat\r\n\r\n"

const upgradeAnswer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"

// acceptor is a server that hands out what Accept returns.
type acceptor struct {
	addr  string
	conns chan Conn
	errs  chan error
}

func startAcceptor(t *testing.T) *acceptor {
	t.Helper()
	a := &acceptor{conns: make(chan Conn, 16), errs: make(chan error, 16)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := Accept(w, r, AcceptOptions{Path: testPath, MaxFrame: testLimit})
		if err != nil {
			a.errs <- err
			return
		}
		a.conns <- conn
	}))
	a.addr = server.Listener.Addr().String()
	t.Cleanup(func() {
		server.Close()
		close(a.conns)
		for c := range a.conns {
			if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		}
	})
	return a
}

func (a *acceptor) next(t *testing.T) Conn {
	t.Helper()
	select {
	case c := <-a.conns:
		t.Cleanup(func() {
			if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
		return c
	case err := <-a.errs:
		t.Fatalf("the upgrade was refused: %v", err)
	case <-time.After(patience):
		t.Fatal("no connection was accepted in time")
	}
	return nil
}

func rawDial(t *testing.T, addr string) net.Conn {
	t.Helper()
	raw, err := net.Dial("tcp", addr) //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := raw.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return raw
}

func send(t *testing.T, w io.Writer, b string) {
	t.Helper()
	if _, err := io.WriteString(w, b); err != nil {
		t.Fatalf("write: %v", err)
	}
}

func receive(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil {
		t.Fatalf("got %q, then %v; want %q", got[:n], err, want)
	}
	if string(got) != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// receiveEnd checks that the peer destroys the socket without another byte. A
// reset is as good an end as a FIN: there was unread input.
func receiveEnd(t *testing.T, r io.Reader) {
	t.Helper()
	rest, err := io.ReadAll(r)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("the peer does not close (got %q)", rest)
	}
	if len(rest) > 0 {
		t.Fatalf("the peer sends %q before it closes", rest)
	}
}

// frameOf builds a client frame byte by byte.
func frameOf(first byte, masked bool, payload string) string {
	b := []byte{first}
	var bit byte
	if masked {
		bit = maskBit
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, bit|byte(n))
	case n <= 0xFFFF:
		b = binary.BigEndian.AppendUint16(append(b, bit|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, bit|127), uint64(n))
	}
	if !masked {
		return string(b) + payload
	}
	mask := [4]byte{0x12, 0x34, 0x56, 0x78}
	b = append(b, mask[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^mask[i%4])
	}
	return string(b)
}

func connected(t *testing.T) (raw net.Conn, conn Conn) {
	t.Helper()
	a := startAcceptor(t)
	raw = rawDial(t, a.addr)
	send(t, raw, upgradeRequest)
	receive(t, raw, upgradeAnswer)
	return raw, a.next(t)
}

func readWithin(t *testing.T, c Conn) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := c.ReadMessage(ctx)
	if ctx.Err() != nil {
		t.Fatal("no message and no error in time")
	}
	return b, err
}

func wantMessage(t *testing.T, c Conn, want string) {
	t.Helper()
	if got, err := readWithin(t, c); err != nil || string(got) != want {
		t.Fatalf("message %.100q (%v), want %.100q", got, err, want)
	}
}

func wantCode(t *testing.T, err error, code wire.Code) {
	t.Helper()
	if wire.CodeOf(err) != code {
		t.Fatalf("error %v has code %s, want %s", err, wire.CodeOf(err), code)
	}
}

func TestUpgradeAnswerIsExact(t *testing.T) {
	t.Parallel()
	connected(t)
}

func TestUpgradeRefusals(t *testing.T) {
	t.Parallel()
	a := startAcceptor(t)
	edit := func(old, with string) string {
		if !strings.Contains(upgradeRequest, old) {
			t.Fatalf("the request does not contain %q", old)
		}
		return strings.Replace(upgradeRequest, old, with, 1)
	}
	for _, c := range []struct{ name, request, answer string }{
		{"another path", edit(testPath, "/other"), rawNotFound},
		{"path in another spelling", edit(testPath, "/durableRecovery%2Fconnect"), rawNotFound},
		{"path below", edit(testPath, testPath+"/x"), rawNotFound},
		{"no upgrade header", edit("Upgrade: WebSocket\r\n", ""), rawNotFound},
		{"no connection header", edit("keep-alive, Upgrade", "keep-alive"), rawNotFound},
		{"post", edit("GET", "POST"), rawBadRequest},
		{"upgrade to something else", edit("WebSocket", "h2c"), rawBadRequest},
		{"list of upgrades", edit("WebSocket", "websocket, h2c"), rawBadRequest},
		{"two upgrade headers", edit("Upgrade: WebSocket", "Upgrade: websocket\r\nUpgrade: websocket"), rawBadRequest},
		{"version 8", edit("Version: 13", "Version: 8"), rawBadRequest},
		{"version 013", edit("Version: 13", "Version: 013"), rawBadRequest},
		{"no version", edit("Sec-WebSocket-Version: 13\r\n", ""), rawBadRequest},
		{"no key", edit("Sec-WebSocket-Key: "+testKey+"\r\n", ""), rawBadRequest},
		{"short key", edit(testKey, "dGhlIHNhbXBsZSBub25j"), rawBadRequest},
		{"key without padding", edit(testKey, strings.TrimRight(testKey, "=")), rawBadRequest},
		{"key with stray bits", edit(testKey, "dGhlIHNhbXBsZSBub25jZR=="), rawBadRequest},
		{"key of the URL alphabet", edit(testKey, "__________________________________________8="), rawBadRequest},
		{"two keys", edit("Sec-WebSocket-Key: ", "Sec-WebSocket-Key: "+testKey+"\r\nSec-WebSocket-Key: "), rawBadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := rawDial(t, a.addr)
			send(t, raw, c.request)
			receive(t, raw, c.answer)
			receiveEnd(t, raw)
			select {
			case err := <-a.errs:
				if !errors.Is(err, ErrNotUpgraded) {
					t.Errorf("Accept says %v", err)
				}
			case <-time.After(patience):
				t.Error("Accept does not return")
			}
		})
	}
}

func TestRawRejections(t *testing.T) {
	t.Parallel()
	for answer, reject := range map[string]func(http.ResponseWriter) error{rawNotFound: RejectNotFound, rawBadRequest: RejectBadRequest} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := reject(w); !errors.Is(err, ErrNotUpgraded) {
				t.Errorf("reject says %v", err)
			}
		}))
		t.Cleanup(server.Close)
		raw := rawDial(t, server.Listener.Addr().String())
		send(t, raw, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		receive(t, raw, answer)
		receiveEnd(t, raw)
	}
}

// Where there is no socket to take (HTTP/2), the answer is an ordinary one.
func TestWithoutASocket(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodGet, testPath, nil)
	for name, value := range map[string]string{"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": testKey} {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	if _, err := Accept(w, r, AcceptOptions{MaxFrame: testLimit}); !errors.Is(err, ErrNotUpgraded) || w.Code != http.StatusBadRequest {
		t.Errorf("accept: %d, %v", w.Code, err)
	}
	w = httptest.NewRecorder()
	if err := RejectNotFound(w); !errors.Is(err, ErrNotUpgraded) || w.Code != http.StatusNotFound {
		t.Errorf("reject: %d, %v", w.Code, err)
	}
}

// What net/http has read beyond the request belongs to the first frames.
func TestBytesBehindTheRequest(t *testing.T) {
	t.Parallel()
	a := startAcceptor(t)
	raw := rawDial(t, a.addr)
	send(t, raw, upgradeRequest+frameOf(0x81, true, "one")+frameOf(0x81, true, "two"))
	receive(t, raw, upgradeAnswer)
	c := a.next(t)
	wantMessage(t, c, "one")
	wantMessage(t, c, "two")
}

func TestFramesTaken(t *testing.T) {
	t.Parallel()
	raw, c := connected(t)
	for _, f := range []struct{ name, frame, want string }{
		{"plain", frameOf(0x81, true, "hello"), "hello"},
		{"empty", frameOf(0x81, true, ""), ""},
		{"no FIN", frameOf(0x01, true, "no fin"), "no fin"},
		{"RSV1", frameOf(0xC1, true, "rsv1"), "rsv1"},
		{"all RSV", frameOf(0xF1, true, "rsv"), "rsv"},
		{"16-bit length", frameOf(0x81, true, strings.Repeat("a", 126)), strings.Repeat("a", 126)},
		{"at the limit", frameOf(0x81, true, strings.Repeat("b", testLimit)), strings.Repeat("b", testLimit)},
		{"64-bit length of a small one", "\x81\xff\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00hi", "hi"},
		{"16-bit length of a small one", "\x81\xfe\x00\x02\x00\x00\x00\x00hi", "hi"},
		{"behind a pong", frameOf(0x8A, true, "ignored") + frameOf(0x81, true, "after"), "after"},
		{"behind a long pong", frameOf(0x8A, true, strings.Repeat("p", 300)) + frameOf(0x81, true, "after"), "after"},
		{"behind a long ping", frameOf(0x89, true, strings.Repeat("p", 126)) + frameOf(0x81, true, "after"), "after"},
	} {
		t.Run(f.name, func(t *testing.T) {
			errs := make(chan error, 1)
			go func() {
				_, err := io.WriteString(raw, f.frame)
				errs <- err
			}()
			wantMessage(t, c, f.want)
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		})
	}
	// Nothing was sent back for any of them, the long ping included.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	receiveEnd(t, raw)
}

func TestPing(t *testing.T) {
	t.Parallel()
	raw, c := connected(t)
	for _, payload := range []string{"", "x", strings.Repeat("p", maxPong)} {
		send(t, raw, frameOf(0x89, true, payload)+frameOf(0x81, true, "after"))
		wantMessage(t, c, "after")
		receive(t, raw, frameOf(0x8A, false, payload))
	}
}

func TestFramesThatDestroy(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		name, frame string
		code        wire.Code
	}{
		{"unmasked", frameOf(0x81, false, "hello"), wire.CodeProtocol},
		{"continuation", frameOf(0x80, true, "x"), wire.CodeProtocol},
		{"binary", frameOf(0x82, true, "x"), wire.CodeProtocol},
		{"reserved data opcode", frameOf(0x83, true, "x"), wire.CodeProtocol},
		{"reserved control opcode", frameOf(0x8B, true, "x"), wire.CodeProtocol},
		{"one byte too long", frameOf(0x81, true, strings.Repeat("x", testLimit+1))[:14], wire.CodeProtocol},
		{"absurdly long", "\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", wire.CodeProtocol},
		{"long ping", "\x89\xff\x00\x00\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00", wire.CodeProtocol},
		{"close", frameOf(0x88, true, "\x03\xe8bye"), wire.CodeUnavailable},
		{"empty close", frameOf(0x88, true, ""), wire.CodeUnavailable},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			raw, c := connected(t)
			send(t, raw, f.frame)
			_, err := readWithin(t, c)
			wantCode(t, err, f.code)
			receiveEnd(t, raw)
			if _, err := c.ReadMessage(t.Context()); err == nil {
				t.Error("a message after the end")
			}
			wantCode(t, c.WriteMessage(t.Context(), []byte("x")), wire.CodeUnavailable)
		})
	}
}

// The length in a head is a claim: nothing may be allocated for it before the
// bytes come.
func TestClaimedLengthIsNotAllocated(t *testing.T) {
	t.Parallel()
	server, client := net.Pipe()
	const limit = 1 << 30
	c := newServerConn(server, bufio.NewReaderSize(server, 16), limit)
	go func() {
		head := binary.BigEndian.AppendUint64([]byte{0x81, 0xFF}, limit)
		if _, err := client.Write(append(head, 0, 0, 0, 0, 'x')); err != nil {
			t.Error(err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	n := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		if b.N > 1 {
			b.Skip("one is enough")
		}
		_, err := c.ReadMessage(context.Background())
		wantCode(t, err, wire.CodeUnavailable)
	}).MemBytes
	if n > 1<<20 {
		t.Errorf("%d bytes were allocated for a claim", n)
	}
}

func TestHalfCloseIsClose(t *testing.T) {
	t.Parallel()
	raw, c := connected(t)
	send(t, raw, frameOf(0x81, true, "last"))
	if err := raw.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wantMessage(t, c, "last")
	_, err := readWithin(t, c)
	wantCode(t, err, wire.CodeUnavailable)
	receiveEnd(t, raw)
}

func TestCloseSendsNothing(t *testing.T) {
	t.Parallel()
	raw, c := connected(t)
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	receiveEnd(t, raw)
}

func TestWrittenFrames(t *testing.T) {
	t.Parallel()
	raw, c := connected(t)
	for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 200_000} {
		message := strings.Repeat("m", n)
		errs := make(chan error, 1)
		go func() { errs <- c.WriteMessage(t.Context(), []byte(message)) }()
		receive(t, raw, frameOf(0x81, false, message))
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

func TestWritersTakeTurns(t *testing.T) {
	t.Parallel()
	raw, c := connected(t)
	const writers, each = 8, 50
	errs := make(chan error, writers)
	for i := range writers {
		go func() {
			message := bytes.Repeat([]byte{'a' + byte(i)}, 300)
			for range each {
				if err := c.WriteMessage(t.Context(), message); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range writers * each {
		head := make([]byte, 4)
		if _, err := io.ReadFull(raw, head); err != nil {
			t.Fatal(err)
		}
		body := make([]byte, 300)
		if _, err := io.ReadFull(raw, body); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(head, []byte{0x81, 126, 1, 44}) || !bytes.Equal(body, bytes.Repeat(body[:1], 300)) {
			t.Fatal("frames are mixed up")
		}
	}
	for range writers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// A write that is given up half way must destroy the connection: what follows
// would be read as the rest of the frame.
func TestWriteGivenUp(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cancel", "deadline"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server, client := net.Pipe() // without a buffer: a write waits for its reader
			c := newServerConn(server, bufio.NewReader(server), testLimit)
			ctx, cancel := context.WithCancel(t.Context())
			if how == "deadline" {
				ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
			}
			defer cancel()
			errs := make(chan error, 1)
			go func() { errs <- c.WriteMessage(ctx, []byte("never read as a whole")) }()
			receive(t, client, "\x81\x15nev") // the frame has begun
			if how == "cancel" {
				cancel()
			}
			select {
			case err := <-errs:
				wantCode(t, err, wire.CodeUnavailable)
			case <-time.After(patience):
				t.Fatal("the write does not return")
			}
			if rest, err := io.ReadAll(client); err != nil || len(rest) > 0 {
				t.Errorf("after the half frame: %q, %v; want the end", rest, err)
			}
			wantCode(t, c.WriteMessage(t.Context(), []byte("x")), wire.CodeUnavailable)
		})
	}
}

func TestWriteGivenUpBeforeItBegins(t *testing.T) {
	t.Parallel()
	raw, c := connected(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantCode(t, c.WriteMessage(ctx, []byte("x")), wire.CodeUnavailable)
	if err := c.WriteMessage(t.Context(), []byte("y")); err != nil {
		t.Fatalf("the connection did not survive: %v", err)
	}
	receive(t, raw, frameOf(0x81, false, "y"))
}

func TestReadGivenUp(t *testing.T) {
	t.Parallel()
	raw, c := connected(t)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 1)
	go func() {
		_, err := c.ReadMessage(ctx)
		errs <- err
	}()
	cancel()
	select {
	case err := <-errs:
		wantCode(t, err, wire.CodeUnavailable)
	case <-time.After(patience):
		t.Fatal("the read does not return")
	}
	receiveEnd(t, raw)
}

func TestCloseUnblocksRead(t *testing.T) {
	t.Parallel()
	_, c := connected(t)
	errs := make(chan error, 1)
	go func() {
		_, err := c.ReadMessage(context.Background())
		errs <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-errs:
		wantCode(t, err, wire.CodeUnavailable)
	case <-time.After(patience):
		t.Fatal("the read does not return")
	}
}

// Bytes that come one by one are the same frames.
func TestTrickle(t *testing.T) {
	t.Parallel()
	server, client := net.Pipe()
	c := newServerConn(server, bufio.NewReader(server), testLimit)
	errs := make(chan error, 1)
	go func() {
		for _, b := range []byte(frameOf(0x89, true, "") + frameOf(0x81, true, strings.Repeat("t", 200))) {
			if b == 0x81 { // the pong of the ping before must be taken first
				if _, err := io.ReadFull(client, make([]byte, 2)); err != nil {
					errs <- err
					return
				}
			}
			if _, err := client.Write([]byte{b}); err != nil {
				errs <- err
				return
			}
		}
		errs <- nil
	}()
	wantMessage(t, c, strings.Repeat("t", 200))
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Close(), client.Close()); err != nil {
		t.Fatal(err)
	}
}

func FuzzServerReader(f *testing.F) {
	f.Add([]byte(frameOf(0x81, true, "hello") + frameOf(0x89, true, "p")))
	f.Add([]byte("\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newServerConn(discardConn{}, bufio.NewReader(bytes.NewReader(b)), testLimit)
		for range len(b) + 1 {
			m, err := c.ReadMessage(context.Background())
			if err != nil {
				if code := wire.CodeOf(err); code != wire.CodeUnavailable && code != wire.CodeProtocol {
					t.Fatalf("untyped error %v", err)
				}
				return
			}
			if len(m) > testLimit {
				t.Fatalf("message of %d bytes", len(m))
			}
		}
		t.Fatal("more messages than bytes")
	})
}

// discardConn takes every write.
type discardConn struct{ net.Conn }

func (discardConn) Write(b []byte) (int, error)      { return len(b), nil }
func (discardConn) Close() error                     { return nil }
func (discardConn) SetWriteDeadline(time.Time) error { return nil }

func TestWriteDoesNotAllocate(t *testing.T) {
	c := newServerConn(discardConn{}, nil, testLimit)
	message := make([]byte, 1024)
	ctx := context.Background()
	if n := testing.AllocsPerRun(200, func() {
		if err := c.WriteMessage(ctx, message); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a message, want 0", n)
	}
}
