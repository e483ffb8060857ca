package codex

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"bowline/driver"
)

const (
	// MaxEvent is the most bytes of one event's payload (architecture,
	// "Limits": one event 480 KiB on prp).
	MaxEvent = 480 << 10
	// MaxMessage is the most characters of an error's or notice's text (ours).
	MaxMessage = 1200

	maxID          = 160  // characters of an id in a payload (prp.md 7.3)
	maxShown       = 2048 // characters of a path or name in a payload (ours)
	maxEarly       = 64   // events that wait for session.started (ours)
	maxDiagnostics = 64   // harness.diagnostic events of one kind in one session (ours)
)

// Priorities of prp.md 7.5.
const (
	priorityTerminal = 0
	priorityItem     = 1
	priorityDelta    = 2
)

type object map[string]any

// emit hands an event to the host. After the host has said that the session is
// over nothing more is emitted and the provider is stopped.
func (s *session) emit(typ string, priority int, payload object) {
	s.emitEvent(driver.Event{Type: typ, Priority: priority}, payload)
}

func (s *session) emitEvent(ev driver.Event, payload object) {
	text, err := json.Marshal(payload)
	if err != nil {
		panic("bug: codex event " + ev.Type + ": " + err.Error())
	}
	if len(text) > MaxEvent {
		panic(fmt.Sprintf("bug: codex event %s of %d bytes", ev.Type, len(text)))
	}
	ev.Payload = text
	if !s.isOpen { // session.started comes first
		if len(s.early) < maxEarly {
			s.early = append(s.early, ev)
		}
		return
	}
	s.send(ev)
}

func (s *session) send(ev driver.Event) {
	if s.over {
		return
	}
	if err := s.host.Emit(s.ctx, ev); err != nil {
		s.over = true
		s.stopSoon()
	}
}

// diagnose tells operators and the event stream that something was odd. It
// never carries the provider's text. Each code is reported a bounded number of
// times; the last one says so.
func (s *session) diagnose(code string, payload object) {
	s.diagnosed[code]++
	switch n := s.diagnosed[code]; {
	case n > maxDiagnostics:
		return
	case n == maxDiagnostics:
		payload["last"] = true
	}
	payload["code"] = code
	text, err := json.Marshal(payload)
	if err != nil {
		panic("bug: codex diagnostic: " + err.Error())
	}
	s.host.Diagnostic("codex: %s %s", code, text)
	payload["provider"] = Kind
	s.emit("harness.diagnostic", priorityItem, payload)
}

// notice records what the provider wanted a person to know.
func (s *session) notice(severity, category, scope string, recoverable bool, summary string) {
	s.notices++
	s.emit("provider.notice.recorded", priorityTerminal, object{
		"schema":   "paperclip.provider.notice.v1",
		"noticeId": fmt.Sprintf("codex-notice-%d-%d", s.proc.PID(), s.notices),
		"severity": severity, "category": category, "scope": scope,
		"recoverable": recoverable, "userActionable": false,
		"summary": bound(summary, MaxMessage),
	})
}

// safeID is an id fit for a payload: the provider's own unless it is longer
// than an id may be.
func safeID(id string) string {
	if len(id) <= maxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "long-" + hex.EncodeToString(sum[:])
}

// failure is the error of a turn.failed payload.
func failure(code, message string) object {
	return object{"code": code, "message": bound(message, MaxMessage)}
}

// background is the context of what must happen although the session's own
// context may have ended: stopping processes.
func background() context.Context { return context.Background() }
