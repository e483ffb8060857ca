package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"bowline/controlplane/store"
)

// Token finds a host token by the SHA-256 of its text.
func (s *Store) Token(ctx context.Context, hash [32]byte) (*store.TokenRow, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	r := store.TokenRow{Hash: hash}
	var scopes []byte
	var created, expires, revoked sql.NullInt64
	err := s.read.QueryRowContext(ctx, `SELECT id, name, scopes, created_at_ms, expires_at_ms, revoked_at_ms FROM tokens
		WHERE hash = ?`, hash[:]).Scan(&r.ID, &r.Name, &scopes, &created, &expires, &revoked)
	if err != nil {
		return nil, readError("token", err)
	}
	if err := json.Unmarshal(scopes, &r.Scopes); err != nil {
		return nil, readError("token", fmt.Errorf("store: stored scopes do not parse: %w", err))
	}
	r.CreatedAt, r.ExpiresAt, r.RevokedAt = timeOf(created), timeOf(expires), timeOf(revoked)
	return &r, nil
}

// Audit lists the audit log after a number, ascending. A limit below 1 means
// 100; at most 1000 are given.
func (s *Store) Audit(ctx context.Context, after int64, limit int) ([]store.AuditRow, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	rows, err := collect(ctx, s.read, whole(scanAudit), `SELECT seq, at_ms, actor, action, target, detail FROM audit
		WHERE seq > ? ORDER BY seq LIMIT ?`, after, page(limit))
	if err != nil {
		return nil, readError("audit log", err)
	}
	return rows, nil
}

func scanAudit(sc scanner, r *store.AuditRow) error {
	var at sql.NullInt64
	if err := sc.Scan(&r.Seq, &at, &r.Actor, &r.Action, &r.Target, (*[]byte)(&r.Detail)); err != nil {
		return err
	}
	r.At = timeOf(at)
	return nil
}

// Setting reads one setting.
func (s *Store) Setting(ctx context.Context, name string) (string, error) {
	if err := s.enter(); err != nil {
		return "", err
	}
	defer s.leave()
	var value string
	if err := s.read.QueryRowContext(ctx, `SELECT value FROM settings WHERE name = ?`, name).Scan(&value); err != nil {
		return "", readError("setting", err)
	}
	return value, nil
}
