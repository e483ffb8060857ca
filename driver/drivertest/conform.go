package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"bowline/driver"
	"bowline/wire"
)

// Cases are what [Conform] needs to know of a driver.
type Cases struct {
	// Quick is a provider object whose turn completes by itself with at least
	// one event between turn.started and turn.completed.
	Quick json.RawMessage
	// Hang is one whose turn runs until it is stopped.
	Hang json.RawMessage
	// HangReady reports that the hanging turn is where it stays; nil means its
	// turn.started.
	HangReady func(driver.Event) bool
	// Invalid provider objects.
	Invalid []Invalid
	// Prompt of every turn.
	Prompt string
	// Env of every session.
	Env []string
	// Spawn starts processes; nil means [Spawn].
	Spawn SpawnFunc
}

// Invalid is a provider object to be refused, and the member the refusal names.
type Invalid struct {
	Provider json.RawMessage
	Member   string
}

// Conform is the kit every driver must pass. It checks goroutine leaks of each
// case, so the caller must not run other tests beside it.
func Conform(t *testing.T, d driver.Driver, c Cases) {
	t.Helper()
	k := kit{d: d, c: c}
	for name, run := range map[string]func(*testing.T){
		"descriptor":                 k.descriptor,
		"invalid providers":          k.invalid,
		"permission not available":   k.permissions,
		"open and close":             k.openClose,
		"two turns":                  k.twoTurns,
		"one turn at a time":         k.oneTurn,
		"interrupt while running":    k.interrupt,
		"interrupt without a turn":   k.interruptNothing,
		"close while running":        k.closeRunning,
		"close during back-pressure": k.closeHeld,
		"emit error ends the turn":   k.emitError,
		"emit error at open":         k.emitErrorAtOpen,
		"calls after close":          k.afterClose,
		"unsupported operations":     k.unsupported,
		"cancelled start":            k.cancelledStart,
	} {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			run(t)
			if err := goleak.Find(before); err != nil {
				t.Errorf("goroutines are left: %v", err)
			}
		})
	}
}

type kit struct {
	d driver.Driver
	c Cases
}

func (k kit) within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (k kit) config(t *testing.T, provider json.RawMessage) driver.Config {
	return driver.Config{
		Provider: provider, Workspace: t.TempDir(), Env: k.c.Env, Permission: driver.PermissionDefault,
	}
}

func (k kit) open(t *testing.T, provider json.RawMessage) (*Host, driver.Session) {
	t.Helper()
	h := NewHost(t, k.c.Spawn)
	s, err := k.d.Open(k.within(t), h, k.config(t, provider))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return h, s
}

func (k kit) start(t *testing.T, s driver.Session, id string) string {
	t.Helper()
	got, err := s.StartTurn(k.within(t), driver.Turn{ID: id, Text: k.c.Prompt})
	if err != nil {
		t.Fatalf("start turn: %v", err)
	}
	if got == "" {
		t.Fatal("the provider's turn id is empty")
	}
	return got
}

// hang opens a session with a turn that stays running.
func (k kit) hang(t *testing.T) (h *Host, s driver.Session, id string) {
	t.Helper()
	h, s = k.open(t, k.c.Hang)
	id = k.start(t, s, "turn_hang")
	ready := k.c.HangReady
	if ready == nil {
		ready = func(ev driver.Event) bool { return ev.Type == "turn.started" }
	}
	h.Await("the hanging turn", 0, ready)
	return h, s, id
}

func (k kit) close(t *testing.T, s driver.Session) {
	t.Helper()
	if err := s.Close(k.within(t)); err != nil {
		t.Errorf("close: %v", err)
	}
}

func (k kit) descriptor(t *testing.T) {
	desc := k.d.Descriptor()
	if desc.Name == "" || desc.Version == "" || desc.ProviderVersion == "" || len(desc.PermissionModes) == 0 {
		t.Errorf("incomplete: %+v", desc)
	}
	var schema map[string]any
	if err := json.Unmarshal(desc.InputSchema, &schema); err != nil || schema["type"] != "object" {
		t.Errorf("input schema: %v", err)
	}
	if !desc.Capabilities.Interrupt {
		t.Error("a driver must be able to interrupt")
	}
}

func (k kit) invalid(t *testing.T) {
	for _, valid := range []json.RawMessage{k.c.Quick, k.c.Hang} {
		if err := k.d.Validate(valid); err != nil {
			t.Errorf("%s: %v", valid, err)
		}
	}
	common := []Invalid{{json.RawMessage(`[]`), ""}, {json.RawMessage(`{}`), "kind"}, {json.RawMessage(`{"kind":"other"}`), "kind"}, {nil, ""}}
	for _, c := range append(common, k.c.Invalid...) {
		err := k.d.Validate(c.Provider)
		var typed *wire.Error
		if !errors.As(err, &typed) {
			t.Errorf("%s: error %v", c.Provider, err)
			continue
		}
		if !strings.Contains(typed.Message, c.Member) {
			t.Errorf("%s: message %q does not name %q", c.Provider, typed.Message, c.Member)
		}
		h := NewHost(t, k.c.Spawn)
		if s, err := k.d.Open(k.within(t), h, k.config(t, c.Provider)); err == nil {
			t.Errorf("%s: opened", c.Provider)
			k.close(t, s)
		}
		if len(h.Events()) != 0 || len(h.Spawned()) != 0 {
			t.Errorf("%s: something was started", c.Provider)
		}
	}
}

func (k kit) permissions(t *testing.T) {
	for _, mode := range []driver.Permission{driver.PermissionAsk, driver.PermissionEdits, "other"} {
		h := NewHost(t, k.c.Spawn)
		cfg := k.config(t, k.c.Quick)
		cfg.Permission = mode
		s, err := k.d.Open(k.within(t), h, cfg)
		if err == nil {
			t.Errorf("mode %q was accepted", mode)
			k.close(t, s)
		} else if wire.CodeOf(err) != wire.CodeNotAvailable {
			t.Errorf("mode %q: code %s", mode, wire.CodeOf(err))
		}
	}
}

func (k kit) openClose(t *testing.T) {
	h, s := k.open(t, k.c.Quick)
	events := h.Events()
	if len(events) == 0 {
		t.Fatal("no event when Open returned")
	}
	var payload struct{ ThreadID, SessionID string }
	started, _ := h.AwaitType("session.started", 0)
	if err := json.Unmarshal(started.Payload, &payload); err != nil {
		t.Fatal(err)
	}
	id := s.Identity()
	if payload.ThreadID == "" || payload.ThreadID != id.ThreadID || payload.SessionID != id.SessionID {
		t.Errorf("session.started %s, identity %+v", started.Payload, id)
	}
	k.close(t, s)
	k.close(t, s)
}

func (k kit) twoTurns(t *testing.T) {
	h, s := k.open(t, k.c.Quick)
	defer k.close(t, s)
	from := 0
	for _, name := range []string{"turn_one", "turn_two"} {
		id := k.start(t, s, name)
		started, at := h.AwaitType("turn.started", from)
		end, last := h.AwaitTerminal(from)
		if end.Type != "turn.completed" {
			t.Errorf("ended with %s %s", end.Type, end.Payload)
		}
		if last-at < 2 {
			t.Error("no event between start and end")
		}
		for _, ev := range []driver.Event{started, end} {
			var p struct{ ProviderTurnID string }
			if err := json.Unmarshal(ev.Payload, &p); err != nil || p.ProviderTurnID != id {
				t.Errorf("%s %s: want turn %q", ev.Type, ev.Payload, id)
			}
		}
		from = last + 1
		k.awaitIdle(t, s)
	}
}

// awaitIdle waits until the session takes another turn: the terminal event may
// be seen a moment earlier.
func (k kit) awaitIdle(t *testing.T, s driver.Session) {
	t.Helper()
	ctx := k.within(t)
	for s.Identity().ActiveProviderTurnID != "" {
		runtime.Gosched()
		if ctx.Err() != nil {
			t.Fatalf("waited %v for the session to be idle", patience)
		}
	}
}

func (k kit) oneTurn(t *testing.T) {
	h, s, id := k.hang(t)
	if got := s.Identity().ActiveProviderTurnID; got != id {
		t.Errorf("active turn %q, want %q", got, id)
	}
	if _, err := s.StartTurn(k.within(t), driver.Turn{ID: "second", Text: k.c.Prompt}); !errors.Is(err, driver.ErrTurnRunning) {
		t.Errorf("second turn: %v", err)
	}
	k.close(t, s)
	h.AwaitTerminal(0)
}

func (k kit) interrupt(t *testing.T) {
	h, s, id := k.hang(t)
	defer k.close(t, s)
	if err := s.Interrupt(k.within(t), "turn_of_somebody_else"); !errors.Is(err, driver.ErrNoTurn) {
		t.Errorf("interrupt of another turn: %v", err)
	}
	if err := s.Interrupt(k.within(t), id); err != nil {
		t.Fatalf("interrupt: %v", err)
	}
	end, _ := h.AwaitTerminal(0)
	if end.Type != "turn.cancelled" && end.Type != "turn.interrupted" {
		t.Errorf("ended with %s %s", end.Type, end.Payload)
	}
	k.awaitIdle(t, s)
	if err := s.Interrupt(k.within(t), id); !errors.Is(err, driver.ErrNoTurn) {
		t.Errorf("interrupt after the end: %v", err)
	}
}

func (k kit) interruptNothing(t *testing.T) {
	_, s := k.open(t, k.c.Quick)
	defer k.close(t, s)
	for _, id := range []string{"", "turn_x"} {
		if err := s.Interrupt(k.within(t), id); !errors.Is(err, driver.ErrNoTurn) {
			t.Errorf("interrupt %q: %v", id, err)
		}
	}
}

func (k kit) closeRunning(t *testing.T) {
	h, s, _ := k.hang(t)
	k.close(t, s)
	events := h.Events()
	if last := events[len(events)-1]; !last.Terminal || last.Type != "turn.cancelled" {
		t.Errorf("the last event when Close returned is %s %s", last.Type, last.Payload)
	}
	k.close(t, s)
	if len(h.Events()) != len(events) {
		t.Error("events after Close")
	}
}

// closeHeld closes a session whose host takes nothing: Close gives up with its
// context and leaves nothing running.
func (k kit) closeHeld(t *testing.T) {
	h, s, _ := k.hang(t)
	release := h.Hold()
	defer release()
	ctx, cancel := context.WithCancel(k.within(t))
	cancel()
	if err := s.Close(ctx); err == nil {
		t.Error("Close reports success although the last event was not taken")
	}
	// What it could not do in no time it does now.
	k.close(t, s)
}

func (k kit) emitError(t *testing.T) {
	h, s, id := k.hang(t)
	h.Refuse()
	before := len(h.Events())
	if err := s.Interrupt(k.within(t), id); err != nil && !errors.Is(err, driver.ErrNoTurn) {
		t.Errorf("interrupt: %v", err)
	}
	k.close(t, s)
	if len(h.Events()) != before {
		t.Error("events after Emit had failed")
	}
}

func (k kit) emitErrorAtOpen(t *testing.T) {
	h := NewHost(t, k.c.Spawn)
	h.Refuse()
	s, err := k.d.Open(k.within(t), h, k.config(t, k.c.Quick))
	if err == nil {
		k.close(t, s)
		t.Error("opened although the host takes no events")
	}
}

func (k kit) afterClose(t *testing.T) {
	_, s := k.open(t, k.c.Quick)
	k.close(t, s)
	if _, err := s.StartTurn(k.within(t), driver.Turn{ID: "late", Text: k.c.Prompt}); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("start after close: %v", err)
	}
	if err := s.Interrupt(k.within(t), ""); !errors.Is(err, driver.ErrNoTurn) && !errors.Is(err, driver.ErrClosed) {
		t.Errorf("interrupt after close: %v", err)
	}
}

func (k kit) unsupported(t *testing.T) {
	_, s := k.open(t, k.c.Quick)
	defer k.close(t, s)
	caps := k.d.Descriptor().Capabilities
	if !caps.Steer {
		if err := s.Steer(k.within(t), "", "text"); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("steer: %v", err)
		}
	}
	if !caps.RuntimeRequests {
		if err := s.Resolve(k.within(t), driver.Resolution{RequestID: "r"}); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("resolve: %v", err)
		}
	}
}

func (k kit) cancelledStart(t *testing.T) {
	_, s := k.open(t, k.c.Quick)
	defer k.close(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.StartTurn(ctx, driver.Turn{ID: "t", Text: k.c.Prompt}); err == nil {
		t.Error("a turn was started under a cancelled context")
	}
}
