package storetest

import (
	"fmt"
	"sync"
	"testing"

	"bowline/controlplane/store"
	"bowline/wire"
)

// testAtomicity puts one member that is refused into a transaction of every
// kind of row, and looks for each row afterwards.
func testAtomicity(t *testing.T, open Open) {
	s, reopen := open(t)
	owner := newSession(t, s, "taken")
	grow(t, s, owner, 1, numbered)
	commit(t, s, &store.Tx{NewRun: runRow("taken"), Idempotency: &store.IdempotencyRow{Key: "taken"}})
	commit(t, s, &store.Tx{Token: &store.TokenRow{ID: "taken", Hash: [32]byte{9}}})

	// everything is a transaction that would be accepted as it stands.
	everything := func() *store.Tx {
		n := sessionRow("new")
		n.HeadSeq = 1
		return &store.Tx{
			NewSession:  n,
			Events:      []store.EventRow{event(1, []byte("x"))},
			Redelivered: []int64{1},
			Commands:    []store.CommandRow{{ControllerSeq: 1, CommandID: "c", Status: "pending"}},
			Tickets:     []store.TicketRow{{CredentialID: "t", SessionID: "new", RunID: "new", Identity: identity("new")}},
			Leases:      []store.LeaseRow{{CredentialID: "l", SessionID: "new", Identity: identity("new")}},
			NewRun:      runRow("new"),
			Launch:      &store.LaunchRow{RunID: "new"},
			Idempotency: &store.IdempotencyRow{Key: "new"},
			Token:       &store.TokenRow{ID: "new", Hash: [32]byte{1}},
			Audit:       []store.AuditRow{{Actor: "a"}},
			Settings:    map[string]string{"new": "1"},
		}
	}
	nothing := func(why string) {
		t.Helper()
		ctx := deadline(t)
		for what, call := range map[string]func() error{
			"session":         func() error { _, err := s.Session(ctx, "new", 10); return err },
			"session by run":  func() error { _, err := s.SessionByRun(ctx, "new"); return err },
			"run":             func() error { _, err := s.Run(ctx, "new"); return err },
			"launch":          func() error { _, err := s.Launch(ctx, "new"); return err },
			"idempotency key": func() error { _, err := s.Idempotent(ctx, "new"); return err },
			"token":           func() error { _, err := s.Token(ctx, [32]byte{1}); return err },
			"setting":         func() error { _, err := s.Setting(ctx, "new"); return err },
		} {
			if err := call(); wire.CodeOf(err) != wire.CodeNotFound {
				t.Fatalf("%s: %s of a refused transaction: %v, want %s", why, what, err, wire.CodeNotFound)
			}
		}
		if rows, err := s.Tickets(ctx, "new"); err != nil || len(rows) != 0 {
			t.Fatalf("%s: tickets of a refused transaction: %d, %v", why, len(rows), err)
		}
		if rows, err := s.Audit(ctx, 0, 10); err != nil || len(rows) != 0 {
			t.Fatalf("%s: audit of a refused transaction: %d, %v", why, len(rows), err)
		}
	}
	for why, spoil := range map[string]struct {
		code  wire.Code
		spoil func(tx *store.Tx)
	}{
		"idempotency key":    {wire.CodeConflict, func(tx *store.Tx) { tx.Idempotency.Key = "taken" }},
		"run id":             {wire.CodeConflict, func(tx *store.Tx) { tx.NewRun.ID = "taken" }},
		"session id":         {wire.CodeConflict, func(tx *store.Tx) { tx.NewSession.ID = "taken" }},
		"token hash":         {wire.CodeConflict, func(tx *store.Tx) { tx.Token.Hash = [32]byte{9} }},
		"event twice":        {wire.CodeConflict, func(tx *store.Tx) { tx.Events = append(tx.Events, event(1, nil)) }},
		"run to replace":     {wire.CodeNotFound, func(tx *store.Tx) { tx.Run = runRow("nobody") }},
		"session to take":    {wire.CodeNotFound, func(tx *store.Tx) { tx.BumpGeneration = "nobody" }},
		"generation (fence)": {wire.CodeConflict, func(tx *store.Tx) { tx.Session = sessionRow("new"); tx.Session.Generation = 5 }},
	} {
		tx := everything()
		spoil.spoil(tx)
		refused(t, s.Commit(deadline(t), tx), spoil.code)
		nothing(why)
	}
	s = reopen()
	nothing("after reopening")
	commit(t, s, everything())
	st := load(t, s, "new", 10)
	if len(st.Events) != 1 || st.Events[0].DeliveryCount != 2 || len(st.Commands) != 1 || len(st.Tickets) != 1 || len(st.Leases) != 1 {
		t.Fatalf("the whole transaction left %+v", st)
	}
}

// testNeighbours commits good and bad transactions at the same moment: each
// gets its own answer.
func testNeighbours(t *testing.T, open Open) {
	const (
		pairs  = 16
		rounds = 10
	)
	s, _ := open(t)
	ctx := deadline(t)
	commit(t, s, &store.Tx{Token: &store.TokenRow{ID: "taken", Hash: [32]byte{9}}})
	good := make([]*store.SessionRow, pairs)
	bad := make([]*store.SessionRow, pairs)
	for i := range pairs {
		good[i] = newSession(t, s, fmt.Sprintf("good%d", i))
		bad[i] = newSession(t, s, fmt.Sprintf("bad%d", i))
		grow(t, s, bad[i], 1, numbered)
	}
	var wg sync.WaitGroup
	for i := range pairs {
		wg.Go(func() {
			for range rounds {
				good[i].HeadSeq++
				if err := s.Commit(ctx, &store.Tx{Session: good[i], Events: []store.EventRow{event(good[i].HeadSeq, nil)}}); err != nil {
					t.Errorf("good %d: %v", i, err)
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				// Refused only at its last row, after everything else was written.
				spoilt := *bad[i]
				spoilt.HeadSeq += 2
				spoilt.RunnerVersion = "spoilt"
				err := s.Commit(ctx, &store.Tx{
					Session: &spoilt, Events: []store.EventRow{event(2, nil), event(3, nil)},
					Token: &store.TokenRow{ID: fmt.Sprint(i), Hash: [32]byte{9}},
				})
				if wire.CodeOf(err) != wire.CodeConflict {
					t.Errorf("bad %d: %v", i, err)
				}
			}
			bad[i].HeadSeq++
			if err := s.Commit(ctx, &store.Tx{Session: bad[i], Events: []store.EventRow{event(bad[i].HeadSeq, nil)}}); err != nil {
				t.Errorf("bad %d, at last good: %v", i, err)
			}
		})
	}
	wg.Wait()
	for i := range pairs {
		g, b := load(t, s, good[i].ID, 100), load(t, s, bad[i].ID, 100)
		if len(g.Events) != rounds || g.Session.HeadSeq != rounds {
			t.Fatalf("good %d has %d events and head %d, want %d", i, len(g.Events), g.Session.HeadSeq, rounds)
		}
		if len(b.Events) != 2 {
			t.Fatalf("bad %d has %d events, want 2", i, len(b.Events))
		}
		equal(t, "row of a session whose writes were refused", b.Session, *bad[i])
	}
}

// testWriters has 64 sessions write at once while readers follow: each log is
// dense, in order and complete, and what was acknowledged is visible at once.
func testWriters(t *testing.T, open Open) {
	const (
		writers = 64
		rounds  = 20
		each    = 3
	)
	s, reopen := open(t)
	ctx := deadline(t)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			r := sessionRow(fmt.Sprintf("s%d", i))
			if err := s.Commit(ctx, &store.Tx{NewSession: r}); err != nil {
				t.Errorf("writer %d: %v", i, err)
				return
			}
			for n := range rounds {
				var es []store.EventRow
				for range each {
					r.HeadSeq++
					es = append(es, event(r.HeadSeq, fmt.Appendf(nil, "%d/%d", i, r.HeadSeq)))
				}
				if err := s.Commit(ctx, &store.Tx{Session: r, Events: es}); err != nil {
					t.Errorf("writer %d, round %d: %v", i, n, err)
					return
				}
				if n%5 != i%5 {
					continue
				}
				got, err := s.Events(ctx, r.ID, r.HeadSeq-each, 100, 1<<20)
				if err != nil || len(got) != each || got[each-1].Seq != r.HeadSeq {
					t.Errorf("writer %d does not see what was acknowledged up to %d: %d events, %v", i, r.HeadSeq, len(got), err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	s = reopen()
	for i := range writers {
		id := fmt.Sprintf("s%d", i)
		got := events(t, s, id, 0, 1000, 1<<20)
		if len(got) != rounds*each {
			t.Fatalf("session %d has %d events, want %d", i, len(got), rounds*each)
		}
		for k, e := range got {
			if want := fmt.Sprintf("%d/%d", i, k+1); e.Seq != int64(k+1) || string(e.Body) != want {
				t.Fatalf("session %d: entry %d has seq %d and body %s, want %s", i, k, e.Seq, e.Body, want)
			}
		}
	}
}
