// Package storetest is the contract of store.Store as tests: every
// implementation passes all of them.
//
// The suite knows nothing of the implementation but how to open and reopen it.
// It sleeps never and bounds every wait.
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/prp"
)

// Open gives a fresh, empty store and a function that closes the store of
// before and opens the same data again. Both end with the test.
type Open func(t *testing.T) (s store.Store, reopen func() store.Store)

// patience bounds every wait of the suite.
const patience = 60 * time.Second

// Run runs the suite.
func Run(t *testing.T, open Open) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(t *testing.T, open Open)
	}{
		{"Session", testSession},
		{"SessionChanges", testSessionChanges},
		{"SessionWindow", testSessionWindow},
		{"SessionByRun", testSessionByRun},
		{"Generation", testGeneration},
		{"Events", testEvents},
		{"EventsPaging", testEventsPaging},
		{"EventsMany", testEventsMany},
		{"ExactBytes", testExactBytes},
		{"EventConflict", testEventConflict},
		{"Redelivered", testRedelivered},
		{"Commands", testCommands},
		{"Credentials", testCredentials},
		{"Runs", testRuns},
		{"RunsPaging", testRunsPaging},
		{"Launch", testLaunch},
		{"Idempotency", testIdempotency},
		{"IdempotencyRace", testIdempotencyRace},
		{"Token", testToken},
		{"Audit", testAudit},
		{"Settings", testSettings},
		{"Atomicity", testAtomicity},
		{"NeighboursOfARefusal", testNeighbours},
		{"Writers", testWriters},
		{"Closed", testClosed},
		{"CancelTellsTheTruth", testCancel},
		{"EmptyTransaction", testEmpty},
		{"Bugs", testBugs},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, open)
		})
	}
}

// start is the time all rows are made at: UTC, whole milliseconds.
func start() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 123e6, time.UTC) }

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func commit(t *testing.T, s store.Store, tx *store.Tx) {
	t.Helper()
	if err := s.Commit(deadline(t), tx); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

func refused(t *testing.T, err error, code wire.Code) {
	t.Helper()
	var e *wire.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want an error of code %s", err, code)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n got %#v\nwant %#v", what, got, want)
	}
}

func identity(id string) prp.Identity {
	return prp.Identity{
		RunnerInstanceID: "runner-" + id, EnvironmentLeaseID: "env-" + id, RunID: "run-" + id,
		NormalizedSessionID: id, TurnID: "turn-" + id, ItemID: "item-" + id,
	}
}

func sessionRow(id string) *store.SessionRow {
	return &store.SessionRow{
		ID: id, Profile: "prp", Identity: identity(id), Generation: 1, RunnerVersion: "0.3.0",
		RunnerDigest: "sha256:" + fmt.Sprintf("%064x", 7), LeaseTTL: time.Hour, Epoch: 1,
		RunAttachTemplate: []byte(`{"cwd":"/w"}`),
	}
}

func newSession(t *testing.T, s store.Store, id string) *store.SessionRow {
	t.Helper()
	r := sessionRow(id)
	commit(t, s, &store.Tx{NewSession: r})
	return r
}

func event(seq int64, body []byte) store.EventRow {
	return store.EventRow{
		Seq: seq, RunID: "run", Origin: store.OriginRunner, Type: "item.completed", At: start(), SourceSeq: seq,
		SourceEventID: fmt.Sprintf("event_r_%016d", seq), Priority: 1, DeliveryCount: 1, Body: body, Digest: sha256.Sum256(body),
	}
}

// grow appends n events to r's log in one transaction.
func grow(t *testing.T, s store.Store, r *store.SessionRow, n int, body func(seq int64) []byte) []store.EventRow {
	t.Helper()
	var events []store.EventRow
	for range n {
		r.HeadSeq++
		r.AckedSourceSeq++
		events = append(events, event(r.HeadSeq, body(r.HeadSeq)))
	}
	commit(t, s, &store.Tx{Session: r, Events: events})
	return events
}

func numbered(seq int64) []byte { return fmt.Appendf(nil, `{"n":%d}`, seq) }

func load(t *testing.T, s store.Store, id string, window int) *store.SessionState {
	t.Helper()
	st, err := s.Session(deadline(t), id, window)
	if err != nil {
		t.Fatalf("load session: %v", err)
	}
	return st
}

func events(t *testing.T, s store.Store, id string, after int64, limit, maxBytes int) []store.EventRow {
	t.Helper()
	es, err := s.Events(deadline(t), id, after, limit, maxBytes)
	if err != nil {
		t.Fatalf("events after %d: %v", after, err)
	}
	return es
}

// awkward are bytes that must come back as they went in.
func awkward() map[string][]byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return map[string][]byte{
		"empty":     {},
		"nul":       {0},
		"nul first": []byte("\x00after"),
		"every one": all,
		"not utf-8": {0xff, 0xfe, 0xc3, 0x28},
		"unicode":   []byte("žluťoučký \U0001f40e\u2028\u0000\ufeff"),
		"1 MiB":     bytes.Repeat([]byte{0xa5, 0, 1, 2}, 1<<18),
	}
}
