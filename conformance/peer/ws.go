package peer

import (
	"bufio"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455 fixes SHA-1 for the accept key.
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

// Opcodes of RFC 6455.
const (
	OpContinuation = 0
	OpText         = 1
	OpBinary       = 2
	OpClose        = 8
	OpPing         = 9
	OpPong         = 10
)

// MaxFrame is the frame limit of lines B and M (1.5), in bytes.
const MaxFrame = 1 << 20

// IOTimeout bounds every single read and write of a peer.
const IOTimeout = 8 * time.Second

// Frame is a WebSocket frame as it lies on the wire.
type Frame struct {
	Fin     bool
	Rsv     byte // three bits
	Opcode  byte
	Masked  bool
	Payload []byte
	// Declared, when not nil, is the length that the header claims, always in
	// the 64-bit form.
	Declared *uint64
	// Long forces the 64-bit length form.
	Long bool
}

// Text is a correct text frame.
func Text(payload []byte, masked bool) Frame {
	return Frame{Fin: true, Opcode: OpText, Masked: masked, Payload: payload}
}

// Encode returns the bytes of the frame.
func (f Frame) Encode() []byte {
	b0 := f.Opcode | f.Rsv<<4
	if f.Fin {
		b0 |= 0x80
	}
	var mask byte
	if f.Masked {
		mask = 0x80
	}
	out := []byte{b0}
	n := uint64(len(f.Payload))
	switch {
	case f.Declared != nil:
		out = binary.BigEndian.AppendUint64(append(out, mask|127), *f.Declared)
	case f.Long || n > 0xffff:
		out = binary.BigEndian.AppendUint64(append(out, mask|127), n)
	case n > 125:
		out = binary.BigEndian.AppendUint16(append(out, mask|126), uint16(n)) //nolint:gosec // n is at most 65535 here.
	default:
		out = append(out, mask|byte(n))
	}
	if !f.Masked {
		return append(out, f.Payload...)
	}
	var key [4]byte
	if _, err := rand.Read(key[:]); err != nil {
		panic("bug: crypto/rand failed: " + err.Error())
	}
	out = append(out, key[:]...)
	start := len(out)
	out = append(out, f.Payload...)
	for i := range f.Payload {
		out[start+i] ^= key[i&3]
	}
	return out
}

// Sock is one end of a WebSocket on a raw connection.
type Sock struct {
	Conn net.Conn
	br   *bufio.Reader
	// Client is true where we are the client, so that the other side must not
	// mask; false where it must.
	Client bool
	// Pings counts ping frames received.
	Pings int
}

func newServerSock(conn net.Conn) *Sock {
	return &Sock{Conn: conn, br: bufio.NewReaderSize(conn, 64<<10)}
}

// Upgrade describes a client's opening request. Empty members take the correct
// value, "-" leaves the header out.
type Upgrade struct {
	Method, Target, Proto, Host string
	Upgrade, Connection         string
	Version, Key                string
	Extra                       []string
	Tail                        []byte // sent in the same write, after the blank line
}

// Response is the answer to an [Upgrade].
type Response struct {
	Line    string
	Status  string
	Headers []string // "Name: value" lines as received
	Key     string   // key of the request
}

func pick(v, def string) string {
	if v == "" {
		return def
	}
	return v
}

func (u Upgrade) bytes(target, host string) ([]byte, string) {
	key := u.Key
	if key == "" {
		var nonce [16]byte
		if _, err := rand.Read(nonce[:]); err != nil {
			panic("bug: crypto/rand failed: " + err.Error())
		}
		key = base64.StdEncoding.EncodeToString(nonce[:])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\r\n", pick(u.Method, "GET"), pick(u.Target, target), pick(u.Proto, "HTTP/1.1"))
	header := func(name, value string) {
		if value != "-" {
			fmt.Fprintf(&b, "%s: %s\r\n", name, value)
		}
	}
	header("Host", pick(u.Host, host))
	header("Upgrade", pick(u.Upgrade, "websocket"))
	header("Connection", pick(u.Connection, "Upgrade"))
	header("Sec-WebSocket-Version", pick(u.Version, "13"))
	header("Sec-WebSocket-Key", key)
	for _, line := range u.Extra {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n")
	return append([]byte(b.String()), u.Tail...), key
}

// AcceptKey is the answer to a Sec-WebSocket-Key (RFC 6455, 4.2.2).
func AcceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // fixed by RFC 6455.
	return base64.StdEncoding.EncodeToString(sum[:])
}

// DialRaw connects to the host of a ws:// URL, sends the opening request and
// reads the head of the answer, whatever it says.
func DialRaw(rawURL string, u Upgrade) (*Sock, *Response, error) {
	parsed, err := url.Parse(rawURL)
	if err != nil {
		return nil, nil, err
	}
	conn, err := net.DialTimeout("tcp", parsed.Host, IOTimeout)
	if err != nil {
		return nil, nil, err
	}
	s := &Sock{Conn: conn, br: bufio.NewReaderSize(conn, 64<<10), Client: true}
	request, key := u.bytes(parsed.RequestURI(), parsed.Host)
	if err := s.WriteBytes(request); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	resp, err := s.readHead()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("opening answer: %w", err), conn.Close())
	}
	resp.Key = key
	return s, resp, nil
}

func (s *Sock) readHead() (*Response, error) {
	if err := s.Conn.SetReadDeadline(time.Now().Add(IOTimeout)); err != nil {
		return nil, err
	}
	tp := textproto.NewReader(s.br)
	line, err := tp.ReadLine()
	if err != nil {
		return nil, mapNetError(err)
	}
	r := &Response{Line: line}
	if parts := strings.SplitN(line, " ", 3); len(parts) >= 2 {
		r.Status = parts[1]
	}
	for {
		h, err := tp.ReadLine()
		if err != nil {
			return nil, mapNetError(err)
		}
		if h == "" {
			return r, nil
		}
		r.Headers = append(r.Headers, h)
	}
}

// Header returns the values of a header.
func (r *Response) Header(name string) []string {
	var out []string
	for _, h := range r.Headers {
		if n, v, ok := strings.Cut(h, ":"); ok && strings.EqualFold(strings.TrimSpace(n), name) {
			out = append(out, strings.TrimSpace(v))
		}
	}
	return out
}

// CheckSwitch checks that the answer is a 101 with exactly the three headers of
// 1.1 and the right accept key.
func (r *Response) CheckSwitch() error {
	if r.Status != "101" || !strings.HasPrefix(r.Line, "HTTP/1.1 101 ") {
		return violationf("opening answer is %q", r.Line)
	}
	if len(r.Headers) != 3 {
		return violationf("101 carries %d headers: %q", len(r.Headers), r.Headers)
	}
	want := map[string]string{"Upgrade": "websocket", "Connection": "upgrade", "Sec-WebSocket-Accept": AcceptKey(r.Key)}
	for name, value := range want {
		got := r.Header(name)
		if len(got) != 1 || (name == "Sec-WebSocket-Accept" && got[0] != value) || !strings.EqualFold(got[0], value) {
			return violationf("101 header %s is %q, expected %q", name, got, value)
		}
	}
	return nil
}

func mapNetError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ErrClosed
	}
	return err
}

// WriteBytes writes raw bytes to the connection.
func (s *Sock) WriteBytes(b []byte) error {
	if err := s.Conn.SetWriteDeadline(time.Now().Add(IOTimeout)); err != nil {
		return mapNetError(err)
	}
	_, err := s.Conn.Write(b)
	return mapNetError(err)
}

// WriteFrames writes frames in one go.
func (s *Sock) WriteFrames(frames ...Frame) error {
	var b []byte
	for _, f := range frames {
		b = append(b, f.Encode()...)
	}
	return s.WriteBytes(b)
}

// WriteText writes a correct text frame.
func (s *Sock) WriteText(text []byte) error { return s.WriteFrames(Text(text, s.Client)) }

// ReadFrame reads the next frame of any kind. A frame that a correct peer of
// this protocol never sends is a [Violation]: fragments, reserved bits, wrong
// masking, binary and, from either side, a close frame.
func (s *Sock) ReadFrame(wait time.Duration) (Frame, error) {
	// Only the first byte may take long: a deadline inside a frame would lose it.
	if err := s.Conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return Frame{}, mapNetError(err)
	}
	if _, err := s.br.Peek(1); err != nil {
		return Frame{}, mapNetError(err)
	}
	if err := s.Conn.SetReadDeadline(time.Now().Add(IOTimeout)); err != nil {
		return Frame{}, mapNetError(err)
	}
	var head [2]byte
	if _, err := io.ReadFull(s.br, head[:]); err != nil {
		return Frame{}, mapNetError(err)
	}
	f := Frame{Fin: head[0]&0x80 != 0, Rsv: head[0] >> 4 & 7, Opcode: head[0] & 15, Masked: head[1]&0x80 != 0}
	n := uint64(head[1] & 127)
	if n >= 126 {
		size := 2
		if n == 127 {
			size = 8
		}
		var ext [8]byte
		if _, err := io.ReadFull(s.br, ext[8-size:]); err != nil {
			return Frame{}, mapNetError(err)
		}
		n = binary.BigEndian.Uint64(ext[:])
	}
	if n > 4*MaxFrame {
		return Frame{}, violationf("frame of %d bytes", n)
	}
	var key [4]byte
	if f.Masked {
		if _, err := io.ReadFull(s.br, key[:]); err != nil {
			return Frame{}, mapNetError(err)
		}
	}
	f.Payload = make([]byte, n)
	if _, err := io.ReadFull(s.br, f.Payload); err != nil {
		return Frame{}, mapNetError(err)
	}
	if f.Masked {
		for i := range f.Payload {
			f.Payload[i] ^= key[i&3]
		}
	}
	switch {
	case f.Opcode == OpClose:
		return f, violationf("a close frame was sent (payload %x)", f.Payload)
	case !f.Fin || f.Rsv != 0:
		return f, violationf("fragment or reserved bits: fin %v rsv %d", f.Fin, f.Rsv)
	case f.Masked == s.Client:
		return f, violationf("masking is wrong for this direction: masked %v", f.Masked)
	case f.Opcode != OpText && f.Opcode != OpPing && f.Opcode != OpPong:
		return f, violationf("opcode %d", f.Opcode)
	}
	return f, nil
}

// ReadText reads the next text frame; pings are counted and answered.
func (s *Sock) ReadText(wait time.Duration) ([]byte, error) {
	end := time.Now().Add(wait)
	for {
		f, err := s.ReadFrame(time.Until(end))
		if err != nil {
			return nil, err
		}
		switch f.Opcode {
		case OpText:
			return f.Payload, nil
		case OpPing:
			s.Pings++
			if err := s.WriteFrames(Frame{Fin: true, Opcode: OpPong, Masked: s.Client, Payload: f.Payload}); err != nil {
				return nil, err
			}
		}
	}
}

// ExpectClose waits until the other side destroys the connection. Text frames
// that come before are handed to seen, which may be nil when none is expected.
func (s *Sock) ExpectClose(wait time.Duration, seen func(text []byte) error) error {
	end := time.Now().Add(wait)
	for {
		f, err := s.ReadFrame(time.Until(end))
		switch {
		case errors.Is(err, ErrClosed):
			return nil
		case errors.Is(err, ErrTimeout):
			return errors.New("the connection was not closed")
		case err != nil:
			return err
		case f.Opcode != OpText:
		case seen == nil:
			return violationf("a frame came instead of the end of the connection: %.300s", f.Payload)
		default:
			if err := seen(f.Payload); err != nil {
				return err
			}
		}
	}
}

// ExpectSilence checks that nothing comes for a while and the connection stays.
func (s *Sock) ExpectSilence(d time.Duration) error {
	f, err := s.ReadFrame(d)
	if errors.Is(err, ErrTimeout) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("expected silence: %w", err)
	}
	return violationf("expected silence, got a frame: %.300s", f.Payload)
}

// Drain reads whatever comes up to the end of the connection.
func (s *Sock) Drain(wait time.Duration) ([]byte, error) {
	if err := s.Conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, mapNetError(err)
	}
	b, err := io.ReadAll(io.LimitReader(s.br, 4*MaxFrame))
	if err = mapNetError(err); errors.Is(err, ErrClosed) {
		err = nil
	}
	return b, err
}

// CloseWrite half-closes the connection.
func (s *Sock) CloseWrite() error {
	tcp, ok := s.Conn.(*net.TCPConn)
	if !ok {
		panic("bug: not a TCP connection")
	}
	return tcp.CloseWrite()
}

// Close destroys the connection without a close frame.
func (s *Sock) Close() error {
	err := s.Conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
