package command

import (
	"context"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"bowline/driver"
)

// The ladder of an interrupt: SIGINT, then SIGTERM, then SIGKILL of the tree.
const (
	interruptGrace = 2 * time.Second
	termGrace      = 3 * time.Second
	// closeGrace is SIGTERM's time when the session is closed.
	closeGrace = time.Second
)

// Outcomes of a turn.
const (
	outcomeExit       = "exit"
	outcomeSignal     = "signal"
	outcomeTimeout    = "timeout"
	outcomeCancelled  = "cancelled"
	outcomeSpawnError = "spawn_error"
)

const kindCommand = "command_execution"

// reason is why a turn is being stopped. The first one wins.
type reason int

const (
	notStopped  reason = iota
	byInterrupt        // a person or the control plane
	byClose            // the session ends
	byTimeout
	byHost // the host takes no more events
)

// turn is one run of the command.
type turn struct {
	s    *session
	id   string
	item string
	done chan struct{} // run has returned

	mu       sync.Mutex
	why      reason
	over     bool          // the program has ended; nothing stops it any more
	stopping chan struct{} // closed with why
	process  driver.Process
}

func newTurn(s *session, id, item string) *turn {
	return &turn{s: s, id: id, item: item, done: make(chan struct{}), stopping: make(chan struct{})}
}

// request asks for the end; false when the program has already ended.
func (t *turn) request(why reason) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	if t.why == notStopped {
		t.why = why
		close(t.stopping)
	}
	return true
}

// finish says that the program has ended and returns why it was stopped.
func (t *turn) finish() reason {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	return t.why
}

func (t *turn) pid() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.process == nil {
		return 0
	}
	return t.process.PID()
}

// run plays the turn to its terminal event. An error of Emit means that the
// session is over: then the tree is killed and nothing more is said.
func (t *turn) run() {
	defer t.s.ended(t)
	if err := t.play(); err != nil {
		t.s.host.Diagnostic("command: turn ends without a terminal event: %v", err)
	}
}

func (t *turn) play() error {
	if err := t.emit("turn.started", 0, map[string]any{"providerTurnId": t.id}); err != nil {
		return err
	}
	select {
	case <-t.stopping:
		return t.cancelled()
	default:
	}
	p := &t.s.provider
	process, err := t.s.host.Spawn(t.s.life, driver.ProcessSpec{
		Argv: p.Argv, Dir: p.Cwd, Env: t.s.env, PTY: p.PTY, StdinNull: true,
	})
	if err != nil {
		if t.finish() != notStopped {
			return t.cancelled()
		}
		return t.failed(outcomeSpawnError, nil, spawnFailure(err))
	}
	t.s.keep(process)
	t.mu.Lock()
	t.process = process
	t.mu.Unlock()
	return t.supervise(process)
}

// supervise follows a running process to the end.
func (t *turn) supervise(process driver.Process) error {
	begin := t.s.host.Now()
	ended := make(chan struct{})
	out := newOutput(process)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := t.stop(process, ended); err != nil {
			// It survives SIGKILL: the turn must end without it.
			t.s.host.Diagnostic("command: the process tree could not be ended: %v", err)
			close(out.quit)
		}
	}()

	argv, cut := shownArgv(t.s.provider.Argv)
	started := map[string]any{
		"itemId": t.item, "kind": kindCommand, "argv": argv, "cwd": t.s.provider.Cwd, "processId": process.PID(),
	}
	if cut {
		started["argvTruncated"] = true
	}
	lost := t.emit("item.started", 2, started)
	if lost != nil {
		t.request(byHost)
	}
	out.start()
	for piece, ok := out.next(); ok; piece, ok = out.next() {
		if lost == nil {
			if lost = t.emitPiece(piece); lost != nil {
				t.request(byHost)
			}
		}
		piece.taken <- struct{}{}
	}
	exit, known := out.wait(process)
	why := t.finish()
	close(ended)
	// When the turn was stopped, its end is told after the tree is gone.
	<-stopped
	if lost != nil {
		return lost
	}
	if !known {
		return t.conclude(why, exit)
	}
	if err := t.completeItem(out, exit, t.s.host.Now().Sub(begin)); err != nil {
		return err
	}
	return t.conclude(why, exit)
}

// stop waits for a request or the timeout and then goes down the ladder. It
// returns once the tree is gone, or when the program ends by itself.
func (t *turn) stop(process driver.Process, ended <-chan struct{}) error {
	var timeout <-chan time.Time
	if d := t.s.provider.Timeout; d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ended:
		// A request may have come in just before the end.
		if t.stopReason() == notStopped {
			return nil
		}
	case <-timeout:
		if !t.request(byTimeout) {
			return nil
		}
	case <-t.stopping:
	}
	grace := termGrace
	switch t.stopReason() {
	case byInterrupt:
		if err := process.Interrupt(); err != nil {
			t.s.host.Diagnostic("command: interrupt: %v", err)
		}
		timer := time.NewTimer(interruptGrace)
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C:
		}
	case byClose:
		grace = closeGrace
	case byHost:
		grace = 0
	}
	// The session's life may be over; the tree's end must not depend on it.
	return process.Stop(context.WithoutCancel(t.s.life), grace)
}

func (t *turn) stopReason() reason {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.why
}

// conclude emits the terminal event.
func (t *turn) conclude(why reason, exit driver.Exit) error {
	switch {
	case why == byTimeout:
		return t.failed(outcomeTimeout, &exit, failure{
			outcomeTimeout, fmt.Sprintf("the command ran longer than %v and was killed", t.s.provider.Timeout),
		})
	case why != notStopped:
		return t.cancelled()
	case exit.Err != nil:
		return t.failed(outcomeExit, &exit, failure{"wait_failed", "the exit status of the command is unknown"})
	case exit.Signal != "":
		return t.failed(outcomeSignal, &exit, failure{outcomeSignal, "the command was ended by " + exit.Signal})
	case exit.Code != 0:
		return t.failed(outcomeExit, &exit, failure{outcomeExit, fmt.Sprintf("the command exited with code %d", exit.Code)})
	}
	return t.terminal("turn.completed", map[string]any{
		"providerTurnId": t.id, "status": "completed", "outcome": outcomeExit, "exitCode": 0,
	})
}

func (t *turn) cancelled() error {
	return t.terminal("turn.cancelled", map[string]any{
		"providerTurnId": t.id, "status": "cancelled", "outcome": outcomeCancelled,
	})
}

func (t *turn) failed(outcome string, exit *driver.Exit, f failure) error {
	payload := map[string]any{"providerTurnId": t.id, "status": "failed", "outcome": outcome, "error": f}
	if exit != nil {
		payload["exitCode"] = exitCode(*exit)
		if exit.Signal != "" {
			payload["signal"] = exit.Signal
		}
	}
	return t.terminal("turn.failed", payload)
}

func (t *turn) terminal(eventType string, payload map[string]any) error {
	return emit(t.s.life, t.s.host, driver.Event{Type: eventType, Terminal: true}, payload)
}

func (t *turn) emit(eventType string, priority int, payload map[string]any) error {
	return emit(t.s.life, t.s.host, driver.Event{Type: eventType, Priority: priority}, payload)
}

// completeItem tells how the program ended and what its streams amounted to.
func (t *turn) completeItem(out *output, exit driver.Exit, took time.Duration) error {
	bytes, sums := map[string]int64{}, map[string]string{}
	for _, s := range out.streams {
		bytes[s.name] = s.bytes
		sums[s.name] = hex.EncodeToString(s.hash.Sum(nil))
		if s.err != nil {
			t.s.host.Diagnostic("command: %s ended early: %v", s.name, s.err)
		}
	}
	payload := map[string]any{
		"itemId": t.item, "kind": kindCommand, "exitCode": exitCode(exit),
		"bytes": bytes, "sha256": sums, "pipesLeftOpen": exit.PipesLeftOpen, "durationMs": took.Milliseconds(),
	}
	if exit.Signal != "" {
		payload["signal"] = exit.Signal
	}
	return t.emit("item.completed", 1, payload)
}

// exitCode is null when the program did not exit by itself.
func exitCode(exit driver.Exit) *int {
	if exit.Signal != "" || exit.Err != nil {
		return nil
	}
	return &exit.Code
}

// shownArgv is what item.started shows of argv; cut when not all of it.
func shownArgv(argv []string) (shown []string, cut bool) {
	const maxShown = 8 << 10 // bytes
	size := 0
	for i, arg := range argv {
		if size += len(arg); size > maxShown {
			if i == 0 {
				return []string{filepath.Base(arg[:maxShown])}, true
			}
			return argv[:i], true
		}
	}
	return argv, false
}
