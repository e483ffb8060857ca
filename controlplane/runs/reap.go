package runs

import (
	"context"
	"encoding/json"
	"time"

	"bowline/controlplane/authority"
	"bowline/controlplane/resource"
	"bowline/controlplane/session"
	"bowline/controlplane/store"
)

// reap looks after open runs until the manager is closed.
func (m *Manager) reap() {
	t := time.NewTicker(reapEvery)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-m.ctx.Done():
			return
		case <-t.C:
		}
		if n%takeEvery == 0 {
			m.takeAll(m.ctx)
		}
		m.reapOnce(m.ctx)
	}
}

// takeAll takes up open runs that are not live, or not supervised, because
// that failed before.
func (m *Manager) takeAll(ctx context.Context) {
	open, err := m.cfg.Store.OpenRuns(ctx)
	if err != nil {
		m.cfg.Log.ErrorContext(ctx, "open runs not read", "error", err.Error())
		return
	}
	for i := range open {
		if err := m.take(ctx, &open[i]); err != nil {
			m.cfg.Log.WarnContext(ctx, "open run not taken up", "run", open[i].ID, "error", err.Error())
		}
	}
}

// reapOnce ends the runs whose runner will not come, or whose time is up.
func (m *Manager) reapOnce(ctx context.Context) {
	for _, e := range m.live() {
		in, action := m.judge(e.live.Brief())
		if in == nil {
			continue
		}
		err := m.cfg.Store.Commit(ctx, &store.Tx{Audit: []store.AuditRow{m.audit("system", action, e.runID, nil)}})
		if err == nil {
			err = e.live.Apply(ctx, in)
		}
		if err != nil {
			m.cfg.Log.ErrorContext(ctx, "run not reaped", "run", e.runID, "error", err.Error())
		}
	}
}

// judge decides about an open run; nil leaves it alone.
func (m *Manager) judge(s session.Snapshot) (in authority.Input, action string) {
	if s.Run == nil || store.Terminal(s.Run.Status) {
		return nil, ""
	}
	now := m.cfg.Now()
	if limit := m.turnLimit(s.Run); limit > 0 && !s.Run.StartedAt.IsZero() && s.Run.CancelAt.IsZero() && now.Sub(s.Run.StartedAt) >= limit {
		return authority.TimedOut{}, "run.time_limit"
	}
	if s.Connected {
		return nil, ""
	}
	if s.Session.ConnectionCount == 0 {
		if s.Run.Placement == store.PlacementAttached && now.Sub(latest(s.Run.CreatedAt, m.started)) >= JoinWithin {
			return authority.RunnerLost{Reason: ReasonNeverJoined, Message: "no runner joined in time"}, "run.never_joined"
		}
		return nil, ""
	}
	ends := time.UnixMilli(s.Session.LastLeaseExpiresAtMs)
	if now.Sub(latest(ends, m.started)) >= leaseGrace {
		return authority.RunnerLost{Reason: ReasonLeaseExpired, Message: "the runner did not come back while its lease lived"}, "run.lease_expired"
	}
	return nil, ""
}

// turnLimit is the time limit of runs whose driver has none of its own.
func (m *Manager) turnLimit(run *store.RunRow) time.Duration {
	var req resource.CreateRun
	if err := json.Unmarshal(run.Request, &req); err != nil || req.Limits == nil {
		return 0
	}
	d, _ := m.driver(run.Driver)
	if req.Provider != nil {
		d.Kind = req.Provider.Kind
	}
	if d.Kind == KindCommand {
		return 0 // its provider object has the limit
	}
	return time.Duration(req.Limits.TurnTimeMs) * time.Millisecond
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
