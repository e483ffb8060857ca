package prp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"bowline/wire/canonjson"
)

// Schema names of an event (prp.md 7.1).
const (
	EventSchemaV1 = "paperclip.prp.event.v1"
	EventSchemaV2 = "paperclip.prp.event.v2"
)

// Kinds of sources.
const (
	SourceRunner       = "runner"
	SourceControlPlane = "control_plane"
)

// Event is a PRP event as received. Whole is the exact object.
type Event struct {
	Whole               canonjson.Value
	SchemaVersion       int
	SourceEventID       string
	SourceSeq           int64
	SourceInstanceID    string
	SourceKind          string
	RunID               string
	NormalizedSessionID string // "" when absent, as the next two
	TurnID              string
	ItemID              string
	Type                string
	Priority            int
	EmittedAt           string
	Payload             canonjson.Value // an object
}

// EventOf validates event.payload against the event schema ([ValidateEvent])
// and reads it.
func EventOf(v canonjson.Value) (Event, error) {
	if err := ValidateEvent(v); err != nil {
		return Event{}, err
	}
	// Valid, so every required member is there with its type.
	e := Event{
		Whole:               v,
		SourceEventID:       v.Get("sourceEventId").Str(),
		SourceInstanceID:    v.Get("sourceInstanceId").Str(),
		SourceKind:          v.Get("sourceKind").Str(),
		RunID:               v.Get("runId").Str(),
		NormalizedSessionID: v.Get("normalizedSessionId").Str(),
		TurnID:              v.Get("turnId").Str(),
		ItemID:              v.Get("itemId").Str(),
		Type:                v.Get("eventType").Str(),
		EmittedAt:           v.Get("emittedAt").Str(),
		Payload:             v.Get("payload"),
		SchemaVersion:       1,
	}
	e.SourceSeq, _ = v.Get("sourceSeq").SafeInt()
	if v.Get("schema").Str() == EventSchemaV2 {
		e.SchemaVersion = 2
	}
	priority, _ := v.Get("priority").SafeInt()
	e.Priority = int(priority)
	return e, nil
}

// CheckIdentity compares the five ids of an event with the session's; an
// authority requires all of them although the schema does not (5.6, 7.1).
func (e Event) CheckIdentity(id Identity) error {
	switch {
	case e.SourceInstanceID != id.RunnerInstanceID:
		return violation("event: sourceInstanceId is not the runner's")
	case e.RunID != id.RunID:
		return violation("event: runId is not the session's")
	case e.NormalizedSessionID != id.NormalizedSessionID:
		return violation("event: normalizedSessionId is not the session's")
	case e.TurnID != id.TurnID:
		return violation("event: turnId is not the session's")
	case e.ItemID != id.ItemID:
		return violation("event: itemId is not the session's")
	}
	return nil
}

// EventFields are what a runner makes an event of.
type EventFields struct {
	SourceEventID string
	SourceSeq     int64 // from 1
	Identity      Identity
	Type          string
	Priority      int
	EmittedAt     string // ISO time with milliseconds
	Payload       []byte // JSON text of an object
}

// AppendEvent appends an event. Its schema version follows from its type:
// 2 for the goal and capability families, else 1 (7.2).
func AppendEvent(dst []byte, f EventFields) []byte {
	schema, version := EventSchemaV1, 1
	if IsV2Event(f.Type) {
		schema, version = EventSchemaV2, 2
	}
	dst = append(dst, '{')
	dst = appendKey(dst, "schema")
	dst = canonjson.AppendString(dst, schema)
	dst = appendText(dst, "sourceEventId", f.SourceEventID)
	dst = appendInt(append(dst, ','), "sourceSeq", f.SourceSeq)
	dst = appendText(dst, "sourceInstanceId", f.Identity.RunnerInstanceID)
	dst = appendText(dst, "sourceKind", SourceRunner)
	dst = appendText(dst, "runId", f.Identity.RunID)
	dst = appendText(dst, "normalizedSessionId", f.Identity.NormalizedSessionID)
	dst = appendText(dst, "turnId", f.Identity.TurnID)
	dst = appendText(dst, "itemId", f.Identity.ItemID)
	dst = appendText(dst, "eventType", f.Type)
	dst = appendInt(append(dst, ','), "schemaVersion", int64(version))
	dst = appendInt(append(dst, ','), "priority", int64(f.Priority))
	dst = appendText(dst, "emittedAt", f.EmittedAt)
	return appendPayload(dst, f.Payload)
}

// RunnerEventID is the sourceEventId of a fact of the runner itself (9.6).
func RunnerEventID(runnerInstanceID string, seq int64) string {
	return fmt.Sprintf("event_%s_%016d", runnerInstanceID, seq)
}

// ExecutorEventID is the sourceEventId of a provider's event (9.6): the same
// executor event gets the same id however often it is read again.
func ExecutorEventID(runnerInstanceID, executorEventID string) string {
	sum := sha256.Sum256([]byte("paperclip.executor-event.v1\x00" + runnerInstanceID + "\x00" + executorEventID))
	return "event_executor_" + hex.EncodeToString(sum[:])
}

// BridgeToV1 gives the event to send on a version 1 connection (5.10): itself,
// or for the families only version 2 knows a placeholder that keeps id,
// sequence and time. An ack of the placeholder does not mean the authority has
// seen the event, so the runner sends the last of each family again after an
// upgrade.
func BridgeToV1(event canonjson.Value) canonjson.Value {
	eventType := event.Get("eventType").Str()
	if !IsV2Event(eventType) {
		return event
	}
	return event.
		With("schema", canonjson.StringValue(EventSchemaV1)).
		With("schemaVersion", canonjson.IntValue(1)).
		With("eventType", canonjson.StringValue("runner.diagnostic")).
		With("payload", canonjson.ObjectValue(
			member("reasonCode", canonjson.StringValue("event_requires_prp_v2")),
			member("originalEventType", canonjson.StringValue(eventType)),
		))
}

// V2Family names the family of a version 2 event of which a runner keeps the
// last one ("session.capabilities" or "session.goal"), "" for any other event.
func V2Family(eventType string) string {
	switch {
	case eventType == "session.capabilities.updated":
		return "session.capabilities"
	case IsV2Event(eventType):
		return "session.goal"
	}
	return ""
}
