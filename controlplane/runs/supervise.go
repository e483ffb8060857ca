package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"bowline/controlplane/authority"
	"bowline/controlplane/launch"
	"bowline/controlplane/resource"
	"bowline/controlplane/store"
	"bowline/wire"
)

// supervise keeps the runner of a local run running, once.
func (m *Manager) supervise(ctx context.Context, e *entry, run *store.RunRow) error {
	m.mu.Lock()
	if e.supervised || m.closed {
		m.mu.Unlock()
		return nil
	}
	e.supervised = true
	m.wg.Add(1)
	m.mu.Unlock()

	sup, err := m.supervisor(ctx, e, run)
	if err != nil {
		m.unsupervised(e)
		return err
	}
	go func() {
		defer m.unsupervised(e)
		err := sup.Run(m.ctx)
		if err == nil || m.ctx.Err() != nil {
			return
		}
		m.cfg.Log.ErrorContext(m.ctx, "runner not supervised any more", "run", e.runID, "error", err.Error())
		if aerr := e.live.Apply(m.ctx, authority.RunnerLost{Message: "the launcher failed: " + string(wire.CodeOf(err))}); aerr != nil {
			m.cfg.Log.ErrorContext(m.ctx, "run not ended", "run", e.runID, "error", aerr.Error())
		}
	}()
	return nil
}

func (m *Manager) unsupervised(e *entry) {
	m.mu.Lock()
	e.supervised = false
	m.mu.Unlock()
	m.wg.Done()
}

func (m *Manager) supervisor(ctx context.Context, e *entry, run *store.RunRow) (*launch.Supervisor, error) {
	var req resource.CreateRun
	if err := json.Unmarshal(run.Request, &req); err != nil {
		return nil, fmt.Errorf("runs: request of run %s: %w", run.ID, err)
	}
	d, ok := m.driver(run.Driver)
	if !ok {
		// The config changed since the run was made; its provider object is
		// journaled, only values of variables come from here.
		d = Driver{}
	}
	l := m.cfg.Launch
	c := checked{req: &req, driver: d}
	env := launch.PlatformEnv(l.Environ, req.Env)
	for _, name := range slices.Sorted(maps.Keys(d.Env)) {
		env = append(env, name+"="+d.Env[name])
	}
	s := e.live.Brief().Session
	folder := l.Folder(run.ID)
	sup := &launch.Supervisor{
		Spec: launch.Spec{
			Path: l.Path, Identity: s.Identity, ConnectURL: l.ConnectURL(run.ID),
			StateDir: filepath.Join(folder, "state"), LogFile: filepath.Join(folder, "runnerd.log"),
			Version: s.RunnerVersion, Digest: s.RunnerDigest,
			Env: env, PassEnv: c.envNames(), Permission: run.Permission,
			Workspace: run.Workspace, Dir: folder, CABundle: l.CABundle,
		},
		Owner:  &localOwner{m: m, e: e},
		Ended:  e.ended,
		Closed: e.live.Done(),
		Note:   func(n launch.Note) { m.note(e.runID, n) },
		Now:    m.cfg.Now,
	}
	row, err := m.cfg.Store.Launch(ctx, run.ID)
	switch {
	case err == nil:
		sup.Attempt = row.Attempt
		if row.ExitedAt.IsZero() {
			sup.Previous = launch.ProcessID{PID: row.PID, StartTicks: row.StartTicks, BootID: row.BootID}
		}
	case wire.CodeOf(err) != wire.CodeNotFound:
		return nil, err
	}
	return sup, nil
}

func (m *Manager) note(runID string, n launch.Note) {
	args := []any{"run", runID, "event", n.Kind, "attempt", n.Attempt}
	if n.PID != 0 {
		args = append(args, "pid", n.PID)
	}
	if n.Exit != "" {
		args = append(args, "exit", n.Exit)
	}
	if n.Delay != 0 {
		args = append(args, "delay", n.Delay.String())
	}
	if n.Err != nil {
		args = append(args, "error", n.Err.Error())
	}
	m.cfg.Log.InfoContext(m.ctx, "runner", args...)
}

// localOwner is the control plane itself as the owner of a runner process.
type localOwner struct {
	m   *Manager
	e   *entry
	row store.LaunchRow
}

func (o *localOwner) Ticket(ctx context.Context) (string, error) {
	if err := o.e.live.Apply(ctx, authority.Assigned{}); err != nil {
		return "", err
	}
	return o.e.live.IssueTicket(ctx, TicketTTL)
}

func (o *localOwner) Started(ctx context.Context, attempt int, id launch.ProcessID) error {
	o.row = store.LaunchRow{
		RunID: o.e.runID, Attempt: attempt, PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID, StartedAt: o.m.cfg.Now(),
	}
	return o.m.cfg.Store.Commit(ctx, &store.Tx{
		Launch: &o.row,
		Audit:  []store.AuditRow{o.m.audit("launcher", "runner.start", o.e.runID, map[string]any{"attempt": attempt, "pid": id.PID})},
	})
}

func (o *localOwner) Exited(ctx context.Context, attempt int, exit launch.Exit) error {
	if o.row.RunID == "" { // an adopted one
		row, err := o.m.cfg.Store.Launch(ctx, o.e.runID)
		if err != nil {
			return err
		}
		o.row = *row
	}
	o.row.ExitedAt, o.row.Exit = o.m.cfg.Now(), exit.String()
	return o.m.cfg.Store.Commit(ctx, &store.Tx{
		Launch: &o.row,
		Audit:  []store.AuditRow{o.m.audit("launcher", "runner.exit", o.e.runID, map[string]any{"attempt": attempt, "exit": exit.String()})},
	})
}

func (o *localOwner) State(context.Context) (launch.State, error) {
	s := o.e.live.Brief()
	st := launch.State{Connections: s.Session.ConnectionCount, Connected: s.Connected}
	if s.Run != nil {
		st.Ended = store.Terminal(s.Run.Status)
	}
	if ms := s.Session.LastLeaseExpiresAtMs; ms > 0 {
		st.LeaseEnds = time.UnixMilli(ms)
	}
	return st, nil
}

func (o *localOwner) Lost(ctx context.Context, reason, detail string) error {
	in, err := lost(reason, detail)
	if err != nil {
		return err
	}
	return o.e.live.Apply(ctx, in)
}
