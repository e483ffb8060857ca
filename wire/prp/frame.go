package prp

import (
	"encoding/hex"
	"math"
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
	cipher   []byte // of the last frame sent
	raw      []byte // ciphertext of the last frame received
	plain    []byte // plaintext of the last frame received
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
	var counter uint64
	var err error
	if c.cipher, counter, err = c.session.Send.Seal(c.cipher[:0], plaintext); err != nil {
		return dst, violation("%v", err)
	}
	dst = append(dst, frameHead...)
	dst = strconv.AppendUint(dst, counter, 10)
	dst = append(dst, frameMiddle...)
	dst = hex.AppendEncode(dst, c.cipher)
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
	if !ok {
		var err error
		if counter, text, err = parseFrame(frame); err != nil {
			return nil, err
		}
	}
	if err := c.decodeHex(text); err != nil {
		return nil, err
	}
	plain, err := c.session.Recv.Open(c.plain[:0], counter, c.raw)
	if err != nil {
		return nil, violation("%v", err)
	}
	c.plain = plain
	return plain, nil
}

// splitFrame reads a frame spelled like ours.
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
	text = rest[len(frameMiddle) : len(rest)-len(frameTail)]
	for _, b := range text {
		// Anything that is not a digit of hex could be an escape or the end of
		// the string: the parser decides.
		if hexValue(b) == notHex {
			return 0, nil, false
		}
	}
	return counter, text, true
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

const notHex = 0xFF

func hexValue(b byte) byte {
	switch {
	case b >= '0' && b <= '9':
		return b - '0'
	case b >= 'a' && b <= 'f':
		return b - 'a' + 10
	case b >= 'A' && b <= 'F':
		return b - 'A' + 10
	}
	return notHex
}

// decodeHex fills c.raw. An authority takes lower case only, a runner both
// (prp.md 4.5).
func (c *Channel) decodeHex(text []byte) error {
	if len(text)%2 != 0 || len(text) < 2*cryptoprp.Overhead {
		return violation("frame: ciphertext is not an even number of at least %d hex digits", 2*cryptoprp.Overhead)
	}
	if c.role == RoleAuthority {
		for _, b := range text {
			if b >= 'A' && b <= 'F' {
				return violation("frame: ciphertext is not lower-case hex")
			}
		}
	}
	if cap(c.raw) < len(text)/2 {
		c.raw = make([]byte, len(text)/2)
	}
	c.raw = c.raw[:len(text)/2]
	if _, err := hex.Decode(c.raw, text); err != nil {
		return violation("frame: ciphertext is not hex")
	}
	return nil
}
