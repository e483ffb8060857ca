package carrier

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Opcodes of RFC 6455 section 5.2.
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xA
)

const (
	finBit  = 0x80
	maskBit = 0x80
	// maxPong is the longest ping that is answered (prp.md 1.6); RFC 6455
	// section 5.5 allows no longer control frame.
	maxPong = 125
	// readStep bounds what is allocated ahead of the bytes themselves: the
	// length in a frame's head is only a claim.
	readStep = 64 << 10
	// keepBuffer is the largest buffer kept between messages in either
	// direction, so that an idle connection stays small.
	keepBuffer = 8 << 10
	// pongTimeout bounds how long a pong may wait for a full socket.
	pongTimeout = 5 * time.Second
)

// serverConn is the authority's side: its own frame reader, because prp.md 1.6
// is laxer than RFC 6455 in some places and stricter in others.
type serverConn struct {
	conn     net.Conn
	br       *bufio.Reader
	maxFrame int
	buf      []byte // of the reader

	writeTurn chan struct{} // holds a token while somebody writes
	out       []byte        // of the last small frame; under writeTurn

	closeOnce sync.Once
	closeErr  error
}

func newServerConn(conn net.Conn, br *bufio.Reader, maxFrame int) *serverConn {
	return &serverConn{conn: conn, br: br, maxFrame: maxFrame, writeTurn: make(chan struct{}, 1)}
}

func (c *serverConn) RemoteAddr() string { return c.conn.RemoteAddr().String() }

func (c *serverConn) Close() error {
	c.closeOnce.Do(func() { c.closeErr = c.conn.Close() })
	return c.closeErr
}

// destroy closes after a failure, whose error is the one worth reporting.
func (c *serverConn) destroy(err error) error {
	if closeErr := c.Close(); closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
		return errors.Join(err, closeErr)
	}
	return err
}

func (c *serverConn) ReadMessage(ctx context.Context) ([]byte, error) {
	stop := c.closeWhenDone(ctx)
	message, err := c.readMessage()
	if !stop() {
		return nil, c.destroy(unavailable("read was given up", context.Cause(ctx)))
	}
	if err != nil {
		return nil, c.destroy(err)
	}
	return message, nil
}

// closeWhenDone destroys the connection when ctx ends before stop is called.
// stop reports whether it was in time.
func (c *serverConn) closeWhenDone(ctx context.Context) (stop func() bool) {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, func() {
		// The one who waits reports the error.
		_ = c.Close() //nolint:errcheck // see above
	})
}

// frame is the head of a received frame. FIN and RSV are not in it: they are
// not looked at (prp.md 1.6).
type frame struct {
	opcode byte
	length int
	mask   [4]byte
}

func (c *serverConn) readMessage() ([]byte, error) {
	for {
		f, err := c.readHead()
		if err != nil {
			return nil, err
		}
		switch f.opcode {
		case opText:
			return c.readPayload(f)
		case opPing:
			if err := c.answerPing(f); err != nil {
				return nil, err
			}
		case opPong:
			if err := c.discard(f.length); err != nil {
				return nil, err
			}
		case opClose:
			return nil, unavailable("peer sent a close frame", nil)
		default:
			return nil, violation("frame of opcode %d", f.opcode)
		}
	}
}

func (c *serverConn) readHead() (frame, error) {
	var head [8]byte
	if err := c.readFull(head[:2]); err != nil {
		return frame{}, err
	}
	f := frame{opcode: head[0] & 0x0F}
	if head[1]&maskBit == 0 {
		return frame{}, violation("frame is not masked")
	}
	length := uint64(head[1] & 0x7F)
	switch length {
	case 126:
		if err := c.readFull(head[:2]); err != nil {
			return frame{}, err
		}
		length = uint64(binary.BigEndian.Uint16(head[:2]))
	case 127:
		if err := c.readFull(head[:8]); err != nil {
			return frame{}, err
		}
		length = binary.BigEndian.Uint64(head[:8])
	}
	if length > uint64(c.maxFrame) { //nolint:gosec // maxFrame is positive
		return frame{}, violation("frame is longer than %d bytes", c.maxFrame)
	}
	f.length = int(length)
	return f, c.readFull(f.mask[:])
}

func (c *serverConn) readPayload(f frame) ([]byte, error) {
	buf := c.buf[:0]
	for len(buf) < f.length {
		step := min(f.length-len(buf), readStep)
		from := len(buf)
		buf = append(buf, make([]byte, step)...)
		if err := c.readFull(buf[from:]); err != nil {
			return nil, err
		}
	}
	c.buf = nil
	if cap(buf) <= keepBuffer {
		c.buf = buf
	}
	unmask(buf, f.mask)
	return buf, nil
}

func unmask(b []byte, mask [4]byte) {
	word := uint64(binary.LittleEndian.Uint32(mask[:]))
	word |= word << 32
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^word)
		b = b[8:]
	}
	for i := range b {
		b[i] ^= mask[i%4]
	}
}

func (c *serverConn) answerPing(f frame) error {
	if f.length > maxPong {
		return c.discard(f.length)
	}
	var payload [maxPong]byte
	if err := c.readFull(payload[:f.length]); err != nil {
		return err
	}
	unmask(payload[:f.length], f.mask)
	ctx, cancel := context.WithTimeout(context.Background(), pongTimeout)
	defer cancel()
	return c.write(ctx, opPong, payload[:f.length])
}

func (c *serverConn) discard(n int) error {
	if _, err := c.br.Discard(n); err != nil {
		return readError(err)
	}
	return nil
}

func (c *serverConn) readFull(b []byte) error {
	if _, err := io.ReadFull(c.br, b); err != nil {
		return readError(err)
	}
	return nil
}

// readError: the end of the stream is a close, whether the peer closed both
// directions or only its own (prp.md 1.6).
func readError(err error) error {
	if errors.Is(err, io.EOF) {
		return unavailable("peer closed the connection", nil)
	}
	return unavailable("read failed", err)
}

func (c *serverConn) WriteMessage(ctx context.Context, message []byte) error {
	return c.write(ctx, opText, message)
}

func (c *serverConn) write(ctx context.Context, opcode byte, payload []byte) error {
	select {
	case c.writeTurn <- struct{}{}:
	case <-ctx.Done():
		return unavailable("write was given up before it began", context.Cause(ctx))
	}
	defer func() { <-c.writeTurn }()
	if ctx.Err() != nil {
		return unavailable("write was given up before it began", context.Cause(ctx))
	}
	deadline, _ := ctx.Deadline() // none is the zero time, which lifts the last one
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return c.destroy(unavailable("write failed", err))
	}
	stop := c.closeWhenDone(ctx)
	err := c.writeFrame(opcode, payload)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return c.destroy(unavailable("write failed", err))
	}
	return nil
}

// writeFrame copies small frames into one write (one packet, one TLS record)
// and leaves large ones where they are.
func (c *serverConn) writeFrame(opcode byte, payload []byte) error {
	c.out = appendHead(c.out[:0], opcode, len(payload))
	if len(payload) <= keepBuffer {
		c.out = append(c.out, payload...)
		_, err := c.conn.Write(c.out)
		return err
	}
	buffers := net.Buffers{c.out, payload}
	_, err := buffers.WriteTo(c.conn)
	return err
}

func appendHead(dst []byte, opcode byte, length int) []byte {
	dst = append(dst, finBit|opcode)
	switch {
	case length < 126:
		return append(dst, byte(length))
	case length <= 0xFFFF:
		return binary.BigEndian.AppendUint16(append(dst, 126), uint16(length))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 127), uint64(length))
	}
}
