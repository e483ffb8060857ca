package prp

import (
	"math"

	"bowline/wire/canonjson"
)

// ValidateEvent checks an event against the PRP event schema of its version
// (prp.md 7.1 to 7.3): the members every event has, and for the types with a
// closed payload that payload. Lengths count code points. The error is a
// *wire.Error of code protocol_violation that names the member and the rule.
func ValidateEvent(v canonjson.Value) error {
	if !v.IsObject() {
		return violation("event is not an object")
	}
	r, version := eventV1, 1
	if v.Get("schema").Str() == EventSchemaV2 {
		r, version = eventV2, 2
	}
	if bad := r(v); bad != nil {
		return violation("event: %s %s", bad.path, bad.reason)
	}
	eventType := v.Get("eventType").Str()
	if !IsEventType(eventType, version) {
		return violation("event: eventType is unknown in schema version %d", version)
	}
	if bad := payloadRule(eventType, version)(v.Get("payload")); bad != nil {
		bad = bad.under("payload")
		return violation("event: %s: %s %s", eventType, bad.path, bad.reason)
	}
	return nil
}

func eventRule(schema string, version int64, longItemID int) rule {
	return object(open,
		must("schema", exactly(schema)),
		must("sourceEventId", text(1, MaxShortIDLen)),
		must("sourceSeq", sequence),
		must("sourceInstanceId", text(1, MaxShortIDLen)),
		must("sourceKind", oneOf(SourceRunner+" "+SourceControlPlane)),
		must("runId", text(1, MaxShortIDLen)),
		may("normalizedSessionId", text(1, MaxShortIDLen)),
		may("turnId", text(1, longItemID)),
		may("itemId", text(1, longItemID)),
		must("eventType", anyText),
		must("schemaVersion", exactNumber(version)),
		must("priority", anyOf("is none of 0, 1, 2", exactNumber(0), exactNumber(1), exactNumber(2))),
		must("emittedAt", dateTime),
		may("observedAt", dateTime),
		must("payload", anyObject),
		may("debug", anyObject),
	)
}

var (
	eventV1 = eventRule(EventSchemaV1, 1, MaxIdentityLen)
	eventV2 = all(eventRule(EventSchemaV2, 2, MaxShortIDLen), object(open,
		may("sourceEpoch", uuidV4),
		may("sourceEpochTransition", object(closed,
			must("schema", exactly("paperclip.prp.event-epoch.v1")),
			must("runId", text(1, MaxIdentityLen)),
			must("transitionId", uuidV4),
			must("fromEpoch", nullable(uuidV4)),
			must("nextEpoch", uuidV4),
			must("finalOrdinal", sequence),
		)),
	))
)

func sequence(v canonjson.Value) *mismatch {
	f, ok := v.AsNumber()
	if !ok || f != math.Trunc(f) || f < 1 || f > canonjson.MaxSafeInteger {
		return wrong("is not a safe integer of at least 1")
	}
	return nil
}

// payloadRule is the rule for a type's payload, which is known to be an object.
// Version 2 closes only the payloads named in its own schema.
func payloadRule(eventType string, version int) rule {
	switch eventType {
	case "tool.execution.started", "tool.execution.progressed", "tool.execution.completed":
		return withCommon(version, payloadToolExecution)
	case "output.body.chunk":
		return withCommon(version, payloadBodyChunk)
	case "session.goal.snapshot", "session.goal.updated":
		return payloadGoal
	case "session.capabilities.updated":
		return payloadCapabilities
	}
	if version == 1 {
		return withCommon(version, payloadRuleV1(eventType))
	}
	return anyObject
}

// payloadCommon are members version 1 checks in whatever payload has them.
var payloadCommon = object(open,
	may("channel", oneOf("progress final summary detail unknown")),
	may("providerPhase", anyText),
	may("providerMethod", anyText),
)

func withCommon(version int, r rule) rule {
	if version != 1 {
		return r
	}
	return all(payloadCommon, r)
}

func payloadRuleV1(eventType string) rule {
	switch eventType {
	case "plan.updated":
		return payloadPlan
	case "research.started", "research.progressed", "research.completed":
		return payloadResearch
	case "delegation.started", "delegation.updated", "delegation.completed":
		return payloadDelegation
	case "model.route.changed":
		return payloadModelRoute
	case "model.verification.updated":
		return payloadModelVerification
	case "context.compacted":
		return payloadContextCompacted
	case "artifact.viewed":
		return payloadArtifactViewed
	case "artifact.generated":
		return payloadArtifactGenerated
	case "review.mode.changed":
		return payloadReviewMode
	case "hook.started", "hook.completed":
		return payloadHook
	case "memory.citation.referenced":
		return payloadMemoryCitation
	case "safety.review.started", "safety.review.completed":
		return payloadSafetyReview
	case "terminal.input.sent":
		return payloadTerminalInput
	case "wait.started", "wait.completed":
		return payloadWait
	case "provider.notice.recorded":
		return payloadProviderNotice
	case "workspace.file.referenced":
		return payloadFileReference
	case "workspace.change.updated":
		return payloadWorkspaceDiff
	case "workspace.diff.recorded":
		return payloadWorkspaceDiffComplete
	case "semantic_tool.input", "mcp_app.tool_input":
		return semanticPayload("input")
	case "semantic_tool.result", "mcp_app.tool_result":
		return semanticPayload("result")
	case "semantic_tool.reconciled":
		return semanticPayload("reconciled")
	case "run.terminal":
		return payloadTerminal
	case "run.result.proposed":
		return payloadResult
	}
	return anyObject
}
