package storetest

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
)

func runRow(id string) *store.RunRow {
	return &store.RunRow{
		ID: id, SessionID: "s-" + id, Status: store.StatusQueued, Driver: "codex", Placement: store.PlacementLocal,
		Workspace: "/home/ž/w", Permission: "deny", Labels: map[string]string{"team": "a\x00b", "": "ü"},
		Request: []byte(`{"driver" : "codex"}`), CreatedAt: start(),
	}
}

func testRuns(t *testing.T, open Open) {
	s, reopen := open(t)
	r := runRow("r1")
	commit(t, s, &store.Tx{NewRun: r})
	get := func() *store.RunRow {
		t.Helper()
		got, err := s.Run(deadline(t), "r1")
		if err != nil {
			t.Fatalf("run: %v", err)
		}
		return got
	}
	equal(t, "new run", get(), r)
	refused(t, s.Commit(deadline(t), &store.Tx{NewRun: runRow("r1")}), wire.CodeConflict)
	refused(t, s.Commit(deadline(t), &store.Tx{Run: runRow("r2")}), wire.CodeNotFound)
	if _, err := s.Run(deadline(t), "r2"); true {
		refused(t, err, wire.CodeNotFound)
	}

	r.Status, r.Reason, r.Result, r.Conductor = store.StatusFailed, "no_result", []byte(`{"exitCode":null}`), []byte(`{"step":4}`)
	r.StartedAt, r.EndedAt, r.CancelAt = start().Add(1), start().Add(2*time.Second), start().Add(3*time.Second)
	r.StartedAt = r.StartedAt.Truncate(time.Millisecond)
	commit(t, s, &store.Tx{Run: r})
	equal(t, "ended run", get(), r)
	bare := &store.RunRow{ID: "bare"}
	commit(t, s, &store.Tx{NewRun: bare})
	s = reopen()
	equal(t, "run after reopening", get(), r)
	got, err := s.Run(deadline(t), "bare")
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	equal(t, "bare run", got, bare)
}

func ids(rows []store.RunRow) []string {
	var all []string
	for i := range rows {
		all = append(all, rows[i].ID)
	}
	return all
}

func testRunsPaging(t *testing.T, open Open) {
	s, _ := open(t)
	var newest []string
	for i := range 25 {
		r := runRow(fmt.Sprintf("r%02d", i))
		if i%5 == 0 {
			r.Status = store.StatusCompleted
		}
		commit(t, s, &store.Tx{NewRun: r})
		newest = append([]string{r.ID}, newest...)
	}
	list := func(q store.RunQuery) ([]store.RunRow, string) {
		t.Helper()
		rows, next, err := s.Runs(deadline(t), q)
		if err != nil {
			t.Fatalf("runs: %v", err)
		}
		return rows, next
	}
	all, next := list(store.RunQuery{Limit: 25})
	equal(t, "all runs", ids(all), newest)
	if next != "" {
		t.Fatalf("a page that holds everything has the cursor %q", next)
	}
	if rows, _ := list(store.RunQuery{}); len(rows) != 25 {
		t.Fatalf("without a limit: %d runs", len(rows))
	}

	var paged []string
	pages := 0
	for q := (store.RunQuery{Limit: 10}); ; {
		rows, next := list(q)
		paged = append(paged, ids(rows)...)
		if pages++; next == "" {
			break
		}
		// A run that appears or ends meanwhile must not shift the pages.
		commit(t, s, &store.Tx{NewRun: runRow(fmt.Sprintf("later%d", pages))})
		q.Cursor = next
	}
	equal(t, "pages together", paged, newest)
	if pages != 3 {
		t.Fatalf("%d pages of 10 for 25 runs", pages)
	}

	done, _ := list(store.RunQuery{Status: store.StatusCompleted, Limit: 3})
	equal(t, "completed", ids(done), []string{"r20", "r15", "r10"})
	for _, cursor := range []string{"x", "-1", "0", "1.5", "99999999999999999999"} {
		_, _, err := s.Runs(deadline(t), store.RunQuery{Cursor: cursor})
		refused(t, err, wire.CodeBadCursor)
	}

	opened, err := s.OpenRuns(deadline(t))
	if err != nil {
		t.Fatalf("open runs: %v", err)
	}
	var want []string
	for _, id := range slices.Backward(newest) {
		if !slices.Contains([]string{"r00", "r05", "r10", "r15", "r20"}, id) {
			want = append(want, id)
		}
	}
	equal(t, "open runs", ids(opened), append(want, "later1", "later2"))
	for _, status := range []string{store.StatusCompleted, store.StatusFailed, store.StatusCancelled, store.StatusOrphaned} {
		r := runRow("later1")
		r.Status = status
		commit(t, s, &store.Tx{Run: r})
		opened, err := s.OpenRuns(deadline(t))
		if err != nil {
			t.Fatalf("open runs: %v", err)
		}
		equal(t, "open runs after "+status, ids(opened), append(slices.Clone(want), "later2"))
	}
}

func testLaunch(t *testing.T, open Open) {
	s, reopen := open(t)
	if _, err := s.Launch(deadline(t), "r1"); true {
		refused(t, err, wire.CodeNotFound)
	}
	r := &store.LaunchRow{RunID: "r1", Attempt: 1, PID: 4711, StartTicks: math.MaxUint64 - 3, BootID: "b", StartedAt: start()}
	verify := func() {
		t.Helper()
		got, err := s.Launch(deadline(t), "r1")
		if err != nil {
			t.Fatalf("launch: %v", err)
		}
		equal(t, "launch", got, r)
	}
	commit(t, s, &store.Tx{Launch: r})
	verify()
	r.Attempt, r.PID, r.Exit, r.ExitedAt = 2, 4712, "signal SIGKILL", start().Add(time.Hour)
	commit(t, s, &store.Tx{Launch: r})
	verify()
	s = reopen()
	verify()
}

func testIdempotency(t *testing.T, open Open) {
	s, reopen := open(t)
	if _, err := s.Idempotent(deadline(t), "k"); true {
		refused(t, err, wire.CodeNotFound)
	}
	r := &store.IdempotencyRow{Key: "k\x00é", BodyHash: sha256.Sum256([]byte("body")), RunID: "r1", CreatedAt: start()}
	commit(t, s, &store.Tx{Idempotency: r, NewRun: runRow("r1")})
	again := *r
	again.RunID = "r2"
	refused(t, s.Commit(deadline(t), &store.Tx{Idempotency: &again, NewRun: runRow("r2")}), wire.CodeConflict)
	// The other way round: the key is new, the run is not.
	again.Key = "k2"
	refused(t, s.Commit(deadline(t), &store.Tx{Idempotency: &again, NewRun: runRow("r1")}), wire.CodeConflict)
	s = reopen()
	got, err := s.Idempotent(deadline(t), r.Key)
	if err != nil {
		t.Fatalf("idempotent: %v", err)
	}
	equal(t, "idempotency row", got, r)
	for _, key := range []string{"k", "k2"} {
		if _, err := s.Idempotent(deadline(t), key); true {
			refused(t, err, wire.CodeNotFound)
		}
	}
	if _, err := s.Run(deadline(t), "r2"); true {
		refused(t, err, wire.CodeNotFound)
	}
}

// testIdempotencyRace starts one run many times at once.
func testIdempotencyRace(t *testing.T, open Open) {
	const racers = 200
	s, _ := open(t)
	ctx := deadline(t)
	var wg sync.WaitGroup
	gate := make(chan struct{})
	won := make(chan string, racers)
	for i := range racers {
		wg.Go(func() {
			id := fmt.Sprintf("r%d", i)
			<-gate
			err := s.Commit(ctx, &store.Tx{
				Idempotency: &store.IdempotencyRow{Key: "k", RunID: id, CreatedAt: start()},
				NewRun:      runRow(id), NewSession: sessionRow("s-" + id),
			})
			switch {
			case err == nil:
				won <- id
			case wire.CodeOf(err) != wire.CodeConflict:
				t.Errorf("racer %d: %v", i, err)
			}
		})
	}
	close(gate)
	wg.Wait()
	close(won)
	if len(won) != 1 {
		t.Fatalf("%d of %d racers won, want 1", len(won), racers)
	}
	id := <-won
	rows, _, err := s.Runs(ctx, store.RunQuery{})
	if err != nil || len(rows) != 1 || rows[0].ID != id {
		t.Fatalf("runs %v, %v; want %s alone", ids(rows), err, id)
	}
	got, err := s.Idempotent(ctx, "k")
	if err != nil || got.RunID != id {
		t.Fatalf("the key belongs to %v, %v; want %s", got, err, id)
	}
}

func testToken(t *testing.T, open Open) {
	s, reopen := open(t)
	r := &store.TokenRow{
		ID: "tok", Hash: sha256.Sum256([]byte("secret")), Name: "ci ž", Scopes: []string{"read", "run"}, CreatedAt: start(),
		ExpiresAt: start().Add(time.Hour),
	}
	if _, err := s.Token(deadline(t), r.Hash); true {
		refused(t, err, wire.CodeNotFound)
	}
	commit(t, s, &store.Tx{Token: r})
	r.RevokedAt = start().Add(time.Minute)
	commit(t, s, &store.Tx{Token: r})
	s = reopen()
	got, err := s.Token(deadline(t), r.Hash)
	if err != nil {
		t.Fatalf("token: %v", err)
	}
	equal(t, "token", got, r)
	// Another id with the same secret would make the answer ambiguous.
	twin := *r
	twin.ID = "twin"
	refused(t, s.Commit(deadline(t), &store.Tx{Token: &twin}), wire.CodeConflict)
}

func testAudit(t *testing.T, open Open) {
	s, reopen := open(t)
	var want []store.AuditRow
	for i := range 12 {
		r := store.AuditRow{At: start(), Actor: "system", Action: "run.create", Target: fmt.Sprint(i), Detail: []byte(`{"a":1}`)}
		if i%2 == 1 {
			r.Detail = nil
		}
		want = append(want, r)
	}
	commit(t, s, &store.Tx{Audit: want[:5]})
	commit(t, s, &store.Tx{Audit: want[5:]})
	s = reopen()
	var got []store.AuditRow
	for after := int64(0); ; {
		page, err := s.Audit(deadline(t), after, 5)
		if err != nil {
			t.Fatalf("audit: %v", err)
		}
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			if r.Seq <= after {
				t.Fatalf("audit seq %d does not come after %d", r.Seq, after)
			}
			after = r.Seq
			r.Seq = 0
			got = append(got, r)
		}
	}
	equal(t, "audit log", got, want)
}

func testSettings(t *testing.T, open Open) {
	s, reopen := open(t)
	if _, err := s.Setting(deadline(t), "port"); true {
		refused(t, err, wire.CodeNotFound)
	}
	commit(t, s, &store.Tx{Settings: map[string]string{"port": "1", "empty": ""}})
	commit(t, s, &store.Tx{Settings: map[string]string{"port": "2\x00"}})
	s = reopen()
	for name, want := range map[string]string{"port": "2\x00", "empty": ""} {
		if got, err := s.Setting(deadline(t), name); err != nil || got != want {
			t.Fatalf("setting %s: %q, %v; want %q", name, got, err, want)
		}
	}
}
