package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
)

func testSession(t *testing.T, open Open) {
	s, reopen := open(t)
	r := sessionRow("s1")
	r.Epoch, r.HeadSeq, r.AckedSourceSeq = 3, 17, 12
	r.ConnectionCount, r.ReplayDeliveries, r.DuplicateCommandResults = 4, 5, 6
	r.FreshBootstraps, r.MalformedFrames = 7, 8
	r.LastLeaseID, r.LastLeaseExpiresAtMs, r.FaultReason = "lease-9", 1<<52, "source_seq_gap"
	r.Pinned = []int64{2, 5}
	commit(t, s, &store.Tx{NewSession: r})
	equal(t, "session", load(t, s, "s1", 10).Session, *r)
	if _, err := s.Session(deadline(t), "other", 10); true {
		refused(t, err, wire.CodeNotFound)
	}
	refused(t, s.Commit(deadline(t), &store.Tx{NewSession: sessionRow("s1")}), wire.CodeConflict)
	equal(t, "session after a second insert", load(t, s, "s1", 10).Session, *r)

	bare := &store.SessionRow{ID: "bare", Identity: identity("bare")}
	commit(t, s, &store.Tx{NewSession: bare})
	equal(t, "bare session", load(t, s, "bare", 10), &store.SessionState{Session: *bare})

	s = reopen()
	equal(t, "session after reopening", load(t, s, "s1", 10).Session, *r)
}

// testSessionChanges replaces each member alone, with the caller's row reused
// and its template changed in place.
func testSessionChanges(t *testing.T, open Open) {
	s, reopen := open(t)
	r := newSession(t, s, "s1")
	for i, change := range []func(){
		func() { r.HeadSeq = 5 },
		func() { r.AckedSourceSeq = 4 },
		func() { r.Epoch = 2 },
		func() { r.ConnectionCount++ },
		func() { r.ReplayDeliveries++ },
		func() { r.DuplicateCommandResults++ },
		func() { r.FreshBootstraps++ },
		func() { r.MalformedFrames++ },
		func() { r.LastLeaseID, r.LastLeaseExpiresAtMs = "l", 99 },
		func() { r.FaultReason = "x" },
		func() { r.Pinned = []int64{1, 1 << 53} },
		func() { r.Pinned[0] = 3 },
		func() { r.Pinned = nil },
		func() { r.Profile = "native" },
		func() { r.Identity.ItemID = "another" },
		func() { r.RunnerVersion = "0.4.0" },
		func() { r.RunnerDigest = "sha256:00" },
		func() { r.LeaseTTL = time.Minute },
		func() { r.RunAttachTemplate[2] = 'X' },
		func() { r.RunAttachTemplate = append(r.RunAttachTemplate, ' ') },
		func() { r.RunAttachTemplate = nil },
	} {
		change()
		commit(t, s, &store.Tx{Session: r})
		got := load(t, s, "s1", 0).Session
		if !bytes.Equal(got.RunAttachTemplate, r.RunAttachTemplate) {
			t.Fatalf("change %d: template is %q, want %q", i, got.RunAttachTemplate, r.RunAttachTemplate)
		}
		equal(t, "changed session", got, *r)
	}
	s = reopen()
	equal(t, "session after reopening", load(t, s, "s1", 0).Session, *r)
}

func testSessionWindow(t *testing.T, open Open) {
	s, _ := open(t)
	r := newSession(t, s, "s1")
	other := newSession(t, s, "s2")
	var runner []store.EventRow
	for range 30 {
		runner = append(runner, grow(t, s, r, 1, numbered)...)
		grow(t, s, other, 1, numbered)
		r.HeadSeq++
		own := store.EventRow{Seq: r.HeadSeq, Origin: store.OriginControlPlane, Type: "run.assigned", At: start(), Body: []byte(`{}`), Digest: sha256.Sum256([]byte(`{}`))}
		commit(t, s, &store.Tx{Session: r, Events: []store.EventRow{own}})
	}
	for _, window := range []int{1, 7, 29, 30, 31, 1000} {
		equal(t, "window", load(t, s, "s1", window).Events, runner[max(0, len(runner)-window):])
	}
	if n := len(load(t, s, "s1", 0).Events); n != 0 {
		t.Fatalf("a window of 0 gave %d events", n)
	}
}

func testSessionByRun(t *testing.T, open Open) {
	s, _ := open(t)
	newSession(t, s, "s1")
	if _, err := s.SessionByRun(deadline(t), "nobody"); true {
		refused(t, err, wire.CodeNotFound)
	}
	// A session made without a run row is found by its identity's run.
	id, err := s.SessionByRun(deadline(t), "run-s1")
	if err != nil || id != "s1" {
		t.Fatalf("by identity: %q, %v", id, err)
	}
	commit(t, s, &store.Tx{NewRun: &store.RunRow{ID: "second-run", SessionID: "s1", Status: store.StatusQueued}})
	id, err = s.SessionByRun(deadline(t), "second-run")
	if err != nil || id != "s1" {
		t.Fatalf("by run: %q, %v", id, err)
	}
}

func testGeneration(t *testing.T, open Open) {
	s, reopen := open(t)
	r := newSession(t, s, "s1")
	r.HeadSeq = 1
	commit(t, s, &store.Tx{Session: r})

	commit(t, s, &store.Tx{BumpGeneration: "s1"})
	if got := load(t, s, "s1", 0).Session.Generation; got != 2 {
		t.Fatalf("generation is %d after a take-over, want 2", got)
	}
	stale := *r
	stale.HeadSeq = 99
	refused(t, s.Commit(deadline(t), &store.Tx{
		Session: &stale, Events: []store.EventRow{event(99, nil)}, Settings: map[string]string{"a": "b"},
	}), wire.CodeConflict)
	if _, err := s.Setting(deadline(t), "a"); true {
		refused(t, err, wire.CodeNotFound)
	}
	st := load(t, s, "s1", 10)
	if st.Session.HeadSeq != 1 || len(st.Events) != 0 {
		t.Fatalf("a stale owner moved the session to %d with %d events", st.Session.HeadSeq, len(st.Events))
	}

	s = reopen()
	refused(t, s.Commit(deadline(t), &store.Tx{Session: &stale}), wire.CodeConflict)
	r.Generation, r.HeadSeq = 2, 2
	commit(t, s, &store.Tx{Session: r})
	ahead := *r
	ahead.Generation = 3
	refused(t, s.Commit(deadline(t), &store.Tx{Session: &ahead}), wire.CodeConflict)

	// The fence moves in the owner's own last write, too.
	commit(t, s, &store.Tx{Session: r, BumpGeneration: "s1"})
	refused(t, s.Commit(deadline(t), &store.Tx{Session: r}), wire.CodeConflict)

	refused(t, s.Commit(deadline(t), &store.Tx{BumpGeneration: "nobody"}), wire.CodeNotFound)
	refused(t, s.Commit(deadline(t), &store.Tx{Session: sessionRow("nobody")}), wire.CodeConflict)
}

func testCommands(t *testing.T, open Open) {
	s, reopen := open(t)
	r := newSession(t, s, "s1")
	newSession(t, s, "s2")
	cs := []store.CommandRow{
		{ControllerSeq: 2, CommandID: "c2", Type: "turn.start", Record: []byte(`{"b":1, "a":2}`), Status: "pending", QueuedAt: start()},
		{ControllerSeq: 1, CommandID: "c1", Type: "run.prepare", Record: []byte(`{}`), Status: "pending", QueuedAt: start()},
	}
	commit(t, s, &store.Tx{Session: r, Commands: cs})
	cs[0], cs[1] = cs[1], cs[0]
	equal(t, "journal", load(t, s, "s1", 0).Commands, cs)
	cs[0].Status, cs[0].Result, cs[0].DeliveryCount, cs[0].DoneAt = "completed", []byte(`{"ok":true}`), 2, start().Add(time.Minute)
	commit(t, s, &store.Tx{Session: r, Commands: cs[:1]})
	equal(t, "journal after a result", load(t, s, "s1", 0).Commands, cs)
	if n := len(load(t, s, "s2", 0).Commands); n != 0 {
		t.Fatalf("another session has %d commands", n)
	}
	s = reopen()
	equal(t, "journal after reopening", load(t, s, "s1", 0).Commands, cs)
}

func testCredentials(t *testing.T, open Open) {
	s, reopen := open(t)
	newSession(t, s, "s1")
	tickets := []store.TicketRow{
		{
			RecordID: "r1", CredentialID: "t1", AuthKey: sha256.Sum256([]byte("1")), SessionID: "s1", RunID: "run-1",
			Identity: identity("s1"), RunnerVersion: "0.3.0", RunnerDigest: "sha256:00", ExpiresAtMs: 1 << 45, CreatedAtMs: 5,
		},
		{RecordID: "r2", CredentialID: "t2", SessionID: "s1", RunID: "run-1", Identity: identity("s1"), UsedAtMs: 9, CreatedAtMs: 6},
		{RecordID: "r3", CredentialID: "t3", SessionID: "other", RunID: "run-2", Identity: identity("other")},
	}
	leases := []store.LeaseRow{
		{
			RecordID: "r4", CredentialID: "l1", AuthKey: sha256.Sum256([]byte("2")), LeaseID: "lease", SessionID: "s1",
			Identity: identity("s1"), ProtocolVersion: 2, ExpiresAtMs: 1 << 45, RevocationEpoch: 3, RevokedAtMs: 4,
		},
		{RecordID: "r5", CredentialID: "l2", SessionID: "s1", Identity: identity("s1"), ProtocolVersion: 1},
	}
	commit(t, s, &store.Tx{Tickets: tickets, Leases: leases})
	verify := func(wantTickets []store.TicketRow, wantLeases []store.LeaseRow) {
		t.Helper()
		st := load(t, s, "s1", 0)
		equal(t, "tickets of the session", st.Tickets, wantTickets)
		equal(t, "leases of the session", st.Leases, wantLeases)
		byRun, err := s.Tickets(deadline(t), "run-1")
		if err != nil {
			t.Fatalf("tickets: %v", err)
		}
		equal(t, "tickets of the run", byRun, wantTickets)
	}
	verify(tickets[:2], leases)

	tickets[0].UsedAtMs = 77
	leases[1].RevokedAtMs = 78
	commit(t, s, &store.Tx{Tickets: tickets[:1], Leases: leases[1:]})
	verify(tickets[:2], leases)

	commit(t, s, &store.Tx{DropTickets: []string{"t2", "unknown"}, DropLeases: []string{"l1"}, Tickets: tickets[:1]})
	verify(tickets[:1], leases[1:])
	s = reopen()
	verify(tickets[:1], leases[1:])
	if rows, err := s.Tickets(deadline(t), "nobody"); err != nil || len(rows) != 0 {
		t.Fatalf("tickets of an unknown run: %v, %v", rows, err)
	}
}

func testBugs(t *testing.T, open Open) {
	s, _ := open(t)
	for name, tx := range map[string]*store.Tx{
		"nil":                      nil,
		"events without a session": {Events: []store.EventRow{event(1, nil)}},
		"commands without one":     {Commands: []store.CommandRow{{ControllerSeq: 1}}},
		"redelivered without one":  {Redelivered: []int64{1}},
		"two sessions":             {Session: sessionRow("a"), NewSession: sessionRow("b")},
		"unknown origin":           {NewSession: sessionRow("a"), Events: []store.EventRow{{Seq: 1, Origin: "?"}}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			if err := s.Commit(deadline(t), tx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}()
	}
}

func testEmpty(t *testing.T, open Open) {
	s, _ := open(t)
	commit(t, s, &store.Tx{})
}

func testClosed(t *testing.T, open Open) {
	s, reopen := open(t)
	newSession(t, s, "s1")
	if err := s.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
	ctx := deadline(t)
	calls := map[string]func() error{
		"Commit":       func() error { return s.Commit(ctx, &store.Tx{}) },
		"Session":      func() error { _, err := s.Session(ctx, "s1", 1); return err },
		"SessionByRun": func() error { _, err := s.SessionByRun(ctx, "s1"); return err },
		"Events":       func() error { _, err := s.Events(ctx, "s1", 0, 1, 1); return err },
		"Run":          func() error { _, err := s.Run(ctx, "r"); return err },
		"Runs":         func() error { _, _, err := s.Runs(ctx, store.RunQuery{}); return err },
		"OpenRuns":     func() error { _, err := s.OpenRuns(ctx); return err },
		"Launch":       func() error { _, err := s.Launch(ctx, "r"); return err },
		"Idempotent":   func() error { _, err := s.Idempotent(ctx, "k"); return err },
		"Token":        func() error { _, err := s.Token(ctx, [32]byte{}); return err },
		"Tickets":      func() error { _, err := s.Tickets(ctx, "r"); return err },
		"Audit":        func() error { _, err := s.Audit(ctx, 0, 1); return err },
		"Setting":      func() error { _, err := s.Setting(ctx, "s"); return err },
	}
	for name, call := range calls {
		if err := call(); wire.CodeOf(err) != wire.CodeUnavailable {
			t.Errorf("%s on a closed store: %v, want %s", name, err, wire.CodeUnavailable)
		}
	}
	if err := s.Latched(); err != nil {
		t.Errorf("a closed store says it is latched: %v", err)
	}
	s = reopen()
	load(t, s, "s1", 0)
}

// testCancel ends the caller's context at all moments of a commit. Whatever
// Commit then says must be what is in the store.
func testCancel(t *testing.T, open Open) {
	s, _ := open(t)
	r := newSession(t, s, "s1")
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Commit(dead, &store.Tx{Settings: map[string]string{"never": "1"}}); !errors.Is(err, context.Canceled) {
		t.Fatalf("commit with an ended context: %v", err)
	}
	if _, err := s.Setting(deadline(t), "never"); true {
		refused(t, err, wire.CodeNotFound)
	}
	done := 0
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		next := *r
		next.HeadSeq++
		result := make(chan error, 1)
		started := make(chan struct{})
		go func() {
			close(started)
			result <- s.Commit(ctx, &store.Tx{Session: &next, Events: []store.EventRow{event(next.HeadSeq, nil)}})
		}()
		<-started
		cancel()
		var err error
		select {
		case err = <-result:
		case <-time.After(patience):
			t.Fatal("a cancelled commit did not return")
		}
		head := load(t, s, "s1", 0).Session.HeadSeq
		switch {
		case err == nil && head == next.HeadSeq:
			*r = next
			done++
		case errors.Is(err, context.Canceled) && head == r.HeadSeq:
		default:
			t.Fatalf("commit said %v, the head went from %d to %d", err, r.HeadSeq, head)
		}
	}
	if n := len(events(t, s, "s1", 0, 1000, 1<<20)); n != done {
		t.Fatalf("%d events for %d successful commits", n, done)
	}
}
