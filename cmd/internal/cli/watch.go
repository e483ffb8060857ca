package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"bowline/controlplane/client"
	"bowline/controlplane/launch"
	"bowline/controlplane/resource"
	"bowline/wire"
)

// Bounds of following a run (ours).
const (
	// rejoinAfter is how many reconnects in a row may fail before the data
	// folder's server is started again.
	rejoinAfter = 2
	// giveUpAfter is how many reconnects in a row to a server named by
	// --server may fail: with the client's delays that is about five minutes.
	giveUpAfter = 64
	callTimeout = 30 * time.Second
	// partingTimeout bounds the last call of a command that leaves its run.
	partingTimeout = 5 * time.Second
	// retryEvery is the pause between calls while the server is away.
	retryEvery = 250 * time.Millisecond
	// sameSignal is how long after the first signal a second one is the same
	// request: timeout(1) signals its child and then the group the child is in.
	sameSignal = 250 * time.Millisecond
)

// watch follows one attached run: it keeps the runner running, shows the
// events, and hands signals on.
type watch struct {
	app    *app
	client *client.Client
	run    *resource.Run // as created
	last   *resource.Run // as last read; belongs to the goroutine of follow
	spec   launch.Spec
	folder string // state and log of the runner
	json   bool
	// provider is the kind of agent, "codex": its own notices bear its name.
	provider string
	// now is the clock; nil = time.Now.
	now func() time.Time
	// silent shows nothing of the run: the demo tells its own story.
	silent bool
	// told says that the result line of --json was printed.
	told bool
	// rejoin starts the data folder's server again; nil with --server.
	rejoin func(context.Context) error
	// note is told what happens to the runner.
	note func(launch.Note)
	// seen is told every event; nil outside the demo.
	seen func(*resource.Line)

	rejoinMu    sync.Mutex // one start of the server at a time
	interrupted atomic.Bool
	ended       chan struct{}
}

// errLeft says that the user left with a second Ctrl-C.
var errLeft = errors.New("left")

// follow returns nil when the run completed; the exit code of every other end
// is in the error.
func (w *watch) follow(ctx context.Context) error {
	w.ended, w.last = make(chan struct{}), w.run
	if w.note == nil {
		w.note = w.tell
	}
	if w.now == nil {
		w.now = time.Now
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer func() {
		cancel(nil)
		wg.Wait()
	}()
	asked := make(chan struct{})
	wg.Go(func() {
		defer close(asked)
		w.signals(ctx, cancel)
	})
	supervised := make(chan error, 1)
	wg.Go(func() { supervised <- w.supervise(ctx, cancel) })

	err := w.show(ctx)
	if err == nil {
		err = <-supervised // the runner has to be gone before we are
	}
	var broken *stdioError
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errLeft):
		<-asked // the cancel is known there, or the time for it is over
		return w.finish(ctx)
	case errors.As(err, &broken):
		return w.unheard(ctx, broken)
	case err != nil && cause != nil && !errors.Is(cause, context.Canceled):
		err = cause
	}
	if err != nil {
		w.app.warn("bowline: run %s goes on without this command; its runner's log is %s", w.run.ID, w.runnerLog())
		return err
	}
	return w.finish(ctx)
}

// unheard ends a run whose output nobody reads any more, as a shell's pipe ends
// its writers: it is cancelled, and its end is not waited for.
func (w *watch) unheard(ctx context.Context, broken *stdioError) error {
	ctx, done := context.WithTimeout(ctx, partingTimeout)
	defer done()
	run, err := w.client.CancelRun(ctx, w.run.ID)
	switch {
	case err != nil:
		w.app.warn("bowline: %s; run %s goes on: it cannot be cancelled: %s", broken.why(), w.run.ID, printable(err.Error()))
	case run.Status == "completed":
		return broken // all of it but the end was heard
	default:
		w.app.warn("bowline: %s; cancelling run %s", broken.why(), w.run.ID)
	}
	return &exitError{wire.ExitFailed}
}

// finish prints the end, or the state of a run that was left.
func (w *watch) finish(ctx context.Context) error {
	err := w.retry(ctx, func(ctx context.Context) error {
		run, err := w.client.GetRun(ctx, w.run.ID)
		if err == nil {
			w.last = run
		}
		return err
	})
	left := errors.Is(context.Cause(ctx), errLeft)
	if left {
		pctx, done := context.WithTimeout(context.WithoutCancel(ctx), partingTimeout)
		defer done()
		if run, perr := w.client.GetRun(pctx, w.run.ID); perr == nil {
			w.last = run
		}
	} else if err != nil {
		return err
	}
	run := w.last
	if w.json {
		line, err := resultLine(run)
		if err != nil {
			return err
		}
		if err := w.app.printJSON(line); err != nil {
			return err
		}
		w.told = true
	}
	if left && !run.Ended() {
		state := "goes on"
		if run.Status == "cancelling" || run.CancelRequestedAt != nil {
			state = "is being cancelled"
		}
		w.app.warn("bowline: run %s %s; follow it with: bowline runs events %s", run.ID, state, run.ID)
		return &exitError{wire.ExitSignal}
	}
	code, say := outcome(run)
	if say != "" {
		w.app.warn("bowline: %s", printable(say))
	}
	if runnerFailed(run) {
		w.app.warn("bowline: the runner's log is %s", w.runnerLog())
	}
	if (left || w.interrupted.Load()) && code != wire.ExitIntegrity {
		code = wire.ExitSignal
	}
	if code == wire.ExitOK {
		return nil
	}
	return &exitError{code}
}

func (w *watch) runnerLog() string { return filepath.Join(w.folder, "runnerd.log") }

// runnerFailed tells whether the runner's log has the reason of the end.
func runnerFailed(run *resource.Run) bool {
	switch run.Reason {
	case resource.LostGaveUp, resource.LostLaunchFailed, "runner_lost", "prepare_failed", "open_failed", "integrity_fault":
		return true
	}
	return run.Status == "orphaned"
}

// tell says what happens to the runner.
func (w *watch) tell(n launch.Note) {
	switch n.Kind {
	case launch.NoteRestarting:
		w.app.warn("bowline: %s; starting it again (its log is %s)", printable(n.Exit), w.runnerLog())
	case launch.NoteStopped:
		w.app.warn("bowline: the runner did not leave by itself; it was stopped")
	}
}

// show prints the events until the run has ended.
func (w *watch) show(ctx context.Context) error {
	r := &renderer{stdout: w.app.Stdout, stderr: w.app.Stderr, talk: w.app.talk, tame: terminal(w.app.Stdout), provider: w.provider}
	if terminal(w.app.Stderr) && !w.json && !w.silent {
		w.app.talk.start(w.app.getenv["NO_COLOR"] == "")
		defer w.app.talk.hush()
	}
	for line, err := range w.client.EventsRetry(ctx, w.run.ID, "", w.lostServer(ctx)) {
		if err != nil {
			return err
		}
		if w.seen != nil {
			w.seen(line)
		}
		switch {
		case w.silent:
		case w.json:
			err = w.app.printJSON(line)
		case line.Event != nil && !line.Event.Late:
			err = r.event(line.Event.Type, line.Event.Payload)
		case line.Type == resource.LineGap:
			w.app.warn("bowline: events %s to %s are not kept any more", line.From, line.To)
		}
		if err != nil {
			return err
		}
	}
	close(w.ended)
	return nil
}

// retry calls fn until it succeeds, is refused, or ctx ends, starting the data
// folder's server again when it is gone.
func (w *watch) retry(ctx context.Context, fn func(context.Context) error) error {
	lost := w.lostServer(ctx)
	for attempt := 1; ; attempt++ {
		cctx, done := context.WithTimeout(ctx, callTimeout)
		err := fn(cctx)
		done()
		if err == nil || ctx.Err() != nil || wire.CodeOf(err) != wire.CodeUnavailable {
			return err
		}
		if err := lost(attempt, err); err != nil {
			return err
		}
		t := time.NewTimer(retryEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

// lostServer is called while the server cannot be reached. The data folder's
// own server is started again; nothing is lost meanwhile, the runner keeps its
// log.
func (w *watch) lostServer(ctx context.Context) func(int, error) error {
	return func(attempt int, _ error) error {
		if w.rejoin != nil && attempt >= rejoinAfter {
			w.rejoinMu.Lock()
			defer w.rejoinMu.Unlock()
			return w.rejoin(ctx)
		}
		if attempt >= giveUpAfter {
			return wire.Errorf(wire.CodeUnavailable, "the server cannot be reached any more; run %s goes on", w.run.ID)
		}
		return nil
	}
}

// supervise keeps the runner running until the run has ended. Its failure ends
// the run: nobody else will start this runner.
func (w *watch) supervise(ctx context.Context, cancel context.CancelCauseFunc) error {
	err := w.startRunner(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	w.app.warn("bowline: the runner cannot be kept running: %s", printable(err.Error()))
	lerr := w.retry(ctx, func(ctx context.Context) error {
		_, lerr := w.client.RunnerLost(ctx, w.run.ID, resource.LostLaunchFailed, launch.Detail("the launcher failed", err))
		return lerr
	})
	if lerr != nil {
		cancel(errors.Join(err, lerr))
		return err
	}
	return nil
}

func (w *watch) startRunner(ctx context.Context) error {
	if w.run.Runner == nil {
		return wire.Errorf(wire.CodeInternal, "the server did not say how to start the runner")
	}
	if err := os.MkdirAll(w.folder, 0o700); err != nil {
		return wire.Errorf(wire.CodeSpawnFailed, "the runner's folder: %v", err)
	}
	spec := w.spec
	spec.Identity = w.run.Runner.Identity
	spec.ConnectURL = w.client.ConnectURL(w.run.Runner.ConnectPath)
	spec.StateDir, spec.LogFile = filepath.Join(w.folder, "runner"), w.runnerLog()
	spec.Version, spec.Digest = w.run.Runner.Version, w.run.Runner.Digest
	s := &launch.Supervisor{Spec: spec, Owner: &owner{w.client, w.run.ID}, Ended: w.ended, Note: w.note}
	return s.Run(ctx)
}

// signals hands Ctrl-C and SIGTERM on: the first cancels the run, the second
// leaves it. It returns when the cancel was asked for.
func (w *watch) signals(ctx context.Context, cancel context.CancelCauseFunc) {
	var wg sync.WaitGroup
	defer wg.Wait()
	var first time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.app.Signals:
		}
		switch now := w.now(); {
		case !w.interrupted.Load():
			first = now
		case now.Sub(first) < sameSignal:
			continue
		default:
			cancel(errLeft)
			return
		}
		w.interrupted.Store(true)
		w.app.warn("bowline: cancelling; press Ctrl-C again to leave without waiting")
		id := w.run.ID
		wg.Go(func() {
			err := w.retry(ctx, func(ctx context.Context) error {
				// A second Ctrl-C right behind the first does not take it back.
				pctx, done := context.WithTimeout(context.WithoutCancel(ctx), partingTimeout)
				defer done()
				_, err := w.client.CancelRun(pctx, id)
				return err
			})
			if err != nil && ctx.Err() == nil {
				w.app.warn("bowline: the run cannot be cancelled: %s", printable(err.Error()))
			}
		})
	}
}

// owner is the launcher's view of the run through the host API.
type owner struct {
	client *client.Client
	runID  string
}

func (o *owner) Ticket(ctx context.Context) (string, error) {
	t, err := o.client.IssueTicket(ctx, o.runID, 0)
	if err != nil {
		return "", err
	}
	return t.Ticket, nil
}

// Started and Exited have nothing to keep: this launcher lives as long as its
// terminal, and the runner finds its predecessor's processes by itself.
func (o *owner) Started(context.Context, int, launch.ProcessID) error { return nil }

func (o *owner) Exited(context.Context, int, launch.Exit) error { return nil }

func (o *owner) State(ctx context.Context) (launch.State, error) {
	r, err := o.client.GetRun(ctx, o.runID)
	if err != nil {
		return launch.State{}, err
	}
	st := launch.State{Ended: r.Ended()}
	if r.Runner != nil {
		st.Connections, st.Connected = r.Runner.Connections, r.Runner.Connected
		if r.Runner.LeaseExpiresAt != nil {
			st.LeaseEnds = *r.Runner.LeaseExpiresAt
		}
	}
	return st, nil
}

func (o *owner) Lost(ctx context.Context, reason, detail string) error {
	_, err := o.client.RunnerLost(ctx, o.runID, reason, detail)
	return err
}
