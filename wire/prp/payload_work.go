package prp

import (
	"math"

	"bowline/wire/canonjson"
)

// Rules for the payloads of work: workspace changes, host tools, results, goals
// (prp.md 7.3).

// canonMax stands for "no bound" in integer rules.
const canonMax = math.MaxFloat64

const unbounded = math.MaxInt

var workspacePath = relativePath(1, 1024)

var payloadWorkspaceDiff = object(closed,
	must("schema", exactly("paperclip.workspace.diff.v1")),
	must("changeSetId", text(1, 200)),
	must("revision", integer(1)),
	must("source", oneOf("harness_reported runner_verified")),
	must("complete", boolean),
	must("files", list(2000, object(closed,
		must("path", workspacePath),
		must("operation", oneOf("create modify delete rename mode_change")),
		must("previousPath", nullable(workspacePath)),
		must("additions", countOrNull),
		must("deletions", countOrNull),
		must("binary", boolean),
		must("diff", nullable(text(0, 262144))),
	))),
	must("totals", object(closed,
		must("files", integer(0)),
		must("additions", countOrNull),
		must("deletions", countOrNull),
	)),
	must("patchArtifactRef", nullable(text(0, 2048))),
)

var payloadWorkspaceDiffComplete = all(payloadWorkspaceDiff, object(open, must("complete", isTrue)))

var payloadFileReference = object(closed,
	must("schema", exactly("paperclip.workspace.file_reference.v1")),
	must("referenceId", text(1, 240)),
	must("source", oneOf("harness_reported runner_verified")),
	must("path", workspacePath),
	must("displayName", text(1, 255)),
	must("mediaType", mediaOrNull),
	must("presentation", oneOf("document code image generic")),
	must("line", nullable(integer(1))),
	must("preview", nullable(text(0, 262144))),
	must("previewTruncated", boolean),
	must("contentDigest", nullable(sha256Text)),
)

var toolID = stableID(MaxIdentityLen)

var toolReference = object(open,
	must("kind", oneOf("task document_revision interaction approval decision artifact work_product wake monitor audit operation")),
	must("id", toolID),
)

// semanticTool is the open object of a host tool call; which members a result
// needs in addition is in semanticOutcome.
var semanticTool = object(open,
	must("schema", exactly("paperclip.prp.semantic_tool.v1")),
	must("schemaVersion", exactNumber(1)),
	must("phase", oneOf("input result reconciled")),
	must("operationId", toolID),
	must("callId", toolID),
	must("correlation", object(open,
		must("runId", toolID),
		must("normalizedSessionId", toolID),
		must("turnId", toolID),
		must("itemId", toolID),
		may("requestId", toolID),
	)),
	must("idempotencyKey", nullable(text(1, 240))),
	must("content", object(open,
		must("digest", sha256Text),
		must("redactionDisposition", oneOf("digest_only allowlisted_references redacted")),
		must("references", all(list(unbounded, toolReference), unique)),
	)),
	may("outcome", oneOf("succeeded denied conflict duplicate unavailable failed")),
	may("code", stableCode),
	may("retryable", boolean),
	may("authorizationBoundary", oneOf("company actor active_task grant governed_action lock revision")),
	may("operationReceiptId", toolID),
	may("auditReceiptId", toolID),
	may("currentRevision", anyOf("is neither a count nor a stable id", integer(0), toolID)),
	may("duplicateOfReceiptId", toolID),
	may("artifactRefs", all(list(unbounded, all(toolReference, object(open, may("kind", oneOf("artifact work_product"))))), unique)),
	may("targets", all(list(unbounded, object(open,
		must("kind", oneOf("document_revision interaction approval decision")),
		must("id", toolID),
		must("immutable", isTrue),
		may("revisionId", toolID),
		may("decisionId", toolID),
	)), unique)),
	may("causalRefs", all(list(unbounded, toolReference), unique)),
)

func present(canonjson.Value) *mismatch { return nil }

var semanticOutcome = object(open,
	must("outcome", present),
	must("code", present),
	must("retryable", present),
	must("authorizationBoundary", present),
	must("operationReceiptId", present),
)

var (
	semanticInputRule      = object(open, may("semantic_tool", all(semanticTool, object(open, must("phase", exactly("input"))))))
	semanticResultRule     = object(open, may("semantic_tool", all(semanticTool, semanticOutcome, object(open, must("phase", exactly("result"))))))
	semanticReconciledRule = object(open, may("semantic_tool", all(semanticTool, semanticOutcome, object(open, must("phase", exactly("reconciled"))))))
)

// semanticPayload is the rule of the events whose payload may hold a call; the
// schema does not require it to.
func semanticPayload(phase string) rule {
	switch phase {
	case "input":
		return semanticInputRule
	case "result":
		return semanticResultRule
	default:
		return semanticReconciledRule
	}
}

const dispositions = "done blocked needs_review yielded"

var someText = text(1, unbounded)

var stopReason = object(open,
	must("schema", exactly("paperclip.prp.stop_reason.v1")),
	must("schemaVersion", exactNumber(1)),
	must("receiptId", toolID),
	must("kind", oneOf("budget cost")),
	must("code", stableCode),
	must("retryable", boolean),
	must("decisionId", toolID),
	must("limitClass", oneOf("company_monthly actor_monthly project_monthly run_cost provider_quota")),
	must("aggregate", object(open,
		must("unit", oneOf("cents usd_micros tokens")),
		must("observed", integer(0)),
		must("limit", integer(0)),
		must("window", oneOf("run monthly_utc provider_window")),
	)),
	may("relatedReceiptIds", all(list(unbounded, toolID), unique)),
)

var payloadTerminal = object(open,
	must("schema", exactly("paperclip.prp.terminal.v1")),
	must("turnTerminalState", oneOf("completed failed interrupted cancelled")),
	must("runTerminalState", oneOf("succeeded failed cancelled")),
	must("reportedWorkDisposition", oneOf(dispositions)),
	may("workAssessmentId", someText),
	may("statusDecisionId", someText),
	may("stopReason", stopReason),
)

const notRunReasons = "environment_unavailable tool_unavailable dependency_missing permission_denied credential_missing " +
	"policy_restricted external_service_unavailable budget_exhausted other"

var resultRule = object(open,
	must("schema", exactly("paperclip.run_result.v1")),
	must("reportedWorkDisposition", oneOf(dispositions)),
	must("summary", text(1, 12000)),
	must("completionClaim", object(open,
		must("contractRevision", someText),
		must("objectiveSatisfied", boolean),
		must("criteria", list(unbounded, object(open,
			must("criterionId", someText),
			must("status", oneOf("satisfied not_satisfied unknown")),
			must("evidenceRefs", list(unbounded, anyText)),
			may("explanation", anyText),
		))),
		must("remainingWork", list(unbounded, object(open,
			must("description", someText),
			must("blocksCompletion", boolean),
		))),
	)),
	must("evidence", list(unbounded, anyObject)),
	must("verification", list(unbounded, object(open,
		must("commandOrCheck", someText),
		must("status", oneOf("passed failed not_run")),
		may("reasonCode", oneOf(notRunReasons)),
		may("detail", anyText),
		may("artifactRef", anyText),
	))),
	may("blocker", object(open,
		must("reasonCode", someText),
		must("owner", anyObject),
		must("unblockAction", someText),
		must("scope", oneOf("current_track task_wide")),
	)),
	must("attentionRequests", list(unbounded, anyObject)),
	must("artifacts", list(unbounded, object(open,
		must("kind", someText),
		must("ref", someText),
		may("title", anyText),
	))),
	may("continuation", object(open,
		must("kind", oneOf("same_agent retry delegated_issue response_wake monitor")),
		must("summary", someText),
		must("idempotencyKey", someText),
	)),
)

// payloadResult is run.result.proposed: whoever is blocked names the blocker,
// whoever yields says how it goes on.
func payloadResult(v canonjson.Value) *mismatch {
	if bad := resultRule(v); bad != nil {
		return bad
	}
	switch v.Get("reportedWorkDisposition").Str() {
	case "blocked":
		if !v.Has("blocker") {
			return wrong("is missing").under("blocker")
		}
	case "yielded":
		if !v.Has("continuation") {
			return wrong("is missing").under("continuation")
		}
	}
	return nil
}

var payloadGoal = object(open,
	must("goal", nullable(object(open,
		must("objective", someText),
		must("status", oneOf("active paused blocked limited usage_limited budget_limited complete")),
		may("tokenBudget", nullable(number)),
		may("tokensUsed", nullable(number)),
		may("elapsedSeconds", nullable(number)),
		may("iterations", nullable(number)),
		may("lastReason", nullable(anyText)),
		may("workingNow", nullable(boolean)),
	))),
)

var payloadCapabilities = object(open, must("sessionGoals", anyObject))
