package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"

	"bowline/controlplane/store"
	"bowline/wire"
)

const runColumns = `num, id, session_id, status, reason, driver, placement, workspace, permission, labels, request, result,
	created_at_ms, started_at_ms, ended_at_ms, cancel_at_ms, conductor FROM runs`

// Page sizes of lists, ours.
const (
	defaultPage = 100
	maxPage     = 1000
)

func page(limit int) int {
	if limit < 1 {
		return defaultPage
	}
	return min(limit, maxPage)
}

// numbered is a run with its place in the list.
type numbered struct {
	num int64
	row store.RunRow
}

// Run loads one run.
func (s *Store) Run(ctx context.Context, id string) (*store.RunRow, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	var n numbered
	if err := scanRun(s.read.QueryRowContext(ctx, `SELECT `+runColumns+` WHERE id = ?`, id), &n); err != nil {
		return nil, readError("run", err)
	}
	return &n.row, nil
}

// Runs lists newest first. The cursor is the number of the last run of the
// page before, so runs that are added meanwhile do not shift a page. A limit
// below 1 means 100; at most 1000 are given.
func (s *Store) Runs(ctx context.Context, q store.RunQuery) ([]store.RunRow, string, error) {
	if err := s.enter(); err != nil {
		return nil, "", err
	}
	defer s.leave()
	query, args := `SELECT `+runColumns+` WHERE 1 = 1`, []any(nil)
	if q.Status != "" {
		query, args = query+` AND status = ?`, append(args, q.Status)
	}
	if q.Cursor != "" {
		before, err := strconv.ParseInt(q.Cursor, 10, 64)
		if err != nil || before < 1 {
			return nil, "", wire.Errorf(wire.CodeBadCursor, "cursor is not one that this list gave out")
		}
		query, args = query+` AND num < ?`, append(args, before)
	}
	limit := page(q.Limit)
	// One more than asked for tells whether there is a next page.
	all, err := collect(ctx, s.read, whole(scanRun), query+` ORDER BY num DESC LIMIT ?`, append(args, limit+1)...)
	if err != nil {
		return nil, "", readError("runs", err)
	}
	next := ""
	if len(all) > limit {
		all = all[:limit]
		next = strconv.FormatInt(all[limit-1].num, 10)
	}
	return rowsOf(all), next, nil
}

// OpenRuns lists the runs without a terminal status, oldest first.
func (s *Store) OpenRuns(ctx context.Context) ([]store.RunRow, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	all, err := collect(ctx, s.read, whole(scanRun), `SELECT `+runColumns+` WHERE open = 1 ORDER BY num`)
	if err != nil {
		return nil, readError("runs", err)
	}
	return rowsOf(all), nil
}

func rowsOf(all []numbered) []store.RunRow {
	rows := make([]store.RunRow, len(all))
	for i := range all {
		rows[i] = all[i].row
	}
	return rows
}

func scanRun(sc scanner, n *numbered) error {
	r := &n.row
	var labels []byte
	var created, started, ended, cancel sql.NullInt64
	if err := sc.Scan(&n.num, &r.ID, &r.SessionID, &r.Status, &r.Reason, &r.Driver, &r.Placement, &r.Workspace, &r.Permission,
		&labels, (*[]byte)(&r.Request), (*[]byte)(&r.Result), &created, &started, &ended, &cancel,
		(*[]byte)(&r.Conductor)); err != nil {
		return err
	}
	r.CreatedAt, r.StartedAt, r.EndedAt, r.CancelAt = timeOf(created), timeOf(started), timeOf(ended), timeOf(cancel)
	if labels == nil {
		return nil
	}
	if err := json.Unmarshal(labels, &r.Labels); err != nil {
		return fmt.Errorf("store: stored labels do not parse: %w", err)
	}
	return nil
}

// Launch loads the newest process of a run.
func (s *Store) Launch(ctx context.Context, runID string) (*store.LaunchRow, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	var r store.LaunchRow
	var ticks int64
	var started, exited sql.NullInt64
	err := s.read.QueryRowContext(ctx, `SELECT run_id, attempt, pid, start_ticks, boot_id, started_at_ms, exited_at_ms, exit
		FROM launches WHERE run_id = ?`, runID).
		Scan(&r.RunID, &r.Attempt, &r.PID, &ticks, &r.BootID, &started, &exited, &r.Exit)
	if err != nil {
		return nil, readError("launch", err)
	}
	r.StartTicks = uint64(ticks) //nolint:gosec // kept bit by bit
	r.StartedAt, r.ExitedAt = timeOf(started), timeOf(exited)
	return &r, nil
}

// Idempotent loads what a key was used for.
func (s *Store) Idempotent(ctx context.Context, key string) (*store.IdempotencyRow, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	var r store.IdempotencyRow
	var hash []byte
	var created sql.NullInt64
	err := s.read.QueryRowContext(ctx, `SELECT key, body_hash, run_id, created_at_ms FROM idempotency WHERE key = ?`, key).
		Scan(&r.Key, &hash, &r.RunID, &created)
	if err == nil {
		err = scan32(hash, &r.BodyHash)
	}
	if err != nil {
		return nil, readError("idempotency key", err)
	}
	r.CreatedAt = timeOf(created)
	return &r, nil
}
