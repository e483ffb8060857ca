package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"bowline/driver"
	"bowline/runnerd/journal"
	"bowline/runnerd/redact"
	"bowline/runnerd/sanitize"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// host is what one provider session is opened with.
type host struct {
	e        *Executor
	kind     Kind
	provider string // prefix of executor event ids
	filter   *redact.Filter
	redactor *redact.Redactor

	// life ends when the session is over: Emit is refused then.
	life   context.Context
	cancel context.CancelFunc

	mu sync.Mutex // one Emit at a time: the filter is not safe for two
}

func (e *Executor) newHost() *host {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &host{e: e, kind: e.kind, provider: e.kindName + "_provider", filter: redact.NewFilter(e.redactor), redactor: e.redactor}
	h.life, h.cancel = context.WithCancel(context.Background())
	return h
}

// Emit implements driver.Host.
func (h *host) Emit(ctx context.Context, ev driver.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life.Err() != nil {
		return driver.ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.life, cancel)()
	list, err := h.filter.Event(ev)
	if err != nil {
		return err
	}
	for _, out := range list {
		if err := h.append(ctx, out); err != nil {
			return err
		}
	}
	if ev.Type == "turn.started" || ev.Terminal {
		h.e.turnHasBegun()
	}
	switch {
	case !h.kind.StateFile:
	case ev.Terminal:
		return h.e.jr.WriteProviderState(journal.ProviderSessionOpen)
	case ev.Type == "session.failed":
		return h.e.jr.WriteProviderState(journal.ProviderExited)
	}
	return nil
}

func (h *host) append(ctx context.Context, ev driver.Event) error {
	refused := false
	if san := h.e.opt.Sanitizer; san != nil {
		clean, err := san.Payload(ev.Payload)
		var re *sanitize.RefusedError
		switch {
		case errors.As(err, &re):
			refused = true
		case err != nil:
			return fmt.Errorf("%s: payload: %w", ev.Type, err)
		default:
			ev.Payload = clean
		}
	}
	out := journal.Event{Type: ev.Type, Priority: ev.Priority, Payload: ev.Payload, Provider: h.provider, Resume: ev.Resume}
	switch {
	case ev.Terminal:
		out.Update = noTurn
	case ev.Type == "session.started" || ev.Type == "session.resumed":
		var id struct {
			ThreadID        string `json:"threadId"`
			SessionID       string `json:"sessionId"`
			Cwd             string `json:"cwd"`
			RuntimeIdentity struct {
				ProcessID int `json:"processId"`
			} `json:"runtimeIdentity"`
		}
		if err := json.Unmarshal(ev.Payload, &id); err != nil {
			return fmt.Errorf("%s: payload: %w", ev.Type, err)
		}
		out.Update = func(m *journal.Meta) {
			m.Provider.ThreadID, m.Provider.SessionID = id.ThreadID, id.SessionID
			m.Provider.ProcessID, m.Provider.Cwd = id.RuntimeIdentity.ProcessID, id.Cwd
		}
	}
	if refused {
		return h.instead(ctx, ev, out, "event_refused")
	}
	err := h.e.jr.Emit(ctx, out)
	if wire.CodeOf(err) != wire.CodeTooLarge || h.e.jr.Failure() != nil {
		return err
	}
	// A driver's limits are below ours unless the frame limit was set lower: what
	// does not fit is told of, and a turn still ends.
	return h.instead(ctx, ev, out, "event_too_large")
}

// instead puts a small event in the place of one that fits into no frame
// (event_too_large) or whose identifying members hold a secret (event_refused,
// prp.md 14.4). A turn still ends.
func (h *host) instead(ctx context.Context, ev driver.Event, out journal.Event, code string) error {
	payload := map[string]any{"code": code, "originalEventType": ev.Type, "bytes": len(ev.Payload)}
	if ev.Terminal {
		payload["status"] = strings.TrimPrefix(ev.Type, "turn.")
		var id struct {
			ProviderTurnID string `json:"providerTurnId"`
		}
		if err := json.Unmarshal(ev.Payload, &id); err == nil && len(id.ProviderTurnID) <= prp.MaxIdentityLen && h.e.clean(id.ProviderTurnID) == id.ProviderTurnID {
			payload["providerTurnId"] = id.ProviderTurnID
		}
	} else {
		out.Type = "harness.diagnostic"
	}
	var err error
	if out.Payload, err = canonjson.Marshal(payload); err != nil {
		return err
	}
	return h.e.jr.Emit(ctx, out)
}

// Spawn implements driver.Host.
func (h *host) Spawn(ctx context.Context, spec driver.ProcessSpec) (driver.Process, error) {
	return h.e.opt.Spawner.Spawn(ctx, spec)
}

// Diagnostic implements driver.Host.
func (h *host) Diagnostic(format string, args ...any) {
	text := h.e.clean(h.redactor.String(fmt.Sprintf(format, args...)))
	if len(text) > journal.MaxDiagnosticBytes {
		text = text[:journal.MaxDiagnosticBytes] + "…[truncated]"
	}
	if h.e.opt.Log != nil {
		h.e.opt.Log.Warn("driver diagnostic", "driver", h.provider, "text", text)
	}
	h.e.jr.Diagnostic(text)
}

// Now implements driver.Host.
func (h *host) Now() time.Time { return h.e.opt.Now() }

// expectTurn says that a turn is about to be asked for; the channel is closed
// when its first event was taken.
func (e *Executor) expectTurn() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.turnBegun = make(chan struct{})
	return e.turnBegun
}

func (e *Executor) turnHasBegun() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.turnBegun != nil {
		close(e.turnBegun)
		e.turnBegun = nil
	}
}
