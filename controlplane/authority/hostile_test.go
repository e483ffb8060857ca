package authority_test

import (
	"strings"
	"testing"

	"bowline/controlplane/authority"
	"bowline/controlplane/store"
	"bowline/wire/prp"
)

// A name of a turn that would not fit a command must not stand in the way of a
// cancel.
func TestHugeProviderTurnID(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("t", prp.MaxQueuedCommandBytes+1)
	for name, begin := range map[string]func(p *play){
		"result": func(p *play) {
			p.answer(prp.CommandTurnStart, "completed", `{"providerTurnId":"`+huge+`"}`)
		},
		"event": func(p *play) { p.event("turn.accepted", `{"providerTurnId":"`+huge+`"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &play{rig: withRun(t)}
			p.apply(authority.Assigned{})
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.answer(prp.CommandSessionOpen, "completed", `{}`)
			begin(p)
			if n := len(p.run().Conductor); n > 4<<10 {
				t.Errorf("the run keeps %d bytes of its conductor", n)
			}
			p.apply(authority.Cancel{})
			if status := p.run().Status; name == "event" && status != store.StatusCancelling || name == "result" && status != store.StatusFailed {
				t.Errorf("status is %s", status)
			}
		})
	}
}

func TestHugeOutcomeIsNotRepeated(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.toTurn()
	p.event("turn.completed", `{"status":"`+strings.Repeat("s", 400_000)+`"}`)
	if n := len(p.run().Result); n > 1<<10 {
		t.Errorf("the result has %d bytes", n)
	}
}

// A runner whose session is closed must not keep its lease alive for ever.
func TestClosedSessionRenewsNoLease(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.toTurn()
	renew := func() error {
		lease := p.m.Brief().Session
		return p.say(p.link, prp.AppendRunnerLeaseMessage(nil, prp.KindLeaseRenew, prp.Binding{
			Version: 2, Identity: identity(), ConnectionID: p.link.ID, ConnectionLeaseID: lease.LastLeaseID,
		}, prp.EncodeLeaseRenew(prp.LeaseRenew{ExpiresAtUnixMs: lease.LastLeaseExpiresAtMs})))
	}
	if err := renew(); err != nil {
		t.Fatalf("an open session: %v", err)
	}
	p.apply(authority.RunnerLost{})
	if err := renew(); err == nil {
		t.Error("a closed session renews a lease")
	}
}
