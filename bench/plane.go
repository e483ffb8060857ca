package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"bowline/controlplane/authority"
	"bowline/controlplane/gateway"
	"bowline/controlplane/session"
	"bowline/controlplane/store"
	"bowline/controlplane/store/sqlite"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

const (
	runnerVersion = "0.3.0"
	leaseTTL      = time.Hour
	ticketTTL     = time.Minute
)

var errNoSession = wire.Errorf(wire.CodeNotFound, "no such session")

// plane is a control plane without API and launcher: store, sessions, gateway.
type plane struct {
	store   *watched
	gateway *gateway.Gateway
	server  *http.Server
	addr    string
	served  chan error

	mu       sync.Mutex
	sessions map[string]*session.Session // by run
	runners  []*runner
}

// watched tells who waits that something of a session is durable.
type watched struct {
	store.Store
	mu      sync.Mutex
	waiters map[string]*waiter // by session
}

type waiter struct {
	results chan string
	joined  chan struct{}
	once    sync.Once
}

func (w *watched) Commit(ctx context.Context, tx *store.Tx) error {
	err := w.Store.Commit(ctx, tx)
	if err != nil || tx.Session == nil {
		return err
	}
	w.mu.Lock()
	to := w.waiters[tx.Session.ID]
	w.mu.Unlock()
	if to == nil {
		return nil
	}
	if len(tx.Leases) > 0 {
		to.once.Do(func() { close(to.joined) })
	}
	for i := range tx.Commands {
		if tx.Commands[i].Status != "pending" {
			to.results <- tx.Commands[i].CommandID
		}
	}
	return nil
}

func openPlane(ctx context.Context, dir string) (*plane, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	st, err := sqlite.Open(ctx, filepath.Join(dir, "bowline.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	p := &plane{
		store: &watched{Store: st, waiters: make(map[string]*waiter)}, served: make(chan error, 1),
		sessions: make(map[string]*session.Session),
	}
	p.gateway = gateway.New(gateway.Config{Lookup: p.lookup})
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	p.addr = listener.Addr().String()
	p.server = &http.Server{Handler: p.gateway, ReadHeaderTimeout: 5 * time.Second}
	go func() { p.served <- p.server.Serve(listener) }()
	return p, nil
}

func (p *plane) lookup(_ context.Context, runID string) (*session.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sessions[runID]; s != nil {
		return s, nil
	}
	return nil, errNoSession
}

// seat is a session that waits for its runner.
type seat struct {
	session  *session.Session
	identity prp.Identity
	digest   string
	url      string
	ticket   string
	results  <-chan string   // ids of commands whose result is durable
	joined   <-chan struct{} // closed when the runner's lease is durable
}

// seat makes a session and a ticket for its runner.
func (p *plane) seat(ctx context.Context) (*seat, error) {
	id := prp.Identity{
		RunnerInstanceID: uuid.NewString(), EnvironmentLeaseID: uuid.NewString(), RunID: uuid.NewString(),
		NormalizedSessionID: uuid.NewString(), TurnID: uuid.NewString(), ItemID: uuid.NewString(),
	}
	digest := "sha256:" + strings.Repeat("0", 64)
	tx, err := authority.NewSession(id, runnerVersion, digest, leaseTTL)
	if err != nil {
		return nil, err
	}
	if err := p.store.Commit(ctx, tx); err != nil {
		return nil, err
	}
	s, err := session.Open(ctx, session.Config{Store: p.store, Options: authority.ProductOptions(uuid.NewString)}, id.NormalizedSessionID)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.sessions[id.RunID] = s
	p.mu.Unlock()
	w := &waiter{results: make(chan string, commandsEach), joined: make(chan struct{})}
	p.store.mu.Lock()
	p.store.waiters[id.NormalizedSessionID] = w
	p.store.mu.Unlock()
	ticket, err := s.IssueTicket(ctx, ticketTTL)
	if err != nil {
		return nil, err
	}
	return &seat{
		session: s, identity: id, digest: digest, url: "ws://" + p.addr + prp.PathEmbedded + "/" + id.RunID, ticket: ticket,
		results: w.results, joined: w.joined,
	}, nil
}

// join makes a session and a runner in this process that is connected to it.
func (p *plane) join(ctx context.Context, dir string) (*runner, error) {
	seat, err := p.seat(ctx)
	if err != nil {
		return nil, err
	}
	r := &runner{session: seat.session, results: seat.results}
	if err := r.start(ctx, dir, seat); err != nil {
		return nil, err
	}
	p.runners = append(p.runners, r)
	return r, nil
}

func newCommand(payload canonjson.Value) authority.Command {
	return authority.Command{Type: prp.CommandSessionSnapshot, Payload: payload, Deliver: true}
}

func (p *plane) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var errs []error
	for _, r := range p.runners {
		errs = append(errs, r.stop())
	}
	errs = append(errs, p.gateway.Close(ctx))
	for _, s := range p.sessions {
		errs = append(errs, s.Close(ctx))
	}
	errs = append(errs, p.server.Close())
	if err := <-p.served; !errors.Is(err, http.ErrServerClosed) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, p.store.Close())...)
}
