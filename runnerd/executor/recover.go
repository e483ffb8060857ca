package executor

import (
	"context"
	"errors"
	"slices"
	"time"

	"bowline/runnerd/journal"
	"bowline/runnerd/supervise"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// killWait bounds how long a predecessor's process tree may take to die (ours).
const killWait = 20 * time.Second

// Recover takes up what an earlier process of this session left (prp.md 5.10):
// it says so with runner.reconciled, calls pending commands indeterminate, kills
// the processes that are left, and continues or ends the turn that was running.
// It is called before the link is.
func (e *Executor) Recover(ctx context.Context) error {
	before := e.jr.Meta()
	if before.PendingTerminal != nil {
		// Only a receipt is to be reconciled, silently; should the authority have
		// more work for a suspended runner, it can go on.
		if _, err := e.jr.Interrupted(); err != nil {
			return err
		}
		return errors.Join(e.adoptPrepared(), e.killLeftovers(ctx))
	}
	left := e.jr.Processes()
	interrupted, err := e.jr.Interrupted()
	if err != nil {
		return err
	}
	names := make([]string, 0, len(interrupted))
	for _, c := range interrupted {
		names = append(names, c.CommandID)
	}
	if err := e.emit(ctx, "runner.reconciled", map[string]any{
		"outcome": "same_durable_session_resumed", "previousLifecycle": before.Lifecycle, "indeterminateCommandIds": names,
	}, nil); err != nil {
		return err
	}
	if err := e.jr.Update(func(m *journal.Meta) { m.Lifecycle = journal.LifecycleConnecting }); err != nil {
		return err
	}
	if e.opt.Log != nil {
		e.opt.Log.Info("session taken up again", "indeterminate", len(interrupted), "processes", len(left), "turn", before.Turn != nil)
	}
	if err := e.killLeftovers(ctx); err != nil {
		if uerr := e.jr.Update(func(m *journal.Meta) { m.PendingCleanup = true }); uerr != nil {
			return errors.Join(err, uerr)
		}
	}
	if err := e.adoptPrepared(); err != nil {
		return err
	}
	if before.Turn == nil {
		return nil
	}
	return e.recoverTurn(ctx, slices.ContainsFunc(interrupted, func(c journal.Command) bool { return c.Type == prp.CommandTurnStart }))
}

// adoptPrepared chooses the driver again that run.prepare named.
func (e *Executor) adoptPrepared() error {
	prepare, _ := e.jr.Prepare()
	if prepare == nil {
		return nil
	}
	payload, err := canonjson.Parse(prepare)
	if err != nil {
		return err
	}
	if err := e.adoptProvider(payload); err != nil {
		// A build that lost a driver, or stricter rules: the commands that need
		// it say so.
		e.newHost().Diagnostic("the prepared provider is not accepted any more: %v", err)
	}
	return nil
}

// recoverTurn continues the running turn, or ends it.
func (e *Executor) recoverTurn(ctx context.Context, indeterminate bool) error {
	e.mu.Lock()
	kind := e.kind
	e.mu.Unlock()
	_, resume := e.jr.Prepare()
	if kind.Driver != nil && kind.ContinuesTurns && resume != nil && !e.jr.Meta().PendingCleanup {
		err := e.open(ctx, resume)
		if err == nil && e.current().Identity().ActiveProviderTurnID != "" {
			return nil
		}
		if err != nil {
			e.newHost().Diagnostic("the session could not be taken up again: %v", err)
		}
		if e.jr.Meta().Turn == nil {
			return nil // its end was emitted meanwhile
		}
	}
	code, message := "runner_lost", "the runner ended while this turn was running"
	if indeterminate {
		code, message = "execution_indeterminate", "the runner ended while this turn was being started"
	}
	payload := map[string]any{"status": "failed", "error": map[string]any{"code": code, "message": message}}
	if t := e.jr.Meta().Turn; t != nil && t.ProviderTurnID != "" {
		payload["providerTurnId"] = t.ProviderTurnID
	}
	if err := e.emit(ctx, "turn.failed", payload, noTurn); err != nil {
		return err
	}
	if kind.StateFile {
		return e.jr.WriteProviderState(journal.ProviderExited)
	}
	return nil
}

// emit appends a fact of the runner itself, priority 0.
func (e *Executor) emit(ctx context.Context, eventType string, payload map[string]any, update func(*journal.Meta)) error {
	b, err := canonjson.Marshal(payload)
	if err != nil {
		return err
	}
	return e.jr.Emit(ctx, journal.Event{Type: eventType, Priority: 0, Payload: b, Update: update})
}

// killLeftovers ends every process tree that is recorded and not known to be
// gone, except those of an open session.
func (e *Executor) killLeftovers(ctx context.Context) error {
	if e.current() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	var errs []error
	for _, r := range e.jr.Processes() {
		killed, err := supervise.KillRecord(ctx, r)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if killed > 0 && e.opt.Log != nil {
			e.opt.Log.Info("process tree of an earlier runner killed", "processes", killed)
		}
		e.jr.Gone(r)
	}
	return errors.Join(errs...)
}
