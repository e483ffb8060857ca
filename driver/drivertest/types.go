package drivertest

import (
	"slices"
	"strings"
)

// KnownType reports whether an event type is in the v1 list of prp.md 7.2. The
// list is the kit's own copy, so that a mistake in wire does not hide one in a
// driver.
func KnownType(eventType string) bool {
	for _, f := range families() {
		name, ok := strings.CutPrefix(eventType, f.prefix)
		if ok && slices.Contains(strings.Fields(f.names), name) {
			return true
		}
	}
	return false
}

type family struct{ prefix, names string }

func families() []family {
	return []family{
		{"runner.", "connected reconnected reconciled disconnected draining backpressure suspending suspended stopped diagnostic"},
		{"runtime.", "phase.changed"},
		{"sandbox.", "metric"},
		{"workspace.", "ready change.updated diff.recorded file.referenced"},
		{"harness.", "starting ready exited diagnostic"},
		{"plan.", "updated"},
		{"tool.execution.", "started progressed completed"},
		{"research.", "started progressed completed"},
		{"delegation.", "started updated completed"},
		{"model.", "route.changed verification.updated"},
		{"context.", "compacted"},
		{"artifact.", "viewed generated"},
		{"review.", "mode.changed"},
		{"hook.", "started completed"},
		{"memory.", "citation.referenced"},
		{"safety.review.", "started completed"},
		{"terminal.", "input.sent"},
		{"wait.", "started completed"},
		{"provider.", "notice.recorded"},
		{"session.", "starting started resuming resumed reconciled updated closed failed"},
		{"turn.", "submitted accepted started completed failed interrupted cancelled"},
		{"output.", "body.chunk"},
		{"item.", "started delta completed failed"},
		{"usage.", "reported"},
		{"semantic_tool.", "input result reconciled"},
		{"mcp_app.", "discovered resource.resolved initializing ready tool_input tool_result action.requested action.resolved host_context.changed failed teardown"},
		{"runtime_request.", "created resolved expired cancelled"},
		{"interaction.request.", "proposed materialized rejected"},
		{"interaction.response.", "progressed resolved delivered"},
		{"run.", "attached detached result.proposed result.accepted result.rejected terminal"},
		{"attention.request.", "proposed routed resolved expired superseded"},
		{"work.assessment.", "recorded"},
		{"issue.status.decision.", "recorded applied rejected superseded"},
	}
}
