package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"bowline/controlplane/store"
	"bowline/wire/prp"
)

const selectSession = `SELECT s.num, s.id, s.profile, s.identity, s.runner_version, s.runner_digest, s.lease_ttl_ns,
	s.run_attach_template, h.generation, h.epoch, h.head_seq, h.acked_source_seq, h.connection_count, h.replay_deliveries,
	h.duplicate_command_results, h.fresh_bootstraps, h.malformed_frames, h.last_lease_id, h.last_lease_expires_at_ms,
	h.fault_reason, h.pinned
	FROM sessions s JOIN session_heads h ON h.session = s.num WHERE s.id = ?`

const ticketColumns = `record_id, credential_id, auth_key, session_id, run_id, identity, runner_version, runner_digest,
	expires_at_ms, used_at_ms, created_at_ms FROM tickets`

// querier is a connection pool or a snapshot on one connection.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// scanner is one row.
type scanner interface{ Scan(dest ...any) error }

// collect runs a query and scans each row with scan until it says stop.
func collect[T any](ctx context.Context, q querier, scan func(scanner, *T) (stop bool, err error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	return drain(rows, err, scan)
}

// drain scans the rows of a query that ended with queryErr.
func drain[T any](rows *sql.Rows, queryErr error, scan func(scanner, *T) (stop bool, err error)) (all []T, err error) {
	if queryErr != nil {
		return nil, queryErr
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var v T
		stop, err := scan(rows, &v)
		if err != nil {
			return nil, err
		}
		if stop {
			return all, nil
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// whole adapts a scan that never stops early.
func whole[T any](scan func(scanner, *T) error) func(scanner, *T) (bool, error) {
	return func(sc scanner, v *T) (bool, error) { return false, scan(sc, v) }
}

// Session loads one session in one snapshot.
func (s *Store) Session(ctx context.Context, id string, eventWindow int) (state *store.SessionState, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	tx, err := s.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, readError("session", err)
	}
	defer func() {
		if rb := tx.Rollback(); rb != nil && !errors.Is(rb, sql.ErrTxDone) && err == nil {
			state, err = nil, readError("session", rb)
		}
	}()
	var st store.SessionState
	num, err := scanSession(tx.QueryRowContext(ctx, selectSession, id), &st.Session)
	if err != nil {
		return nil, readError("session", err)
	}
	log := s.log.in(ctx, tx)
	h, err := log.headOf(ctx, id)
	if err != nil {
		return nil, readError("session", err)
	}
	if st.Events, err = log.newest(ctx, &h, eventWindow); err != nil {
		return nil, readError("events", err)
	}
	st.Commands, err = collect(ctx, tx, whole(scanCommand), `SELECT controller_seq, command_id, type, record, status, result,
		delivery_count, queued_at_ms, done_at_ms FROM commands WHERE session = ? ORDER BY controller_seq`, num)
	if err != nil {
		return nil, readError("commands", err)
	}
	st.Tickets, err = collect(ctx, tx, whole(scanTicket), `SELECT `+ticketColumns+` WHERE session_id = ? ORDER BY num`, id)
	if err != nil {
		return nil, readError("tickets", err)
	}
	st.Leases, err = collect(ctx, tx, whole(scanLease), `SELECT record_id, credential_id, auth_key, lease_id, session_id, identity,
		protocol_version, expires_at_ms, revocation_epoch, revoked_at_ms FROM leases WHERE session_id = ? ORDER BY num`, id)
	if err != nil {
		return nil, readError("leases", err)
	}
	return &st, nil
}

// SessionByRun looks at the runs first; a session that was made without a run
// is found by the run in its identity.
func (s *Store) SessionByRun(ctx context.Context, runID string) (string, error) {
	if err := s.enter(); err != nil {
		return "", err
	}
	defer s.leave()
	var id string
	err := s.read.QueryRowContext(ctx, `SELECT id FROM (
		SELECT 0 AS place, num, session_id AS id FROM runs WHERE id = ?1
		UNION ALL SELECT 1, num, id FROM sessions WHERE run_id = ?1)
		ORDER BY place, num DESC LIMIT 1`, runID).Scan(&id)
	if err != nil {
		return "", readError("session", err)
	}
	return id, nil
}

// Tickets lists the tickets of a run, oldest first.
func (s *Store) Tickets(ctx context.Context, runID string) ([]store.TicketRow, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	rows, err := collect(ctx, s.read, whole(scanTicket), `SELECT `+ticketColumns+` WHERE run_id = ? ORDER BY num`, runID)
	if err != nil {
		return nil, readError("tickets", err)
	}
	return rows, nil
}

func scanSession(sc scanner, r *store.SessionRow) (num int64, err error) {
	var identity, pinned []byte
	var ttl int64
	err = sc.Scan(&num, &r.ID, &r.Profile, &identity, &r.RunnerVersion, &r.RunnerDigest, &ttl, (*[]byte)(&r.RunAttachTemplate),
		&r.Generation, &r.Epoch, &r.HeadSeq, &r.AckedSourceSeq, &r.ConnectionCount, &r.ReplayDeliveries,
		&r.DuplicateCommandResults, &r.FreshBootstraps, &r.MalformedFrames, &r.LastLeaseID, &r.LastLeaseExpiresAtMs,
		&r.FaultReason, &pinned)
	if err != nil {
		return 0, err
	}
	r.LeaseTTL = time.Duration(ttl)
	if pinned != nil {
		if err := json.Unmarshal(pinned, &r.Pinned); err != nil {
			return 0, fmt.Errorf("store: the stored pinned numbers do not parse: %w", err)
		}
	}
	return num, scanIdentity(identity, &r.Identity)
}

func scanCommand(sc scanner, r *store.CommandRow) error {
	var queued, done sql.NullInt64
	if err := sc.Scan(&r.ControllerSeq, &r.CommandID, &r.Type, (*[]byte)(&r.Record), &r.Status, (*[]byte)(&r.Result),
		&r.DeliveryCount, &queued, &done); err != nil {
		return err
	}
	r.QueuedAt, r.DoneAt = timeOf(queued), timeOf(done)
	return nil
}

func scanTicket(sc scanner, r *store.TicketRow) error {
	var key, identity []byte
	if err := sc.Scan(&r.RecordID, &r.CredentialID, &key, &r.SessionID, &r.RunID, &identity, &r.RunnerVersion, &r.RunnerDigest,
		&r.ExpiresAtMs, &r.UsedAtMs, &r.CreatedAtMs); err != nil {
		return err
	}
	return errors.Join(scan32(key, &r.AuthKey), scanIdentity(identity, &r.Identity))
}

func scanLease(sc scanner, r *store.LeaseRow) error {
	var key, identity []byte
	if err := sc.Scan(&r.RecordID, &r.CredentialID, &key, &r.LeaseID, &r.SessionID, &identity, &r.ProtocolVersion,
		&r.ExpiresAtMs, &r.RevocationEpoch, &r.RevokedAtMs); err != nil {
		return err
	}
	return errors.Join(scan32(key, &r.AuthKey), scanIdentity(identity, &r.Identity))
}

func scanIdentity(b []byte, id *prp.Identity) error {
	if err := json.Unmarshal(b, id); err != nil {
		return fmt.Errorf("store: a stored identity does not parse: %w", err)
	}
	return nil
}

func scan32(b []byte, dst *[32]byte) error {
	if len(b) != len(dst) {
		return fmt.Errorf("store: a stored digest or key has %d bytes, not %d", len(b), len(dst))
	}
	copy(dst[:], b)
	return nil
}

func timeOf(ms sql.NullInt64) time.Time {
	if !ms.Valid {
		return time.Time{}
	}
	return time.UnixMilli(ms.Int64).UTC()
}
