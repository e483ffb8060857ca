package runs

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"bowline/controlplane/authority"
	"bowline/controlplane/resource"
	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/prp"
)

// Create makes a run with its session and first commands in one transaction.
// With a key that was used within the last 24 h it makes nothing: the same
// request gives that run (fresh false), another one is wire.CodeConflict.
func (m *Manager) Create(ctx context.Context, actor string, req *resource.CreateRun, key string) (run *resource.Run, fresh bool, err error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, false, &wire.Error{Code: wire.CodeBadRequest, Message: "the request cannot be encoded", Cause: err}
	}
	hash := sha256.Sum256(body)
	stored := ""
	if key != "" {
		var seen *resource.Run
		if stored, seen, err = m.idempotent(ctx, actor, key, hash); err != nil || seen != nil {
			return seen, false, err
		}
	}
	c, err := m.check(req)
	if err != nil {
		return nil, false, err
	}
	id := m.identity()
	workspace, undo, err := m.workspace(c, id.RunID)
	if err != nil {
		return nil, false, err
	}
	tx, err := m.transaction(c, id, workspace, body, actor)
	if err != nil {
		return nil, false, errors.Join(err, undo())
	}
	if stored != "" {
		tx.Idempotency = &store.IdempotencyRow{Key: stored, BodyHash: hash, RunID: id.RunID, CreatedAt: m.cfg.Now()}
	}
	if err := m.cfg.Store.Commit(ctx, tx); err != nil {
		if wire.CodeOf(err) == wire.CodeStoreIndeterminate {
			return nil, false, err // the run may exist: its folder stays
		}
		err = errors.Join(err, undo())
		if stored == "" || wire.CodeOf(err) != wire.CodeConflict {
			return nil, false, err
		}
		// Another request with the same key won the race.
		_, seen, ierr := m.idempotent(ctx, actor, key, hash)
		if ierr != nil || seen != nil {
			return seen, false, ierr
		}
		return nil, false, err
	}
	if err := m.take(context.WithoutCancel(ctx), tx.NewRun); err != nil {
		// The run is made; the reaper takes it up again.
		m.cfg.Log.ErrorContext(ctx, "new run not taken up", "run", id.RunID, "error", err.Error())
	}
	out, err := m.Get(context.WithoutCancel(ctx), id.RunID)
	return out, true, err
}

// identity makes the six ids of a run (issue 2, item 3).
func (m *Manager) identity() prp.Identity {
	return prp.Identity{
		RunnerInstanceID:    m.cfg.NewID(),
		EnvironmentLeaseID:  m.cfg.NewID(),
		RunID:               m.cfg.NewID(),
		NormalizedSessionID: m.cfg.NewID(),
		TurnID:              m.cfg.NewID(),
		ItemID:              m.cfg.NewID(),
	}
}

func (m *Manager) transaction(c *checked, id prp.Identity, workspace string, body json.RawMessage, actor string) (*store.Tx, error) {
	prepare, err := c.prepare(workspace)
	if err != nil {
		return nil, err
	}
	build := c.req.Runner
	if build == nil { // placement local: checked that there is a launcher
		build = &resource.RunnerBuild{Version: m.cfg.Launch.Version, Digest: m.cfg.Launch.Digest}
	}
	now := m.cfg.Now()
	tx, err := authority.Create(now, authority.NewRun{
		Identity: id, RunnerVersion: build.Version, RunnerDigest: build.Digest, LeaseTTL: LeaseTTL,
		Driver: c.req.Driver, Placement: c.placement, Workspace: workspace, Permission: c.permission,
		Labels: c.req.Labels, Request: body, Prepare: prepare, Prompt: c.req.Prompt,
	})
	if err != nil {
		return nil, err
	}
	tx.Audit = append(tx.Audit, m.audit(actor, "run.create", id.RunID, map[string]any{
		"driver": c.req.Driver, "placement": c.placement, "permission": c.permission,
	}))
	return tx, nil
}

func (m *Manager) audit(actor, action, target string, detail map[string]any) store.AuditRow {
	row := store.AuditRow{At: m.cfg.Now(), Actor: actor, Action: action, Target: target}
	if detail != nil {
		raw, err := json.Marshal(detail)
		if err != nil {
			panic("bug: runs: audit detail: " + err.Error())
		}
		row.Detail = raw
	}
	return row
}

// workspace is the folder a run works in; undo removes what was made.
func (m *Manager) workspace(c *checked, runID string) (path string, undo func() error, err error) {
	nothing := func() error { return nil }
	if c.req.Workspace != "" {
		return filepath.Clean(c.req.Workspace), nothing, nil
	}
	path = m.cfg.Workspace(runID)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", nil, &wire.Error{Code: wire.CodeUnavailable, Message: "workspace: a fresh folder cannot be made", Cause: err}
	}
	return path, func() error {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}, nil
}

// idempotent looks a key up. It returns the run of an equal request, or the
// name to store the key under.
func (m *Manager) idempotent(ctx context.Context, actor, key string, hash [32]byte) (stored string, seen *resource.Run, err error) {
	stored = actor + " POST /v1/runs " + key
	for {
		row, err := m.cfg.Store.Idempotent(ctx, stored)
		if err != nil {
			if wire.CodeOf(err) == wire.CodeNotFound {
				return stored, nil, nil
			}
			return "", nil, err
		}
		if m.cfg.Now().Sub(row.CreatedAt) >= idempotencyWindow {
			// Forgotten, and its row stays: the next use gets a name of its
			// own, the same for everybody who races for it.
			stored += " after " + strconv.FormatInt(row.CreatedAt.UnixMilli(), 10)
			continue
		}
		if row.BodyHash != hash {
			return "", nil, wire.Errorf(wire.CodeConflict, "this %s was used for another request within the last %d hours", resource.HeaderIdempotencyKey, int(idempotencyWindow/time.Hour))
		}
		run, err := m.Get(ctx, row.RunID)
		return stored, run, err
	}
}
