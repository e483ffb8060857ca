package prp

import "strings"

// v1EventTypes are the event types of schema version 1 (prp.md 7.2), grouped by
// family; "a.b" stands before its members.
const v1EventTypes = `
runner: connected reconnected reconciled disconnected draining backpressure suspending suspended stopped diagnostic
runtime.phase: changed
sandbox: metric
workspace: ready change.updated diff.recorded file.referenced
harness: starting ready exited diagnostic
plan: updated
tool.execution: started progressed completed
research: started progressed completed
delegation: started updated completed
model: route.changed verification.updated
context: compacted
artifact: viewed generated
review.mode: changed
hook: started completed
memory.citation: referenced
safety.review: started completed
terminal.input: sent
wait: started completed
provider.notice: recorded
session: starting started resuming resumed reconciled updated closed failed
turn: submitted accepted started completed failed interrupted cancelled
output.body: chunk
item: started delta completed failed
usage: reported
semantic_tool: input result reconciled
mcp_app: discovered resource.resolved initializing ready tool_input tool_result action.requested action.resolved host_context.changed failed teardown
runtime_request: created resolved expired cancelled
interaction.request: proposed materialized rejected
interaction.response: progressed resolved delivered
run: attached detached result.proposed result.accepted result.rejected terminal
attention.request: proposed routed resolved expired superseded
work.assessment: recorded
issue.status.decision: recorded applied rejected superseded
`

// v2OnlyEventTypes are the families that exist only in schema version 2, and
// the only ones a runner sends as version 2.
const v2OnlyEventTypes = `
session.capabilities: updated
session.goal: snapshot updated cleared
`

// eventTypes maps a type to the schema versions it is valid in, as bits.
var eventTypes = func() map[string]uint8 {
	out := make(map[string]uint8)
	add := func(table string, versions uint8) {
		for line := range strings.Lines(strings.TrimSpace(table)) {
			family, members, _ := strings.Cut(strings.TrimSpace(line), ": ")
			for m := range strings.FieldsSeq(members) {
				out[family+"."+m] = versions
			}
		}
	}
	add(v1EventTypes, inV1|inV2)
	add(v2OnlyEventTypes, inV2)
	// Version 2 lacks these two.
	out["runner.backpressure"] = inV1
	out["semantic_tool.reconciled"] = inV1
	return out
}()

const (
	inV1 uint8 = 1 << iota
	inV2
)

// IsEventType tells whether events of type t exist in a schema version (1, 2).
func IsEventType(t string, schemaVersion int) bool {
	switch schemaVersion {
	case 1:
		return eventTypes[t]&inV1 != 0
	case 2:
		return eventTypes[t]&inV2 != 0
	}
	return false
}

// IsV2Event tells whether events of type t exist only in schema version 2.
func IsV2Event(t string) bool { return eventTypes[t] == inV2 }
