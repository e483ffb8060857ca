package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

const (
	e2eTurn     = time.Second
	e2eSessions = 64
	burst       = 64  // unacknowledged events of a session that goes as fast as it can
	payloadText = 400 // bytes of text in an event; the envelope on the wire is larger
)

// pace is one way to drive runners and what it gave.
type pace struct {
	name    string
	runners []*runner
	window  int // how many events of a runner may be unacknowledged

	rate  []float64
	times []time.Duration
}

// endToEndPart drives real runner journals and links over real loopback
// WebSockets into a real control plane on SQLite, both sides in this process
// and on this disk. The time of an event runs from Emit until the runner has
// taken the acknowledgement: durable on both sides in between.
func endToEndPart(ctx context.Context, t *table, dir, _ string) (err error) {
	d, err := openDisk(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	plane, err := openPlane(ctx, filepath.Join(dir, "plane"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plane.close()) }()
	all := make([]*runner, e2eSessions)
	for i := range all {
		if all[i], err = plane.join(ctx, filepath.Join(dir, fmt.Sprint("runner", i))); err != nil {
			return fmt.Errorf("runner %d: %w", i, err)
		}
	}
	one := all[:1]
	paces := []*pace{
		{name: "1 session, one event at a time", runners: one, window: 1},
		{name: "1 session, as fast as it goes", runners: one, window: burst},
		{name: "64 sessions, one event at a time each", runners: all, window: 1},
		{name: "64 sessions, as fast as they go", runners: all, window: burst},
	}
	var trips []time.Duration
	for range rounds {
		for _, p := range paces {
			if err := d.measure(); err != nil {
				return err
			}
			if err := p.turn(ctx); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
		if err := d.measure(); err != nil {
			return err
		}
		for range commandsEach {
			took, err := plane.command(ctx, all[0])
			if err != nil {
				return fmt.Errorf("command: %w", err)
			}
			trips = append(trips, took)
		}
	}
	d.note(t, "end to end")
	t.head("end to end on prp: Emit → runner's log → WebSocket → control plane's store → ack; 400 B of text an event")
	t.row("", "events/s", "p50 in syncs", "p99 in syncs", "p50", "p99", "budget", "")
	for i, p := range paces {
		p50, p99 := percentile(p.times, 0.5), percentile(p.times, 0.99)
		budget, says := "", ""
		if i == 0 {
			limit := 4*d.at(0.99) + time.Millisecond
			budget, says = "p99 < 4 syncs + 1 ms", verdict(float64(p99), float64(limit), false)
		}
		t.row(p.name, fmt.Sprintf("%.0f", median(p.rate)), syncs(p50, d.at(0.5)), syncs(p99, d.at(0.99)), micro(p50), micro(p99), budget, says)
	}
	p50, p99 := percentile(trips, 0.5), percentile(trips, 0.99)
	limit := 5*d.at(0.5) + time.Millisecond
	t.row("command, 1 session: queue → pending → result → ack", fmt.Sprintf("%.0f", 1/p50.Seconds()), syncs(p50, d.at(0.5)), syncs(p99, d.at(0.99)),
		micro(p50), micro(p99), "p50 < 5 syncs + 1 ms", verdict(float64(p50), float64(limit), false))
	return nil
}

// commandsEach bounds the commands of a round: a runner remembers 128, an
// authority's journal holds 500.
const commandsEach = 60

func syncs(v, sync time.Duration) string { return fmt.Sprintf("%.1f", float64(v)/float64(sync)) }

// turn lets the runners emit for e2eTurn and waits until all is acknowledged.
func (p *pace) turn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var mu sync.Mutex
	var errs []error
	var events int64
	var wg sync.WaitGroup
	start := time.Now()
	for _, r := range p.runners {
		wg.Go(func() {
			n, times, err := r.emitFor(ctx, e2eTurn, p.window)
			mu.Lock()
			defer mu.Unlock()
			events += n
			p.times = append(p.times, times...)
			errs = append(errs, err)
		})
	}
	wg.Wait()
	p.rate = append(p.rate, float64(events)/time.Since(start).Seconds())
	return errors.Join(errs...)
}

// command queues a command and waits until its result is durable on the
// control plane.
func (p *plane) command(ctx context.Context, r *runner) (time.Duration, error) {
	start := time.Now()
	id, err := r.session.Queue(ctx, newCommand(canonjson.ObjectValue()))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		select {
		case done := <-r.results:
			if done == id {
				return time.Since(start), nil
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("no result of %s command %s: %w", prp.CommandSessionSnapshot, id, ctx.Err())
		}
	}
}
