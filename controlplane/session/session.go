package session

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"bowline/controlplane/authority"
	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// ToolHandler answers a host tool call. It must be idempotent per run and call.
// An error becomes the bridge's failure towards the agent. When ctx ends the
// outcome is unknown and nothing is journaled.
type ToolHandler func(ctx context.Context, call authority.ToolCall) (result canonjson.Value, err error)

// Config of a session.
type Config struct {
	Store store.Store
	// Options of the state machine; Tools is set by the session itself.
	Options authority.Options
	// Now is the clock; nil = time.Now.
	Now func() time.Time
	// Metrics may be nil.
	Metrics *Metrics
	// Log may be nil.
	Log *slog.Logger
	// OnCommitted, if set, is called for every event before it is committed
	// (prp.md 10.2 step 10), again for each redelivery. An error closes the
	// connection without an acknowledgement; a *prp.IntegrityFault as such is
	// latched. With it, events are committed one by one.
	OnCommitted func(ctx context.Context, ev *prp.Event) error
	// Tools, if set, answers host tool calls.
	Tools ToolHandler
	// OnFault, if set, is called once when a fault is latched.
	OnFault func(fault *prp.IntegrityFault)
	// OnRunEnded and OnClosed, if set, are called after the commit that ended
	// the run, and after the one that ended the close sequence, from a
	// goroutine that holds no lock.
	OnRunEnded func(run store.RunRow)
	OnClosed   func(runID string)
	// HandshakeTimeout bounds the time to authenticate: 0 = the constant of that
	// name, negative = no timer, as line M (prp.md 3.8).
	HandshakeTimeout time.Duration
}

// HandshakeTimeout is how long a connection may take to authenticate
// (architecture, limits).
const HandshakeTimeout = 5 * time.Second

// Session is one live session. Make it with [Open].
type Session struct {
	id  string
	cfg Config

	ctx    context.Context // ends with Close: tool handlers, timers
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex
	machine    *authority.Machine
	conns      map[*conn]struct{}
	byLink     map[*authority.Link]*conn
	changed    chan struct{} // closed and replaced when the log or the run changes
	closedDown chan struct{} // closed with the close sequence's end or Close
	downOnce   sync.Once
	dead       error // set: nothing works any more
	closing    bool
	tools      int // calls handed out since Open
	faults     int // faults told since Open
	rearm      chan struct{}
}

// Open takes a stored session over: it raises the generation, so that an
// earlier owner is fenced, and loads the machine. Errors: those of the store.
func Open(ctx context.Context, cfg Config, id string) (*Session, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.HandshakeTimeout == 0 {
		cfg.HandshakeTimeout = HandshakeTimeout
	}
	cfg.Options.Tools = cfg.Tools != nil
	if err := cfg.Store.Commit(ctx, &store.Tx{BumpGeneration: id}); err != nil {
		return nil, err
	}
	m, err := load(ctx, cfg, id)
	if err != nil {
		return nil, err
	}
	s := &Session{
		id: id, cfg: cfg, machine: m,
		conns: make(map[*conn]struct{}), byLink: make(map[*authority.Link]*conn),
		changed: make(chan struct{}), closedDown: make(chan struct{}), rearm: make(chan struct{}, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if b := m.Brief(); b.Phase == authority.PhaseClosed {
		s.down()
	}
	if cfg.Metrics != nil {
		cfg.Metrics.add(s)
	}
	s.wg.Go(s.deadlines)
	return s, nil
}

// ID of the session.
func (s *Session) ID() string { return s.id }

// enter locks the session for one input; the caller calls leave or s.mu.Unlock.
func (s *Session) enter() error {
	s.mu.Lock()
	if s.dead != nil || s.closing {
		err := s.dead
		s.mu.Unlock()
		if err == nil {
			err = wire.Errorf(wire.CodeUnavailable, "session %s is closed", s.id)
		}
		return err
	}
	return nil
}

// Queue journals a command; with Deliver the first pending one is sent. It
// returns the id the command has.
func (s *Session) Queue(ctx context.Context, c authority.Command) (string, error) {
	if err := s.enter(); err != nil {
		return "", err
	}
	defer s.mu.Unlock()
	row, err := s.machine.Queue(s.cfg.Now(), c)
	if err != nil {
		return "", errors.Join(err, s.flush(ctx))
	}
	return row.CommandID, s.flush(ctx)
}

// IssueTicket makes a one-use ticket; its text exists nowhere else. ttl: 1 s to
// 60 s.
func (s *Session) IssueTicket(ctx context.Context, ttl time.Duration) (string, error) {
	if err := s.enter(); err != nil {
		return "", err
	}
	defer s.mu.Unlock()
	ticket, err := s.machine.IssueTicket(s.cfg.Now(), ttl)
	if err != nil {
		return "", err
	}
	if err := s.flush(ctx); err != nil {
		return "", err
	}
	return ticket, nil
}

// Apply takes an input of the run's life: [authority.Cancel] and the others.
func (s *Session) Apply(ctx context.Context, in authority.Input) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.machine.Apply(s.cfg.Now(), in); err != nil {
		return err
	}
	return s.flush(ctx)
}

// Snapshot is the durable state with commands and retained events. Read only.
func (s *Session) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot(s.machine.Snapshot())
}

// Brief is [Session.Snapshot] without commands, events and settledness.
func (s *Session) Brief() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot(s.machine.Brief())
}

// Snapshot is the machine's, and what only the live session knows.
type Snapshot struct {
	authority.Snapshot
	Connected   bool // a runner is authenticated
	Connections int  // authenticated connections, 0 or 1
	Faults      int  // faults told since Open
	Tools       int  // tool calls handed out since Open
}

func (s *Session) snapshot(a authority.Snapshot) Snapshot {
	return Snapshot{
		Snapshot: a, Connected: s.machine.Connected(), Connections: s.machine.Links(),
		Faults: s.faults, Tools: s.tools,
	}
}

// Changed gives a channel that is closed with the next commit that adds to the
// host log or changes the run. Ask for it before looking.
func (s *Session) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Done is closed when the close sequence is over (or the session was closed or
// died): no runner is expected any more.
func (s *Session) Done() <-chan struct{} { return s.closedDown }

// Err is what made the session unusable, nil while it works.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// Close closes every connection and waits for what the session started: tool
// handlers get their context cancelled. The stored session is not touched.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		s.cancel()
		s.abortAll("the session is closed")
		s.broadcast()
		if s.cfg.Metrics != nil {
			s.cfg.Metrics.remove(s)
		}
	}
	s.mu.Unlock()
	s.down()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return wire.Errorf(wire.CodeUnavailable, "session %s: something it started is still running", s.id)
	}
}

func (s *Session) down() { s.downOnce.Do(func() { close(s.closedDown) }) }

func (s *Session) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}
