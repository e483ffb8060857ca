package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"bowline/driver"
	"bowline/runnerd/journal"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// turnEventWait is how long turn.start waits for the turn's first event of a
// provider that continues turns: with it durable before the result, no crash
// can leave an accepted turn nobody knows of (ours).
const turnEventWait = 2 * time.Second

// maxPrompt is the longest prompt in bytes of JSON text (architecture, "Limits").
const maxPrompt = 480 << 10

// outcome of an executed command.
type outcome struct {
	value any // of a completed one
	err   error
	// refused: the command was checked and not executed.
	refused bool
	update  func(*journal.Meta) // in the write of the result
	after   func()              // once the result is durable
}

func completed(value any) outcome { return outcome{value: value} }
func failed(err error) outcome    { return outcome{err: err} }

// unavailable answers a command the provider has no use for: executed, and
// inside rejected (prp.md 6.3).
func unavailable(message string) outcome {
	return completed(map[string]any{"status": "rejected", "code": "provider_command_unavailable", "message": message})
}

// finish gives status and result as they are stored.
func (o outcome) finish() (status string, result []byte) {
	status = prp.StatusCompleted
	value := o.value
	if o.err != nil {
		status, value = prp.StatusFailed, failure(o.err, o.refused)
	}
	if value == nil {
		value = struct{}{}
	}
	b, err := canonjson.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("bug: executor: result has no JSON: %v", err))
	}
	if len(b) > prp.MaxCommandResultBytes {
		return finishTooLong(len(b))
	}
	return status, b
}

func finishTooLong(size int) (string, []byte) {
	return failed(wire.Errorf(wire.CodeTooLarge, "result of %d bytes exceeds the limit of %d bytes", size, prp.MaxCommandResultBytes)).finish()
}

// codeExecution is the code of a failed command (prp.md 9.7).
const codeExecution = "command_execution_failed"

// failure is the result of a failed command. Our own code stands beside the one
// the profile knows; a refused run.prepare, where nothing was executed, has it
// alone.
func failure(err error, refused bool) map[string]any {
	const maxMessage = 1200 // characters, prp.md 14.6
	var we *wire.Error
	var pe *driver.ProviderError
	code, message := codeExecution, err.Error()
	r := map[string]any{}
	switch {
	case errors.As(err, &we):
		r["errorCode"], message = string(we.Code), we.Message
		if refused {
			code = string(we.Code)
		}
		if len(we.Details) > 0 {
			r["details"] = we.Details
		}
	case errors.As(err, &pe):
		r["providerCode"], message = pe.Code, pe.Message
	}
	if n := []rune(message); len(n) > maxMessage {
		message = string(n[:maxMessage])
	}
	r["code"], r["message"] = code, message
	return r
}

// execute carries out one command.
func (e *Executor) execute(ctx context.Context, cmd prp.Command) (out outcome) {
	if e.jr.Meta().PendingCleanup && cmd.Type != prp.CommandTurnStop {
		return failed(wire.Errorf(wire.CodeConflict, "the end of the provider is not proven: only turn.stop is accepted"))
	}
	defer func() {
		if out.err != nil {
			out.err = e.redactError(out.err)
		}
	}()
	p := cmd.Payload
	switch cmd.Type {
	case prp.CommandRunPrepare:
		if err := e.prepare(p); err != nil {
			return outcome{err: err, refused: true}
		}
		return completed(map[string]any{"status": "prepared"})
	case prp.CommandSessionOpen:
		return e.sessionOpen(ctx)
	case prp.CommandTurnStart:
		return e.turnStart(ctx, p)
	case prp.CommandTurnSteer:
		return e.turnSteer(ctx, p)
	case prp.CommandTurnInterrupt, prp.CommandRunCancel:
		return e.interrupt(ctx, p)
	case prp.CommandTurnStop:
		return e.turnStop(ctx)
	case prp.CommandRequestResolve:
		return e.resolve(ctx, p)
	case prp.CommandSessionSnapshot:
		return completed(e.snapshot())
	case prp.CommandSessionClose, prp.CommandSessionDestroy:
		if err := e.CloseSession(ctx); err != nil {
			return uncertain(err)
		}
		return outcome{value: map[string]any{"status": "completed"}, update: func(m *journal.Meta) { m.SessionOpen = false }}
	case prp.CommandRunnerDrain:
		return e.drain(ctx)
	case prp.CommandRunnerSuspend, prp.CommandRunnerShutdown:
		// The end of a running turn has to be among what is flushed.
		if err := e.CloseSession(ctx); err != nil {
			return uncertain(err)
		}
		return completed(map[string]any{"status": "completed"})
	}
	return unavailable(cmd.Type + " is not supported by this runner")
}

// uncertain is a provider whose end could not be proven.
func uncertain(err error) outcome {
	return outcome{err: err, update: func(m *journal.Meta) { m.PendingCleanup = true }}
}

func (e *Executor) redactError(err error) error {
	e.mu.Lock()
	r := e.redactor
	e.mu.Unlock()
	if r.Empty() {
		return err
	}
	var we *wire.Error
	var pe *driver.ProviderError
	switch {
	case errors.As(err, &we):
		c := *we
		c.Message = r.String(c.Message)
		return &c
	case errors.As(err, &pe):
		return &driver.ProviderError{Code: pe.Code, Message: r.String(pe.Message)}
	}
	return errors.New(r.String(err.Error()))
}

func (e *Executor) sessionOpen(ctx context.Context) outcome {
	if e.current() == nil {
		_, resume := e.jr.Prepare()
		if err := e.open(ctx, resume); err != nil {
			return failed(err)
		}
	}
	s := e.snapshot()
	e.mu.Lock()
	kind := e.kind
	e.mu.Unlock()
	out := outcome{value: s, update: func(m *journal.Meta) { m.SessionOpen = true }}
	if kind.StateFile {
		if err := e.jr.WriteProviderState(journal.ProviderSessionOpen); err != nil {
			return failed(err)
		}
	}
	return out
}

// reopen takes a session up again that an earlier process, or turn.stop, ended.
func (e *Executor) reopen(ctx context.Context) (driver.Session, error) {
	if s := e.current(); s != nil {
		return s, nil
	}
	if !e.jr.Meta().SessionOpen {
		return nil, wire.Errorf(wire.CodeConflict, "no session is open")
	}
	_, resume := e.jr.Prepare()
	if err := e.open(ctx, resume); err != nil {
		return nil, err
	}
	return e.current(), nil
}

func (e *Executor) turnStart(ctx context.Context, p canonjson.Value) outcome {
	text, ok := p.Get("text").AsString()
	if !ok {
		return failed(wire.Errorf(wire.CodeInputInvalid, "text is not a string").With("member", "text"))
	}
	if n := len(canonjson.AppendString(nil, text)); n > maxPrompt {
		return failed(wire.Errorf(wire.CodeTooLarge, "text of %d bytes exceeds the limit of %d bytes", n, maxPrompt).With("member", "text").With("limit", maxPrompt).With("size", n))
	}
	turnID := p.Get("turnId").Str()
	if turnID != "" && !prp.IsStableID(turnID, prp.MaxIdentityLen) {
		return failed(wire.Errorf(wire.CodeInputInvalid, "turnId is not a stable id of at most %d characters", prp.MaxIdentityLen).With("member", "turnId"))
	}
	s, err := e.reopen(ctx)
	if err != nil {
		return failed(err)
	}
	e.mu.Lock()
	kind := e.kind
	e.mu.Unlock()
	begun := e.expectTurn()
	// Known before the effect: the turn's own end takes it away again.
	if e.jr.Meta().Turn == nil {
		if err := e.jr.Note(func(m *journal.Meta) { m.Turn = &journal.Turn{TurnID: turnID} }); err != nil {
			return failed(err)
		}
	}
	providerTurnID, err := s.StartTurn(ctx, driver.Turn{ID: turnID, Text: text})
	if err != nil {
		if !errors.Is(err, driver.ErrTurnRunning) {
			if nerr := e.jr.Note(func(m *journal.Meta) { m.Turn = nil }); nerr != nil {
				return failed(errors.Join(err, nerr))
			}
		}
		return failed(err)
	}
	if kind.ContinuesTurns {
		timer := time.NewTimer(turnEventWait)
		defer timer.Stop()
		select {
		case <-begun:
		case <-timer.C:
		case <-ctx.Done():
			return failed(context.Cause(ctx))
		}
	}
	if err := e.jr.Note(func(m *journal.Meta) {
		if m.Turn != nil && m.Turn.TurnID == turnID {
			m.Turn.ProviderTurnID, m.Provider.ActiveProviderTurnID = providerTurnID, providerTurnID
		}
	}); err != nil {
		return failed(err)
	}
	if kind.StateFile && e.jr.Meta().Turn != nil {
		if err := e.jr.WriteProviderState(journal.ProviderTurnActive); err != nil {
			return failed(err)
		}
	}
	return completed(map[string]any{"providerTurnId": providerTurnID})
}

// turnOf finds the provider's id of the turn a payload speaks of.
func (e *Executor) turnOf(p canonjson.Value) string {
	for _, name := range []string{"providerTurnId", "expectedProviderTurnId"} {
		if id := p.Get(name).Str(); id != "" {
			return id
		}
	}
	m := e.jr.Meta()
	if m.Turn == nil {
		return ""
	}
	if id := p.Get("turnId").Str(); id != "" && id != m.Turn.TurnID && id != m.Turn.ProviderTurnID {
		return id
	}
	return m.Turn.ProviderTurnID
}

func (e *Executor) turnSteer(ctx context.Context, p canonjson.Value) outcome {
	s := e.current()
	if s == nil {
		return failed(wire.Errorf(wire.CodeConflict, "no session is open"))
	}
	switch err := s.Steer(ctx, e.turnOf(p), p.Get("text").Str()); {
	case errors.Is(err, driver.ErrUnsupported):
		return unavailable("this provider cannot be steered")
	case err != nil:
		return failed(err)
	}
	return completed(map[string]any{"status": "completed"})
}

// interrupt answers as soon as the provider was told; the end of the turn is an
// event, and drivers escalate by themselves.
func (e *Executor) interrupt(ctx context.Context, p canonjson.Value) outcome {
	s := e.current()
	if s == nil || e.jr.Meta().Turn == nil {
		return completed(map[string]any{"status": "already_terminal"})
	}
	switch err := s.Interrupt(ctx, e.turnOf(p)); {
	case errors.Is(err, driver.ErrNoTurn):
		return completed(map[string]any{"status": "already_terminal"})
	case errors.Is(err, driver.ErrUnsupported):
		return unavailable("this provider cannot be interrupted")
	case err != nil:
		return failed(err)
	}
	return completed(map[string]any{"status": "completed"})
}

func (e *Executor) turnStop(ctx context.Context) outcome {
	if err := e.CloseSession(ctx); err != nil {
		return uncertain(err)
	}
	if err := e.killLeftovers(ctx); err != nil {
		return uncertain(err)
	}
	return outcome{value: map[string]any{"providerExitConfirmed": true}, update: func(m *journal.Meta) { m.PendingCleanup = false }}
}

func (e *Executor) resolve(ctx context.Context, p canonjson.Value) outcome {
	s := e.current()
	if s == nil {
		return failed(wire.Errorf(wire.CodeConflict, "no session is open"))
	}
	response := p.Get("response")
	if !response.Exists() {
		response = p.Get("resolution")
	}
	err := s.Resolve(ctx, driver.Resolution{RequestID: p.Get("requestId").Str(), Response: json.RawMessage(response.JSON())})
	switch {
	case errors.Is(err, driver.ErrUnsupported):
		return unavailable("this provider asks nothing")
	case err != nil:
		return failed(err)
	}
	return completed(map[string]any{"status": "completed"})
}

// snapshot is the answer to session.snapshot (prp.md 6.4).
func (e *Executor) snapshot() map[string]any {
	m := e.jr.Meta()
	id := m.Provider
	if s := e.current(); s != nil {
		id = s.Identity()
	}
	status := "prepared"
	switch {
	case m.Turn != nil:
		status = "turn_active"
	case m.SessionOpen || e.current() != nil:
		status = "session_open"
	}
	active := any(nil)
	if m.Turn != nil && id.ActiveProviderTurnID != "" {
		active = id.ActiveProviderTurnID
	}
	cwd := id.Cwd
	if cwd == "" {
		cwd = e.opt.Workspace
	}
	return map[string]any{
		"status": status, "cwd": cwd, "activeProviderTurnId": active,
		"threadId": id.ThreadID, "driverSessionId": id.ThreadID,
		"sessionId": id.SessionID, "providerSessionId": id.SessionID,
	}
}

// drain says whether everything is acknowledged; while no turn runs it gives
// the acknowledgements a moment to come (prp.md 6.4).
func (e *Executor) drain(ctx context.Context) outcome {
	drained := false
	if e.jr.Meta().Turn == nil {
		drained = e.Flush(ctx, drainWait) && e.jr.Meta().Turn == nil
	}
	return completed(map[string]any{"status": "completed", "retainedEventsDrained": drained})
}
