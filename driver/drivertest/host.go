// Package drivertest is the kit every driver must pass: a [Host] that records
// and judges what a driver emits, a small real spawner, and [Conform].
//
// It imports nothing of runnerd. Its spawner kills the process group only; what
// becomes of daemons is the supervisor's matter and tested there.
//
// Concurrency: everything here may be used from several goroutines. The Host
// itself fails a test whose driver calls Emit twice at once.
package drivertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"bowline/driver"
)

// patience bounds every wait of the kit.
const patience = 20 * time.Second

// SpawnFunc starts a process; [Spawn] is one.
type SpawnFunc func(ctx context.Context, spec driver.ProcessSpec) (driver.Process, error)

// Host is a driver.Host that records events. Make it with [NewHost].
type Host struct {
	t     testing.TB
	spawn SpawnFunc

	mu          sync.Mutex
	events      []driver.Event
	diagnostics []string
	emitting    bool
	changed     chan struct{} // closed and replaced with every event
	refuse      error         // what Emit answers from now on
	hold        chan struct{} // Emit waits for it
	spawned     []driver.ProcessSpec
	turnOpen    bool
	terminals   int
}

var _ driver.Host = (*Host)(nil)

// NewHost makes a host; spawn nil means [Spawn].
func NewHost(t testing.TB, spawn SpawnFunc) *Host {
	if spawn == nil {
		spawn = Spawn
	}
	return &Host{t: t, spawn: spawn, changed: make(chan struct{})}
}

// Emit records and judges an event.
func (h *Host) Emit(ctx context.Context, ev driver.Event) error {
	h.mu.Lock()
	if h.emitting {
		h.t.Errorf("Emit called by two goroutines at once (%s)", ev.Type)
	}
	h.emitting = true
	hold := h.hold
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.emitting = false
		h.mu.Unlock()
	}()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return h.refuse
	}
	h.judge(ev)
	ev.Payload = bytes.Clone(ev.Payload)
	ev.Resume = bytes.Clone(ev.Resume)
	h.events = append(h.events, ev)
	close(h.changed)
	h.changed = make(chan struct{})
	return nil
}

// judge holds an event against the rules of package driver. h.mu is held.
func (h *Host) judge(ev driver.Event) {
	if !KnownType(ev.Type) {
		h.t.Errorf("event type %q is not in prp.md 7.2", ev.Type)
	}
	if ev.Priority < 0 || ev.Priority > 2 {
		h.t.Errorf("%s: priority %d is outside 0..2", ev.Type, ev.Priority)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(ev.Payload, &members); err != nil || members == nil {
		h.t.Errorf("%s: payload is no JSON object: %v", ev.Type, err)
		return
	}
	h.judgeMembers(ev, members)
	if ev.Resume != nil && !json.Valid(ev.Resume) {
		h.t.Errorf("%s: resume state is no JSON", ev.Type)
	}
	terminal := slices.Contains([]string{"turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled"}, ev.Type)
	if ev.Terminal != terminal {
		h.t.Errorf("%s: Terminal is %v", ev.Type, ev.Terminal)
	}
	switch {
	case ev.Type == "session.resumed":
		// The turn of the session's former life goes on.
		_, h.turnOpen = members["activeProviderTurnId"]
	case ev.Type == "turn.started":
		if h.turnOpen {
			h.t.Error("turn.started while a turn is open")
		}
		h.turnOpen = true
	case terminal:
		if !h.turnOpen {
			h.t.Errorf("%s without an open turn: a second terminal event", ev.Type)
		}
		if ev.Priority != 0 {
			h.t.Errorf("%s: priority %d, want 0", ev.Type, ev.Priority)
		}
		h.turnOpen = false
		h.terminals++
	case len(ev.Type) > 5 && ev.Type[:5] == "item.":
		if !h.turnOpen && string(members["late"]) != "true" {
			h.t.Errorf("%s outside a turn and not marked late", ev.Type)
		}
	}
}

// judgeMembers checks the members PRP v1 constrains in every type (prp.md 7.1).
func (h *Host) judgeMembers(ev driver.Event, members map[string]json.RawMessage) {
	channels := []string{"progress", "final", "summary", "detail", "unknown"}
	for _, name := range []string{"channel", "providerPhase", "providerMethod"} {
		raw, ok := members[name]
		if !ok {
			continue
		}
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			h.t.Errorf("%s: %s is no string", ev.Type, name)
		}
		if name == "channel" && !slices.Contains(channels, s) {
			h.t.Errorf("%s: channel %q is not one of %v", ev.Type, s, channels)
		}
	}
	// prp.md 7 and architecture, "Limits": an event's body on prp.
	const maxBody = 480 << 10
	if len(ev.Payload) > maxBody {
		h.t.Errorf("%s: payload of %d bytes, limit %d", ev.Type, len(ev.Payload), maxBody)
	}
}

// Spawn starts a process through the injected function.
func (h *Host) Spawn(ctx context.Context, spec driver.ProcessSpec) (driver.Process, error) {
	h.mu.Lock()
	h.spawned = append(h.spawned, spec)
	h.mu.Unlock()
	return h.spawn(ctx, spec)
}

// Diagnostic records a line.
func (h *Host) Diagnostic(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.diagnostics = append(h.diagnostics, fmt.Sprintf(format, args...))
}

// Now is the real time.
func (h *Host) Now() time.Time { return time.Now() }

// Events is a copy of what was emitted so far.
func (h *Host) Events() []driver.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

// Diagnostics is a copy of the recorded lines.
func (h *Host) Diagnostics() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.diagnostics)
}

// Spawned is a copy of every process asked for.
func (h *Host) Spawned() []driver.ProcessSpec {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.spawned)
}

// Refuse makes every later Emit fail: the session is over.
func (h *Host) Refuse() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = ErrRefused
}

// ErrRefused is what Emit answers after Refuse.
var ErrRefused = errors.New("drivertest: the session is over")

// Hold makes every later Emit wait until release is called, as an exhausted
// log would.
func (h *Host) Hold() (release func()) {
	gate := make(chan struct{})
	h.mu.Lock()
	h.hold = gate
	h.mu.Unlock()
	return sync.OnceFunc(func() {
		h.mu.Lock()
		h.hold = nil
		h.mu.Unlock()
		close(gate)
	})
}

// Await waits until an event satisfies want and returns it with its index; it
// fails the test when that takes too long. what names it in the failure.
func (h *Host) Await(what string, from int, want func(driver.Event) bool) (driver.Event, int) {
	h.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for at := from; ; {
		h.mu.Lock()
		for ; at < len(h.events); at++ {
			if want(h.events[at]) {
				ev := h.events[at]
				h.mu.Unlock()
				return ev, at
			}
		}
		changed := h.changed
		h.mu.Unlock()
		select {
		case <-changed:
		case <-deadline.C:
			h.t.Fatalf("waited %v for %s; events: %v; diagnostics: %q", patience, what, h.types(), h.Diagnostics())
		}
	}
}

// AwaitType waits for an event of a type, at or after index from.
func (h *Host) AwaitType(eventType string, from int) (driver.Event, int) {
	h.t.Helper()
	return h.Await(eventType, from, func(ev driver.Event) bool { return ev.Type == eventType })
}

// AwaitTerminal waits for the end of a turn, at or after index from.
func (h *Host) AwaitTerminal(from int) (driver.Event, int) {
	h.t.Helper()
	return h.Await("the end of the turn", from, func(ev driver.Event) bool { return ev.Terminal })
}

// types lists the event types, for failures.
func (h *Host) types() []string {
	var list []string
	for _, ev := range h.Events() {
		list = append(list, ev.Type)
	}
	return list
}
