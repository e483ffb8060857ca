package runs

import (
	"context"
	"time"

	"bowline/controlplane/authority"
	"bowline/controlplane/resource"
	"bowline/controlplane/store"
	"bowline/wire"
)

// Cancel asks for a run to be cancelled. It returns at once; asking again, or
// after the end, changes nothing.
func (m *Manager) Cancel(ctx context.Context, actor, id string) (*resource.Run, error) {
	return m.act(ctx, actor, "run.cancel", id, nil, authority.Cancel{})
}

// RunnerLost takes the report of an attached launcher. After the end it
// changes nothing; for a local run it is wire.CodeConflict.
func (m *Manager) RunnerLost(ctx context.Context, actor, id string, r *resource.RunnerLost) (*resource.Run, error) {
	row, err := m.run(ctx, id)
	if err != nil {
		return nil, err
	}
	if row.Placement != store.PlacementAttached {
		return nil, wire.Errorf(wire.CodeConflict, "the runner of this run was started by the server itself")
	}
	in, err := lost(r.Reason, r.Detail)
	if err != nil {
		return nil, err
	}
	return m.act(ctx, actor, "runner.lost", id, map[string]any{"reason": r.Reason}, in)
}

func lost(reason, detail string) (authority.Input, error) {
	switch reason {
	case resource.LostGaveUp:
		return authority.RunnerLost{Reason: resource.LostGaveUp, Message: detail}, nil
	case resource.LostLaunchFailed:
		return authority.LaunchFailed{Message: detail}, nil
	}
	return nil, field(wire.CodeInputInvalid, "reason", "expected %s or %s", resource.LostGaveUp, resource.LostLaunchFailed)
}

// act applies an input to an open run.
func (m *Manager) act(ctx context.Context, actor, action, id string, detail map[string]any, in authority.Input) (*resource.Run, error) {
	row, err := m.run(ctx, id)
	if err != nil {
		return nil, err
	}
	if !store.Terminal(row.Status) {
		e, err := m.open(ctx, id)
		if err != nil {
			return nil, err
		}
		if err := m.cfg.Store.Commit(ctx, &store.Tx{Audit: []store.AuditRow{m.audit(actor, action, id, detail)}}); err != nil {
			return nil, err
		}
		if err := e.live.Apply(ctx, in); err != nil {
			return nil, err
		}
	}
	return m.Get(ctx, id)
}

func (m *Manager) run(ctx context.Context, id string) (*store.RunRow, error) {
	row, err := m.cfg.Store.Run(ctx, id)
	if err != nil && wire.CodeOf(err) == wire.CodeNotFound {
		return nil, notFound()
	}
	return row, err
}

// IssueTicket makes a one-use ticket for the runner of a run that has not
// ended. ttl 0 = [TicketTTL].
func (m *Manager) IssueTicket(ctx context.Context, actor, runID string, ttl time.Duration) (*resource.Ticket, error) {
	if ttl == 0 {
		ttl = TicketTTL
	}
	if ttl < MinTicketTTL || ttl > TicketTTL {
		return nil, field(wire.CodeTicketInvalid, "ttlMs", "expected %d to %d", MinTicketTTL.Milliseconds(), TicketTTL.Milliseconds())
	}
	row, err := m.run(ctx, runID)
	if err != nil {
		if wire.CodeOf(err) == wire.CodeNotFound {
			return nil, field(wire.CodeNotFound, "runId", "no run has this id")
		}
		return nil, err
	}
	if store.Terminal(row.Status) {
		return nil, field(wire.CodeConflict, "runId", "the run has ended; it needs no runner any more")
	}
	e, err := m.open(ctx, runID)
	if err != nil {
		return nil, err
	}
	if err := m.cfg.Store.Commit(ctx, &store.Tx{Audit: []store.AuditRow{m.audit(actor, "ticket.issue", runID, map[string]any{"ttlMs": ttl.Milliseconds()})}}); err != nil {
		return nil, err
	}
	expires := m.cfg.Now().Add(ttl)
	text, err := e.live.IssueTicket(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return &resource.Ticket{Ticket: text, RunID: runID, ExpiresAt: expires.UTC(), ConnectPath: resource.ConnectPath + runID}, nil
}
