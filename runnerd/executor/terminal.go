package executor

import (
	"context"
	"errors"
	"time"

	"bowline/driver"
	"bowline/runnerd/journal"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// terminalUpdate sets lifecycle and fence in the write of the result (prp.md
// 9.8).
func (e *Executor) terminalUpdate(cmd prp.Command, status string, more func(*journal.Meta)) func(*journal.Meta) {
	return func(m *journal.Meta) {
		if more != nil {
			more(m)
		}
		m.Lifecycle = journal.LifecycleSuspended
		if cmd.Type == prp.CommandRunnerShutdown {
			m.Lifecycle = journal.LifecycleStopped
		}
		m.PendingTerminal = &journal.Fence{
			CommandID: cmd.CommandID, ControllerSeq: cmd.ControllerSeq, CommandType: cmd.Type, Status: status,
		}
	}
}

func (e *Executor) pendingFence() *fence {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fence
}

// ResultAck implements link.Core. An acknowledgement nobody waits for is an old
// one, repeated.
func (e *Executor) ResultAck(payload canonjson.Value) error {
	f := e.pendingFence()
	if f == nil {
		return nil
	}
	status, _ := f.cmd.Outcome()
	sent := prp.CommandResult{CommandID: f.cmd.CommandID, ControllerSeq: f.cmd.ControllerSeq, CommandType: f.cmd.Type, Status: status}
	if err := prp.CommandResultAckOf(payload, sent); err != nil {
		return err
	}
	f.done()
	return nil
}

// Renewed implements link.Core. An authority that waits for a terminal result
// renews nothing (prp.md 5.9), and between the result and its acknowledgement
// nothing but ack and ping is allowed (9.8).
func (e *Executor) Renewed() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fence == nil || e.nextWork {
		return nil
	}
	select {
	case <-e.fence.acked:
		return nil
	default:
		return wire.Errorf(wire.CodeProtocol, "a lease_renewed came before the result of %s was acknowledged", e.fence.cmd.Type)
	}
}

// settleFence waits until the terminal result is acknowledged (limit 0: as long
// as the link tries), then flushes, ends the provider and lifts the fence.
// lost, if not nil, is the end of the connection that carried it. again: the authority has more work for a suspended runner.
func (e *Executor) settleFence(ctx context.Context, limit time.Duration, lost <-chan struct{}) (again bool, err error) {
	f := e.pendingFence()
	var expired <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-f.acked:
	case <-lost:
		// The acknowledgement may have been the last thing it brought.
		select {
		case <-f.acked:
		default:
			return false, wire.Errorf(wire.CodeUnavailable, "the connection ended before the result of %s was acknowledged", f.cmd.Type)
		}
	case <-expired:
		return false, wire.Errorf(wire.CodeUnavailable, "the result of %s was not acknowledged within %v", f.cmd.Type, limit)
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	e.mu.Lock()
	again = e.nextWork && f.cmd.Type == prp.CommandRunnerSuspend
	e.mu.Unlock()
	if !again {
		e.Flush(ctx, FlushWait)
		if err := e.CloseSession(ctx); err != nil {
			return false, err
		}
	}
	if err := e.jr.Update(func(m *journal.Meta) {
		m.PendingTerminal = nil
		if again {
			m.Lifecycle = journal.LifecycleReady
		}
	}); err != nil {
		return false, err
	}
	e.mu.Lock()
	e.fence = nil
	e.mu.Unlock()
	return again, nil
}

// Flush waits until every event was acknowledged, at most limit; false when
// some were not.
func (e *Executor) Flush(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return e.jr.Drained(ctx)
}

// CloseSession ends the provider and its process tree; the end of a running
// turn is in the outbox when it returns.
func (e *Executor) CloseSession(ctx context.Context) error {
	e.mu.Lock()
	s, h, kind, name := e.session, e.host, e.kind, e.kindName
	e.session, e.host = nil, nil
	e.mu.Unlock()
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	// A full outbox must not keep a provider from ending.
	giveUp := time.AfterFunc(emitWait, h.cancel)
	err := s.Close(ctx)
	giveUp.Stop()
	h.cancel()
	if e.jr.Meta().Turn != nil {
		err = errors.Join(err, e.emit(ctx, "turn.cancelled", map[string]any{"status": "cancelled", "outcome": "cancelled"}, noTurn))
	}
	if e.opt.OnProvider != nil {
		e.opt.OnProvider(name, false)
	}
	if kind.StateFile {
		err = errors.Join(err, e.jr.WriteProviderState(journal.ProviderClosed))
	}
	return err
}

// noTurn says that the turn has ended.
func noTurn(m *journal.Meta) { m.Turn, m.Provider.ActiveProviderTurnID = nil, "" }

// current gives the open session, or nil.
func (e *Executor) current() driver.Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.session
}
