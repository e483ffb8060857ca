package runs

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"bowline/controlplane/authority"
	"bowline/controlplane/launch"
	"bowline/controlplane/session"
	"bowline/controlplane/store"
	"bowline/wire"
)

// Times (ours unless named).
const (
	// LeaseTTL of a runner's connection lease (issue 2).
	LeaseTTL = time.Hour
	// TicketTTL is the longest lifetime of a ticket, and the default (prp.md
	// 2.2: the live transport always uses it).
	TicketTTL = 60 * time.Second
	// MinTicketTTL is the shortest (prp.md 2.2).
	MinTicketTTL = time.Second
	// JoinWithin is how long an attached run waits for its first runner.
	JoinWithin = 10 * time.Minute
	// leaseGrace is how long after the end of its lease, and after the start
	// of this server, a runner may still come back with a fresh ticket.
	leaseGrace = 2 * time.Minute
	// reapEvery is how often the reaper looks at live runs; every takeEvery
	// times it looks into the store as well.
	reapEvery = time.Second
	takeEvery = 5
	// closeLinger is how long a session stays after its close sequence: its
	// runner may still be reading the last acknowledgement.
	closeLinger = 2 * time.Second
	maxLingers  = 30
	// idempotencyWindow is how long a key is remembered (host-api.md).
	idempotencyWindow = 24 * time.Hour
)

// Reasons of orphaned runs that the reaper gives.
const (
	ReasonNeverJoined  = "never_joined"
	ReasonLeaseExpired = "lease_expired"
)

// Driver is a driver name that runs may use.
type Driver struct {
	Kind    string            // command, codex, scripted
	Command []string          // nil = the kind's own default
	Env     map[string]string // handed to the provider; values are secrets
}

// Launcher starts runners on this machine.
type Launcher struct {
	// Path of our runnerd; "" = this binary with argv[0] runnerd.
	Path string
	// Version and Digest of that executable.
	Version, Digest string
	// Environ that runners inherit from, "NAME=value".
	Environ []string
	// ConnectURL is where the runner of a run dials.
	ConnectURL func(runID string) string
	// Folder holds the runner's state and log of a run.
	Folder func(runID string) string
	// CABundle for wss; "" = the system's roots.
	CABundle string
}

// Config of a [Manager].
type Config struct {
	Store   store.Store
	Drivers map[string]Driver // by name; the kinds' own names need not be listed
	// AllowEnv are names of the server's environment that local runs may ask
	// for.
	AllowEnv []string
	Launch   *Launcher // nil: no local runs
	// Descriptors of the kinds; a run of a kind that is not among them is
	// refused. None at all: every kind is taken, without a look at its input.
	Descriptors []wire.Descriptor
	// Workspace is the fresh folder of a run that names none.
	Workspace func(runID string) string
	NewID     func() string // UUIDv7
	NewToken  func() string // UUIDv4, for the authority's credentials
	Metrics   *session.Metrics
	Log       *slog.Logger
	Now       func() time.Time
}

// Manager keeps the runs.
type Manager struct {
	cfg     Config
	started time.Time
	schemas schemas

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	entries map[string]*entry // by run id
	closed  bool
}

// entry is a live session, or one that is being opened.
type entry struct {
	runID string
	ready chan struct{} // closed when live or err is set
	live  *session.Session
	err   error

	ended     chan struct{} // closed when the run has its terminal event
	endedOnce sync.Once
	// supervised: somebody keeps the runner of this local run running.
	supervised bool
}

func (e *entry) end() { e.endedOnce.Do(func() { close(e.ended) }) }

// New makes a manager. Call [Manager.Start] to take up open runs. A descriptor
// whose schema is no schema is wire.CodeConfigInvalid.
func New(cfg Config) (*Manager, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Store == nil || cfg.NewID == nil || cfg.NewToken == nil || cfg.Workspace == nil {
		panic("bug: runs: incomplete configuration")
	}
	compiled, err := compile(cfg.Descriptors)
	if err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, started: cfg.Now(), schemas: compiled, entries: make(map[string]*entry)}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m, nil
}

// Start takes up the runs that were open when the last server ended, and
// starts the reaper.
func (m *Manager) Start(ctx context.Context) error {
	open, err := m.cfg.Store.OpenRuns(ctx)
	if err != nil {
		return err
	}
	for i := range open {
		if err := m.take(ctx, &open[i]); err != nil {
			// One broken session must not keep the others down; the reaper
			// tries it again.
			m.cfg.Log.ErrorContext(ctx, "open run not taken up", "run", open[i].ID, "error", err.Error())
		}
	}
	m.wg.Go(m.reap)
	return nil
}

// take makes an open run live and supervises its runner if it is ours.
func (m *Manager) take(ctx context.Context, run *store.RunRow) error {
	e, err := m.open(ctx, run.ID)
	if err != nil {
		return err
	}
	if run.Placement == store.PlacementLocal && m.cfg.Launch != nil {
		return m.supervise(ctx, e, run)
	}
	return nil
}

// Session is the live session of a run, for its runner's connection. Unknown
// run, or one that has ended and whose tickets and leases have too:
// wire.CodeNotFound. Whoever knows a run's id may ask, so the session of an
// ended run, which is a window of events to read, is not opened for somebody
// who cannot authenticate.
func (m *Manager) Session(ctx context.Context, runID string) (*session.Session, error) {
	if m.peek(runID) == nil {
		if err := m.admits(ctx, runID); err != nil {
			return nil, err
		}
	}
	e, err := m.open(ctx, runID)
	if err != nil {
		return nil, err
	}
	return e.live, nil
}

// admits fails with wire.CodeNotFound when no runner can join a run any more.
func (m *Manager) admits(ctx context.Context, runID string) error {
	row, err := m.run(ctx, runID)
	if err != nil || !store.Terminal(row.Status) {
		return err
	}
	st, err := m.cfg.Store.Session(ctx, row.SessionID, 0)
	if err != nil {
		return orphanedRow(err)
	}
	now := m.cfg.Now().UnixMilli()
	if slices.ContainsFunc(st.Tickets, func(t store.TicketRow) bool { return t.UsedAtMs == 0 && t.ExpiresAtMs > now }) ||
		slices.ContainsFunc(st.Leases, func(l store.LeaseRow) bool { return l.RevokedAtMs == 0 && l.ExpiresAtMs > now }) {
		return nil
	}
	return notFound()
}

// open returns the entry of a run, opening its session if need be.
func (m *Manager) open(ctx context.Context, runID string) (*entry, error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, wire.Errorf(wire.CodeUnavailable, "the server is stopping")
	}
	e := m.entries[runID]
	if e != nil {
		m.mu.Unlock()
		select {
		case <-e.ready:
			return e, e.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	e = &entry{runID: runID, ready: make(chan struct{}), ended: make(chan struct{})}
	m.entries[runID] = e
	m.wg.Add(1) // for tend below, or given back
	m.mu.Unlock()

	// Others wait for this: the caller's going away must not fail them.
	e.live, e.err = m.openSession(context.WithoutCancel(ctx), e)
	close(e.ready)
	if e.err != nil {
		m.forget(e)
		m.wg.Done()
		return nil, e.err
	}
	go func() {
		defer m.wg.Done()
		m.tend(e)
	}()
	return e, nil
}

func (m *Manager) openSession(ctx context.Context, e *entry) (*session.Session, error) {
	sessionID, err := m.cfg.Store.SessionByRun(ctx, e.runID)
	if err != nil {
		if wire.CodeOf(err) == wire.CodeNotFound {
			return nil, notFound()
		}
		return nil, err
	}
	live, err := session.Open(ctx, session.Config{
		Store:      m.cfg.Store,
		Options:    authority.ProductOptions(m.cfg.NewToken),
		Now:        m.cfg.Now,
		Metrics:    m.cfg.Metrics,
		Log:        m.cfg.Log,
		OnRunEnded: func(store.RunRow) { e.end() },
	}, sessionID)
	if err != nil {
		return nil, orphanedRow(err)
	}
	if run := live.Brief().Run; run != nil && store.Terminal(run.Status) {
		e.end()
	}
	return live, nil
}

// tend closes the session once nobody needs it any more.
func (m *Manager) tend(e *entry) {
	select {
	case <-e.live.Done():
		m.linger(e)
	case <-m.ctx.Done():
	}
	m.forget(e)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), closeWithin)
	defer cancel()
	if err := e.live.Close(ctx); err != nil {
		m.cfg.Log.WarnContext(ctx, "session close", "run", e.runID, "error", err.Error())
	}
}

// linger waits until the session's runner is gone, at most maxLingers times
// closeLinger: one that comes back for a lost acknowledgement is heard.
func (m *Manager) linger(e *entry) {
	t := time.NewTicker(closeLinger)
	defer t.Stop()
	for range maxLingers {
		select {
		case <-t.C:
		case <-m.ctx.Done():
			return
		}
		if !e.live.Brief().Connected {
			return
		}
	}
}

// closeWithin bounds the wait for what a session started (ours).
const closeWithin = 10 * time.Second

func (m *Manager) forget(e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[e.runID] == e {
		delete(m.entries, e.runID)
	}
}

// peek is the live entry of a run, nil if there is none.
func (m *Manager) peek(runID string) *entry {
	m.mu.Lock()
	e := m.entries[runID]
	m.mu.Unlock()
	if e == nil {
		return nil
	}
	select {
	case <-e.ready:
		if e.err == nil {
			return e
		}
	default:
	}
	return nil
}

// live lists the entries that are open.
func (m *Manager) live() []*entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*entry
	for _, e := range m.entries {
		select {
		case <-e.ready:
			if e.err == nil {
				out = append(out, e)
			}
		default:
		}
	}
	return out
}

// Busy tells whether a run is open or a runner connected: a background server
// stays up for them.
func (m *Manager) Busy(ctx context.Context) (bool, error) {
	for _, e := range m.live() {
		if e.live.Brief().Connected {
			return true, nil
		}
	}
	open, err := m.cfg.Store.OpenRuns(ctx)
	return len(open) > 0, err
}

// Close detaches every runner, ends no run and waits for the manager's
// goroutines.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	done := make(chan struct{})
	go func() {
		m.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), wire.Errorf(wire.CodeUnavailable, "runs: something is still running"))
	}
}

func notFound() *wire.Error {
	return wire.Errorf(wire.CodeNotFound, "no run has the id in the path").With("field", "id")
}

// orphanedRow: run and session are written together, so a run without its
// session is a damaged store and not something that was never there.
func orphanedRow(err error) error {
	if wire.CodeOf(err) != wire.CodeNotFound {
		return err
	}
	return &wire.Error{Code: wire.CodeLogDamaged, Message: "the session of this run is missing in the store", Cause: err}
}

// drivers known besides the kinds themselves.
func (m *Manager) driver(name string) (Driver, bool) {
	if d, ok := m.cfg.Drivers[name]; ok {
		return d, true
	}
	for _, kind := range Kinds() {
		if name == kind {
			return Driver{Kind: kind}, true
		}
	}
	return Driver{}, false
}

var _ launch.Owner = (*localOwner)(nil)
