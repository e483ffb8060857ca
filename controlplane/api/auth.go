package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"

	"bowline/wire"
)

// Scopes of a token. Admin includes the others.
const (
	ScopeRead    = "read"
	ScopeRun     = "run"
	ScopeAnswer  = "answer"
	ScopeOperate = "operate"
	ScopeAdmin   = "admin"
)

// maxTokenBytes bounds what is hashed (ours).
const maxTokenBytes = 512

// authorise checks the bearer token and returns the actor's name for the
// audit log.
func (s *Server) authorise(ctx context.Context, r *http.Request, scope string) (string, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "", wire.Errorf(wire.CodeUnauthorized, "one header Authorization: Bearer TOKEN is required")
	}
	kind, text, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(kind, "Bearer") || text == "" || len(text) > maxTokenBytes {
		return "", wire.Errorf(wire.CodeUnauthorized, "the header Authorization must be Bearer TOKEN")
	}
	unknown := wire.Errorf(wire.CodeUnauthorized, "the token is unknown, expired or revoked")
	hash := sha256.Sum256([]byte(text))
	row, err := s.cfg.Tokens.Token(ctx, hash)
	if wire.CodeOf(err) == wire.CodeNotFound && err != nil {
		return "", unknown
	}
	if err != nil {
		return "", err
	}
	now := s.cfg.Now()
	// The row was found by the hash of the text: an index look-up tells nothing
	// about the text. Compared once more in constant time all the same.
	if subtle.ConstantTimeCompare(row.Hash[:], hash[:]) != 1 ||
		!row.RevokedAt.IsZero() ||
		!row.ExpiresAt.IsZero() && !now.Before(row.ExpiresAt) {
		return "", unknown
	}
	if !slices.Contains(row.Scopes, scope) && !slices.Contains(row.Scopes, ScopeAdmin) {
		return "", wire.Errorf(wire.CodeForbidden, "the token lacks the scope %s", scope).With("scope", scope)
	}
	return "token:" + row.ID, nil
}
