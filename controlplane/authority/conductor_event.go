package authority

import (
	"crypto/sha256"
	"encoding/json"
	"time"

	"bowline/controlplane/store"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// condEvent looks at an event of the runner that has just been appended.
func (m *Machine) condEvent(now time.Time, ev prp.Event) {
	c := m.cond
	switch ev.Type {
	case "turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled":
		c.TurnOver = true
	}
	if store.Terminal(m.run.Status) {
		return // late
	}
	switch ev.Type {
	case "turn.accepted", "turn.started":
		if c.StartSeq != 0 && c.Phase == PhaseStart {
			m.accepted(now, ev.Payload.Get("providerTurnId").Str())
		}
	case "usage.reported":
		if usage := ev.Payload.JSON(); len(usage) <= maxUsageBytes {
			c.Usage = usage
			m.saveRun()
		}
	case "turn.completed":
		m.end(now, store.StatusCompleted, "", outcome{payload: ev.Payload})
	case "turn.failed":
		m.end(now, store.StatusFailed, reasonOf(ev.Payload, ReasonTurnFailed), outcome{payload: ev.Payload})
	case "turn.interrupted", "turn.cancelled":
		if !m.run.CancelAt.IsZero() {
			m.end(now, store.StatusCancelled, "", outcome{payload: ev.Payload})
			return
		}
		m.end(now, store.StatusFailed, reasonOf(ev.Payload, ReasonInterrupted), outcome{payload: ev.Payload})
	case "session.failed":
		m.end(now, store.StatusFailed, reasonOf(ev.Payload, ReasonSessionFailed), outcome{payload: ev.Payload})
	case "session.closed":
		m.end(now, store.StatusFailed, ReasonNoResult, outcome{payload: ev.Payload})
	}
}

// Bounds of what a run's result repeats from a terminal event; the event itself
// is in the log whole.
const (
	maxUsageBytes   = 4 << 10
	maxMemberBytes  = 8 << 10
	maxResultBytes  = 32 << 10
	maxMessageUnits = 1200 // UTF-16 units, as prp.md 0.2 no. 6 bounds error texts
	maxReasonLen    = 64
)

// reasonOf takes the provider's own code when it looks like one. A runner that
// found turn.start pending after a crash says so by the command's result and by
// the turn's end, in either order: the run's reason is the same.
func reasonOf(payload canonjson.Value, fallback string) string {
	for _, v := range []canonjson.Value{payload.Get("error", "code"), payload.Get("code"), payload.Get("reason")} {
		switch s := v.Str(); {
		case s == indeterminateCode:
			return ReasonIndeterminate
		case prp.IsStableID(s, maxReasonLen):
			return s
		}
	}
	return fallback
}

// outcome is what is known at the end besides status and reason.
type outcome struct {
	payload canonjson.Value // of the terminal event, Undefined without
	message string
	kind    string // result.outcome, when the payload does not know it
}

// end writes the one terminal event and begins the close sequence. The caller
// has made sure that the run has not ended.
func (m *Machine) end(now time.Time, status, reason string, o outcome) {
	if store.Terminal(m.run.Status) {
		panic("bug: authority: second end of a run")
	}
	if m.cond.TimedOut && status == store.StatusCancelled {
		status, reason = store.StatusFailed, ReasonTimeout
		o.kind = ReasonTimeout
	}
	result := m.resultOf(status, o)
	payload, err := json.Marshal(map[string]any{"status": status, "reason": reason, "result": result})
	if err != nil {
		panic("bug: authority: run.ended: " + err.Error())
	}
	// Appended before the status changes: the terminal event itself is not late.
	m.appendLog(now, ownEvent(EventRunEnded, payload))
	m.run.Status, m.run.Reason, m.run.Result, m.run.EndedAt = status, reason, result, now
	m.effect(Effect{Kind: EffectRunEnded, Status: status, Reason: reason})
	m.beginClose(now)
	m.saveRun()
}

func ownEvent(eventType string, payload []byte) store.EventRow {
	return store.EventRow{Origin: store.OriginControlPlane, Type: eventType, Body: payload, Digest: sha256.Sum256(payload)}
}

// resultOf repeats the members of the terminal event's payload, as far as they
// are small, and makes sure of the ones hosts rely on.
func (m *Machine) resultOf(status string, o outcome) json.RawMessage {
	v := canonjson.ObjectValue()
	size := 0
	for _, member := range o.payload.Members() {
		n := len(member.Key) + len(member.Value.JSON())
		if n > maxMemberBytes || size+n > maxResultBytes {
			continue
		}
		size += n
		v.Set(member.Key, member.Value)
	}
	for _, name := range []string{"exitCode", "signal"} {
		if !v.Has(name) {
			v.Set(name, canonjson.NullValue())
		}
	}
	switch {
	case o.kind != "":
		v.Set("outcome", canonjson.StringValue(o.kind))
	case !v.Get("outcome").IsString():
		outcomeText := o.payload.Get("status").Str()
		if outcomeText == "" {
			outcomeText = status
		}
		v.Set("outcome", canonjson.StringValue(canonjson.CutUTF16(outcomeText, maxReasonLen)))
	}
	if !v.Get("message").IsString() {
		message := o.message
		for _, known := range []canonjson.Value{o.payload.Get("message"), o.payload.Get("error", "message")} {
			if message == "" {
				message = known.Str()
			}
		}
		v.Set("message", canonjson.StringValue(canonjson.CutUTF16(message, maxMessageUnits)))
	}
	if len(m.cond.Usage) > 0 && !v.Has("usage") {
		if usage, err := canonjson.Parse(m.cond.Usage); err == nil {
			v.Set("usage", usage)
		}
	}
	return json.RawMessage(v.JSON())
}
