package cli

import (
	"context"
	"errors"
	"os"
	"sync"
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
)

// watch follows one attached run: it keeps the runner running, shows the
// events, and hands signals on.
type watch struct {
	app    *app
	client *client.Client
	run    *resource.Run
	spec   launch.Spec
	folder string // state and log of the runner
	json   bool
	// rejoin starts the data folder's server again; nil with --server.
	rejoin func(context.Context) error
	// note is told what happens to the runner; nil outside the demo.
	note func(launch.Note)
	// seen is told every event; nil outside the demo.
	seen func(*resource.Line)

	endOnce sync.Once
	ended   chan struct{}
}

// errLeft says that the user left with a second Ctrl-C.
var errLeft = errors.New("left")

// follow returns nil when the run completed; the exit code of every other end
// is in the error.
func (w *watch) follow(ctx context.Context) error {
	w.ended = make(chan struct{})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var wg sync.WaitGroup
	defer wg.Wait()
	interrupted := make(chan struct{})
	stopSignals := make(chan struct{})
	wg.Go(func() { w.signals(ctx, cancel, interrupted, stopSignals) })

	supervised := make(chan error, 1)
	wg.Go(func() { supervised <- w.supervise(ctx, cancel) })

	err := w.show(ctx)
	if err == nil {
		err = <-supervised // the runner has to be gone before we are
	}
	close(stopSignals)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	cancel(nil)
	if err != nil && !errors.Is(err, errLeft) {
		return err
	}
	return w.finish(context.WithoutCancel(ctx), err, isClosed(interrupted))
}

// finish prints the end.
func (w *watch) finish(ctx context.Context, left error, interrupted bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	run, err := w.client.GetRun(ctx, w.run.ID)
	if err != nil {
		return err
	}
	if w.json {
		line, err := resultLine(run)
		if err != nil {
			return err
		}
		if err := w.app.printJSON(line); err != nil {
			return err
		}
	}
	if left != nil {
		w.app.warn("bowline: run %s goes on; follow it with: bowline runs events %s", run.ID, run.ID)
		return &exitError{wire.ExitSignal}
	}
	code, say := outcome(run)
	if say != "" {
		w.app.warn("bowline: %s", printable(say))
	}
	if interrupted && code != wire.ExitIntegrity {
		code = wire.ExitSignal
	}
	if code == wire.ExitOK {
		return nil
	}
	return &exitError{code}
}

// show prints the events until the run has ended.
func (w *watch) show(ctx context.Context) error {
	r := &renderer{stdout: w.app.Stdout, stderr: w.app.Stderr}
	if terminal(w.app.Stderr) && !w.json {
		_, plain := w.app.getenv["NO_COLOR"]
		r.status = &statusLine{w: w.app.Stderr, color: !plain}
	}
	defer r.status.clear()
	for line, err := range w.client.EventsRetry(ctx, w.run.ID, "", w.lostServer(ctx)) {
		if err != nil {
			return err
		}
		if w.seen != nil {
			w.seen(line)
		}
		switch {
		case w.json:
			err = w.app.printJSON(line)
		case line.Event != nil:
			err = r.event(line.Event.Type, line.Event.Payload)
		case line.Type == resource.LineGap:
			w.app.warn("bowline: events %s to %s are not kept any more", line.From, line.To)
		}
		if err != nil {
			return stdoutFailed(err)
		}
		if line.Event != nil && line.Event.Type == resource.EventRunEnded {
			break
		}
	}
	w.endOnce.Do(func() { close(w.ended) })
	return nil
}

// lostServer is called while the server cannot be reached. The data folder's
// own server is started again; nothing is lost meanwhile, the runner keeps its
// log.
func (w *watch) lostServer(ctx context.Context) func(int, error) error {
	return func(attempt int, err error) error {
		if w.rejoin != nil && attempt >= rejoinAfter {
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
	lctx, done := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer done()
	if _, lerr := w.client.RunnerLost(lctx, w.run.ID, resource.LostLaunchFailed, "the launcher failed"); lerr != nil {
		cancel(errors.Join(err, lerr))
		return err
	}
	w.app.warn("bowline: the runner cannot be kept running: %s", printable(err.Error()))
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
	spec.StateDir = w.folder + "/runner"
	spec.Version, spec.Digest = w.run.Runner.Version, w.run.Runner.Digest
	s := &launch.Supervisor{Spec: spec, Owner: &owner{w.client, w.run.ID}, Ended: w.ended, Note: w.note}
	return s.Run(ctx)
}

// signals hands Ctrl-C on: the first cancels the run, the second leaves it.
func (w *watch) signals(ctx context.Context, cancel context.CancelCauseFunc, interrupted, stop chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-w.app.Signals:
		}
		if n > 0 {
			cancel(errLeft)
			return
		}
		close(interrupted)
		w.app.warn("bowline: cancelling; press Ctrl-C again to leave the run alone")
		wg.Go(func() {
			cctx, done := context.WithTimeout(ctx, callTimeout)
			defer done()
			if _, err := w.client.CancelRun(cctx, w.run.ID); err != nil && ctx.Err() == nil {
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

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
