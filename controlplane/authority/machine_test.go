package authority_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"bowline/controlplane/authority"
	"bowline/controlplane/store"
	cryptoprp "bowline/crypto/prp"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

func credentialID(token string) string { return cryptoprp.CredentialID(token) }

func TestTicketLifetime(t *testing.T) {
	t.Parallel()
	r := plain(t)
	for _, c := range []struct {
		ttl time.Duration
		ok  bool
	}{
		{999 * time.Millisecond, false},
		{time.Second, true},
		{time.Minute, true},
		{time.Minute + time.Millisecond, false},
		{1500 * time.Microsecond, false},
		{-time.Second, false},
	} {
		_, err := r.m.IssueTicket(r.now, c.ttl)
		if c.ok != (err == nil) {
			t.Errorf("ttl %s: %v", c.ttl, err)
		}
		if err != nil {
			want(t, "code", wire.CodeOf(err), wire.CodeTicketInvalid)
		}
	}
}

func TestTicketIsUsedOnce(t *testing.T) {
	t.Parallel()
	r := plain(t)
	ticket := r.ticket()
	h := hello(credentialID(ticket))
	// Two challenges of the same ticket: the first proof wins.
	first, err := r.m.Hello(r.now, h)
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.m.Hello(r.now, h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.m.Authenticate(r.now, first); err != nil {
		t.Fatal(err)
	}
	r.commit()
	_, err = r.m.Authenticate(r.now, second)
	wantErr(t, err, "credential")
	_, err = r.m.Hello(r.now, h)
	wantErr(t, err, "credential")
	r.load()
	_, err = r.m.Hello(r.now, h)
	wantErr(t, err, "credential")
}

func TestAbandonedProofKeepsTheTicket(t *testing.T) {
	t.Parallel()
	r := plain(t)
	h := hello(credentialID(r.ticket()))
	a, err := r.m.Hello(r.now, h)
	if err != nil {
		t.Fatal(err)
	}
	r.now = r.now.Add(prp.ChallengeLifetime)
	if _, err := r.m.Authenticate(r.now.Add(time.Millisecond), a); err == nil {
		t.Fatal("a response after the deadline was taken")
	}
	r.commit()
	r.joinAs(h)
}

func TestHelloRefusals(t *testing.T) {
	t.Parallel()
	r := plain(t)
	id := credentialID(r.ticket())
	for reason, change := range map[string]func(*prp.Hello){
		authority.RefusedIdentity:   func(h *prp.Hello) { h.Identity.TurnID = "turn-2" },
		authority.RefusedBuild:      func(h *prp.Hello) { h.RunnerVersion = "0.3.1" },
		authority.RefusedWarm:       func(h *prp.Hello) { h.WarmTransitionID = canonjson.NullValue() },
		authority.RefusedCredential: func(h *prp.Hello) { h.CredentialID = credentialID("other") },
	} {
		h := hello(id)
		change(&h)
		_, err := r.m.Hello(r.now, h)
		wantErr(t, err, reason)
		r.commit()
	}
	rows := r.st.AuditRows()
	var refused int
	for _, row := range rows {
		if row.Action == "runner.refused" {
			refused++
			if bytes.Contains(row.Detail, []byte(id)) {
				t.Errorf("audit names a credential: %s", row.Detail)
			}
		}
	}
	want(t, "refusals audited", refused, 4)
	r.joinAs(hello(id))
}

func TestRefusalsAuditedAreBounded(t *testing.T) {
	t.Parallel()
	r := plain(t)
	for range 100 {
		if _, err := r.m.Hello(r.now, hello("sha256:none")); err == nil {
			t.Fatal("taken")
		}
		r.commit()
	}
	want(t, "rows", len(r.st.AuditRows()), 20)
	want(t, "counted", r.seen[authority.EffectRefused], 100)
	r.now = r.now.Add(time.Minute)
	if _, err := r.m.Hello(r.now, hello("sha256:none")); err == nil {
		t.Fatal("taken")
	}
	r.commit()
	want(t, "rows after the window", len(r.st.AuditRows()), 21)
}

func TestLeaseKeepsItsVersion(t *testing.T) {
	t.Parallel()
	r := plain(t)
	h := hello(credentialID(r.ticket()))
	h.ProtocolMax = 1
	l := r.joinAs(h)
	want(t, "version", l.Version, 1)
	token := r.take()[0].env.Payload.Get("connectionLeaseToken").Str()
	again := hello(credentialID(token))
	want(t, "version on reconnect", r.joinAs(again).Version, 1)
	welcome := r.take()[0].env
	if welcome.Payload.Has("connectionLeaseToken") {
		t.Error("a lease token was sent again")
	}
	want(t, "welcome id", welcome.Whole.Get("envelopeId").Str(), "welcome_2")
	again.ProtocolMin = 2
	_, err := r.m.Hello(r.now, again)
	wantErr(t, err, "version")
}

func TestRenew(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	w := r.take()[0].env
	binding := prp.Binding{
		Version: l.Version, Identity: identity(), ConnectionID: l.ID, ConnectionLeaseID: w.Whole.Get("connectionLeaseId").Str(),
	}
	expires, _ := w.Payload.Get("connectionLeaseExpiresAtUnixMs").SafeInt()
	renew := func(b prp.Binding, at int64) error {
		return r.say(l, prp.AppendRunnerLeaseMessage(nil, prp.KindLeaseRenew, b, prp.EncodeLeaseRenew(prp.LeaseRenew{ExpiresAtUnixMs: at})))
	}
	r.now = r.now.Add(10 * time.Minute)
	if err := renew(binding, expires); err != nil {
		t.Fatal(err)
	}
	renewed := r.take()[0].env
	now, _ := renewed.Payload.Get("connectionLeaseExpiresAtUnixMs").SafeInt()
	want(t, "expiry", now, expires+10*60_000)
	// The older expiry again: answered as it stands.
	r.now = r.now.Add(10 * time.Minute)
	if err := renew(binding, expires); err != nil {
		t.Fatal(err)
	}
	replay, _ := r.take()[0].env.Payload.Get("connectionLeaseExpiresAtUnixMs").SafeInt()
	want(t, "replayed expiry", replay, now)
	wantErr(t, renew(binding, now+1), "lease_renew")
	other := binding
	other.ConnectionID = "connection_9"
	wantErr(t, renew(other, now), "connectionId")
	// It lives until then and no longer.
	r.now = time.UnixMilli(now - 1)
	r.mustSay(l, event(2, 1, "harness.ready", `{}`))
	r.now = time.UnixMilli(now)
	wantErr(t, r.say(l, event(2, 2, "harness.ready", `{}`)), "expired")
}

// The lease is renewed while somebody else is proving to hold it: what the
// challenge said of it is not true any more.
func TestCredentialChangesDuringTheProof(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	w := r.take()[0].env
	expires, _ := w.Payload.Get("connectionLeaseExpiresAtUnixMs").SafeInt()
	a, err := r.m.Hello(r.now, hello(credentialID(w.Payload.Get("connectionLeaseToken").Str())))
	if err != nil {
		t.Fatal(err)
	}
	r.now = r.now.Add(time.Second)
	r.mustSay(l, prp.AppendRunnerLeaseMessage(nil, prp.KindLeaseRenew, prp.Binding{
		Version: l.Version, Identity: identity(), ConnectionID: l.ID, ConnectionLeaseID: w.Whole.Get("connectionLeaseId").Str(),
	}, prp.EncodeLeaseRenew(prp.LeaseRenew{ExpiresAtUnixMs: expires})))
	_, err = r.m.Authenticate(r.now, a)
	wantErr(t, err, authority.RefusedChanged)
	want(t, "links", r.m.Links(), 1)
}

func TestNewConnectionClosesTheOther(t *testing.T) {
	t.Parallel()
	r := plain(t)
	first := r.join()
	second := r.join()
	want(t, "links", r.m.Links(), 1)
	var closed []*authority.Link
	for _, e := range r.all {
		if e.Kind == authority.EffectClose {
			closed = append(closed, e.Link)
		}
	}
	if len(closed) != 1 || closed[0] != first {
		t.Fatalf("closed %v", closed)
	}
	r.mustSay(second, event(2, 1, "harness.ready", `{}`))
}

func TestEventOrderAndReplay(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	r.take()
	one := event(2, 1, "harness.ready", `{"n":1.50}`)
	r.mustSay(l, one)
	r.mustSay(l, event(2, 2, "harness.ready", `{}`))
	wantErr(t, r.say(l, event(2, 4, "harness.ready", `{}`)), "next")
	wantErr(t, r.say(l, eventWithID(2, 2, "other", "harness.ready", `{}`)), "next")
	wantErr(t, r.say(l, eventWithID(2, 3, prp.RunnerEventID("runner-1", 1), "harness.ready", `{}`)), "first delivery")
	want(t, "answers", r.kinds(), "ack ack")
	r.load()
	l = r.join()
	r.take()
	// Canonically equal is equal: spelling does not matter.
	r.mustSay(l, event(2, 1, "harness.ready", `{"n":1.5}`))
	ack := r.take()[0].env
	want(t, "cumulative ack", ack.Whole.Get("envelopeId").Str(), "ack_2")
	want(t, "replays", r.m.Brief().Session.ReplayDeliveries, 1)
	r.load()
	events := r.m.Snapshot().Events
	want(t, "events", len(events), 2)
	want(t, "deliveries", events[0].DeliveryCount, 2)
	if !bytes.Equal(r.hostLog()[0].Body, one) {
		t.Error("the log does not hold the exact bytes")
	}
}

func TestReplayConflictIsAFault(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string][]byte{
		"payload": event(2, 1, "harness.ready", `{"n":2}`),
		"member":  bytes.Replace(event(2, 1, "harness.ready", `{"n":1}`), []byte(`"kind"`), []byte(`"x":null,"kind"`), 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := plain(t)
			l := r.join()
			r.mustSay(l, event(2, 1, "harness.ready", `{"n":1}`))
			wantErr(t, r.say(l, changed), prp.ReasonSourceEventReplayConflict)
			fault := r.m.Fault()
			want(t, "told", r.seen[authority.EffectFault], 1)
			// Latched: events close, the rest works.
			wantErr(t, r.say(l, event(2, 2, "harness.ready", `{}`)), "latched")
			if _, err := r.m.Queue(r.now, authority.Command{Type: prp.CommandRunnerDrain, Payload: object(`{}`), Deliver: true}); err != nil {
				t.Fatal(err)
			}
			r.commit()
			r.mustSay(l, result(2, 1, prp.CommandRunnerDrain, "completed", `{}`))
			l = r.join()
			wantErr(t, r.say(l, changed), "latched")
			if r.m.Fault() != fault {
				t.Error("the fault was replaced")
			}
			want(t, "told", r.seen[authority.EffectFault], 1)
			old := r.m
			r.load()
			if r.m.Fault() != nil {
				t.Error("line M forgets the fault")
			}
			r.m.Inherit(old)
			if r.m.Fault() != fault {
				t.Error("a reload within the process must keep the same fault")
			}
		})
	}
}

func TestFaultSurvivesInTheProduct(t *testing.T) {
	t.Parallel()
	r := withRun(t)
	l := r.join()
	r.mustSay(l, event(2, 1, "harness.ready", `{"n":1}`))
	wantErr(t, r.say(l, event(2, 1, "harness.ready", `{"n":2}`)), "integrity")
	r.load()
	if f := r.m.Fault(); f == nil || f.Reason != prp.ReasonSourceEventReplayConflict {
		t.Fatalf("fault is %v", f)
	}
	run := r.run()
	want(t, "status", run.Status, store.StatusFailed)
	want(t, "reason", run.Reason, authority.ReasonIntegrityFault)
}

func TestForeignEventsDoNotPoison(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	good := string(event(2, 1, "harness.ready", `{}`))
	for name, bad := range map[string]string{
		"envelope identity": strings.Replace(good, `"turnId":"turn-1"`, `"turnId":"turn-2"`, 1),
		"event identity":    strings.ReplaceAll(strings.Replace(good, `"turnId":"turn-1"`, `"turnId":"keep"`, 1), `"turnId":"turn-1"`, `"turnId":"turn-2"`),
		"version":           strings.Replace(good, `"version":2`, `"version":1`, 1),
	} {
		bad = strings.Replace(bad, `"turnId":"keep"`, `"turnId":"turn-1"`, 1)
		if err := r.say(l, []byte(bad)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if r.m.Fault() != nil {
		t.Error("a fault was latched")
	}
	r.mustSay(l, []byte(good))
}

func TestEventBeyondCanonicalLimits(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	deep := event(2, 1, "harness.ready", `{"d":`+strings.Repeat("[", 70)+strings.Repeat("]", 70)+`}`)
	r.mustSay(l, deep)
	wantErr(t, r.say(l, deep), "canonical")
	if r.m.Fault() != nil {
		t.Error("no fault is due")
	}
	r.load()
	l = r.join()
	wantErr(t, r.say(l, deep), "canonical")
}

func TestWindow(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	const n = authority.WindowSize + 10
	for seq := int64(1); seq <= n; seq++ {
		raw := event(2, seq, "harness.ready", `{}`)
		e, err := prp.ParseEnvelope(raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.m.Message(r.now, l, e, raw); err != nil {
			t.Fatalf("event %d: %v", seq, err)
		}
	}
	r.commit()
	check := func() {
		t.Helper()
		events := r.m.Snapshot().Events
		want(t, "retained", len(events), authority.WindowSize)
		want(t, "oldest", events[0].SourceSeq, 11)
	}
	check()
	wantErr(t, r.say(l, event(2, 10, "harness.ready", `{}`)), "next")
	r.mustSay(l, event(2, 11, "harness.ready", `{}`))
	r.load()
	check()
}

func TestQueueRules(t *testing.T) {
	t.Parallel()
	r := plain(t)
	q := func(c authority.Command) (store.CommandRow, error) { return r.m.Queue(r.now, c) }
	row, err := q(authority.Command{Type: prp.CommandSessionGoalGet, Payload: object(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "id", row.CommandID, "command_prp_00000001")
	want(t, "schema", object(string(row.Record)).Get("schema").Str(), prp.CommandSchemaV2)
	for name, c := range map[string]authority.Command{
		"type":    {Type: "x", Payload: object(`{}`)},
		"payload": {Type: prp.CommandRunnerDrain, Payload: object(`[]`)},
		"id":      {Type: prp.CommandRunnerDrain, Payload: object(`{}`), ID: "a b"},
		"long id": {Type: prp.CommandRunnerDrain, Payload: object(`{}`), ID: strings.Repeat("a", 161)},
	} {
		if _, err := q(c); wire.CodeOf(err) != wire.CodeInputInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := q(authority.Command{Type: prp.CommandTurnStop, Payload: object(`{"b":1,"a":2}`), ID: "mine"}); err != nil {
		t.Fatal(err)
	}
	if row, err := q(authority.Command{Type: prp.CommandTurnStop, Payload: object(`{"a":2.0,"b":1}`), ID: "mine"}); err != nil || row.ControllerSeq != 2 {
		t.Fatalf("equal again: %v %v", row.ControllerSeq, err)
	}
	for _, c := range []authority.Command{
		{Type: prp.CommandTurnStop, Payload: object(`{"a":3}`), ID: "mine"},
		{Type: prp.CommandRunCancel, Payload: object(`{"a":2,"b":1}`), ID: "mine"},
	} {
		if _, err := q(c); wire.CodeOf(err) != wire.CodeCommandConflict {
			t.Errorf("conflict: %v", err)
		}
	}
}

func TestCommandSizeLimit(t *testing.T) {
	t.Parallel()
	r := plain(t)
	size := func(n int) error {
		_, err := r.m.Queue(r.now, authority.Command{
			Type: prp.CommandRunnerDrain, Payload: object(`{"x":"` + strings.Repeat("a", n) + `"}`), ID: "big",
		})
		return err
	}
	overhead := len(prp.Command{
		CommandID: "big", ControllerSeq: 1, Type: prp.CommandRunnerDrain, IssuedAt: prp.FormatTime(r.now), Payload: object(`{"x":""}`),
	}.Record(prp.StatusPending, canonjson.Value{}).JSON())
	if err := size(prp.MaxQueuedCommandBytes - overhead + 1); wire.CodeOf(err) != wire.CodeCommandTooLarge {
		t.Errorf("one past the limit: %v", err)
	}
	if err := size(prp.MaxQueuedCommandBytes - overhead); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	r.commit()
	// It must fit a frame, in the welcome too.
	r.join()
	plainText := r.all[len(r.all)-1]
	for _, e := range r.all {
		if e.Kind == authority.EffectSend {
			plainText = e
		}
	}
	if n := prp.FrameSize(len(plainText.Plain)); n > prp.MaxFrameBytes {
		t.Errorf("the welcome makes a frame of %d bytes", n)
	}
}

func TestJournalLimits(t *testing.T) {
	t.Parallel()
	drain := authority.Command{Type: prp.CommandRunnerDrain, Payload: object(`{}`)}
	t.Run("total", func(t *testing.T) {
		t.Parallel()
		r := plain(t)
		l := r.join()
		for seq := int64(1); seq <= prp.MaxJournalCommands; seq++ {
			if _, err := r.m.Queue(r.now, drain); err != nil {
				t.Fatalf("command %d: %v", seq, err)
			}
			r.mustSay(l, result(2, seq, prp.CommandRunnerDrain, "completed", `{}`))
		}
		_, err := r.m.Queue(r.now, drain)
		want(t, "code", wire.CodeOf(err), wire.CodeTooManyRequests)
	})
	t.Run("pending", func(t *testing.T) {
		t.Parallel()
		r := withRun(t)
		for seq := 3; seq <= prp.MaxJournalCommands; seq++ {
			if _, err := r.m.Queue(r.now, drain); err != nil {
				t.Fatalf("command %d: %v", seq, err)
			}
		}
		_, err := r.m.Queue(r.now, drain)
		want(t, "code", wire.CodeOf(err), wire.CodeTooManyRequests)
		r.commit()
		l := r.join()
		r.mustSay(l, result(2, 100, prp.CommandRunnerDrain, "completed", `{}`))
		if _, err := r.m.Queue(r.now, drain); err != nil {
			t.Fatalf("after a result: %v", err)
		}
	})
}

func TestDelivery(t *testing.T) {
	t.Parallel()
	r := plain(t)
	queue := func(deliver bool) {
		t.Helper()
		if _, err := r.m.Queue(r.now, authority.Command{Type: prp.CommandSessionSnapshot, Payload: object(`{}`), Deliver: deliver}); err != nil {
			t.Fatal(err)
		}
		r.commit()
	}
	queue(true) // nobody is there
	l := r.join()
	want(t, "welcome", r.kinds(), "welcome:session.snapshot")
	queue(false)
	want(t, "without delivery", r.kinds(), "")
	queue(true) // sends the first again, not itself
	s := r.take()
	want(t, "frames", len(s), 1)
	want(t, "envelope id", s[0].env.Whole.Get("envelopeId").Str(), "command_command_prp_00000001_2")
	if s[0].env.Payload.Has("status") || s[0].env.Payload.Has("result") {
		t.Error("the wire form carries status or result")
	}
	one := result(2, 1, prp.CommandSessionSnapshot, "completed", `{}`)
	r.mustSay(l, one)
	want(t, "after the result", r.kinds(), "command:session.snapshot")
	r.mustSay(l, one) // equal: counted, and what is pending comes again
	want(t, "after a repetition", r.kinds(), "command:session.snapshot")
	want(t, "duplicates", r.m.Brief().Session.DuplicateCommandResults, 1)
	wantErr(t, r.say(l, result(2, 1, prp.CommandSessionSnapshot, "failed", `{}`)), "differs")
	wantErr(t, r.say(l, result(2, 9, prp.CommandSessionSnapshot, "completed", `{}`)), "no such")
	// Out of order is fine.
	r.mustSay(l, result(2, 3, prp.CommandSessionSnapshot, "rejected", `{}`))
	r.load()
	want(t, "pending", r.m.Brief().Pending, 1)
}

func TestTerminalLifecycleCommand(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	r.take()
	q := func(commandType string) {
		if _, err := r.m.Queue(r.now, authority.Command{Type: commandType, Payload: object(`{}`), Deliver: true}); err != nil {
			t.Fatal(err)
		}
		r.commit()
	}
	q(prp.CommandRunnerSuspend)
	q(prp.CommandRunnerDrain)
	want(t, "sent", r.kinds(), "command:runner.suspend")
	r.mustSay(l, result(2, 1, prp.CommandRunnerSuspend, "completed", `{"status":"completed"}`))
	ack := r.take()
	want(t, "frames", len(ack), 1)
	want(t, "ack id", ack[0].env.Whole.Get("envelopeId").Str(), "command_result_ack_1")
	r.mustSay(l, result(2, 1, prp.CommandRunnerSuspend, "completed", `{"status":"completed"}`))
	want(t, "repetition", r.kinds(), "command_result_ack")
	l = r.join()
	want(t, "next connection", r.kinds(), "welcome:runner.drain")
	r.mustSay(l, result(2, 2, prp.CommandRunnerDrain, "completed", `{}`))
}

func TestUnknownKinds(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	for _, kind := range []string{"hello", "ping", "welcome", "auth_hello", "warm_transition_activated", ""} {
		if err := r.say(l, prp.AppendRunnerMessage(nil, 2, kind, identity(), []byte(`{}`))); err == nil {
			t.Errorf("kind %q was taken", kind)
		}
	}
	r.mustSay(l, prp.AppendRunnerMessage(nil, 2, prp.KindPong, identity(), []byte(`{}`)))
}

func TestDamagedRowsAreRefused(t *testing.T) {
	t.Parallel()
	base := func() *store.SessionState {
		r := plain(t)
		l := r.join()
		if _, err := r.m.Queue(r.now, authority.Command{Type: prp.CommandRunnerDrain, Payload: object(`{}`)}); err != nil {
			t.Fatal(err)
		}
		r.mustSay(l, event(2, 1, "harness.ready", `{}`))
		r.mustSay(l, event(2, 2, "harness.ready", `{}`))
		st, err := r.st.Session(t.Context(), identity().NormalizedSessionID, authority.WindowSize)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	for name, damage := range map[string]func(st *store.SessionState){
		"gap":        func(st *store.SessionState) { st.Commands[0].ControllerSeq = 2 },
		"status":     func(st *store.SessionState) { st.Commands[0].Status = "done" },
		"type":       func(st *store.SessionState) { st.Commands[0].Type = "x" },
		"record":     func(st *store.SessionState) { st.Commands[0].Record = []byte("{") },
		"no result":  func(st *store.SessionState) { st.Commands[0].Status = prp.StatusCompleted },
		"cursor":     func(st *store.SessionState) { st.Session.AckedSourceSeq = 3 },
		"order":      func(st *store.SessionState) { st.Events[1].SourceSeq = 1 },
		"event body": func(st *store.SessionState) { st.Events[1].Body = []byte("x") },
		"identity":   func(st *store.SessionState) { st.Session.Identity.ItemID = "" },
	} {
		st := base()
		damage(st)
		if _, err := build(authority.ReferenceOptions(func() string { return "x" }), st, nil, nil); wire.CodeOf(err) != wire.CodeLogDamaged {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func toolInput(seq int64, callID, input string, extra string) []byte {
	digest := prp.SemanticDigest(object(input))
	return event(2, seq, "semantic_tool.input", fmt.Sprintf(`{"semantic_tool":{"schema":"paperclip.prp.semantic_tool.v1","schemaVersion":1,`+
		`"phase":"input","operationId":"op","callId":%q,"correlation":{"runId":%q,"normalizedSessionId":"session-1","turnId":"turn-1","itemId":"item-1"%s},`+
		`"idempotencyKey":null,"content":{"digest":%q,"redactionDisposition":"digest_only","references":[]},"input":%s}}`,
		callID, identity().RunID, extra, digest, input))
}

func (r *rig) dispatched() []*authority.ToolCall {
	var calls []*authority.ToolCall
	for _, e := range r.all {
		if e.Kind == authority.EffectDispatch {
			calls = append(calls, e.Call)
		}
	}
	return calls
}

func TestToolCall(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	r.take()
	in := toolInput(1, "call-1", `{"a":null}`, "")
	r.mustSay(l, in)
	want(t, "dispatched", len(r.dispatched()), 1)
	if r.m.Settled() {
		t.Error("settled while the handler runs")
	}
	r.mustSay(l, in) // running: not again
	want(t, "dispatched", len(r.dispatched()), 1)
	call := r.dispatched()[0]
	r.m.ToolDone(r.now, call, object(`{"ok":true}`), false)
	r.commit()
	want(t, "answers", r.kinds(), "ack ack command:semantic_tool.result")
	if r.m.Settled() {
		t.Error("settled before the result was delivered")
	}
	r.mustSay(l, in)
	want(t, "dispatched after the answer", len(r.dispatched()), 1)
	id := prp.ToolCommandID(identity().RunID, "call-1")
	r.mustSay(l, resultOf(2, id, 1, prp.CommandSemanticToolResult, "completed", `{"status":"delivered","callId":"call-1"}`))
	if !r.m.Settled() {
		t.Error("not settled at the end")
	}
	r.load()
	if !r.m.Settled() {
		t.Error("not settled after a reload")
	}
}

func TestToolCallUnsettledForms(t *testing.T) {
	t.Parallel()
	id := prp.ToolCommandID(identity().RunID, "call-1")
	for name, c := range map[string]struct {
		in   []byte
		done []byte
	}{
		"request id":   {toolInput(1, "call-1", `{}`, `,"requestId":"r"`), resultOf(2, id, 1, prp.CommandSemanticToolResult, "completed", `{}`)},
		"other seq":    {toolInput(1, "call-1", `{}`, ""), resultOf(2, id, 7, prp.CommandSemanticToolResult, "completed", `{}`)},
		"other type":   {toolInput(1, "call-1", `{}`, ""), resultOf(2, id, 1, prp.CommandRunnerDrain, "completed", `{}`)},
		"failed":       {toolInput(1, "call-1", `{}`, ""), resultOf(2, id, 1, prp.CommandSemanticToolResult, "failed", `{}`)},
		"beyond depth": {toolInput(1, "call-1", strings.Repeat("[", 70)+strings.Repeat("]", 70), ""), resultOf(2, id, 1, prp.CommandSemanticToolResult, "completed", `{}`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := plain(t)
			l := r.join()
			r.mustSay(l, c.in)
			want(t, "dispatched", len(r.dispatched()), 1)
			r.m.ToolDone(r.now, r.dispatched()[0], object(`{"ok":true}`), false)
			r.commit()
			r.mustSay(l, c.done)
			if r.m.Settled() {
				t.Error("settled")
			}
			r.load()
			if r.m.Settled() {
				t.Error("settled after a reload")
			}
		})
	}
}

func TestToolFailureAndLoss(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	r.mustSay(l, toolInput(1, "call-1", `{}`, ""))
	r.mustSay(l, toolInput(2, "call-2", `{}`, ""))
	r.take()
	calls := r.dispatched()
	r.m.ToolDone(r.now, calls[0], canonjson.Value{}, true)
	r.commit()
	payload := r.take()[0].env.Payload.Get("payload")
	want(t, "code", payload.Get("result", "code").Str(), "semantic_tool_bridge_failed")
	if isError, _ := payload.Get("isError").AsBool(); !isError {
		t.Error("isError is false")
	}
	// A result that no command holds.
	r.m.ToolDone(r.now, calls[1], canonjson.StringValue(strings.Repeat("x", prp.MaxQueuedCommandBytes)), false)
	r.commit()
	want(t, "close all", r.seen[authority.EffectCloseAll], 1)
	old := r.m
	r.load()
	r.m.Inherit(old)
	if r.m.Settled() {
		t.Error("settled although a result was lost")
	}
}

func TestToolDigestMismatch(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	good := toolInput(1, "call-1", `{"a":1}`, "")
	bad := bytes.Replace(good, []byte(`"input":{"a":1}`), []byte(`"input":{"a":2}`), 1)
	wantErr(t, r.say(l, bad), prp.ReasonSemanticInputDigestMismatch)
	want(t, "dispatched", len(r.dispatched()), 0)
	want(t, "acked", r.m.Brief().Session.AckedSourceSeq, 0)
	// Step 7 comes before step 8.
	r = plain(t)
	l = r.join()
	r.mustSay(l, good)
	wantErr(t, r.say(l, bad), prp.ReasonSemanticInputDigestMismatch)
}

func TestToolsWithoutHandlerClose(t *testing.T) {
	t.Parallel()
	r := plain(t)
	r.opt.Tools = false
	r.load()
	l := r.join()
	wantErr(t, r.say(l, toolInput(1, "call-1", `{}`, "")), "nobody")
	if r.m.Fault() != nil {
		t.Error("a fault was latched")
	}
}

func TestUnsettledCallsStayInTheWindow(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	stage := func(raw []byte) error {
		e, err := prp.ParseEnvelope(raw)
		if err != nil {
			t.Fatal(err)
		}
		return r.m.Message(r.now, l, e, raw)
	}
	if err := stage(toolInput(1, "call-1", `{}`, "")); err != nil {
		t.Fatal(err)
	}
	const n = authority.WindowSize + 5
	for seq := int64(2); seq <= n; seq++ {
		if err := stage(event(2, seq, "harness.ready", `{}`)); err != nil {
			t.Fatal(err)
		}
	}
	r.commit()
	check := func() {
		t.Helper()
		events := r.m.Snapshot().Events
		want(t, "retained", len(events), authority.WindowSize)
		want(t, "oldest", events[0].SourceSeq, 1)
		want(t, "next", events[1].SourceSeq, n-authority.WindowSize+2)
		if r.m.Settled() {
			t.Error("settled")
		}
	}
	check()
	r.load()
	check()
	// A crash before the ack: the redelivered call is offered again.
	l = r.join()
	if err := stage(toolInput(1, "call-1", `{}`, "")); err != nil {
		t.Fatal(err)
	}
	r.commit()
	want(t, "dispatched", len(r.dispatched()), 2)
}

func TestFailedCommitIsForgotten(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	raw := event(2, 1, "harness.ready", `{}`)
	e, err := prp.ParseEnvelope(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.m.Message(r.now, l, e, raw); err != nil {
		t.Fatal(err)
	}
	r.m.Take() // the commit failed: nothing of it was written
	old := r.m
	r.load()
	r.m.Inherit(old)
	want(t, "acked", r.m.Brief().Session.AckedSourceSeq, 0)
	l = r.join()
	welcome := r.take()
	acked, _ := welcome[len(welcome)-1].env.Payload.Get("ackedSourceSeq").SafeInt()
	want(t, "welcome acknowledges", acked, 0)
	r.mustSay(l, raw)
	want(t, "log", len(r.hostLog()), 1)
}

func TestWindowFullOfUnsettledCalls(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	stage := func(raw []byte) error {
		e, err := prp.ParseEnvelope(raw)
		if err != nil {
			t.Fatal(err)
		}
		return r.m.Message(r.now, l, e, raw)
	}
	for seq := int64(1); seq <= authority.WindowSize; seq++ {
		if err := stage(toolInput(seq, fmt.Sprintf("call-%d", seq), `{}`, "")); err != nil {
			t.Fatal(err)
		}
	}
	r.commit()
	next := event(2, authority.WindowSize+1, "harness.ready", `{}`)
	wantErr(t, stage(next), "window")
	// One that settles makes room.
	r.m.ToolDone(r.now, r.dispatched()[7], object(`{}`), false)
	r.commit()
	id := prp.ToolCommandID(identity().RunID, "call-8")
	r.mustSay(l, resultOf(2, id, 1, prp.CommandSemanticToolResult, "completed", `{}`))
	r.mustSay(l, next)
	// Which makes room for its successor in turn, being the only settled one.
	r.mustSay(l, event(2, authority.WindowSize+2, "harness.ready", `{}`))
	check := func() {
		t.Helper()
		events := r.m.Snapshot().Events
		want(t, "retained", len(events), authority.WindowSize)
		want(t, "oldest", events[0].SourceSeq, 1)
		want(t, "eighth", events[7].SourceSeq, 9)
		want(t, "newest", events[authority.WindowSize-1].SourceSeq, authority.WindowSize+2)
	}
	check()
	r.load()
	check()
}

// The welcome repeats the warm version when and only when the hello offered it.
func TestWelcomeEchoesTheWarmVersion(t *testing.T) {
	t.Parallel()
	for _, offered := range []bool{true, false} {
		r := plain(t)
		h := hello(credentialID(r.ticket()))
		h.WarmTransitionVersion = offered
		r.take()
		r.joinAs(h)
		sent := r.take()
		want(t, "frames", len(sent), 1)
		want(t, fmt.Sprintf("echo of an offer %v", offered), sent[0].env.Payload.Get("warmTransitionVersion").Exists(), offered)
	}
}

// A wrong lease_renew closes also behind a terminal command; a right one is
// ignored there (the order of the reference authority).
func TestRenewBehindATerminalCommand(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	w := r.take()[0].env
	binding := prp.Binding{
		Version: l.Version, Identity: identity(), ConnectionID: l.ID, ConnectionLeaseID: w.Whole.Get("connectionLeaseId").Str(),
	}
	expires, _ := w.Payload.Get("connectionLeaseExpiresAtUnixMs").SafeInt()
	if _, err := r.m.Queue(r.now, authority.Command{Type: prp.CommandRunnerSuspend, Payload: object(`{}`), Deliver: true}); err != nil {
		t.Fatal(err)
	}
	r.commit()
	want(t, "sent", r.kinds(), "command:runner.suspend")
	renew := func(at int64) error {
		return r.say(l, prp.AppendRunnerLeaseMessage(nil, prp.KindLeaseRenew, binding, prp.EncodeLeaseRenew(prp.LeaseRenew{ExpiresAtUnixMs: at})))
	}
	if err := renew(expires); err != nil {
		t.Fatal(err)
	}
	want(t, "sent", r.kinds(), "")
	wantErr(t, renew(expires+1), "lease_renew")
}

// The result of a terminal command ends the delivery over its connection, also
// when the command was never sent over it.
func TestUnsentTerminalResultEndsDelivery(t *testing.T) {
	t.Parallel()
	r := plain(t)
	l := r.join()
	for _, kind := range []string{prp.CommandSessionSnapshot, prp.CommandRunnerSuspend, prp.CommandRunnerDrain} {
		if _, err := r.m.Queue(r.now, authority.Command{Type: kind, Payload: object(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	r.commit()
	r.take()
	r.mustSay(l, result(2, 2, prp.CommandRunnerSuspend, "completed", `{}`))
	want(t, "sent", r.kinds(), "command_result_ack")
	r.mustSay(l, result(2, 1, prp.CommandSessionSnapshot, "completed", `{}`))
	want(t, "sent", r.kinds(), "")
	r.join()
	want(t, "sent", r.kinds(), "welcome:runner.drain")
}
