package runnerd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bowline/driver/codex"
	"bowline/driver/command"
	"bowline/driver/scripted"
	"bowline/runnerd/executor"
	"bowline/runnerd/journal"
	"bowline/runnerd/link"
	"bowline/runnerd/sanitize"
	"bowline/runnerd/seglog"
	"bowline/runnerd/supervise"
	"bowline/wire"
	"bowline/wire/carrier"
)

// ownMessageTimeout is how long a message of the handshake may take in our own
// use (ours): a busy machine must not cost a ticket.
const ownMessageTimeout = 10 * time.Second

// Times of an ending runner (ours).
const (
	stopWait  = 2 * time.Second  // for the command in execution
	closeWait = 40 * time.Second // for the provider and every process
)

// Names in the state directory.
const (
	lockName = "runner.lock"
	logName  = "log"
)

// kinds are the built-in drivers.
func kinds() map[string]executor.Kind {
	proxies := []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}
	keys := []string{"OPENAI_API_KEY", "CODEX_API_KEY"}
	return map[string]executor.Kind{
		"codex": {
			Driver: codex.New(), StateFile: true, SecretNames: keys,
			EnvNames: slices.Concat([]string{"CODEX_HOME"}, keys, proxies),
		},
		"command":  {Driver: command.New()},
		"scripted": {Driver: scripted.New(), ContinuesTurns: true},
	}
}

// passed are the values of the variables handed on to providers.
func passed(env, names []string) []string {
	var values []string
	for _, kv := range env {
		if name, value, _ := strings.Cut(kv, "="); slices.Contains(names, name) {
			values = append(values, value)
		}
	}
	return values
}

// run is the runner's life.
func (p *program) run(ctx context.Context) (err error) {
	log := p.logger()
	if p.workspace == "" {
		if p.workspace, err = os.Getwd(); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
	}
	target, err := carrier.ParseTarget(p.connectURL)
	if err != nil {
		return err
	}
	var tlsConfig *tls.Config
	if p.caBundle != "" {
		if !target.Secure {
			return wire.Errorf(wire.CodeConfigInvalid, "flag --ca-bundle-path is only for wss://")
		}
		if tlsConfig, err = carrier.TLSWithCABundle(p.caBundle); err != nil {
			return err
		}
	}
	unlock, err := p.lockStateDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	m := newMetrics()
	jr, err := p.openJournal(m, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jr.Close()) }()
	meta := jr.Meta()
	if meta.Lifecycle == journal.LifecycleRevoked || meta.Lifecycle == journal.LifecycleStopped && meta.PendingTerminal == nil {
		log.Info("nothing left to do", "lifecycle", meta.Lifecycle)
		return p.endOfLife(ctx, jr)
	}
	pinned, err := target.Resolve(ctx, nil)
	if err != nil {
		return err
	}
	sup, err := supervise.New(supervise.Options{OnSpawn: jr.Spawned, OnGone: jr.Gone, OnReap: m.reap, OwnsChildren: true, OuterTree: lookup(p.env, supervise.TreeVariable)})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
		defer cancel()
		err = errors.Join(err, sup.Close(ctx))
	}()
	ex := executor.New(executor.Options{
		Journal: jr, Kinds: kinds(), Spawner: m.lines.watching(sup), Environ: p.env, PassEnv: p.passEnv, OnlyPassEnv: !p.prpUse, Workspace: p.workspace, Sanitizer: p.sanitizer(),
		Permission: p.permission, Redial: !p.prpUse, Log: log, OnCommand: m.command, OnReplay: m.replay, OnProvider: m.provider,
	})
	now := time.Now()
	var deadline time.Time
	if p.maxRuntime > 0 {
		deadline = now.Add(p.maxRuntime)
	}
	messageTimeout := ownMessageTimeout
	if p.prpUse {
		messageTimeout = 0 // the profile's
	}
	l := link.New(link.Options{
		MessageTimeout: messageTimeout,
		Target:         pinned, TLS: tlsConfig, Ticket: p.ticket, Identity: p.identity, Version: p.version, Digest: p.digest,
		MaxFrame: p.maxFrame, Delay: p.delay, FullJitter: !p.prpUse, Grace: p.grace, Deadline: deadline,
		Core: ex, Log: log, Hooks: m.hooks(),
	})
	p.ticket = ""
	ex.SetLink(l)
	if p.metrics != "" {
		closeMetrics, err := m.serve(p.metrics, jr, p.stateDir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeMetrics()) }()
	}
	if !jr.Fresh() {
		if err := ex.Recover(ctx); err != nil {
			return err
		}
	} else if err := jr.Publish(); err != nil {
		return err
	}
	return p.serve(ctx, log, jr, ex, l)
}

// serve runs link and executor until one of them ends, or ctx does.
func (p *program) serve(ctx context.Context, log *slog.Logger, jr *journal.Journal, ex *executor.Executor, l *link.Link) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	linkDone, execDone := make(chan error, 1), make(chan error, 1)
	linkCtx, endLink := context.WithCancel(life)
	go func() { linkDone <- l.Run(linkCtx) }()
	go func() { execDone <- ex.Run(life) }()
	defer end()
	defer endLink()
	var err error
	var linkEnded, execEnded bool
	select {
	case err = <-execDone:
		execEnded = true
		err = unlessAsked(err)
	case err = <-linkDone:
		linkEnded = true
	case <-ctx.Done():
		log.Info("asked to stop")
	}
	if !execEnded {
		ex.Stop()
		timer := time.NewTimer(stopWait)
		var execErr error
		select {
		case execErr = <-execDone:
		case <-timer.C:
			end() // the command in execution becomes indeterminate
			execErr = <-execDone
		}
		timer.Stop()
		err = errors.Join(err, unlessAsked(execErr))
	}
	// What the provider still says is worth sending while the link is up.
	bg := context.WithoutCancel(ctx)
	err = errors.Join(err, ex.CloseSession(bg))
	if !linkEnded {
		if !execEnded {
			if ex.Flush(bg, executor.FlushWait) {
				log.Info("every event is acknowledged")
			}
		}
		endLink()
		err = errors.Join(err, unlessAsked(<-linkDone))
	}
	return errors.Join(err, p.lastLifecycle(jr, err, ctx.Err() != nil))
}

// unlessAsked drops the ends that were asked for.
func unlessAsked(err error) error {
	if errors.Is(err, executor.ErrRevoked) || errors.Is(err, executor.ErrStopped) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// lastLifecycle tells the successor, and who reads the view, how this ended.
func (p *program) lastLifecycle(jr *journal.Journal, err error, stopped bool) error {
	m := jr.Meta()
	switch m.Lifecycle {
	case journal.LifecycleConnecting, journal.LifecycleReady:
	default:
		return nil
	}
	for _, reason := range []error{link.ErrLeaseExpired, link.ErrGrace, link.ErrDeadline} {
		if errors.Is(err, reason) {
			return jr.Update(func(m *journal.Meta) {
				m.Lifecycle, m.RecoverableFailure = journal.LifecycleRecoverableFailure, reason.Error()
			})
		}
	}
	if stopped && err == nil && jr.Stats().Events == 0 {
		return jr.Update(func(m *journal.Meta) { m.Lifecycle = journal.LifecycleSuspended })
	}
	return nil
}

// endOfLife kills what a revoked or stopped predecessor may have left.
func (p *program) endOfLife(ctx context.Context, jr *journal.Journal) error {
	for _, r := range jr.Processes() {
		if _, err := supervise.KillRecord(ctx, r); err != nil {
			return err
		}
		jr.Gone(r)
	}
	return nil
}

// openJournal opens the log, or begins one: from runner-state.json of another
// runner if there is one.
func (p *program) openJournal(m *metrics, log *slog.Logger) (*journal.Journal, error) {
	view := &journal.View{Dir: p.stateDir, PID: os.Getpid()}
	params := journal.Params{
		Identity: p.identity, MaxOutbox: p.maxOutbox, P0Reserve: p.p0Reserve, MaxFrame: p.maxFrame,
		View: view, EagerView: p.prpUse,
		Log: seglog.Options{OnSync: m.sync, OnTorn: func(segment uint64, offset int64) {
			log.Info("torn write cut away from the session log", "segment", segment, "offset", offset)
		}},
	}
	logDir := filepath.Join(p.stateDir, logName)
	imported, err := journal.Import(view, p.maxOutbox)
	switch _, noLog := os.Stat(logDir); {
	case errors.Is(noLog, os.ErrNotExist):
		if err != nil {
			return nil, err
		}
	case p.prpUse && err == nil && imported == nil:
		// Whoever owns the directory may have archived runner-state.json to begin
		// another run (prp.md 8.12): the log of the earlier run goes with it.
		if err := p.forgetOtherRun(logDir, params); err != nil {
			return nil, err
		}
	default:
		imported = nil // the log is the truth, the file only a view of it
	}
	params.Import = imported
	return openLog(logDir, params)
}

func openLog(dir string, params journal.Params) (*journal.Journal, error) {
	disk, err := seglog.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	return journal.Open(disk, params)
}

// forgetOtherRun removes a log that belongs to another identity.
func (p *program) forgetOtherRun(logDir string, params journal.Params) error {
	jr, err := openLog(logDir, params)
	if err == nil {
		err = jr.Close()
	}
	if errors.Is(err, journal.ErrIdentity) {
		return os.RemoveAll(logDir)
	}
	return err
}

// lockStateDir makes the state directory private and takes its lock.
func (p *program) lockStateDir() (unlock func() error, err error) {
	if err := os.MkdirAll(p.stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Lstat(p.stateDir)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if !info.IsDir() {
		return nil, wire.Errorf(wire.CodeConfigInvalid, "flag --state-dir: not a directory")
	}
	if info.Mode().Perm() != 0o700 {
		if err := os.Chmod(p.stateDir, 0o700); err != nil { //nolint:gosec // G302: a directory needs its x bit
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	//nolint:gosec // G304: a name of ours in the state directory
	f, err := os.OpenFile(filepath.Join(p.stateDir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { //nolint:gosec // G115: a file descriptor fits
		return nil, errors.Join(wire.Errorf(wire.CodeDataDirBusy, "another runner uses the state directory"), f.Close())
	}
	return f.Close, nil
}

func lookup(env []string, name string) string {
	for _, kv := range env {
		if n, v, _ := strings.Cut(kv, "="); n == name {
			return v
		}
	}
	return ""
}

// sanitizer is the storage redactor that PRP use asks for.
func (p *program) sanitizer() *sanitize.Sanitizer {
	if !p.prpUse {
		return nil
	}
	return sanitize.New()
}
