package drivertest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"bowline/driver"
)

// recorder is a testing.TB that collects failures instead of failing.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any) { r.failures = append(r.failures, fmt.Sprint(args...)) }

func (r *recorder) Helper() {}

func event(eventType, payload string, terminal bool) driver.Event {
	return driver.Event{Type: eventType, Payload: json.RawMessage(payload), Terminal: terminal}
}

func TestHostJudges(t *testing.T) {
	t.Parallel()
	started, done := event("turn.started", `{}`, false), event("turn.completed", `{}`, true)
	for name, c := range map[string]struct {
		events []driver.Event
		want   string // "" for no complaint
	}{
		"good":                {[]driver.Event{started, event("item.delta", `{"channel":"final"}`, false), done, event("item.delta", `{"late":true}`, false)}, ""},
		"unknown type":        {[]driver.Event{event("item.other", `{}`, false)}, "prp.md 7.2"},
		"array payload":       {[]driver.Event{event("session.started", `[]`, false)}, "JSON object"},
		"null payload":        {[]driver.Event{event("session.started", `null`, false)}, "JSON object"},
		"two terminals":       {[]driver.Event{started, done, done}, "second terminal"},
		"terminal unmarked":   {[]driver.Event{started, event("turn.failed", `{}`, false)}, "Terminal is false"},
		"marked not terminal": {[]driver.Event{event("session.started", `{}`, true)}, "Terminal is true"},
		"two starts":          {[]driver.Event{started, started}, "turn is open"},
		"late item":           {[]driver.Event{started, done, event("item.delta", `{}`, false)}, "not marked late"},
		"channel":             {[]driver.Event{started, event("item.delta", `{"channel":"stdout"}`, false)}, "channel"},
		"phase":               {[]driver.Event{started, event("item.delta", `{"providerPhase":1}`, false)}, "providerPhase"},
		"priority":            {[]driver.Event{{Type: "session.started", Priority: 3, Payload: json.RawMessage(`{}`)}}, "priority"},
		"too large":           {[]driver.Event{event("session.started", `{"a":"`+strings.Repeat("x", 480<<10)+`"}`, false)}, "limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &recorder{TB: t}
			h := NewHost(r, nil)
			for _, ev := range c.events {
				if err := h.Emit(t.Context(), ev); err != nil {
					t.Fatal(err)
				}
			}
			all := strings.Join(r.failures, "; ")
			if c.want == "" && all != "" || !strings.Contains(all, c.want) {
				t.Errorf("complaints %q, want %q", all, c.want)
			}
		})
	}
}

func TestHostNoticesConcurrentEmits(t *testing.T) {
	t.Parallel()
	r := &recorder{TB: t}
	h := NewHost(r, nil)
	release := h.Hold()
	first := make(chan error, 1)
	entered := make(chan struct{})
	go func() {
		close(entered)
		first <- h.Emit(context.Background(), event("session.started", `{}`, false))
	}()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// One of the two comes second, whichever it is.
	for len(r.failures) == 0 {
		if err := h.Emit(ctx, event("session.started", `{}`, false)); err == nil {
			t.Fatal("emit under a cancelled context succeeded while held")
		}
		select {
		case err := <-first:
			t.Fatalf("the held emit returned: %v", err)
		default:
		}
		h.mu.Lock()
		done := len(r.failures) > 0
		h.mu.Unlock()
		if done {
			break
		}
	}
	release()
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestSpawn(t *testing.T) {
	t.Parallel()
	p, err := Spawn(t.Context(), driver.ProcessSpec{
		Argv: []string{"sh", "-c", "cat; echo err >&2; exit 3"}, Env: []string{"PATH=" + os.Getenv("PATH")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), "in"); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil || string(out) != "in" {
		t.Errorf("stdout %q %v", out, err)
	}
	errs, err := io.ReadAll(p.Stderr())
	if err != nil || string(errs) != "err\n" {
		t.Errorf("stderr %q %v", errs, err)
	}
	if e := p.Wait(); e.Code != 3 {
		t.Errorf("exit %+v", e)
	}
	if _, err := Spawn(t.Context(), driver.ProcessSpec{Argv: []string{"/no/such/program"}}); err == nil {
		t.Error("a missing program was started")
	}
}
