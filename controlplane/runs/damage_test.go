package runs

import (
	"context"
	"testing"

	"bowline/controlplane/store"
	"bowline/wire"
)

// gone is a store that has lost its sessions.
type gone struct{ store.Store }

func (gone) Session(context.Context, string, int) (*store.SessionState, error) {
	return nil, wire.Errorf(wire.CodeNotFound, "no such session")
}

func TestRunWithoutItsSessionIsDamage(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(attached(), "")
	r.stop()
	r.cfg.Store = gone{r.st}
	r.start()
	if _, err := r.Get(within(t), run.ID); wire.CodeOf(err) != wire.CodeLogDamaged {
		t.Errorf("Get: %v", err)
	}
	if _, err := r.Session(within(t), run.ID); wire.CodeOf(err) != wire.CodeLogDamaged {
		t.Errorf("Session: %v", err)
	}
	if _, err := r.Get(within(t), "no-such-run"); wire.CodeOf(err) != wire.CodeNotFound {
		t.Errorf("an unknown run: %v", err)
	}
}
