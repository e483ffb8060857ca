package link

import (
	"context"
	"errors"
	"sync"
	"time"

	"bowline/runnerd/journal"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

// writeTimeout is how long one frame may take to be written (ours): a peer that
// takes nothing for so long is gone.
const writeTimeout = 30 * time.Second

// connection is one authenticated connection.
type connection struct {
	link    *Link
	socket  carrier.Conn
	channel *prp.Channel
	binding prp.Binding
	maxSend int // bytes of a frame the authority takes

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	control chan message // to the writer, first
	events  chan *journal.Entry

	mu      sync.Mutex
	acked   int64         // by this authority
	moved   chan struct{} // closed and replaced when acked grows
	expires int64         // of the lease, Unix ms
	asked   bool          // a lease_renew is outstanding
	renewed chan struct{} // signalled when a lease_renewed came
}

type message struct {
	kind  string
	plain []byte
}

func newConnection(ctx context.Context, l *Link, socket carrier.Conn, channel *prp.Channel, binding prp.Binding, w prp.Welcome) *connection {
	ctx, cancel := context.WithCancelCause(ctx)
	return &connection{
		link: l, socket: socket, channel: channel, binding: binding,
		maxSend: min(w.MaxFrameBytes, l.opt.MaxFrame),
		ctx:     ctx, cancel: cancel,
		control: make(chan message, controlQueue), events: make(chan *journal.Entry),
		acked: w.AckedSourceSeq, moved: make(chan struct{}), expires: w.LeaseExpiresAtUnixMs, renewed: make(chan struct{}, 1),
	}
}

// serve runs a connection until it ends; everything it started has ended then.
func (l *Link) serve(c *connection, w prp.Welcome) error {
	err := l.opt.Core.Welcome(w)
	if err != nil {
		err = fatal{err}
	} else {
		l.setConn(c)
		l.tellLease(w.LeaseExpiresAtUnixMs)
		c.start()
		if w.PendingCommand != nil {
			if derr := l.opt.Core.Deliver(*w.PendingCommand); derr != nil {
				c.cancel(fatal{derr})
			}
		}
		err = c.readLoop()
		l.setConn(nil)
	}
	c.cancel(err)
	cerr := c.socket.Close()
	c.wg.Wait()
	// What the writer, the feeder or the renewal ended it with is the cause;
	// the reader only saw the socket close.
	if cause := context.Cause(c.ctx); cause != nil {
		err = cause
	}
	l.held.ExpiresAtUnixMs, l.held.RenewalOutstanding = c.expires, c.asked
	return errors.Join(err, cerr)
}

func (l *Link) tellLease(unixMs int64) {
	if l.opt.Hooks.Lease != nil {
		l.opt.Hooks.Lease(time.UnixMilli(unixMs))
	}
}

func (c *connection) start() {
	c.wg.Go(c.writeLoop)
	c.wg.Go(c.feed)
	c.wg.Go(c.keepLease)
	// The socket does not know the context: a cancelled connection must not
	// leave its reader behind.
	c.wg.Go(func() {
		<-c.ctx.Done()
		if err := c.socket.Close(); err != nil && c.link.opt.Log != nil {
			c.link.opt.Log.Debug("socket did not close", "err", err)
		}
	})
}

func (c *connection) readLoop() error {
	for {
		frame, err := c.socket.ReadMessage(c.ctx)
		if err != nil {
			return err
		}
		if c.channel.RecvCounter() >= frameLimit {
			return wire.Errorf(wire.CodeUnavailable, "secure channel rekey required")
		}
		size := len(frame)
		plain, err := c.channel.Open(frame)
		if err != nil {
			if c.link.opt.Hooks.DecryptFailure != nil {
				c.link.opt.Hooks.DecryptFailure()
			}
			return err
		}
		if err := c.receive(plain, size); err != nil {
			return err
		}
	}
}

// receive handles one message of the authority.
func (c *connection) receive(plain []byte, size int) error {
	envelope, err := prp.ParseEnvelope(plain)
	if err != nil {
		return err
	}
	control, err := prp.ControlOf(envelope)
	if err != nil {
		return err
	}
	if err := control.Verify(c.binding); err != nil {
		return err
	}
	if c.expired() {
		return wire.Errorf(wire.CodeUnavailable, "the lease has expired")
	}
	if c.link.opt.Hooks.Frame != nil {
		c.link.opt.Hooks.Frame(false, control.Kind, len(plain), size)
	}
	core := c.link.opt.Core
	switch control.Kind {
	case prp.KindCommand:
		cmd, err := prp.CommandOf(control.Payload)
		if err != nil {
			return err
		}
		return asFatal(core.Deliver(cmd))
	case prp.KindAck:
		seq, err := prp.AckOf(control.Payload)
		if err != nil {
			return err
		}
		if err := core.Ack(seq); err != nil {
			return fatal{err}
		}
		c.advance(seq)
		return nil
	case prp.KindCommandResultAck:
		return asFatal(core.ResultAck(control.Payload))
	case prp.KindLeaseRenewed:
		if err := core.Renewed(); err != nil {
			return fatal{err}
		}
		return c.leaseRenewed(control.Payload)
	case prp.KindPing:
		c.send(message{prp.KindPong, prp.AppendRunnerLeaseMessage(nil, prp.KindPong, c.binding, prp.EncodePong(core.Pong()))})
		return nil
	case prp.KindRevoke:
		if _, err := prp.RevokeOf(control.Payload, c.lease()); err != nil {
			return err
		}
		return asFatal(core.Revoked())
	}
	return wire.Errorf(wire.CodeProtocol, "unexpected message of an authority")
}

func asFatal(err error) error {
	if err == nil {
		return nil
	}
	return fatal{err}
}

func (c *connection) advance(seq int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if seq > c.acked {
		c.acked = seq
		close(c.moved)
		c.moved = make(chan struct{})
	}
}

// send queues a control message; a queue that stays full for a whole write
// means a dead peer, so this waits no longer than the writer does.
func (c *connection) send(m message) {
	select {
	case c.control <- m:
	case <-c.ctx.Done():
	}
}

func (c *connection) sendResult(payload []byte) {
	c.send(message{prp.KindCommandResult, prp.AppendRunnerMessage(nil, c.binding.Version, prp.KindCommandResult, c.binding.Identity, payload)})
}

// feed hands the outbox to the writer, at most Window events ahead of the acks.
func (c *connection) feed() {
	c.mu.Lock()
	sent := c.acked
	c.mu.Unlock()
	for {
		list, err := c.link.opt.Core.Next(c.ctx, sent)
		if err != nil {
			if c.ctx.Err() == nil {
				c.cancel(fatal{err})
			}
			return
		}
		for _, e := range list {
			if e.Seq <= sent {
				continue
			}
			if !c.await(e.Seq) {
				return
			}
			select {
			case c.events <- e:
				sent = e.Seq
			case <-c.ctx.Done():
				return
			}
		}
	}
}

// await waits until event seq is within the window; false when the connection
// ended.
func (c *connection) await(seq int64) bool {
	for {
		c.mu.Lock()
		open, moved := seq-c.acked <= Window, c.moved
		c.mu.Unlock()
		if open {
			return true
		}
		select {
		case <-moved:
		case <-c.ctx.Done():
			return false
		}
	}
}

// writeLoop is the only one that seals and writes.
func (c *connection) writeLoop() {
	var frame, plain []byte
	burst := 0
	for {
		m, e := c.pick(&burst)
		switch {
		case e != nil:
			plain = c.eventPlain(plain[:0], e)
			m = message{prp.KindEvent, plain}
			if need := prp.FrameSize(len(plain)); need > c.maxSend {
				c.cancel(fatal{wire.Errorf(wire.CodeTooLarge, "an event needs a frame of %d bytes, the authority takes %d bytes", need, c.maxSend)})
				return
			}
		case m.plain == nil:
			return
		}
		if !c.write(&frame, m) {
			return
		}
	}
}

// pick waits for what goes out next: control messages first, but an event that
// waits has its turn after controlBurst of them. Neither means the end.
func (c *connection) pick(burst *int) (message, *journal.Entry) {
	if *burst < controlBurst {
		select {
		case m := <-c.control:
			*burst++
			return m, nil
		default:
		}
	}
	*burst = 0
	select {
	case e := <-c.events:
		return message{}, e
	default:
	}
	select {
	case m := <-c.control:
		*burst = 1
		return m, nil
	case e := <-c.events:
		return message{}, e
	case <-c.ctx.Done():
		return message{}, nil
	}
}

// write seals and sends one message; false when the connection has ended.
func (c *connection) write(frame *[]byte, m message) bool {
	if c.channel.SendCounter() >= frameLimit {
		c.cancel(wire.Errorf(wire.CodeUnavailable, "secure channel rekey required"))
		return false
	}
	var err error
	if *frame, err = c.channel.Seal((*frame)[:0], m.plain); err == nil {
		ctx, cancel := context.WithTimeout(c.ctx, writeTimeout)
		err = c.socket.WriteMessage(ctx, *frame)
		cancel()
	}
	if err != nil {
		c.cancel(err)
		return false
	}
	if c.link.opt.Hooks.Frame != nil {
		c.link.opt.Hooks.Frame(true, m.kind, len(m.plain), len(*frame))
	}
	return true
}

// eventPlain is the envelope of an event for this connection's version.
func (c *connection) eventPlain(dst []byte, e *journal.Entry) []byte {
	event := e.Event
	if c.binding.Version == prp.VersionMin && prp.IsV2Event(e.Type) {
		v, err := canonjson.Parse(event)
		if err != nil {
			panic("bug: link: an event of the journal is not JSON")
		}
		event = prp.BridgeToV1(v).JSON()
	}
	return prp.AppendRunnerMessage(dst, c.binding.Version, prp.KindEvent, c.binding.Identity, event)
}
