package jsonrpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
)

// QueueLength is how many messages may wait for the writer (ours).
const QueueLength = 64

// Options configures a peer. Handlers are called on the reading goroutine, one
// at a time; a nil handler means: notifications are dropped, requests are
// answered with [CodeMethodNotFound], noise is dropped.
type Options struct {
	// Version writes "jsonrpc":"2.0" into every message.
	Version bool
	// MaxLine overrides [MaxLine], in bytes; 0 is the default.
	MaxLine int
	// OnNotification gets every notification.
	OnNotification func(ctx context.Context, method string, params json.RawMessage)
	// OnRequest gets every request of the other side. It must see to it that
	// the request is answered, now or later.
	OnRequest func(ctx context.Context, req *Request)
	// OnNoise gets what is not a message.
	OnNoise func(Noise)
}

// Peer is one side of a conversation. See the package comment for order,
// concurrency and end.
type Peer struct {
	opts Options
	in   io.Reader
	out  io.WriteCloser
	send chan []byte

	mu      sync.Mutex
	nextID  int64
	pending map[string]func(json.RawMessage, error)
	closed  *ClosedError
	done    chan struct{} // closed with the peer
}

// New makes a peer that reads in and writes out. Nothing happens before
// [Peer.Run].
func New(in io.Reader, out io.WriteCloser, opts Options) *Peer {
	if opts.MaxLine == 0 {
		opts.MaxLine = MaxLine
	}
	return &Peer{
		opts:    opts,
		in:      in,
		out:     out,
		send:    make(chan []byte, QueueLength),
		pending: make(map[string]func(json.RawMessage, error)),
		done:    make(chan struct{}),
	}
}

// Run reads and writes until the stream ends, then closes the writing side,
// fails what is pending and returns nil at a clean end or the reading error.
// The context is handed to the handlers; it does not end a blocked read: end
// the process or close the pipe for that. Run is called once.
func (p *Peer) Run(ctx context.Context) error {
	var writer sync.WaitGroup
	writer.Add(1)
	go func() {
		defer writer.Done()
		p.write()
	}()
	err := p.read(ctx)
	p.close(err)
	// A pipe nobody reads any more may hold the writer: closing frees it.
	// The error says nothing new, the conversation is over.
	_ = p.out.Close()
	writer.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Done is closed when no call can be made any more: the stream has ended or
// writing failed. In the second case Run may still be reading what is left.
func (p *Peer) Done() <-chan struct{} { return p.done }

// CloseWrite closes the writing side: the polite way to end a provider. Later
// writes fail.
func (p *Peer) CloseWrite() error { return p.out.Close() }

// Call sends a request and waits for its answer. An error answer is a
// [*RPCError]; the end of the conversation a [*ClosedError]; a cancelled
// context abandons the call (a late answer is noise). result may be nil.
func (p *Peer) Call(ctx context.Context, method string, params, result any) error {
	answer := make(chan error, 1)
	cancel, err := p.CallThen(ctx, method, params, func(raw json.RawMessage, err error) {
		if err == nil && result != nil {
			err = json.Unmarshal(raw, result)
		}
		answer <- err
	})
	if err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		if cancel() {
			return ctx.Err()
		}
		return <-answer // it is being delivered right now
	}
}

// CallThen sends a request and returns; then is called exactly once, unless
// cancel returned true: with the answer on the reading goroutine, in the order
// of the stream, or with the [*ClosedError] on any goroutine. The context bounds only the wait
// for the writer's queue.
func (p *Peer) CallThen(ctx context.Context, method string, params any, then func(json.RawMessage, error)) (cancel func() bool, err error) {
	p.mu.Lock()
	if p.closed != nil {
		defer p.mu.Unlock()
		return nil, p.closed
	}
	p.nextID++
	id := strconv.FormatInt(p.nextID, 10)
	p.pending[id] = then
	p.mu.Unlock()

	cancel = func() bool { return p.take(id) != nil }
	text, err := encode(p.envelope(envelope{ID: json.RawMessage(id), Method: method, Params: params}))
	if err == nil {
		err = p.queue(ctx, text)
	}
	if err != nil {
		if !cancel() {
			return func() bool { return false }, nil // the end of the stream answered it
		}
		return nil, err
	}
	return cancel, nil
}

// Notify sends a notification.
func (p *Peer) Notify(ctx context.Context, method string, params any) error {
	text, err := encode(p.envelope(envelope{Method: method, Params: params}))
	if err != nil {
		return err
	}
	return p.queue(ctx, text)
}

func (p *Peer) envelope(e envelope) envelope {
	if p.opts.Version {
		e.JSONRPC = "2.0"
	}
	return e
}

func (p *Peer) take(id string) func(json.RawMessage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	then := p.pending[id]
	delete(p.pending, id)
	return then
}

func (p *Peer) queue(ctx context.Context, text []byte) error {
	select {
	case <-p.done:
		return p.reason()
	default:
	}
	select {
	case p.send <- text:
		return nil
	case <-p.done:
		return p.reason()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Peer) reason() *ClosedError {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// write owns the pipe. When it breaks, calls fail at once, but reading goes on:
// the provider may still have something to say.
func (p *Peer) write() {
	for {
		select {
		case <-p.done:
			return
		case text := <-p.send:
			if _, err := p.out.Write(text); err != nil {
				p.close(err)
				return
			}
		}
	}
}

// close ends the conversation for callers; the first reason stays.
func (p *Peer) close(err error) {
	p.mu.Lock()
	if p.closed != nil {
		p.mu.Unlock()
		return
	}
	p.closed = &ClosedError{Err: err}
	failed := p.pending
	p.pending = make(map[string]func(json.RawMessage, error))
	close(p.done)
	p.mu.Unlock()
	for _, then := range failed {
		then(nil, p.closed)
	}
}

func (p *Peer) read(ctx context.Context) error {
	lines := newLineReader(p.in, p.opts.MaxLine)
	for {
		l, err := lines.next()
		if err != nil {
			return err
		}
		if l.skipped {
			p.tooLong(ctx, l)
			continue
		}
		p.handle(ctx, l)
	}
}

func (p *Peer) handle(ctx context.Context, l line) {
	text := trim(l.text)
	if len(text) == 0 {
		return
	}
	m, kind := decode(text)
	if kind != "" {
		if l.partial && kind == NoiseGarbage {
			kind = NoisePartial
		}
		p.noise(kind, l)
		return
	}
	switch {
	case m.Method != nil && !m.hasID():
		if p.opts.OnNotification != nil {
			p.opts.OnNotification(ctx, *m.Method, m.Params)
		}
	case m.Method != nil && validID(m.ID):
		req := &Request{Method: *m.Method, Params: m.Params, id: m.ID, peer: p}
		if p.opts.OnRequest == nil {
			req.refuse(ctx, CodeMethodNotFound, "method not found")
			return
		}
		p.opts.OnRequest(ctx, req)
	case m.Method == nil && validID(m.ID) && (m.Result != nil || m.failure() != nil):
		then := p.take(string(m.ID))
		if then == nil {
			p.noise(NoiseUnmatched, l)
			return
		}
		if failure := m.failure(); failure != nil {
			then(nil, failure)
			return
		}
		then(m.Result, nil)
	default:
		p.noise(NoiseMalformed, l)
	}
}

// tooLong settles what a skipped line would have settled, as far as its
// beginning tells: a call fails, a request is refused.
func (p *Peer) tooLong(ctx context.Context, l line) {
	s := sniff(l.head)
	if p.opts.OnNoise != nil {
		p.opts.OnNoise(Noise{Kind: NoiseTooLong, Size: l.size, SHA256: l.sum, Method: s.method, ID: s.id, Head: l.head})
	}
	switch {
	case s.id == "":
	case s.method != "":
		req := &Request{Method: s.method, id: json.RawMessage(s.id), peer: p}
		req.refuse(ctx, CodeInvalidRequest, "the request is longer than the line limit")
	case s.response:
		if then := p.take(s.id); then != nil {
			then(nil, &TooLongError{Size: l.size})
		}
	}
}

func (p *Peer) noise(kind NoiseKind, l line) {
	if p.opts.OnNoise == nil {
		return
	}
	sum := sha256.Sum256(l.text)
	p.opts.OnNoise(Noise{Kind: kind, Size: l.size, SHA256: hex.EncodeToString(sum[:])})
}

// ErrAnswered is returned by the second answer to a request.
var ErrAnswered = errors.New("jsonrpc: the request is answered already")

// Request is a request of the other side. It is answered once, by Reply or
// ReplyError, from any goroutine.
type Request struct {
	Method string
	Params json.RawMessage

	id       json.RawMessage
	peer     *Peer
	answered atomic.Bool
}

// ID is the other side's id as JSON text: its own space, only good for
// matching what the other side says about this request.
func (r *Request) ID() string { return string(r.id) }

// Reply answers with a result.
func (r *Request) Reply(ctx context.Context, result any) error {
	if result == nil {
		result = json.RawMessage("null")
	}
	return r.answer(ctx, envelope{Result: result})
}

// ReplyError answers with an error.
func (r *Request) ReplyError(ctx context.Context, code int, message string) error {
	return r.answer(ctx, envelope{Error: &RPCError{Code: code, Message: message}})
}

func (r *Request) answer(ctx context.Context, e envelope) error {
	if !r.answered.CompareAndSwap(false, true) {
		return ErrAnswered
	}
	e.ID = r.id
	text, err := encode(r.peer.envelope(e))
	if err != nil {
		return err
	}
	return r.peer.queue(ctx, text)
}

// refuse answers for the peer itself. The only way this fails is the end of
// the conversation, which every call learns anyway.
func (r *Request) refuse(ctx context.Context, code int, message string) {
	_ = r.ReplyError(ctx, code, message)
}
