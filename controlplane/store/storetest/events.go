package storetest

import (
	"bytes"
	"crypto/sha256"
	"reflect"
	"testing"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
)

func testEvents(t *testing.T, open Open) {
	s, reopen := open(t)
	r := newSession(t, s, "s1")
	r.HeadSeq, r.AckedSourceSeq = 3, 2
	body := []byte(`{"type":"event"}`)
	want := []store.EventRow{
		{
			Seq: 1, RunID: "run-1", Origin: store.OriginControlPlane, Type: "run.queued", At: start(), Body: []byte(`{}`),
			Digest: sha256.Sum256([]byte(`{}`)),
		},
		{
			Seq: 2, RunID: "run-1", Origin: store.OriginRunner, Type: "item.delta", At: start().Add(time.Second), SourceSeq: 1,
			SourceEventID: "event_r_0000000000000001", Priority: 2, DeliveryCount: 3, Body: body, Digest: sha256.Sum256(body),
		},
		{
			Seq: 3, RunID: "run-1", Origin: store.OriginRunner, Type: "turn.completed", At: start().Add(2 * time.Second), Late: true,
			SourceSeq: 2, SourceEventID: "event_r_0000000000000002", DeliveryCount: 1, Body: body, Digest: sha256.Sum256(body),
		},
	}
	commit(t, s, &store.Tx{Session: r, Events: want})
	equal(t, "events", events(t, s, "s1", 0, 100, 1<<20), want)
	s = reopen()
	equal(t, "events after reopening", events(t, s, "s1", 0, 100, 1<<20), want)
	equal(t, "window after reopening", load(t, s, "s1", 100).Events, want[1:])

	// A session and its first events in one transaction.
	n := sessionRow("s2")
	n.HeadSeq = 1
	first := []store.EventRow{event(1, body)}
	commit(t, s, &store.Tx{NewSession: n, Events: first})
	equal(t, "events of a new session", events(t, s, "s2", 0, 10, 1<<20), first)
	if _, err := s.Events(deadline(t), "nobody", 0, 10, 1<<20); true {
		refused(t, err, wire.CodeNotFound)
	}
}

func testEventsPaging(t *testing.T, open Open) {
	s, _ := open(t)
	r := newSession(t, s, "s1")
	other := newSession(t, s, "s2")
	kib := bytes.Repeat([]byte("x"), 1024)
	var all []store.EventRow
	for range 10 {
		all = append(all, grow(t, s, r, 4, func(int64) []byte { return kib })...)
		grow(t, s, other, 4, numbered)
	}
	for _, c := range []struct {
		after           int64
		limit, maxBytes int
		want            int
	}{
		{0, 100, 1 << 20, 40},
		{0, 7, 1 << 20, 7},
		{38, 7, 1 << 20, 2},
		{40, 7, 1 << 20, 0},
		{1 << 40, 7, 1 << 20, 0},
		{0, 100, 1024, 1},
		{0, 100, 1, 1}, // at least one
		{0, 100, 4096, 4},
		{0, 100, 4097, 4},
		{0, 100, 4095, 3},
	} {
		got := events(t, s, "s1", c.after, c.limit, c.maxBytes)
		want := all[min(int(c.after), 40):]
		if len(want) > c.want {
			want = want[:c.want]
		}
		if len(got) != c.want {
			t.Fatalf("after %d, limit %d, %d bytes: %d events, want %d", c.after, c.limit, c.maxBytes, len(got), c.want)
		}
		if c.want > 0 {
			equal(t, "page", got, want)
		}
	}
	var paged []store.EventRow
	for after := int64(0); ; {
		page := events(t, s, "s1", after, 3, 2500)
		if len(page) == 0 {
			break
		}
		paged = append(paged, page...)
		after = page[len(page)-1].Seq
	}
	equal(t, "pages together", paged, all)
}

func testExactBytes(t *testing.T, open Open) {
	s, reopen := open(t)
	r := newSession(t, s, "s\x00 ž\xff")
	want := make(map[int64][]byte)
	for _, body := range awkward() {
		r.HeadSeq++
		e := event(r.HeadSeq, body)
		e.Type, e.SourceEventID = string(body[:min(len(body), 300)]), "id\x00\xff"
		commit(t, s, &store.Tx{Session: r, Events: []store.EventRow{e}, Commands: []store.CommandRow{
			{ControllerSeq: r.HeadSeq, CommandID: "c", Type: "t", Record: body, Status: "pending", Result: body, QueuedAt: start()},
		}})
		want[r.HeadSeq] = body
	}
	verify := func() {
		got := events(t, s, r.ID, 0, 100, 16<<20)
		if len(got) != len(want) {
			t.Fatalf("%d events, want %d", len(got), len(want))
		}
		for _, e := range got {
			body := want[e.Seq]
			if !bytes.Equal(e.Body, body) || e.Digest != sha256.Sum256(body) {
				t.Fatalf("event %d: body of %d bytes came back as %d bytes", e.Seq, len(body), len(e.Body))
			}
			if e.Type != string(body[:min(len(body), 300)]) || e.SourceEventID != "id\x00\xff" {
				t.Fatalf("event %d: type came back as %q", e.Seq, e.Type)
			}
		}
		for _, c := range load(t, s, r.ID, 0).Commands {
			if !bytes.Equal(c.Record, want[c.ControllerSeq]) || !bytes.Equal(c.Result, want[c.ControllerSeq]) {
				t.Fatalf("command %d: %d bytes came back as %d and %d", c.ControllerSeq, len(want[c.ControllerSeq]), len(c.Record), len(c.Result))
			}
		}
	}
	verify()
	s = reopen()
	verify()
}

// testEventsMany fills a log in transactions of all sizes, beside another
// session, and reads it from every place.
func testEventsMany(t *testing.T, open Open) {
	s, reopen := open(t)
	r := newSession(t, s, "s1")
	other := newSession(t, s, "s2")
	var all []store.EventRow
	for i, n := range []int{1, 62, 1, 1, 63, 64, 65, 129, 1, 1} {
		if i == 6 {
			s = reopen()
		}
		all = append(all, grow(t, s, r, n, numbered)...)
		grow(t, s, other, 1+n%5, numbered)
	}
	// A page that is full where an implementation may have a seam.
	for n := 60; n < 70; n++ {
		size := 0
		for _, e := range all[:n] {
			size += len(e.Body)
		}
		if got := len(events(t, s, "s1", 0, 1000, size)); got != n {
			t.Fatalf("a page of %d bytes holds %d events, want %d", size, got, n)
		}
	}
	for round := range 2 {
		if round == 1 {
			s = reopen()
		}
		for after := 0; after < len(all)+2; after++ {
			if after == 66 {
				after = len(all) - 66 // the chunks between are like these
			}
			for _, limit := range []int{1, 65, 1000} {
				want := all[min(after, len(all)):min(after+limit, len(all))]
				got := events(t, s, "s1", int64(after), limit, 1<<20)
				if len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
					t.Fatalf("after %d, limit %d: %d events, want %d", after, limit, len(got), len(want))
				}
			}
		}
		for _, window := range []int{1, 63, 64, 65, 100, len(all), len(all) + 1} {
			equal(t, "window", load(t, s, "s1", window).Events, all[max(0, len(all)-window):])
		}
	}
}

func testEventConflict(t *testing.T, open Open) {
	s, _ := open(t)
	r := newSession(t, s, "s1")
	all := grow(t, s, r, 3, numbered)
	again := *r
	again.HeadSeq = 4
	refused(t, s.Commit(deadline(t), &store.Tx{
		Session: &again, Events: []store.EventRow{event(4, nil), event(3, []byte("other"))},
	}), wire.CodeConflict)
	// A log is dense: what does not continue it is refused as well.
	for _, seq := range []int64{0, 1, 3, 5, -1} {
		refused(t, s.Commit(deadline(t), &store.Tx{Session: &again, Events: []store.EventRow{event(seq, nil)}}), wire.CodeConflict)
	}
	refused(t, s.Commit(deadline(t), &store.Tx{NewSession: sessionRow("s2"), Events: []store.EventRow{event(2, nil)}}), wire.CodeConflict)
	equal(t, "events", events(t, s, "s1", 0, 10, 1<<20), all)
	if h := load(t, s, "s1", 0).Session.HeadSeq; h != 3 {
		t.Fatalf("head is %d after a refused write, want 3", h)
	}
	all = append(all, grow(t, s, r, 1, numbered)...)
	equal(t, "events after the next write", events(t, s, "s1", 0, 10, 1<<20), all)
}

func testRedelivered(t *testing.T, open Open) {
	s, _ := open(t)
	r := newSession(t, s, "s1")
	other := newSession(t, s, "s2")
	grow(t, s, other, 3, numbered)
	all := grow(t, s, r, 3, numbered)
	r.HeadSeq++
	own := store.EventRow{Seq: r.HeadSeq, Origin: store.OriginControlPlane, Type: "x", At: start(), Digest: sha256.Sum256(nil)}
	commit(t, s, &store.Tx{Session: r, Events: []store.EventRow{own}})
	commit(t, s, &store.Tx{Session: r, Redelivered: []int64{1, 2, 2}})
	commit(t, s, &store.Tx{Session: r, Redelivered: []int64{2}})
	all[0].DeliveryCount, all[1].DeliveryCount = 2, 4
	equal(t, "window", load(t, s, "s1", 10).Events, all)
	equal(t, "events", events(t, s, "s1", 0, 3, 1<<20), all)
	for _, e := range load(t, s, "s2", 10).Events {
		if e.DeliveryCount != 1 {
			t.Fatalf("event %d of another session has %d deliveries", e.Seq, e.DeliveryCount)
		}
	}
}
