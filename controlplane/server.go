package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"bowline/controlplane/api"
	"bowline/controlplane/gateway"
	"bowline/controlplane/resource"
	"bowline/controlplane/runs"
	"bowline/controlplane/session"
	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/prp"
)

// Config of [New].
type Config struct {
	Store       store.Store
	Drivers     map[string]Driver
	Descriptors []wire.Descriptor
	AllowEnv    []string
	// Launch starts runners of local runs; nil: attached runs only.
	Launch *runs.Launcher
	// Workspace is the fresh folder of a run that names none.
	Workspace func(runID string) string
	// ClientAddress names a runner's peer for the gateway's limit per address;
	// nil = the socket's.
	ClientAddress func(r *http.Request) string
	// Registry gets the metrics and serves them; nil = one of its own.
	Registry *prometheus.Registry
	Build    resource.Build
	Log      *slog.Logger
	Now      func() time.Time
}

// Server is a control plane without a listener: mount it where you like. The
// host API authenticates by tokens of the store; the gateway by the tickets it
// issues.
type Server struct {
	runs    *runs.Manager
	gateway *gateway.Gateway
	api     *api.Server
	stop    chan struct{}
}

// New wires a control plane and takes up its open runs. The caller closes the
// store after [Server.Close].
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Store == nil || cfg.Workspace == nil {
		panic("bug: controlplane: incomplete configuration")
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	drivers := make(map[string]runs.Driver, len(cfg.Drivers))
	for name, d := range cfg.Drivers {
		drivers[name] = runs.Driver(d)
	}
	s := &Server{stop: make(chan struct{})}
	var err error
	s.runs, err = runs.New(runs.Config{
		Store: cfg.Store, Drivers: drivers, Descriptors: cfg.Descriptors, AllowEnv: cfg.AllowEnv, Launch: cfg.Launch, Workspace: cfg.Workspace,
		NewID: newV7, NewToken: uuid.NewString, Metrics: session.NewMetrics(cfg.Registry), Log: cfg.Log, Now: cfg.Now,
	})
	if err != nil {
		return nil, err
	}
	s.gateway = gateway.New(gateway.Config{Lookup: s.runs.Session, ClientAddress: cfg.ClientAddress, Log: cfg.Log})
	s.api = api.New(api.Config{
		Runs: served{s.runs}, Tokens: cfg.Store, Meta: func() resource.Meta { return meta(&cfg) },
		Checks:  []api.Check{{Name: "store", Run: func(context.Context) error { return cfg.Store.Latched() }}},
		Metrics: cfg.Registry, Register: cfg.Registry, Done: s.stop, Log: cfg.Log, Now: cfg.Now,
	})
	if err := s.runs.Start(ctx); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// served is the run manager as the API takes it.
type served struct{ *runs.Manager }

// Follow implements api.Runs.
func (s served) Follow(ctx context.Context, id, after string) (api.Follower, error) {
	f, err := s.Manager.Follow(ctx, id, after)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// ServeHTTP serves the gateway below resource.ConnectPath and the host API
// everywhere else. The gateway's answers carry none of the API's headers: a
// runner expects a 101 with three (prp.md 1.1).
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, resource.ConnectPath) {
		s.gateway.ServeHTTP(w, r)
		return
	}
	s.api.ServeHTTP(w, r)
}

// Runs is the run manager.
func (s *Server) Runs() *runs.Manager { return s.runs }

// Idle tells how long ago the last API request was that was no probe.
func (s *Server) Idle() time.Duration { return s.api.Idle() }

// StopStreams ends the open event streams; their readers reconnect elsewhere
// or later.
func (s *Server) StopStreams() {
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
}

// Close ends streams and runner connections and waits for everything that was
// started, until ctx ends. Runners go on and come back. It is called once.
func (s *Server) Close(ctx context.Context) error {
	s.StopStreams()
	return errors.Join(s.gateway.Close(ctx), s.runs.Close(ctx))
}

func meta(cfg *Config) resource.Meta {
	m := resource.Meta{
		Build: cfg.Build, Profiles: []string{"prp"}, Launch: LaunchNone, Descriptors: cfg.Descriptors,
		Limits: map[string]int64{
			"promptJsonBytes":   runs.MaxPromptJSON,
			"bodyBytes":         api.MaxBodyBytes,
			"frameBytes":        prp.MaxFrameBytes,
			"commandBytes":      prp.MaxQueuedCommandBytes,
			"argv":              resource.MaxArgv,
			"argBytes":          resource.MaxArgBytes,
			"envNames":          resource.MaxEnvNames,
			"labels":            resource.MaxLabels,
			"turnTimeMs":        resource.MaxTurnTimeMs,
			"ticketTtlMs":       runs.TicketTTL.Milliseconds(),
			"leaseTtlMs":        runs.LeaseTTL.Milliseconds(),
			"idempotencyHours":  24,
			"runnerJoinSeconds": int64(runs.JoinWithin / time.Second),
		},
	}
	if cfg.Launch != nil {
		m.Launch = LaunchLocal
	}
	if m.Descriptors == nil {
		m.Descriptors = []wire.Descriptor{}
	}
	m.Drivers = driverList(cfg.Drivers)
	return m
}

func newV7() string {
	id, err := uuid.NewV7()
	if err != nil {
		panic("bug: crypto/rand: " + err.Error()) // Go 1.24: it does not fail
	}
	return id.String()
}
