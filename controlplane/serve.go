// Package controlplane is the control plane as one thing to embed or serve:
// [New] wires store, sessions, gateway, runs, launcher and API into an
// http.Handler; [Serve] adds what a server process needs: the data folder's
// lock, a kept port, the ready file, graceful stop and idle exit.
//
// Concurrency: [Serve] blocks and owns everything it starts; runners outlive
// it. A [Server] may be used from any goroutine.
package controlplane

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"bowline/controlplane/api"
	"bowline/controlplane/datadir"
	"bowline/controlplane/launch"
	"bowline/controlplane/resource"
	"bowline/controlplane/runs"
	"bowline/controlplane/store"
	"bowline/controlplane/store/sqlite"
	"bowline/wire"
)

// Times of the server (ours).
const (
	headerTimeout  = 10 * time.Second
	idleConnection = 2 * time.Minute
	maxHeaderBytes = 32 << 10
	// stopWithin bounds a graceful stop.
	stopWithin = 15 * time.Second
	// drainWithin is how much of it requests have that are being answered.
	drainWithin = 3 * time.Second
	// watchEvery is how often idleness and the store's latch are looked at.
	watchEvery = time.Second
)

// Serve runs a control plane until ctx ends (nil), it was idle long enough
// (nil), or it fails. The caller turns SIGINT and SIGTERM into the end of ctx.
// Errors before it serves are *wire.Error: data_dir_busy, port_taken,
// listen_refused, usage, disk_full, store_indeterminate.
func Serve(ctx context.Context, opt Options) (err error) {
	s, err := start(ctx, &opt)
	if err != nil {
		return err
	}
	reason := s.watch(ctx)
	log := opt.logger()
	log.InfoContext(ctx, "stopping", "reason", reason.why)
	return errors.Join(reason.err, s.stop(context.WithoutCancel(ctx)))
}

// process is a running server and what it has to give back, newest last.
type process struct {
	opt      *Options
	dir      *datadir.Dir
	store    store.Store
	server   *Server
	http     []*http.Server
	serving  chan error // one result per HTTP server
	undo     []func(context.Context) error
	lastBusy time.Time
}

func start(ctx context.Context, opt *Options) (p *process, err error) {
	addr, err := checkListen(ctx, opt)
	if err != nil {
		return nil, err
	}
	p = &process{opt: opt, lastBusy: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop(context.WithoutCancel(ctx)))
			p = nil
		}
	}()
	if err := p.openFolder(ctx); err != nil {
		return p, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(opt.Build))
	if err := p.openStore(ctx, registry); err != nil {
		return p, err
	}
	newToken, err := p.adminToken(ctx)
	if err != nil {
		return p, err
	}
	listener, err := addr.open(ctx, p.store)
	if err != nil {
		return p, err
	}
	p.undo = append(p.undo, func(context.Context) error { return closeListener(listener) })
	listening := Listening{Addr: listener.Addr(), NewToken: newToken}
	var metrics net.Listener
	if opt.MetricsAddr != "" {
		if metrics, err = new(net.ListenConfig).Listen(ctx, "tcp", opt.MetricsAddr); err != nil {
			return p, &wire.Error{Code: wire.CodePortTaken, Message: "--metrics: cannot listen there", Cause: err}
		}
		p.undo = append(p.undo, func(context.Context) error { return closeListener(metrics) })
		listening.MetricsAddr = metrics.Addr()
	}
	tlsConfig, err := loadTLS(opt)
	if err != nil {
		return p, err
	}
	hostPort := net.JoinHostPort(addr.dialHost(listener), strconv.Itoa(portOf(listener)))
	launcher, err := p.launcher(hostPort)
	if err != nil {
		return p, err
	}
	p.server, err = New(ctx, Config{
		Store: p.store, Drivers: opt.Drivers, Descriptors: opt.Descriptors, AllowEnv: opt.AllowEnv, Launch: launcher,
		Workspace: p.dir.WorkspaceFolder, ClientAddress: clientAddress(opt), Registry: registry, Build: opt.Build, Log: opt.logger(),
	})
	if err != nil {
		return p, err
	}
	p.undo = append(p.undo, p.server.Close)
	p.serve(listener, p.server, tlsConfig)
	if metrics != nil {
		p.serve(metrics, metricsHandler(registry), nil)
	}
	scheme := "http"
	if tlsConfig != nil {
		scheme = "https"
	}
	ready := datadir.Ready{URL: scheme + "://" + hostPort, AdminTokenFile: p.dir.AdminTokenFile(), PID: os.Getpid()}
	if err := p.dir.WriteReady(ready, opt.ReadyFile); err != nil {
		return p, err
	}
	opt.logger().InfoContext(ctx, "serving", "url", ready.URL, "launch", opt.Launch)
	if opt.OnReady != nil {
		opt.OnReady(ready, listening)
	}
	return p, nil
}

// checkListen checks everything about addresses before anything is made.
func checkListen(ctx context.Context, opt *Options) (address, error) {
	if (opt.TLSCert == "") != (opt.TLSKey == "") {
		return address{}, wire.Errorf(wire.CodeUsage, "--tls-cert and --tls-key go together")
	}
	addr, err := parseListen(ctx, opt.Listen)
	if err != nil {
		return address{}, err
	}
	if opt.MetricsAddr != "" {
		m, err := parseListen(ctx, opt.MetricsAddr)
		if err != nil {
			return address{}, wire.Errorf(wire.CodeUsage, "--metrics must be HOST:PORT")
		}
		if !m.loopback {
			return address{}, wire.Errorf(wire.CodeListenRefused, "--metrics: not a loopback address; elsewhere /metrics is on the API, with a token of scope read")
		}
	}
	if !addr.loopback && opt.TLSCert == "" && !opt.BehindProxy {
		return address{}, wire.Errorf(wire.CodeListenRefused, "--listen: not a loopback address and no TLS: tokens and events would cross the network in clear; give --tls-cert and --tls-key, or --behind-proxy if a proxy in front ends TLS")
	}
	switch opt.Launch {
	case "":
		opt.Launch = LaunchNone
		if addr.loopback {
			opt.Launch = LaunchLocal
		}
	case LaunchLocal, LaunchNone:
	default:
		return address{}, wire.Errorf(wire.CodeUsage, "--launch must be local or none")
	}
	return addr, nil
}

func (p *process) openFolder(ctx context.Context) error {
	data := p.opt.Data
	if data == "" {
		var err error
		if data, err = datadir.Default(os.Getenv); err != nil {
			return err
		}
	}
	dir, stale, err := datadir.Open(data)
	if err != nil {
		return err
	}
	if stale {
		p.opt.logger().WarnContext(ctx, "stale ready file removed: the server before this one did not stop in order")
	}
	p.dir = dir
	p.undo = append(p.undo, func(context.Context) error { return dir.Close() })
	return nil
}

func (p *process) openStore(ctx context.Context, reg prometheus.Registerer) error {
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "bowline_commit_duration_seconds", Help: "Time of one database transaction, sync included.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 3, 10),
	})
	batch := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "bowline_commit_batch_size", Help: "Store transactions that shared one database transaction.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 9),
	})
	reg.MustRegister(took, batch)
	st, err := sqlite.Open(ctx, p.dir.Store(), sqlite.Options{
		OnCommit: func(d time.Duration, transactions, _ int) {
			took.Observe(d.Seconds())
			batch.Observe(float64(transactions))
		},
	})
	if err != nil {
		return err
	}
	p.store = st
	p.undo = append(p.undo, func(context.Context) error { return st.Close() })
	return nil
}

// adminTokenID is the id of the token in the admin-token file.
const adminTokenID = "admin"

// adminToken makes the admin token at first start and makes sure that the
// store knows the one of the file: a file that was removed revokes the old one.
func (p *process) adminToken(ctx context.Context) (made bool, err error) {
	token, made, err := p.dir.EnsureToken()
	if err != nil {
		return false, err
	}
	hash := sha256.Sum256([]byte(token))
	_, err = p.store.Token(ctx, hash)
	if err == nil || wire.CodeOf(err) != wire.CodeNotFound {
		return made, err
	}
	now := time.Now()
	return made, p.store.Commit(ctx, &store.Tx{
		Token: &store.TokenRow{
			ID: adminTokenID, Hash: hash, Name: adminTokenID, CreatedAt: now,
			Scopes: []string{api.ScopeRead, api.ScopeRun, api.ScopeAnswer, api.ScopeOperate, api.ScopeAdmin},
		},
		Audit: []store.AuditRow{{At: now, Actor: "system", Action: "token.create", Target: adminTokenID}},
	})
}

func (p *process) launcher(hostPort string) (*runs.Launcher, error) {
	if p.opt.Launch != LaunchLocal {
		return nil, nil
	}
	scheme, bundle := "ws", ""
	if p.opt.TLSCert != "" {
		// The runner trusts exactly what we present, besides the system's roots.
		scheme, bundle = "wss", filepath.Join(p.dir.Path(), "ca.pem")
		pem, err := os.ReadFile(p.opt.TLSCert)
		if err == nil {
			err = os.WriteFile(bundle, pem, 0o600)
		}
		if err != nil {
			return nil, &wire.Error{Code: wire.CodeUsage, Message: "--tls-cert cannot be handed to runners", Cause: err}
		}
	} else if host, _, err := net.SplitHostPort(hostPort); err != nil || !net.ParseIP(host).IsLoopback() {
		return nil, wire.Errorf(wire.CodeUsage, "--launch local: a runner dials ws:// on loopback only; listen on loopback or every address, or use TLS")
	}
	digest, err := launch.Digest(p.opt.Runner)
	if err != nil {
		return nil, err
	}
	environ := p.opt.Environ
	if environ == nil {
		environ = os.Environ()
	}
	return &runs.Launcher{
		Path: p.opt.Runner, Version: launch.OwnVersion, Digest: digest, Environ: environ, CABundle: bundle,
		ConnectURL: func(runID string) string { return scheme + "://" + hostPort + resource.ConnectPath + runID },
		Folder:     p.dir.RunFolder,
	}, nil
}

func loadTLS(opt *Options) (*tls.Config, error) {
	if opt.TLSCert == "" {
		return nil, nil //nolint:nilnil // no TLS was asked for
	}
	cert, err := tls.LoadX509KeyPair(opt.TLSCert, opt.TLSKey)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeUsage, Message: "--tls-cert and --tls-key cannot be used", Cause: err}
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}, nil
}

// serve starts an HTTP server; stop ends it.
func (p *process) serve(l net.Listener, h http.Handler, tlsConfig *tls.Config) {
	if p.serving == nil {
		p.serving = make(chan error, 2)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // a runner's WebSocket is an HTTP/1.1 upgrade
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleConnection, MaxHeaderBytes: maxHeaderBytes,
		Protocols: protocols, ErrorLog: stdlog.New(httpLog{p.opt.logger()}, "", 0),
	}
	if tlsConfig != nil {
		l = tls.NewListener(l, tlsConfig)
	}
	p.http = append(p.http, srv)
	go func() { p.serving <- srv.Serve(l) }()
}

func metricsHandler(g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		text, err := api.MetricsText(g)
		if err != nil {
			http.Error(w, "metrics cannot be gathered", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
		if _, err := w.Write(text); err != nil {
			return // the scraper went away
		}
	})
	return mux
}

// ended says why a server stops.
type ended struct {
	why string
	err error
}

// watch waits for a reason to stop.
func (p *process) watch(ctx context.Context) ended {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ended{why: "asked to"}
		case err := <-p.serving:
			p.serving <- err // counted again by stop
			return ended{"the listener failed", fmt.Errorf("serve: %w", err)}
		case <-t.C:
			// A write whose outcome is unknown: nothing may be acknowledged any
			// more, and only a restart can tell.
			if err := p.store.Latched(); err != nil {
				return ended{"the store is latched", err}
			}
			if p.idle(ctx) {
				return ended{why: "idle"}
			}
		}
	}
}

// idle tells whether nothing happened for long enough.
func (p *process) idle(ctx context.Context) bool {
	if p.opt.IdleExit <= 0 {
		return false
	}
	busy, err := p.server.Runs().Busy(ctx)
	if busy || err != nil {
		p.lastBusy = time.Now()
	}
	return min(p.server.Idle(), time.Since(p.lastBusy)) >= p.opt.IdleExit
}

// stop gives everything back, newest first. Runners go on.
func (p *process) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	var errs []error
	if p.server != nil {
		p.server.StopStreams()
	}
	for _, srv := range p.http {
		errs = append(errs, shutdown(ctx, srv))
	}
	for range p.http {
		if err := <-p.serving; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	for i := len(p.undo) - 1; i >= 0; i-- {
		errs = append(errs, p.undo[i](ctx))
	}
	return errors.Join(errs...)
}

// shutdown lets requests end, for a while: one whose body never comes must use
// up neither the time of what is stopped behind it nor the exit code.
func shutdown(ctx context.Context, srv *http.Server) error {
	short, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	err := srv.Shutdown(short)
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return errors.Join(err, srv.Close())
}

func closeListener(l net.Listener) error {
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func portOf(l net.Listener) int {
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		return tcp.Port
	}
	return 0
}

// clientAddress reads the last hop a proxy wrote; without a proxy the socket's
// address counts. A proxy may add a header line of its own behind one that the
// peer made up, so the last line counts, and in it the last entry. A port is
// dropped: it is another one for every connection.
func clientAddress(opt *Options) func(*http.Request) string {
	if !opt.BehindProxy {
		return nil
	}
	return func(r *http.Request) string {
		last := r.RemoteAddr
		if lines := r.Header.Values("X-Forwarded-For"); len(lines) > 0 {
			hops := strings.Split(lines[len(lines)-1], ",")
			if hop := strings.TrimSpace(hops[len(hops)-1]); hop != "" {
				last = hop
			}
		}
		if host, _, err := net.SplitHostPort(last); err == nil {
			return host
		}
		return last
	}
}

func buildInfo(b resource.Build) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "bowline_build_info", Help: "Always 1; the labels describe the build.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "go_version": b.Go},
	})
	g.Set(1)
	return g
}
