package session

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"bowline/controlplane/authority"
	cryptoprp "bowline/crypto/prp"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

// linger is how long the socket of a connection that broke the profile is still
// read: frames that came in the same piece as the bad one are handled (prp.md
// 1.6). Small, because what is sent after the close has no such right.
const linger = 2 * time.Millisecond

// writeTimeout bounds the writing of what was queued together, at most
// egressBytes, to a runner that hardly reads.
const writeTimeout = 30 * time.Second

// conn is one connection of a runner.
type conn struct {
	s       *Session
	carrier carrier.Conn
	in      *ingress
	out     *egress
	greeted chan struct{} // closed when it has authenticated
	// authenticated is called once; may be nil.
	authenticated func()
	// cut: frames read from now on are dropped. What was read before is still
	// handled.
	cut atomic.Bool

	// Under s.mu.
	admission *authority.Admission
	handshake *cryptoprp.ServerHandshake
	link      *authority.Link
	channel   *prp.Channel // set once, before the first sealed message is queued
	closing   bool         // a close was decided: handled, not answered
	aborted   bool         // its machine is gone: not even handled
}

// Serve runs one runner connection until it ends and closes it. It returns nil
// when the connection ended, whoever ended it, and an error only when the
// session itself is unusable. ctx ends the connection at once.
func (s *Session) Serve(ctx context.Context, wsConn carrier.Conn) error {
	return s.ServeNotify(ctx, wsConn, nil)
}

// ServeNotify is [Session.Serve]; authenticated, if not nil, is called once
// when the connection has authenticated. It must not block or call the session.
func (s *Session) ServeNotify(ctx context.Context, wsConn carrier.Conn, authenticated func()) error {
	c := &conn{s: s, carrier: wsConn, in: newIngress(), out: newEgress(), greeted: make(chan struct{}), authenticated: authenticated}
	if err := s.enter(); err != nil {
		// The caller learns why; that the socket was gone already says nothing.
		if closeErr := wsConn.Close(); closeErr != nil {
			s.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "close failed", slog.Any("error", closeErr))
		}
		return err
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.read(ctx) })
	wg.Go(func() { c.write(ctx) })
	stop := context.AfterFunc(ctx, func() { c.out.abort() })
	wg.Go(func() { c.watchHandshake(ctx) })

	for batch := c.in.take(); batch != nil; batch = c.in.take() {
		c.handle(ctx, batch)
		c.out.waitLow()
	}

	stop()
	cancel()
	c.out.abort()
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if c.link != nil {
		s.machine.Detach(c.link)
		delete(s.byLink, c.link)
	}
	return s.dead
}

func (c *conn) read(ctx context.Context) {
	defer c.in.end()
	for {
		frame, err := c.carrier.ReadMessage(ctx)
		if err != nil {
			if wire.CodeOf(err) == wire.CodeProtocol {
				c.log(ctx, "read", err)
			}
			c.out.abort()
			return
		}
		if c.cut.Load() {
			return
		}
		if !c.in.push(ctx, bytes.Clone(frame)) {
			return
		}
	}
}

// write sends what is queued and closes the socket at the end.
func (c *conn) write(ctx context.Context) {
	defer func() {
		if err := c.carrier.Close(); err != nil {
			c.log(ctx, "close", err)
		}
	}()
	var sealed []byte
	for {
		messages, end, aborted := c.out.take()
		if !c.writeAll(ctx, messages, &sealed) || aborted {
			return
		}
		if end {
			if c.cut.Load() {
				return
			}
			timer := time.NewTimer(linger)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			return
		}
	}
}

// writeAll seals and writes messages, all within one time limit. False: the
// connection is of no use any more.
func (c *conn) writeAll(ctx context.Context, messages []outgoing, sealed *[]byte) bool {
	if len(messages) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for _, m := range messages {
		text := m.text
		if m.seal {
			var err error
			if *sealed, err = c.channel.Seal((*sealed)[:0], m.text); err != nil {
				c.log(ctx, "send", err)
				return false
			}
			text = *sealed
		}
		if err := c.carrier.WriteMessage(ctx, text); err != nil {
			c.out.abort()
			return false
		}
		c.out.wrote(len(m.text))
	}
	return true
}

// finish decides the close: what is queued still goes out, what has arrived is
// still handled, nothing more is answered. cut ends the reading at once. The
// caller holds s.mu.
func (c *conn) finish(reason string, cut bool) {
	if cut {
		c.cut.Store(true)
	}
	if c.closing {
		return
	}
	c.closing = true
	c.log(c.s.ctx, "handle", wire.Errorf(wire.CodeProtocol, "%s", reason))
	if c.link != nil {
		c.s.machine.Detach(c.link)
	}
	c.out.finish()
}

// abort ends the connection at once. The caller holds s.mu.
func (c *conn) abort(string) {
	c.closing, c.aborted = true, true
	c.out.abort()
}

// watchHandshake closes a connection that takes too long to authenticate.
func (c *conn) watchHandshake(ctx context.Context) {
	if c.s.cfg.HandshakeTimeout < 0 {
		return
	}
	timer := time.NewTimer(c.s.cfg.HandshakeTimeout)
	defer timer.Stop()
	select {
	case <-c.greeted:
	case <-ctx.Done():
	case <-timer.C:
		c.timedOut(ctx)
	}
}

func (c *conn) timedOut(ctx context.Context) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.link != nil || c.closing {
		return
	}
	c.s.machine.Refused(c.s.cfg.Now(), authority.RefusedTimeout)
	if err := c.s.flush(ctx); err != nil {
		return // every connection was closed with it
	}
	c.finish("not authenticated in time", true)
}

func (c *conn) log(ctx context.Context, step string, err error) {
	// The texts are ours and name members and steps, never what a peer sent.
	c.s.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "runner connection ends", slog.String("step", step), slog.String("session", c.s.id),
		slog.String("remote", c.carrier.RemoteAddr()), slog.Any("error", err))
}

// handle takes frames in order and commits them together.
func (c *conn) handle(ctx context.Context, batch [][]byte) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, frame := range batch {
		if c.aborted || s.dead != nil {
			return
		}
		if err := c.frame(ctx, frame); err != nil {
			// What was staged before stands and is told; the close comes after it.
			if s.flush(ctx) != nil {
				return
			}
			c.finish(err.Error(), false)
		}
	}
	if c.aborted || s.dead != nil {
		return
	}
	// A failed flush has closed every connection, this one too.
	if err := s.flush(ctx); err != nil {
		return
	}
}

// frame takes one frame. An error closes the connection.
func (c *conn) frame(ctx context.Context, frame []byte) error {
	if c.link == nil {
		return c.greet(ctx, frame)
	}
	plain, err := c.channel.Open(frame)
	if err != nil {
		if _, bad := canonjson.Parse(frame); bad != nil {
			return err // not JSON: the carrier's affair, and not counted (1.6)
		}
		c.s.machine.Malformed()
		return err
	}
	whole, err := canonjson.Parse(plain)
	if err != nil {
		c.s.machine.Malformed()
		return wire.Errorf(wire.CodeProtocol, "plaintext is not JSON")
	}
	e, err := prp.EnvelopeOf(whole)
	if err != nil {
		return err
	}
	if e.Kind == prp.KindEvent && c.s.cfg.OnCommitted != nil {
		return c.hooked(ctx, e, bytes.Clone(plain))
	}
	return c.s.machine.Message(c.s.cfg.Now(), c.link, e, plain)
}

// hooked admits an event around the commit hook, which runs without the lock:
// another connection may come, and fault or cursor may change meanwhile.
func (c *conn) hooked(ctx context.Context, e prp.Envelope, plain []byte) error {
	s := c.s
	ev, err := s.machine.ProbeEvent(s.cfg.Now(), c.link, e)
	if err != nil {
		return err
	}
	if err := s.flush(ctx); err != nil {
		return err
	}
	s.mu.Unlock()
	err = s.cfg.OnCommitted(s.ctx, &ev)
	s.mu.Lock()
	switch {
	case c.aborted || s.dead != nil:
		return wire.Errorf(wire.CodeUnavailable, "the session was closed during the commit hook")
	case err != nil:
		// Recognised by its type, and only as such: an error that merely wraps
		// or resembles one is not a fault (prp.md 10.1).
		if fault, ok := err.(*prp.IntegrityFault); ok { //nolint:errorlint // see above
			s.machine.Latch(s.cfg.Now(), fault)
		}
		return wire.Errorf(wire.CodeProtocol, "the commit hook refused the event")
	}
	return s.machine.Message(s.cfg.Now(), c.link, e, plain)
}
