package runs

import (
	"context"
	"time"

	"bowline/controlplane/resource"
	"bowline/controlplane/store"
	"bowline/wire"
)

// Get reads one run.
func (m *Manager) Get(ctx context.Context, id string) (*resource.Run, error) {
	if e := m.peek(id); e != nil {
		s := e.live.Brief()
		if s.Run != nil {
			run := view(s.Run)
			detail(run, &s.Session, s.Connected)
			return run, nil
		}
	}
	row, err := m.cfg.Store.Run(ctx, id)
	if err != nil {
		if wire.CodeOf(err) == wire.CodeNotFound {
			return nil, notFound()
		}
		return nil, err
	}
	st, err := m.cfg.Store.Session(ctx, row.SessionID, 0)
	if err != nil {
		return nil, orphanedRow(err)
	}
	run := view(row)
	detail(run, &st.Session, false)
	return run, nil
}

// List lists runs, newest first. Their runner and head are left out.
func (m *Manager) List(ctx context.Context, q store.RunQuery) (*resource.RunList, error) {
	rows, next, err := m.cfg.Store.Runs(ctx, q)
	if err != nil {
		return nil, err
	}
	list := &resource.RunList{Runs: make([]resource.Run, 0, len(rows)), Next: next}
	for i := range rows {
		list.Runs = append(list.Runs, *view(&rows[i]))
	}
	return list, nil
}

func view(r *store.RunRow) *resource.Run {
	return &resource.Run{
		ID: r.ID, SessionID: r.SessionID, Status: r.Status, Reason: r.Reason, Driver: r.Driver,
		Placement: r.Placement, Workspace: r.Workspace, Permission: r.Permission, Labels: r.Labels,
		Result: r.Result, CreatedAt: stamp(r.CreatedAt),
		StartedAt: optional(r.StartedAt), EndedAt: optional(r.EndedAt), CancelRequestedAt: optional(r.CancelAt),
	}
}

func detail(run *resource.Run, s *store.SessionRow, connected bool) {
	if s.HeadSeq > 0 {
		run.Head = resource.Cursor{Epoch: s.Epoch, Seq: s.HeadSeq}.String()
	}
	run.Runner = &resource.RunRunner{
		Profile: s.Profile, Identity: s.Identity, ConnectPath: resource.ConnectPath + run.ID,
		Version: s.RunnerVersion, Digest: s.RunnerDigest, Connected: connected,
		Connections: s.ConnectionCount, Fault: s.FaultReason,
	}
	if s.LastLeaseExpiresAtMs > 0 {
		run.Runner.LeaseExpiresAt = optional(time.UnixMilli(s.LastLeaseExpiresAtMs))
	}
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = stamp(t)
	return &t
}

// stamp is a time as the API shows it: the store keeps milliseconds, and a
// live run must not look different from a stored one.
func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
