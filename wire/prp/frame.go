package prp

import (
	"math"
	"slices"
	"strconv"

	cryptoprp "bowline/crypto/prp"
	"bowline/wire/canonjson"
)

// FrameSchema names the JSON object a ciphertext travels in (prp.md 4.5).
const FrameSchema = "paperclip.runner.secure-frame.v1"

// Role says which end of the connection a [Channel] is.
type Role uint8

// The two ends.
const (
	RoleAuthority Role = iota + 1
	RoleRunner
)

// What our own frames look like; a frame spelled like that is read without a
// JSON parser and without allocating. Any other spelling takes the slow way.
const (
	frameHead   = `{"schema":"` + FrameSchema + `","counter":`
	frameMiddle = `,"ciphertext":"`
	frameTail   = `"}`
)

// keepBuffer is the largest receive buffer kept between frames, in bytes: a
// 16 KiB plaintext costs no allocation, and an idle connection stays small.
const keepBuffer = 17 << 10

// frameSpace is how much longer a frame is than the hex of its ciphertext, at
// most: head, middle, tail and the longest counter.
const frameSpace = len(frameHead) + len(frameMiddle) + len(frameTail) + 16

// Channel is one authenticated connection after the handshake: it turns
// plaintext envelopes into frames and back. Sending and receiving are
// independent, so one goroutine may seal while another opens; two must not seal
// at once, nor two open.
type Channel struct {
	session  *cryptoprp.Session
	role     Role
	maxFrame int
	raw      []byte // of the last frame received: its ciphertext, then in place its plaintext
}

// NewChannel takes over a finished handshake. maxFrame bounds plaintexts and
// frames in both directions, in bytes.
func NewChannel(role Role, session *cryptoprp.Session, maxFrame int) *Channel {
	if role != RoleAuthority && role != RoleRunner {
		panic("bug: prp: unknown role")
	}
	return &Channel{session: session, role: role, maxFrame: maxFrame}
}

// SessionID is the public name of the connection's keys.
func (c *Channel) SessionID() string { return c.session.ID }

// SendCounter is the counter of the next frame sent.
func (c *Channel) SendCounter() uint64 { return c.session.Send.Counter() }

// RecvCounter is the counter the next frame received must have.
func (c *Channel) RecvCounter() uint64 { return c.session.Recv.Counter() }

// FrameSize is the size of the frame a plaintext of n bytes becomes, at most.
func FrameSize(n int) int { return frameSpace + 2*(n+cryptoprp.Overhead) }

// Seal appends the frame of a plaintext envelope to dst. It fails, without
// using up a counter, when the frame would be longer than the limit, and with
// [cryptoprp.ErrExhausted].
func (c *Channel) Seal(dst, plaintext []byte) ([]byte, error) {
	if FrameSize(len(plaintext)) > c.maxFrame {
		return dst, violation("frame of %d bytes plaintext exceeds the limit of %d bytes", len(plaintext), c.maxFrame)
	}
	start := len(dst)
	dst = append(dst, frameHead...)
	dst = strconv.AppendUint(dst, c.session.Send.Counter(), 10)
	dst = append(dst, frameMiddle...)
	at, size := len(dst), len(plaintext)+cryptoprp.Overhead
	// The ciphertext goes to the second half of the room for its hex, which is
	// then spelled out from the front: no buffer beside dst.
	dst = slices.Grow(dst, 2*size+len(frameTail))[:at+2*size]
	if _, _, err := c.session.Send.Seal(dst[:at+size], plaintext); err != nil {
		return dst[:start], violation("%v", err)
	}
	spread(dst[at:])
	return append(dst, frameTail...), nil
}

// Open gives the plaintext of a received frame; it is valid until the next
// Open. Every failure is a *wire.Error of code protocol_violation, and the
// connection is to be closed (prp.md 4.8): a frame that is not a secure frame,
// one with another counter, one that does not authenticate.
func (c *Channel) Open(frame []byte) ([]byte, error) {
	if len(frame) > c.maxFrame {
		return nil, violation("frame of %d bytes exceeds the limit of %d bytes", len(frame), c.maxFrame)
	}
	counter, text, ok := splitFrame(frame)
	if !ok || !c.decodeHex(text) {
		// Another spelling, or no frame at all: the parser decides.
		var err error
		if counter, text, err = parseFrame(frame); err != nil {
			return nil, err
		}
		if !c.decodeHex(text) {
			return nil, violation("frame: ciphertext is not an even number of at least %d hex digits", 2*cryptoprp.Overhead)
		}
	}
	plain, err := c.session.Recv.Open(c.raw[:0], counter, c.raw)
	if cap(c.raw) > keepBuffer {
		c.raw = nil // the caller still has the plaintext
	}
	if err != nil {
		return nil, violation("%v", err)
	}
	return plain, nil
}

// splitFrame reads a frame spelled like ours. It does not look at the
// ciphertext: if that is all hex, it holds no quote and no escape, so the
// parser would find the same.
func splitFrame(frame []byte) (counter uint64, text []byte, ok bool) {
	if len(frame) < len(frameHead)+len(frameMiddle)+len(frameTail)+1 || string(frame[:len(frameHead)]) != frameHead {
		return 0, nil, false
	}
	i := len(frameHead)
	for ; i < len(frame) && frame[i] >= '0' && frame[i] <= '9'; i++ {
		if i-len(frameHead) > 15 { // 16 digits hold every safe integer
			return 0, nil, false
		}
		counter = counter*10 + uint64(frame[i]-'0')
	}
	digits := i - len(frameHead)
	if digits == 0 || digits > 1 && frame[len(frameHead)] == '0' || counter > cryptoprp.MaxCounter {
		return 0, nil, false
	}
	rest := frame[i:]
	if len(rest) < len(frameMiddle)+len(frameTail) || string(rest[:len(frameMiddle)]) != frameMiddle ||
		string(rest[len(rest)-len(frameTail):]) != frameTail {
		return 0, nil, false
	}
	return counter, rest[len(frameMiddle) : len(rest)-len(frameTail)], true
}

func parseFrame(frame []byte) (counter uint64, text []byte, err error) {
	v, err := canonjson.Parse(frame)
	if err != nil {
		return 0, nil, violation("frame is not JSON: %v", err)
	}
	if v.Get("schema").Str() != FrameSchema {
		return 0, nil, violation("frame is not a secure frame")
	}
	n, ok := v.Get("counter").AsNumber()
	if !ok || n < 0 || n != math.Trunc(n) || n > canonjson.MaxSafeInteger {
		return 0, nil, violation("frame: counter is not a safe integer")
	}
	s, ok := v.Get("ciphertext").AsString()
	if !ok {
		return 0, nil, violation("frame: ciphertext is not a string")
	}
	return uint64(n), []byte(s), nil
}

// decodeHex fills c.raw, if text is an even number of hex digits that can hold a
// tag. An authority takes lower case only, a runner both (prp.md 4.5).
func (c *Channel) decodeHex(text []byte) bool {
	if len(text)%2 != 0 || len(text) < 2*cryptoprp.Overhead {
		return false
	}
	if cap(c.raw) < len(text)/2 {
		c.raw = make([]byte, len(text)/2)
	}
	c.raw = c.raw[:len(text)/2]
	return decodeHex(c.raw, text, c.role == RoleRunner)
}
