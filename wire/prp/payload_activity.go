package prp

// Rules for the payloads of provider activity: closed objects, whose
// identifiers are stable ids of at most 160 characters and whose prose is at
// most 4000 characters (prp.md 7.3).

const maxShortText = 4000

var (
	activityID    = stableID(MaxShortIDLen)
	shortText     = text(0, maxShortText)
	shortOrNull   = nullable(shortText)
	countOrNull   = nullable(integer(0))
	pathOrNull    = nullable(relativePath(0, 4096))
	urlOrNull     = nullable(webURL)
	sha256Text    = hexOf("sha256:", 64)
	hex64         = hexOf("", 64)
	mediaOrNull   = nullable(text(0, 160))
	progressState = "running completed failed cancelled"
)

var payloadPlan = object(closed,
	must("schema", exactly("paperclip.plan.updated.v1")),
	must("planId", activityID),
	must("revision", integer(1)),
	may("explanation", shortOrNull),
	must("steps", list(256, object(closed,
		must("stepId", activityID),
		must("body", shortText),
		must("status", oneOf("pending in_progress completed blocked")),
	))),
	must("complete", boolean),
	must("syncStatus", oneOf("streaming pending synchronized conflict not_applicable")),
	may("documentRevision", nullable(integer(1))),
)

var outputBody = object(closed,
	must("schema", exactly("paperclip.output.body.v1")),
	must("bodyId", hex64),
	must("sha256", hex64),
	must("byteLength", decimal(false)),
	must("mediaType", exactly("text/plain; charset=utf-8")),
)

var payloadBodyChunk = object(closed,
	must("schema", exactly("paperclip.output.body.chunk.v1")),
	must("body", outputBody),
	must("offset", decimal(true)),
	must("sha256", hex64),
	must("text", text(1, 32766)),
)

var payloadToolExecution = object(closed,
	must("schema", exactly("paperclip.tool.execution.v1")),
	must("executionId", activityID),
	must("transport", oneOf("process mcp dynamic builtin")),
	must("operation", oneOf("read search list execute edit unknown")),
	may("name", shortOrNull),
	may("target", pathOrNull),
	may("namespace", nullable(text(0, 240))),
	may("readOnly", nullable(boolean)),
	may("inputUpdated", boolean),
	must("status", oneOf(progressState+" interrupted")),
	may("durationMs", countOrNull),
	may("exitCode", nullable(integer(-canonMax))),
	may("progress", shortOrNull),
	must("output", nullable(text(0, 65536))),
	must("outputBytes", integer(0)),
	must("outputTruncated", boolean),
	must("outputDigest", nullable(sha256Text)),
	may("outputBody", outputBody),
)

var payloadResearch = object(closed,
	must("schema", exactly("paperclip.research.v1")),
	must("researchId", activityID),
	must("action", oneOf("search open_page find_in_page other")),
	must("status", oneOf(progressState)),
	may("query", shortOrNull),
	may("url", urlOrNull),
	may("pattern", shortOrNull),
	must("sources", list(64, object(closed,
		must("sourceId", activityID),
		must("title", shortText),
		must("url", urlOrNull),
		must("snippet", shortOrNull),
	))),
)

const delegationState = "running waiting completed failed interrupted closed"

var payloadDelegation = object(closed,
	must("schema", exactly("paperclip.delegation.v1")),
	must("delegationId", activityID),
	must("action", oneOf("spawn message resume wait close")),
	must("status", oneOf(delegationState)),
	must("children", list(64, object(closed,
		must("childId", activityID),
		must("role", nullable(text(0, 160))),
		must("model", nullable(text(0, 240))),
		must("status", oneOf(delegationState)),
		must("summary", shortOrNull),
		must("activitySummary", shortOrNull),
	))),
)

var payloadModelRoute = object(closed,
	must("schema", exactly("paperclip.model.route_changed.v1")),
	must("routeId", activityID),
	must("provider", text(1, 160)),
	must("requestedModel", text(1, 240)),
	must("fromModel", nullable(text(0, 240))),
	must("effectiveModel", text(1, 240)),
	must("reason", shortText),
)

var payloadModelVerification = object(closed,
	must("schema", exactly("paperclip.model.verification.v1")),
	must("verificationId", activityID),
	must("status", oneOf("running completed failed")),
	must("classes", list(32, text(0, 160))),
	must("buffering", boolean),
	must("summary", shortOrNull),
)

var payloadContextCompacted = object(closed,
	must("schema", exactly("paperclip.context.compacted.v1")),
	must("compactionId", activityID),
	must("reason", oneOf("context_window manual provider unknown")),
	must("preTokens", countOrNull),
	must("postTokens", countOrNull),
	must("sameSession", boolean),
)

var payloadArtifactViewed = object(closed,
	must("schema", exactly("paperclip.artifact.viewed.v1")),
	must("artifactId", activityID),
	must("reference", pathOrNull),
	must("mediaType", mediaOrNull),
	must("title", shortOrNull),
)

var payloadArtifactGenerated = object(closed,
	must("schema", exactly("paperclip.artifact.generated.v1")),
	must("artifactId", activityID),
	must("status", oneOf("running completed failed")),
	must("reference", pathOrNull),
	must("mediaType", mediaOrNull),
	must("registered", boolean),
	may("transparentBackground", nullable(boolean)),
	must("failure", shortOrNull),
)

var payloadReviewMode = object(closed,
	must("schema", exactly("paperclip.review.mode_changed.v1")),
	must("reviewId", activityID),
	must("state", oneOf("entered exited")),
	must("scope", shortOrNull),
)

var payloadHook = object(closed,
	must("schema", exactly("paperclip.hook.v1")),
	must("hookId", activityID),
	must("event", text(1, 160)),
	must("scope", text(1, 160)),
	must("status", oneOf(progressState)),
	must("blocking", boolean),
	must("durationMs", countOrNull),
	must("summary", shortOrNull),
)

var payloadMemoryCitation = object(closed,
	must("schema", exactly("paperclip.memory.citation.v1")),
	must("citationId", activityID),
	must("messageItemId", activityID),
	must("label", shortText),
	must("available", boolean),
	must("reference", nullable(text(0, 4096))),
)

var payloadSafetyReview = object(closed,
	must("schema", exactly("paperclip.safety.review.v1")),
	must("reviewId", activityID),
	must("targetExecutionId", nullable(activityID)),
	must("status", oneOf("running completed failed")),
	must("decision", oneOf("pending allowed denied user_required unknown")),
	must("summary", shortOrNull),
)

var payloadTerminalInput = object(closed,
	must("schema", exactly("paperclip.terminal.input_sent.v1")),
	must("executionId", activityID),
	must("origin", oneOf("agent user system")),
	must("inputClass", oneOf("text control eof")),
	must("byteCount", integer(0)),
)

var payloadWait = object(closed,
	must("schema", exactly("paperclip.wait.v1")),
	must("waitId", activityID),
	must("reason", oneOf("timer provider rate_limit unknown")),
	must("status", oneOf("running completed interrupted cancelled")),
	must("plannedDurationMs", countOrNull),
	must("elapsedDurationMs", countOrNull),
)

var payloadProviderNotice = object(closed,
	must("schema", exactly("paperclip.provider.notice.v1")),
	must("noticeId", activityID),
	must("severity", oneOf("info warning error")),
	must("category", text(1, 160)),
	must("scope", oneOf("turn session environment account")),
	must("recoverable", boolean),
	must("userActionable", boolean),
	must("summary", shortText),
)
