package runs

import (
	"testing"
	"time"

	"bowline/controlplane/authority"
	"bowline/wire"
)

// The session of an ended run is opened only while somebody could still join.
func TestEndedRunIsNotOpenedForStrangers(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run, ticketed := r.create(attached(), ""), r.create(attached(), "")
	if _, err := r.IssueTicket(within(t), "token:t", ticketed.ID, 0); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{run.ID, ticketed.ID} {
		if _, err := r.Session(within(t), id); err != nil {
			t.Fatalf("an open run: %v", err)
		}
		if err := r.peek(id).live.Apply(within(t), authority.RunnerLost{}); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()
	r.start()
	if _, err := r.Session(within(t), run.ID); wire.CodeOf(err) != wire.CodeNotFound || r.peek(run.ID) != nil {
		t.Errorf("ended, without a credential: %v", err)
	}
	if _, err := r.Session(within(t), ticketed.ID); err != nil {
		t.Errorf("ended, with a ticket that lives: %v", err)
	}
	r.stop()
	r.start()
	r.clock.add(TicketTTL + time.Second)
	if _, err := r.Session(within(t), ticketed.ID); wire.CodeOf(err) != wire.CodeNotFound {
		t.Errorf("ended, with a ticket that does not: %v", err)
	}
}
