package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"bowline/controlplane/session"
	"bowline/runnerd/journal"
	"bowline/runnerd/link"
	"bowline/runnerd/seglog"
	"bowline/wire/canonjson"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

// Outbox of a runner, as runnerd's defaults are.
const (
	maxOutbox = 256 << 20
	p0Reserve = 16 << 20
)

// runner is runnerd's journal and link with a core that executes nothing: a
// command is journaled before and after, as one with an effect would be.
type runner struct {
	session *session.Session // the other end
	results <-chan string    // ids of commands whose result is durable there

	journal *journal.Journal
	link    *link.Link
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	err     error // of the link, once it has ended

	up       chan struct{}
	upOnce   sync.Once
	commands chan prp.Command

	mu    sync.Mutex
	acked int64
	moved chan struct{} // closed and replaced when acked grows
}

func (r *runner) start(ctx context.Context, dir string, seat *seat) error {
	disk, err := seglog.OpenDir(dir)
	if err != nil {
		return err
	}
	r.journal, err = journal.Open(disk, journal.Params{Identity: seat.identity, MaxOutbox: maxOutbox, P0Reserve: p0Reserve, MaxFrame: prp.MaxFrameBytes})
	if err != nil {
		return err
	}
	target, err := carrier.ParseTarget(seat.url)
	if err != nil {
		return err
	}
	pinned, err := target.Resolve(ctx, nil)
	if err != nil {
		return err
	}
	r.up, r.moved, r.commands = make(chan struct{}), make(chan struct{}), make(chan prp.Command, commandsEach)
	r.link = link.New(link.Options{
		Target: pinned, Ticket: seat.ticket, Identity: seat.identity, Version: runnerVersion, Digest: seat.digest, MaxFrame: prp.MaxFrameBytes,
		Delay: time.Second, Core: r, Log: slog.New(slog.DiscardHandler),
	})
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	r.wg.Go(func() { r.err = r.link.Run(life) })
	r.wg.Go(func() { r.execute(life) })
	select {
	case <-r.up:
		return nil
	case <-time.After(10 * time.Second):
		return errors.New("the runner did not join within 10 s")
	}
}

func (r *runner) stop() error {
	r.cancel()
	r.wg.Wait()
	if errors.Is(r.err, context.Canceled) {
		r.err = nil
	}
	return errors.Join(r.err, r.journal.Close())
}

func (r *runner) execute(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case cmd := <-r.commands:
			if _, _, err := r.journal.Begin(cmd); err != nil {
				return // the journal's end is the link's, too
			}
			done, err := r.journal.Finish(cmd.CommandID, prp.StatusCompleted, []byte(`{"ok":true}`), nil)
			if err != nil {
				return
			}
			value, err := canonjson.Parse(done.Result)
			if err != nil {
				panic("bug: bench: " + err.Error())
			}
			r.link.SendResult(prp.CommandResult{
				CommandID: done.CommandID, ControllerSeq: done.ControllerSeq, CommandType: done.Type, Status: done.Status, Result: value,
			}.Value().JSON())
		}
	}
}

// emitFor emits events for a while, at most window unacknowledged, waits until
// all are acknowledged and gives the time of each.
func (r *runner) emitFor(ctx context.Context, d time.Duration, window int) (events int64, times []time.Duration, err error) {
	payload, err := json.Marshal(map[string]any{
		"itemId": "item", "kind": "agentMessage", "channel": "progress", "text": strings.Repeat("a", payloadText),
	})
	if err != nil {
		return 0, nil, err
	}
	first := r.journal.Stats().NextSeq
	begun := make([]time.Time, 0, 1<<16)
	var wg sync.WaitGroup
	emitted := make(chan int64, 1) // the last seq, once it is known
	wg.Go(func() {
		// Follows the acknowledgements and takes the time of each event.
		last := int64(-1)
		for next := first; ; {
			acked, moved := r.progress()
			now := time.Now()
			r.mu.Lock()
			for ; next <= acked && next-first < int64(len(begun)); next++ {
				times = append(times, now.Sub(begun[next-first]))
			}
			r.mu.Unlock()
			if last >= 0 && next > last {
				return
			}
			select {
			case <-moved:
			case last = <-emitted:
				emitted = nil
			case <-ctx.Done():
				err = errors.Join(err, ctx.Err())
				return
			}
		}
	})
	for start := time.Now(); time.Since(start) < d; events++ {
		if r.waitFor(ctx, first+events-int64(window)) != nil {
			break // ctx has ended: the follower says so
		}
		r.mu.Lock()
		begun = append(begun, time.Now())
		r.mu.Unlock()
		if eerr := r.journal.Emit(ctx, journal.Event{Type: "item.delta", Priority: 2, Payload: payload}); eerr != nil {
			return events, nil, eerr
		}
	}
	emitted <- first + events - 1
	wg.Wait()
	return events, times, err
}

func (r *runner) progress() (acked int64, moved <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked, r.moved
}

// waitFor waits until seq is acknowledged.
func (r *runner) waitFor(ctx context.Context, seq int64) error {
	for {
		acked, moved := r.progress()
		if acked >= seq {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// What follows is link.Core.

func (r *runner) Resume() prp.Resume {
	s := r.journal.Stats()
	return prp.Resume{LastControllerCommandSeq: s.LastCmd, NextSourceEventSeq: s.NextSeq, AckedSourceSeq: s.Acked}
}

func (r *runner) Welcome(w prp.Welcome) error {
	r.upOnce.Do(func() { close(r.up) })
	return r.Ack(w.AckedSourceSeq)
}

func (r *runner) Deliver(cmd prp.Command) error {
	r.commands <- cmd
	return nil
}

func (r *runner) Ack(seq int64) error {
	if _, err := r.journal.Ack(seq); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq > r.acked {
		r.acked = seq
		close(r.moved)
		r.moved = make(chan struct{})
	}
	return nil
}

func (r *runner) ResultAck(canonjson.Value) error { return nil }

func (r *runner) Revoked() error { return nil }

func (r *runner) Next(ctx context.Context, seq int64) ([]*journal.Entry, error) {
	return r.journal.Next(ctx, seq)
}

func (r *runner) Pong() prp.Pong {
	s := r.journal.Stats()
	return prp.Pong{Lifecycle: s.Lifecycle, AckedSourceSeq: s.Acked, OutboxBytes: s.Bytes}
}
