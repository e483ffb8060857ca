package carrier

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
)

// gate stands between the WebSocket library and the socket. It reads along in
// both directions and does the two things the library has no setting for: no
// close frame goes out, and nothing comes in that the profile does not allow
// (binary, fragments, extensions, a frame longer than the limit, a close).
// Either destroys the socket.
type gate struct {
	net.Conn
	out, in follower // out is used by writers one at a time, in by the reader
	held    []byte   // with out: start of a frame's head that was not sent yet

	mu        sync.Mutex
	why       error
	closeOnce sync.Once
	closeErr  error
}

func newGate(conn net.Conn, maxFrame int) *gate {
	g := &gate{Conn: conn}
	g.out.check = func(f frameHead) error {
		if f.opcode == opClose {
			return errCloseSwallowed
		}
		return nil
	}
	g.in.check = func(f frameHead) error {
		switch {
		case f.opcode == opClose:
			return unavailable("peer sent a close frame", nil)
		case f.opcode == opBinary:
			return violation("message is binary")
		case f.opcode == opContinuation, !f.fin:
			return violation("message is fragmented")
		case f.rsv:
			return violation("frame uses an extension")
		case f.masked:
			return violation("frame from the authority is masked")
		case f.length > uint64(maxFrame): //nolint:gosec // maxFrame is positive
			return violation("frame is longer than %d bytes", maxFrame)
		}
		return nil
	}
	return g
}

var errCloseSwallowed = errors.New("carrier: the library wanted to send a close frame; the socket is closed instead")

func (g *gate) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	// What came before the offending frame is still good and is handed on; the
	// frame itself is not.
	good, bad := g.in.follow(b[:n])
	if bad != nil {
		g.fail(bad)
		if good == 0 {
			return 0, bad
		}
		return good, nil
	}
	return n, err
}

func (g *gate) Write(b []byte) (int, error) {
	good, bad := g.out.follow(b)
	if good > 0 {
		pass := b[:good]
		if len(g.held) > 0 {
			pass = append(g.held, pass...)
			g.held = nil
		}
		if _, err := g.Conn.Write(pass); err != nil {
			return 0, err
		}
	}
	if bad != nil {
		g.fail(bad)
		return 0, bad
	}
	if good < len(b) {
		// The library's buffer cut the head of a frame: its first part waits
		// until it is known not to announce a close.
		g.held = append(g.held, b[good:]...)
	}
	return len(b), nil
}

func (g *gate) fail(why error) {
	g.mu.Lock()
	if g.why == nil && !errors.Is(why, errCloseSwallowed) {
		g.why = why
	}
	g.mu.Unlock()
	// The reader or writer reports why; that closing failed too says nothing.
	_ = g.Close() //nolint:errcheck // see above
}

func (g *gate) reason() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

func (g *gate) Close() error {
	g.closeOnce.Do(func() { g.closeErr = g.Conn.Close() })
	return g.closeErr
}

// frameHead is what a [follower] sees of a frame.
type frameHead struct {
	opcode byte
	fin    bool
	rsv    bool
	masked bool
	length uint64
}

// follower finds the frames in one direction of a WebSocket, which begins with
// an HTTP head. It never needs more than the bytes of one frame's head.
type follower struct {
	check    func(frameHead) error
	inFrames bool
	crlf     int    // how much of the empty line was seen
	head     []byte // of the frame whose head is being read
	body     uint64 // bytes left of the frame being passed
	err      error
}

// endOfHead ends an HTTP head.
const endOfHead = "\r\n\r\n"

// follow takes the next bytes and gives how many of them may pass: all but the
// start of a frame whose head is not complete yet, or those before a frame that
// check refuses.
func (f *follower) follow(b []byte) (good int, err error) {
	if f.err != nil {
		return 0, f.err
	}
	i := 0
	for ; i < len(b) && !f.inFrames; i++ {
		switch b[i] {
		case endOfHead[f.crlf]:
			f.crlf++
		case '\r':
			f.crlf = 1
		default:
			f.crlf = 0
		}
		f.inFrames = f.crlf == len(endOfHead)
	}
	headAt := 0 // where the head being read began; 0 also for an earlier call
	for i < len(b) {
		if f.body > 0 {
			n := min(f.body, uint64(len(b)-i))
			f.body -= n
			i += int(n) //nolint:gosec // at most len(b)
			continue
		}
		if len(f.head) == 0 {
			headAt = i
		}
		f.head = append(f.head, b[i])
		i++
		if len(f.head) < headSize(f.head) {
			continue
		}
		h := parseHead(f.head)
		f.head = f.head[:0]
		if f.err = f.check(h); f.err != nil {
			return headAt, f.err
		}
		f.body = h.length
	}
	if len(f.head) > 0 {
		return headAt, nil
	}
	return len(b), nil
}

// headSize is how long a frame's head is, as far as its first bytes tell.
func headSize(head []byte) int {
	if len(head) < 2 {
		return 2
	}
	size := 2
	switch head[1] & 0x7F {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	if head[1]&maskBit != 0 {
		size += 4
	}
	return size
}

func parseHead(head []byte) frameHead {
	h := frameHead{
		opcode: head[0] & 0x0F, fin: head[0]&finBit != 0, rsv: head[0]&0x70 != 0,
		masked: head[1]&maskBit != 0, length: uint64(head[1] & 0x7F),
	}
	switch h.length {
	case 126:
		h.length = uint64(binary.BigEndian.Uint16(head[2:]))
	case 127:
		h.length = binary.BigEndian.Uint64(head[2:])
	}
	return h
}
