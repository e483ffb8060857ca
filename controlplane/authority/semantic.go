package authority

import (
	"time"

	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// ToolCall is a host tool call to hand to the handler. The handler must be
// idempotent per (run, call): after a crash it may see a call again (prp.md 8.7).
type ToolCall struct {
	RunID           string
	CallID          string
	OperationID     string
	Input           canonjson.Value
	SourceEventID   string
	SourceEventType string

	commandID string
}

// bridgeFailed is the result of a call whose handler failed (prp.md 10.9).
const bridgeFailed = "semantic_tool_bridge_failed"

// correlationOf are the four members a result correlates by.
func correlationOf(id prp.Identity) canonjson.Value {
	return canonjson.ObjectValue(
		canonjson.Member{Key: "runId", Value: canonjson.StringValue(id.RunID)},
		canonjson.Member{Key: "normalizedSessionId", Value: canonjson.StringValue(id.NormalizedSessionID)},
		canonjson.Member{Key: "turnId", Value: canonjson.StringValue(id.TurnID)},
		canonjson.Member{Key: "itemId", Value: canonjson.StringValue(id.ItemID)},
	)
}

// callMembers are what a call and the command that answers it must share (8.10).
var callMembers = [...]string{"callId", "operationId", "sourceEventId", "sourceEventType", "correlation", "input"}

// callOfCommand is the comparable form of a semantic_tool.result's payload.
func callOfCommand(payload canonjson.Value) canonical {
	members := make([]canonjson.Value, 0, len(callMembers))
	for _, name := range callMembers {
		v := payload.Get(name)
		if !v.Exists() {
			return canonical{}
		}
		members = append(members, v)
	}
	return canonicalOf(canonjson.ArrayValue(members...))
}

func retainCall(id prp.Identity, ev prp.Event, in prp.SemanticInput) *retainedCall {
	return &retainedCall{
		commandID: prp.ToolCommandID(id.RunID, in.CallID),
		form: callOfCommand(canonjson.ObjectValue(
			canonjson.Member{Key: "callId", Value: canonjson.StringValue(in.CallID)},
			canonjson.Member{Key: "operationId", Value: canonjson.StringValue(in.OperationID)},
			canonjson.Member{Key: "sourceEventId", Value: canonjson.StringValue(ev.SourceEventID)},
			canonjson.Member{Key: "sourceEventType", Value: canonjson.StringValue(ev.Type)},
			canonjson.Member{Key: "correlation", Value: in.Correlation},
			canonjson.Member{Key: "input", Value: in.Input},
		)),
	}
}

func (m *Machine) callSettled(call *retainedCall) bool {
	c := m.byID[call.commandID]
	return c != nil && c.row.Type == prp.CommandSemanticToolResult && c.row.Status == prp.StatusCompleted &&
		c.named && c.call.equals(call.form)
}

// Settled is semanticToolResultsSettled of prp.md 8.10.
func (m *Machine) Settled() bool {
	if len(m.running) > 0 || m.persistFailed || m.toolsOpen > 0 {
		return false
	}
	for _, r := range m.window.order {
		if r.call != nil && !m.callSettled(r.call) {
			return false
		}
	}
	return true
}

// dispatch stages the hand-over of a call unless it was answered or is being
// worked on.
func (m *Machine) dispatch(ev prp.Event, in prp.SemanticInput) {
	id := prp.ToolCommandID(m.head.Identity.RunID, in.CallID)
	if _, working := m.running[id]; working || m.byID[id] != nil {
		return
	}
	m.running[id] = false
	m.effect(Effect{Kind: EffectDispatch, Call: &ToolCall{
		RunID: m.head.Identity.RunID, CallID: in.CallID, OperationID: in.OperationID, Input: in.Input,
		SourceEventID: ev.SourceEventID, SourceEventType: ev.Type, commandID: id,
	}})
}

// ToolStarted marks that the call was really handed over: a successor of this
// machine inherits it.
func (m *Machine) ToolStarted(call *ToolCall) { m.running[call.commandID] = true }

// ToolDone journals the outcome of a call and delivers it. With failed, result
// is ignored and the bridge's own failure is told. When the outcome cannot be
// journaled the session never settles and every connection goes (10.9).
func (m *Machine) ToolDone(now time.Time, call *ToolCall, result canonjson.Value, failed bool) {
	delete(m.running, call.commandID)
	if failed {
		result = canonjson.ObjectValue(canonjson.Member{Key: "code", Value: canonjson.StringValue(bridgeFailed)})
	}
	if !result.Exists() {
		result = canonjson.NullValue()
	}
	_, err := m.Queue(now, Command{
		ID: call.commandID, Type: prp.CommandSemanticToolResult, Deliver: true,
		Payload: canonjson.ObjectValue(
			canonjson.Member{Key: "callId", Value: canonjson.StringValue(call.CallID)},
			canonjson.Member{Key: "operationId", Value: canonjson.StringValue(call.OperationID)},
			canonjson.Member{Key: "input", Value: call.Input},
			canonjson.Member{Key: "sourceEventId", Value: canonjson.StringValue(call.SourceEventID)},
			canonjson.Member{Key: "sourceEventType", Value: canonjson.StringValue(call.SourceEventType)},
			canonjson.Member{Key: "correlation", Value: correlationOf(m.head.Identity)},
			canonjson.Member{Key: "result", Value: result},
			canonjson.Member{Key: "isError", Value: canonjson.BoolValue(failed)},
		),
	})
	if err != nil {
		m.ToolLost()
	}
}

// ToolLost latches that the outcome of a call could not be kept.
func (m *Machine) ToolLost() {
	m.persistFailed = true
	m.effect(Effect{Kind: EffectCloseAll, Reason: "a tool result could not be journaled"})
}
