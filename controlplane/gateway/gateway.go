// Package gateway takes the connections of runners: it finds the session of the
// run named in the path, upgrades, and lets the session serve.
//
// # What it promises
//
// Authentication is entirely inside the PRP handshake (prp.md 1.2), so anybody
// may open a socket: at most [MaxUnauthenticated] connections that have not
// authenticated exist at a time, at most [MaxPerAddress] of one address, each
// for at most session.HandshakeTimeout. Requests beyond that are answered
// before the upgrade.
//
// # Concurrency
//
// A [Gateway] is an http.Handler; [Gateway.Close] ends every connection and
// waits for them.
package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"

	"bowline/controlplane/session"
	"bowline/wire"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

// Limits of connections that have not authenticated (architecture, limits).
const (
	MaxUnauthenticated = 256
	MaxPerAddress      = 8
)

// Config of a gateway.
type Config struct {
	// Lookup finds the live session of a run. wire.CodeNotFound becomes 404,
	// anything else 503.
	Lookup func(ctx context.Context, runID string) (*session.Session, error)
	// ClientAddress names the peer for the limit per address; nil = the host
	// part of the socket's address. Behind a proxy it must read what the proxy
	// says, or every runner counts as one address.
	ClientAddress func(r *http.Request) string
	// MaxFrame in bytes; 0 = prp.MaxFrameBytes.
	MaxFrame int
	// Log may be nil.
	Log *slog.Logger
}

// Gateway is an http.Handler for prp.PathEmbedded + "/<runId>".
type Gateway struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu        sync.Mutex
	closed    bool
	waiting   int            // not authenticated
	perClient map[string]int // of them
	wg        sync.WaitGroup
}

// New makes a gateway.
func New(cfg Config) *Gateway {
	if cfg.Lookup == nil {
		panic("bug: gateway: no lookup")
	}
	if cfg.MaxFrame == 0 {
		cfg.MaxFrame = prp.MaxFrameBytes
	}
	if cfg.ClientAddress == nil {
		cfg.ClientAddress = socketAddress
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{cfg: cfg, perClient: make(map[string]int)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// ServeHTTP serves one connection until it ends.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	runID, ok := strings.CutPrefix(r.URL.EscapedPath(), prp.PathEmbedded+"/")
	if !ok {
		g.answered(r, carrier.RejectNotFound(w))
		return
	}
	if !IsRunID(runID) {
		g.answered(r, carrier.RejectBadRequest(w))
		return
	}
	client := g.cfg.ClientAddress(r)
	if status := g.enter(client); status != 0 {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(status)
		return
	}
	defer g.wg.Done()
	// Released once: when it authenticates, or when it ends before.
	release := sync.OnceFunc(func() { g.release(client) })
	defer release()

	s, err := g.cfg.Lookup(r.Context(), runID)
	if err != nil {
		if wire.CodeOf(err) == wire.CodeNotFound {
			g.answered(r, carrier.RejectNotFound(w))
			return
		}
		g.log(r, "lookup", err)
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	conn, err := carrier.Accept(w, r, carrier.AcceptOptions{MaxFrame: g.cfg.MaxFrame})
	if err != nil {
		g.answered(r, err)
		return
	}
	if err := s.ServeNotify(g.ctx, conn, release); err != nil {
		g.log(r, "serve", err)
	}
}

// Close ends every connection and waits for them until ctx ends.
func (g *Gateway) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel()
	done := make(chan struct{})
	go func() {
		g.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return wire.Errorf(wire.CodeUnavailable, "gateway: connections are still open")
	}
}

// enter counts a connection in; a status other than 0 refuses it.
func (g *Gateway) enter(client string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed || g.waiting >= MaxUnauthenticated:
		return http.StatusServiceUnavailable
	case g.perClient[client] >= MaxPerAddress:
		return http.StatusTooManyRequests
	}
	g.waiting++
	g.perClient[client]++
	g.wg.Add(1)
	return 0
}

func (g *Gateway) release(client string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting--
	if g.perClient[client]--; g.perClient[client] == 0 {
		delete(g.perClient, client)
	}
}

func (g *Gateway) answered(r *http.Request, err error) {
	if err != nil && !errors.Is(err, carrier.ErrNotUpgraded) {
		g.log(r, "upgrade", err)
	}
}

func (g *Gateway) log(r *http.Request, step string, err error) {
	g.cfg.Log.LogAttrs(r.Context(), slog.LevelWarn, "runner connection failed",
		slog.String("step", step), slog.String("remote", r.RemoteAddr), slog.Any("error", err))
}

func socketAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// runIDForm is the form of a UUID: h hex digit, v version, r variant.
const runIDForm = "hhhhhhhh-hhhh-vhhh-rhhh-hhhhhhhhhhhh"

// IsRunID tells whether s is a UUID of version 1 to 8 (prp.md 1.3).
func IsRunID(s string) bool {
	if len(s) != len(runIDForm) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c >= 'A' && c <= 'F' {
			c += 'a' - 'A'
		}
		var ok bool
		switch runIDForm[i] {
		case '-':
			ok = c == '-'
		case 'v':
			ok = c >= '1' && c <= '8'
		case 'r':
			ok = c == '8' || c == '9' || c == 'a' || c == 'b'
		default:
			ok = c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		}
		if !ok {
			return false
		}
	}
	return true
}
