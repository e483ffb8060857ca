package harness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"

	"bowline/controlplane/authority"
	"bowline/controlplane/session"
	"bowline/controlplane/store"
	"bowline/controlplane/store/sqlite"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

const (
	databaseName = "authority.db"
	// settingSession names the session a state folder belongs to.
	settingSession = "harness.session"
	// shutTimeout bounds every wait of a stop.
	shutTimeout = 10 * time.Second
	// readHeaderTimeout bounds an HTTP request's head.
	readHeaderTimeout = 5 * time.Second
)

// harness is one authority and what it was started with.
type harness struct {
	log *slog.Logger

	started  bool
	identity prp.Identity
	version  string
	digest   string
	stateDir string
	leaseTTL time.Duration
	tool     string
	addr     string // kept over a restart

	// onCommitted fails once; nil when nothing is to fail, because with a hook
	// events are committed one by one.
	onCommitted func(context.Context, *prp.Event) error
	faults      int // of authorities that were stopped since

	up *authorityUp
}

// authorityUp is the part that a restart replaces.
type authorityUp struct {
	store   store.Store
	session *session.Session
	server  *http.Server
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

func (h *harness) do(ctx context.Context, op string, req canonjson.Value) ([]canonjson.Member, error) {
	if op == "start" {
		return h.start(ctx, req)
	}
	if op == "stop" {
		return nil, nil
	}
	if h.up == nil {
		return nil, errors.New("not started")
	}
	switch op {
	case "ticket":
		return h.ticket(ctx, req)
	case "queue":
		return h.queue(ctx, req)
	case "restart":
		return nil, h.restart(ctx, req)
	case "state":
		return h.state(), nil
	}
	return nil, errors.New("unknown op")
}

func (h *harness) start(ctx context.Context, req canonjson.Value) ([]canonjson.Member, error) {
	if h.started {
		return nil, errors.New("started already")
	}
	id, err := prp.IdentityOf(req.Get("identity"))
	if err != nil {
		return nil, err
	}
	h.identity, h.version, h.digest = id, req.Get("runnerVersion").Str(), req.Get("runnerDigest").Str()
	switch {
	case h.version == "":
		return nil, errors.New("runnerVersion is not a string")
	case !isDigest(h.digest):
		return nil, errors.New("runnerDigest is not sha256: and 64 lower-case hex digits")
	}
	if h.stateDir = req.Get("stateDir").Str(); h.stateDir == "" {
		return nil, errors.New("stateDir is not a string")
	}
	if h.leaseTTL, err = millis(req, "leaseTtlMs", prp.LeaseLifetimeDefault); err != nil {
		return nil, err
	}
	if h.tool, err = oneOf(req, "tool", "ok", "hold", "throw"); err != nil {
		return nil, err
	}
	commit, err := oneOf(req, "commit", "ok", "fail-once")
	if err != nil {
		return nil, err
	}
	h.onCommitted = nil
	if commit == "fail-once" {
		var once sync.Once
		h.onCommitted = func(context.Context, *prp.Event) (err error) {
			once.Do(func() { err = errors.New("harness: the commit callback fails once") })
			return err
		}
	}
	h.addr = "127.0.0.1:0"
	if err := h.open(ctx); err != nil {
		return nil, err
	}
	h.started = true
	return []canonjson.Member{member("connectUrl", canonjson.StringValue("ws://"+h.addr+prp.PathStandalone))}, nil
}

// open brings the authority up from stateDir.
func (h *harness) open(ctx context.Context) (err error) {
	if err := os.MkdirAll(h.stateDir, 0o700); err != nil {
		return err
	}
	// A wider mode is repaired, not refused (prp.md 8.4).
	if err := os.Chmod(h.stateDir, 0o700); err != nil { //nolint:gosec // a folder needs its x bits
		return err
	}
	up := new(authorityUp)
	up.ctx, up.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(err, up.shut(context.WithoutCancel(ctx)))
		}
	}()
	if up.store, err = sqlite.Open(ctx, filepath.Join(h.stateDir, databaseName), sqlite.Options{}); err != nil {
		return err
	}
	if err := h.ensureSession(ctx, up.store); err != nil {
		return err
	}
	up.session, err = session.Open(ctx, session.Config{
		Store: up.store, Options: authority.ReferenceOptions(uuid.NewString), Log: h.log,
		Tools: handlerOf(h.tool), OnCommitted: h.onCommitted,
		HandshakeTimeout: -1, // line M has no timer, and a suite may look for that
	}, h.identity.NormalizedSessionID)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", h.addr)
	if err != nil {
		return err
	}
	h.addr = listener.Addr().String()
	up.server = &http.Server{Handler: up.handler(h.log), ReadHeaderTimeout: readHeaderTimeout, ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug)}
	up.wg.Go(func() {
		if err := up.server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			h.log.LogAttrs(up.ctx, slog.LevelError, "harness listener failed", slog.Any("error", err))
		}
	})
	h.up = up
	return nil
}

// ensureSession makes the session in an empty folder and refuses one that
// belongs to somebody else (prp.md 8.6).
func (h *harness) ensureSession(ctx context.Context, st store.Store) error {
	fresh, err := authority.NewSession(h.identity, h.version, h.digest, h.leaseTTL)
	if err != nil {
		return err
	}
	owner, err := st.Setting(ctx, settingSession)
	if wire.CodeOf(err) == wire.CodeNotFound && err != nil {
		fresh.Settings = map[string]string{settingSession: h.identity.NormalizedSessionID}
		return st.Commit(ctx, fresh)
	}
	if err != nil {
		return err
	}
	state, err := st.Session(ctx, owner, 1)
	if err != nil {
		return err
	}
	if state.Session.Identity != h.identity {
		return wire.Errorf(wire.CodeConflict, "the state is invalid or does not match the requested PRP identity")
	}
	row := state.Session
	row.RunnerVersion, row.RunnerDigest, row.LeaseTTL = h.version, h.digest, h.leaseTTL
	return st.Commit(ctx, &store.Tx{Session: &row})
}

func (up *authorityUp) handler(log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := carrier.Accept(w, r, carrier.AcceptOptions{Path: prp.PathStandalone, MaxFrame: prp.MaxFrameBytes})
		if err != nil {
			log.LogAttrs(r.Context(), slog.LevelDebug, "not upgraded", slog.Any("error", err))
			return
		}
		// The server does not wait for hijacked connections: shut does.
		up.wg.Add(1)
		defer up.wg.Done()
		if err := up.session.Serve(up.ctx, conn); err != nil {
			log.LogAttrs(r.Context(), slog.LevelDebug, "not served", slog.Any("error", err))
		}
	})
}

func (up *authorityUp) shut(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shutTimeout)
	defer cancel()
	var err error
	if up.server != nil {
		err = up.server.Close()
	}
	up.cancel()
	if up.session != nil {
		err = errors.Join(err, up.session.Close(ctx))
	}
	up.wg.Wait()
	if up.store != nil {
		err = errors.Join(err, up.store.Close())
	}
	return err
}

func (h *harness) shut(ctx context.Context) error {
	if h.up == nil {
		return nil
	}
	up := h.up
	h.up = nil
	h.faults += up.session.Brief().Faults
	return up.shut(ctx)
}

func (h *harness) restart(ctx context.Context, req canonjson.Value) error {
	if req.Get("tool").Exists() {
		tool, err := oneOf(req, "tool", "ok", "hold", "throw")
		if err != nil {
			return err
		}
		h.tool = tool
	}
	if err := h.shut(ctx); err != nil {
		return err
	}
	return h.open(ctx)
}

func handlerOf(tool string) session.ToolHandler {
	return func(ctx context.Context, _ authority.ToolCall) (canonjson.Value, error) {
		switch tool {
		case "hold":
			<-ctx.Done()
			return canonjson.Value{}, ctx.Err()
		case "throw":
			return canonjson.Value{}, errors.New("harness: the tool handler throws")
		}
		return canonjson.ObjectValue(member("ok", canonjson.BoolValue(true))), nil
	}
}

func millis(req canonjson.Value, name string, fallback time.Duration) (time.Duration, error) {
	v := req.Get(name)
	if !v.Exists() || v.IsNull() {
		return fallback, nil
	}
	// Far beyond every limit, and small enough not to overflow.
	const most = 1 << 40
	n, ok := v.SafeInt()
	if !ok || n < 0 || n > most {
		return 0, fmt.Errorf("%s is not a whole number of milliseconds", name)
	}
	return time.Duration(n) * time.Millisecond, nil
}

// oneOf reads a choice; the first is the default.
func oneOf(req canonjson.Value, name string, choices ...string) (string, error) {
	v := req.Get(name)
	if !v.Exists() || v.IsNull() {
		return choices[0], nil
	}
	for _, c := range choices {
		if v.Str() == c {
			return c, nil
		}
	}
	return "", fmt.Errorf("%s is not one of %v", name, choices)
}

const digestPrefix = "sha256:"

func isDigest(s string) bool {
	if len(s) != len(digestPrefix)+64 || s[:len(digestPrefix)] != digestPrefix {
		return false
	}
	for _, c := range []byte(s[len(digestPrefix):]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
