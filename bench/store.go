package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cockroachdb/pebble"
	"go.etcd.io/bbolt"

	"bowline/controlplane/store"
	"bowline/controlplane/store/sqlite"
	"bowline/wire/prp"
)

const (
	eventBytes = 512
	storeTurn  = time.Second // how long a contender runs in one round
)

// contender is one way to make events durable. commit makes the next events of
// one writer durable and returns how many.
type contender struct {
	name    string
	writers int
	open    func(dir string) (commit func(ctx context.Context, writer int) (int, error), end func() error, err error)

	commit func(ctx context.Context, writer int) (int, error)
	end    func() error
	rate   []float64 // events per second of each round
	times  []time.Duration
}

func storePart(ctx context.Context, t *table, dir, _ string) (err error) {
	d, err := openDisk(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	single := &contender{name: "bowline sqlite, 64 sessions, 1 event a commit", writers: 64, open: ours(64, 1)}
	eights := &contender{name: "bowline sqlite, 64 sessions, 8 events a commit", writers: 64, open: ours(64, 8)}
	alone := &contender{name: "bowline sqlite, 1 session, 1 event a commit", writers: 1, open: ours(1, 1)}
	peb := &contender{name: "pebble v1.1.5 Sync, 64 writers", writers: 64, open: openPebble}
	bolt := &contender{name: "bbolt v1.5.0 Batch (2 ms), 64 writers", writers: 64, open: openBolt}
	all := []*contender{single, peb, eights, bolt, alone}
	for i, c := range all {
		sub := filepath.Join(dir, fmt.Sprint("store", i))
		if err := os.Mkdir(sub, 0o700); err != nil {
			return err
		}
		if c.commit, c.end, err = c.open(sub); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		defer func() { err = errors.Join(err, c.end()) }()
	}
	for range rounds {
		for _, c := range all {
			if err := d.measure(); err != nil {
				return err
			}
			if err := c.turn(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	d.note(t, "store")
	t.head("durable 512 B events, session cursor and digest included for ours")
	t.row("", "events/s", "p50 in syncs", "p99 in syncs", "ratio to pebble", "spread of rounds", "budget", "")
	for _, c := range all {
		ratio := median(c.rate) / median(peb.rate)
		budget, says := "", ""
		switch c {
		case single:
			budget, says = "≥ 0.5 of pebble", verdict(ratio, 0.5, true)
		case eights:
			budget, says = "≥ 1.0 of pebble", verdict(ratio, 1.0, true)
		}
		t.row(c.name, fmt.Sprintf("%.0f", median(c.rate)),
			fmt.Sprintf("%.1f", float64(percentile(c.times, 0.5))/float64(d.at(0.5))),
			fmt.Sprintf("%.1f", float64(percentile(c.times, 0.99))/float64(d.at(0.99))),
			fmt.Sprintf("%.2f", ratio), fmt.Sprintf("%.2f", spread(c.rate)), budget, says)
	}
	return nil
}

// turn lets all writers run for storeTurn.
func (c *contender) turn(ctx context.Context) error {
	var mu sync.Mutex
	var errs []error
	total := 0
	var wg sync.WaitGroup
	start := time.Now()
	for w := range c.writers {
		wg.Go(func() {
			var times []time.Duration
			events := 0
			for time.Since(start) < storeTurn {
				before := time.Now()
				n, err := c.commit(ctx, w)
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
					return
				}
				times = append(times, time.Since(before))
				events += n
			}
			mu.Lock()
			defer mu.Unlock()
			total += events
			c.times = append(c.times, times...)
		})
	}
	wg.Wait()
	c.rate = append(c.rate, float64(total)/time.Since(start).Seconds())
	return errors.Join(errs...)
}

func body(writer int, seq int64) []byte {
	b := make([]byte, eventBytes)
	binary.BigEndian.PutUint64(b, uint64(writer))
	binary.BigEndian.PutUint64(b[8:], uint64(seq))
	return b
}

// ours commits as the control plane does: the session's row with its cursors
// and the events, in one transaction.
func ours(sessions, each int) func(dir string) (func(context.Context, int) (int, error), func() error, error) {
	return func(dir string) (func(context.Context, int) (int, error), func() error, error) {
		s, err := sqlite.Open(context.Background(), filepath.Join(dir, "bowline.db"), sqlite.Options{})
		if err != nil {
			return nil, nil, err
		}
		rows := make([]*store.SessionRow, sessions)
		for i := range rows {
			id := fmt.Sprintf("0193a1b2-c3d4-7e5f-8a9b-%012d", i)
			rows[i] = &store.SessionRow{
				ID: id, Profile: "prp", Generation: 1, Epoch: 1, LeaseTTL: time.Hour, RunnerVersion: "0.3.0",
				Identity: prp.Identity{
					RunnerInstanceID: id, EnvironmentLeaseID: id, RunID: id, NormalizedSessionID: id, TurnID: id, ItemID: id,
				},
				RunnerDigest: "sha256:" + fmt.Sprintf("%064d", i),
			}
			if err := s.Commit(context.Background(), &store.Tx{NewSession: rows[i]}); err != nil {
				return nil, nil, errors.Join(err, s.Close())
			}
		}
		commit := func(ctx context.Context, w int) (int, error) {
			r := rows[w]
			events := make([]store.EventRow, each)
			for i := range events {
				r.HeadSeq++
				r.AckedSourceSeq++
				b := body(w, r.HeadSeq)
				events[i] = store.EventRow{
					Seq: r.HeadSeq, RunID: r.ID, Origin: store.OriginRunner, Type: "item.agent_message.delta", At: time.Now(),
					SourceSeq: r.AckedSourceSeq, SourceEventID: fmt.Sprintf("event_%s_%016d", r.ID, r.AckedSourceSeq), Priority: 2,
					DeliveryCount: 1, Body: b, Digest: sha256.Sum256(b),
				}
			}
			return each, s.Commit(ctx, &store.Tx{Session: r, Events: events})
		}
		return commit, s.Close, nil
	}
}

func openPebble(dir string) (func(context.Context, int) (int, error), func() error, error) {
	db, err := pebble.Open(dir, &pebble.Options{Logger: silent{}})
	if err != nil {
		return nil, nil, err
	}
	var seqs [64]int64
	commit := func(_ context.Context, w int) (int, error) {
		seqs[w]++
		b := body(w, seqs[w])
		return 1, db.Set(b[:16], b, pebble.Sync)
	}
	return commit, db.Close, nil
}

// silent drops pebble's talk; an error that matters comes back from the call.
type silent struct{}

func (silent) Infof(string, ...any)      {}
func (silent) Errorf(string, ...any)     {}
func (silent) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func openBolt(dir string) (func(context.Context, int) (int, error), func() error, error) {
	db, err := bbolt.Open(filepath.Join(dir, "bolt.db"), 0o600, nil)
	if err != nil {
		return nil, nil, err
	}
	db.MaxBatchDelay = 2 * time.Millisecond
	name := []byte("events")
	if err := db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(name)
		return err
	}); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	var seqs [64]int64
	commit := func(_ context.Context, w int) (int, error) {
		seqs[w]++
		b := body(w, seqs[w])
		return 1, db.Batch(func(tx *bbolt.Tx) error { return tx.Bucket(name).Put(b[:16], b) })
	}
	return commit, db.Close, nil
}
