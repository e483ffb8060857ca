//go:build bowline_plant_ack

package session

import (
	"time"

	"bowline/controlplane/authority"
)

// plantedDelay is what a kill has to fall into.
const plantedDelay = 50 * time.Millisecond

// planted lets the effects of a batch out and leaves none for after the commit.
func (s *Session) planted(b *authority.Batch) {
	for i := range b.Effects {
		s.perform(&b.Effects[i])
	}
	b.Effects = nil
	if len(b.Tx.Events) > 0 {
		time.Sleep(plantedDelay)
	}
}
