// Package executor carries out a session's commands through a driver and turns
// the driver's events into the runner's.
//
// # What it promises
//
//   - Commands are executed one after another in their order, each at most once;
//     a repeated one gets its stored result (prp.md 9.7).
//   - turn.start is answered when the provider has accepted, so the commands
//     that end or steer a turn get through while it runs.
//   - A turn that was accepted ends with exactly one terminal event, over crashes
//     of the runner too ([Executor.Recover]).
//   - Everything a driver says is redacted before it is stored.
//
// # Concurrency
//
// [Executor.Run] is called once and executes commands on its goroutine. The
// methods of [bowline/runnerd/link.Core] are called by the link's goroutines and
// never wait for a command.
package executor

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"bowline/driver"
	"bowline/runnerd/journal"
	"bowline/runnerd/redact"
	"bowline/runnerd/sanitize"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

const (
	// queueLength is how many delivered commands wait (ours): an authority of
	// this profile has one outstanding and may repeat it.
	queueLength = 64
	// ackWait is how long the result of a terminal command waits for its
	// acknowledgement (prp.md 9.8).
	ackWait = 2 * time.Second
	// FlushWait is how long an ending runner tries to get its outbox
	// acknowledged (ours).
	FlushWait = 5 * time.Second
	// drainWait is how long runner.drain waits for acknowledgements before it
	// says how far it got (ours).
	drainWait = time.Second
	// closeWait bounds the end of a provider (ours): drivers escalate long
	// before.
	closeWait = 30 * time.Second
	// emitWait is how long an ending provider waits for room in the outbox
	// before what it still says is dropped (ours).
	emitWait = 5 * time.Second
)

// Kind is one kind of provider.
type Kind struct {
	Driver driver.Driver
	// EnvNames are variables of the runner its provider inherits beside the base
	// ones; SecretNames are further ones whose values are redacted.
	EnvNames    []string
	SecretNames []string
	// ContinuesTurns: opened with a resume state, it goes on with the turn that
	// was running.
	ContinuesTurns bool
	// StateFile: codex-provider-state.json is kept for it (prp.md 11.11).
	StateFile bool
}

// Sender is the link as the executor sees it.
type Sender interface {
	SendResult(payload []byte)
	// ConnectionDone is closed when the current connection has ended; nil when
	// there is none.
	ConnectionDone() <-chan struct{}
}

// Spawner starts supervised processes.
type Spawner interface {
	Spawn(ctx context.Context, spec driver.ProcessSpec) (driver.Process, error)
}

// Options of an executor.
type Options struct {
	Journal *journal.Journal
	Kinds   map[string]Kind // by provider kind
	Spawner Spawner
	Environ []string // of the runner, without the ticket
	PassEnv []string // names handed on to providers and redacted
	// OnlyPassEnv: a provider gets no other variable than the base ones and
	// those of PassEnv, whatever the authority names.
	OnlyPassEnv bool
	Workspace   string
	Permission  driver.Permission
	Log         *slog.Logger
	Now         func() time.Time
	// Sanitizer is the storage redactor of PRP use (prp.md 9.6, 14.4); nil in our
	// own, where bytes are exact but for the values that were handed on.
	Sanitizer *sanitize.Sanitizer
	// Redial: the result of a terminal command may be delivered by a new
	// connection; else the end of the connection ends the process (prp.md 9.8).
	Redial bool
	// OnCommand is told about every executed command; may be nil.
	OnCommand func(kind, status string, took time.Duration)
	// OnReplay is told about every repeated command; may be nil.
	OnReplay func()
	// OnProvider is told when a provider session begins and ends; may be nil.
	OnProvider func(kind string, up bool)
}

// Executor runs one session.
type Executor struct {
	opt  Options
	jr   *journal.Journal
	link Sender

	queue chan prp.Command

	mu        sync.Mutex
	session   driver.Session // nil: none is open
	host      *host          // of the session
	kind      Kind
	kindName  string
	provider  json.RawMessage
	env       []string
	redactor  *redact.Redactor
	turnBegun chan struct{} // closed when the running turn's first event was taken
	welcomed  bool          // a welcome came in this process
	nextWork  bool          // the last welcome brought another command than the fence

	fence     *fence
	revoked   chan struct{}
	revokeOne sync.Once
	stop      chan struct{}
	stopOne   sync.Once
}

// fence waits for the acknowledgement of a terminal command's result.
type fence struct {
	cmd   journal.Command
	acked chan struct{}
	once  sync.Once
}

func (f *fence) done() { f.once.Do(func() { close(f.acked) }) }

// Ends of Run with which the runner exits with 0.
var (
	ErrRevoked = errors.New("the lease was revoked")
	ErrStopped = errors.New("the runner was asked to stop")
)

// New makes an executor; SetLink before Run.
func New(opt Options) *Executor {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	e := &Executor{opt: opt, jr: opt.Journal, queue: make(chan prp.Command, queueLength), revoked: make(chan struct{}), stop: make(chan struct{})}
	e.redactor = redact.New(e.secrets(nil)...)
	if f := e.jr.Meta().PendingTerminal; f != nil {
		e.fence = &fence{cmd: e.fenced(f), acked: make(chan struct{})}
	}
	return e
}

// fenced finds the command of a fence; its result is kept by the journal.
func (e *Executor) fenced(f *journal.Fence) journal.Command {
	if c, ok := e.jr.Lookup(f.CommandID); ok {
		return c
	}
	return journal.Command{CommandID: f.CommandID, ControllerSeq: f.ControllerSeq, Type: f.CommandType, Status: f.Status, Result: []byte(`{"status":"completed"}`)}
}

// SetLink tells where results go.
func (e *Executor) SetLink(link Sender) { e.link = link }

// Run executes commands until a terminal one is done (nil), the lease is
// revoked ([ErrRevoked]), ctx ends or something is beyond repair.
func (e *Executor) Run(ctx context.Context) error {
	work, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-e.revoked:
			cancel(ErrRevoked) // a command in execution must not hold it up
		case <-work.Done():
		}
	})
	err := e.loop(work)
	cancel(nil)
	watch.Wait()
	if errors.Is(err, ErrRevoked) {
		return e.endRevoked(ctx)
	}
	return err
}

func (e *Executor) loop(ctx context.Context) error {
	if e.pendingFence() != nil {
		again, err := e.settleFence(ctx, 0, nil)
		if err != nil || !again {
			return err
		}
	}
	for {
		select {
		case <-e.stop:
			return ErrStopped
		case <-ctx.Done():
			return context.Cause(ctx)
		case cmd := <-e.queue:
			ended, err := e.handle(ctx, cmd)
			if err != nil || ended {
				return err
			}
		}
	}
}

// Stop ends Run after the command it is executing.
func (e *Executor) Stop() { e.stopOne.Do(func() { close(e.stop) }) }

// handle executes or answers one command; ended after a terminal one.
func (e *Executor) handle(ctx context.Context, cmd prp.Command) (ended bool, err error) {
	execute := e.planted(ctx, cmd)
	decision, c, err := e.jr.Begin(cmd)
	if err != nil {
		return false, err
	}
	if decision == journal.Answered {
		if e.opt.OnReplay != nil {
			e.opt.OnReplay()
		}
		e.send(c)
		return false, nil
	}
	if decision != journal.Execute {
		panic("bug: executor: a command is in flight on the only goroutine that executes")
	}
	begun := e.opt.Now()
	out := execute(ctx, cmd)
	if ctx.Err() != nil && out.err != nil {
		// The process is ending: the successor calls it indeterminate.
		return false, context.Cause(ctx)
	}
	status, result := e.sanitized(out.finish())
	var update func(*journal.Meta)
	if out.update != nil {
		update = out.update
	}
	terminal := status == prp.StatusCompleted && prp.IsTerminalCommand(cmd.Type)
	if terminal {
		update = e.terminalUpdate(cmd, status, out.update)
	}
	done, err := e.jr.Finish(cmd.CommandID, status, result, update)
	if err != nil {
		return false, err
	}
	if e.opt.OnCommand != nil {
		e.opt.OnCommand(cmd.Type, status, e.opt.Now().Sub(begun))
	}
	if e.opt.Log != nil {
		e.opt.Log.Info("command executed", "type", cmd.Type, "seq", cmd.ControllerSeq, "status", status)
	}
	if out.after != nil {
		out.after()
	}
	if !terminal {
		e.send(done)
		return false, nil
	}
	e.mu.Lock()
	e.fence = &fence{cmd: done, acked: make(chan struct{})}
	e.mu.Unlock()
	lost := e.link.ConnectionDone()
	if lost == nil && !e.opt.Redial {
		return true, wire.Errorf(wire.CodeUnavailable, "the result of %s was not delivered: the connection is down", cmd.Type)
	}
	if e.opt.Redial {
		lost = nil
	}
	e.send(done)
	_, err = e.settleFence(ctx, ackWait, lost)
	return true, err
}

// sanitized cleans a result. One that would lose what identifies it is refused
// (prp.md 14.4).
func (e *Executor) sanitized(status string, result []byte) (string, []byte) {
	if e.opt.Sanitizer == nil {
		return status, result
	}
	clean, err := e.opt.Sanitizer.Payload(result)
	if err != nil {
		return failed(wire.Errorf(wire.CodeInternal, "the result is withheld: it holds what looks like a secret")).finish()
	}
	return status, clean
}

// clean is a text without what looks like a secret.
func (e *Executor) clean(text string) string {
	if e.opt.Sanitizer == nil {
		return text
	}
	return e.opt.Sanitizer.String(text)
}

// send gives a stored result to the link.
func (e *Executor) send(c journal.Command) {
	status, result := c.Outcome()
	if len(result) == 0 {
		result = []byte("null") // only another runner's state has that
	}
	value, err := canonjson.Parse(result)
	if err != nil {
		panic("bug: executor: a stored result is not JSON")
	}
	payload := prp.CommandResult{
		CommandID: c.CommandID, ControllerSeq: c.ControllerSeq, CommandType: c.Type, Status: status, Result: value,
	}.Value().JSON()
	e.link.SendResult(payload)
}

// Resume implements link.Core.
func (e *Executor) Resume() prp.Resume {
	s := e.jr.Stats()
	return prp.Resume{LastControllerCommandSeq: s.LastCmd, NextSourceEventSeq: s.NextSeq, AckedSourceSeq: s.Acked}
}

// Welcome implements link.Core.
func (e *Executor) Welcome(w prp.Welcome) error {
	before := e.jr.Meta()
	if _, err := e.jr.Ack(w.AckedSourceSeq); err != nil {
		return err
	}
	e.mu.Lock()
	again, f := e.welcomed, e.fence
	e.welcomed = true
	e.mu.Unlock()
	if f != nil {
		// The authority does not ask for it any more: it has the result.
		if w.PendingCommand == nil || w.PendingCommand.CommandID != f.cmd.CommandID {
			e.mu.Lock()
			e.nextWork = w.PendingCommand != nil
			e.mu.Unlock()
			f.done()
		}
		return nil
	}
	err := e.jr.Update(func(m *journal.Meta) {
		m.Lifecycle, m.RecoverableFailure = journal.LifecycleReady, ""
		m.ProtocolVersion = w.SelectedVersion
		if again || before.ProtocolVersion != 0 {
			m.Reconnects++
		}
	})
	if err != nil || before.ProtocolVersion != prp.VersionMin || w.SelectedVersion == prp.VersionMin {
		return err
	}
	// The authority has only seen placeholders of these.
	for _, ev := range e.jr.V2Events() {
		if err := e.jr.Emit(context.Background(), journal.Event{Type: ev.Type, Priority: 0, Payload: ev.Payload}); err != nil {
			return err
		}
	}
	return nil
}

// Deliver implements link.Core.
func (e *Executor) Deliver(cmd prp.Command) error {
	if f := e.pendingFence(); f != nil {
		if cmd.CommandID == f.cmd.CommandID {
			e.send(f.cmd)
			return nil
		}
		e.mu.Lock()
		next := e.nextWork
		e.mu.Unlock()
		if !next {
			return wire.Errorf(wire.CodeProtocol, "a command came after %s", f.cmd.Type)
		}
	}
	select {
	case e.queue <- cmd:
		return nil
	default:
		return wire.Errorf(wire.CodeProtocol, "more than %d commands were delivered while one was executed", queueLength)
	}
}

// Ack implements link.Core.
func (e *Executor) Ack(seq int64) error {
	_, err := e.jr.Ack(seq)
	return err
}

// Next implements link.Core.
func (e *Executor) Next(ctx context.Context, seq int64) ([]*journal.Entry, error) {
	return e.jr.Next(ctx, seq)
}

// Pong implements link.Core.
func (e *Executor) Pong() prp.Pong {
	s := e.jr.Stats()
	return prp.Pong{Lifecycle: s.Lifecycle, AckedSourceSeq: s.Acked, OutboxBytes: s.Bytes}
}

// Revoked implements link.Core: the state is durable when it returns, the rest
// happens in Run.
func (e *Executor) Revoked() error {
	err := e.jr.Update(func(m *journal.Meta) { m.Lifecycle = journal.LifecycleRevoked })
	e.revokeOne.Do(func() { close(e.revoked) })
	return err
}

func (e *Executor) endRevoked(ctx context.Context) error {
	if err := e.CloseSession(context.WithoutCancel(ctx)); err != nil {
		return errors.Join(ErrRevoked, err)
	}
	return ErrRevoked
}
