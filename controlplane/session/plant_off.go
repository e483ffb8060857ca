//go:build !bowline_plant_ack

package session

import "bowline/controlplane/authority"

// planted does nothing. Built with the tag bowline_plant_ack, which no shipped
// program has, it lets effects out before their commit: a bug that the crash
// tests of cmd/e2e must see.
func (s *Session) planted(*authority.Batch) {}
