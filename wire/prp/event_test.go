package prp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"bowline/wire"
	"bowline/wire/canonjson"
)

func testIdentity() Identity {
	return Identity{
		RunnerInstanceID: "runner-1", EnvironmentLeaseID: "lease-1", RunID: "run-1",
		NormalizedSessionID: "session-1", TurnID: "turn-1", ItemID: "item-1",
	}
}

func testEvent(t testing.TB, eventType, payload string) canonjson.Value {
	t.Helper()
	v, err := canonjson.Parse(AppendEvent(nil, EventFields{
		SourceEventID: RunnerEventID("runner-1", 1), SourceSeq: 1, Identity: testIdentity(), Type: eventType,
		Priority: 1, EmittedAt: "2026-11-30T19:40:00.000Z", Payload: []byte(payload),
	}))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

const (
	digest64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	bodyRef  = `{"schema":"paperclip.output.body.v1","bodyId":"` + digest64 + `","sha256":"` + digest64 + `","byteLength":"12","mediaType":"text/plain; charset=utf-8"}`
)

// goodPayloads has one valid payload for every event type whose payload has a
// schema.
func goodPayloads() map[string]string {
	tool := `{"schema":"paperclip.tool.execution.v1","executionId":"e1","transport":"process","operation":"execute","name":"ls","target":"a/b","namespace":null,"readOnly":true,"inputUpdated":false,"status":"completed","durationMs":3,"exitCode":-1,"progress":null,"output":"x","outputBytes":1,"outputTruncated":false,"outputDigest":"sha256:` + digest64 + `","outputBody":` + bodyRef + `}`
	diff := `{"schema":"paperclip.workspace.diff.v1","changeSetId":"c","revision":1,"source":"runner_verified","complete":true,"files":[{"path":"a/b","operation":"rename","previousPath":"c","additions":1,"deletions":null,"binary":false,"diff":"x"}],"totals":{"files":1,"additions":1,"deletions":null},"patchArtifactRef":null}`
	call := func(phase, more string) string {
		return `{"x":1,"semantic_tool":{"schema":"paperclip.prp.semantic_tool.v1","schemaVersion":1,"phase":"` + phase + `","operationId":"op","callId":"call","correlation":{"runId":"run-1","normalizedSessionId":"session-1","turnId":"turn-1","itemId":"item-1"},"idempotencyKey":null,"input":{"a":1},"content":{"digest":"sha256:` + digest64 + `","redactionDisposition":"digest_only","references":[{"kind":"task","id":"t1"}]}` + more + `}}`
	}
	outcome := `,"outcome":"succeeded","code":"ok","retryable":false,"authorizationBoundary":"actor","operationReceiptId":"r1"`
	goal := `{"goal":{"objective":"x","status":"active","tokenBudget":null,"tokensUsed":1,"elapsedSeconds":1.5,"iterations":0,"lastReason":null,"createdAt":"2026-11-30T19:40:00.000Z","updatedAt":"2026-11-30T19:40:00.000Z","completedAt":null,"workingNow":true}}`
	return map[string]string{
		"plan.updated":                 `{"schema":"paperclip.plan.updated.v1","planId":"p","revision":1,"explanation":null,"steps":[{"stepId":"s1","body":"b","status":"in_progress"}],"complete":false,"syncStatus":"not_applicable","documentRevision":null}`,
		"tool.execution.started":       tool,
		"tool.execution.progressed":    tool,
		"tool.execution.completed":     tool,
		"research.started":             `{"schema":"paperclip.research.v1","researchId":"r","action":"search","status":"running","query":"q","url":"https://x","pattern":null,"sources":[{"sourceId":"s","title":"t","url":null,"snippet":null}]}`,
		"delegation.started":           `{"schema":"paperclip.delegation.v1","delegationId":"d","action":"spawn","status":"running","children":[{"childId":"c","role":null,"model":"m","status":"waiting","summary":null,"activitySummary":"x"}]}`,
		"model.route.changed":          `{"schema":"paperclip.model.route_changed.v1","routeId":"r","provider":"p","requestedModel":"a","fromModel":null,"effectiveModel":"b","reason":""}`,
		"model.verification.updated":   `{"schema":"paperclip.model.verification.v1","verificationId":"v","status":"running","classes":["a"],"buffering":false,"summary":null}`,
		"context.compacted":            `{"schema":"paperclip.context.compacted.v1","compactionId":"c","reason":"manual","preTokens":10,"postTokens":null,"sameSession":true}`,
		"artifact.viewed":              `{"schema":"paperclip.artifact.viewed.v1","artifactId":"a","reference":"x/y","mediaType":null,"title":null}`,
		"artifact.generated":           `{"schema":"paperclip.artifact.generated.v1","artifactId":"a","status":"completed","reference":null,"mediaType":"image/png","registered":true,"transparentBackground":null,"failure":null}`,
		"review.mode.changed":          `{"schema":"paperclip.review.mode_changed.v1","reviewId":"r","state":"entered","scope":null}`,
		"hook.started":                 `{"schema":"paperclip.hook.v1","hookId":"h","event":"e","scope":"s","status":"running","blocking":true,"durationMs":null,"summary":null}`,
		"memory.citation.referenced":   `{"schema":"paperclip.memory.citation.v1","citationId":"c","messageItemId":"m","label":"","available":true,"reference":null}`,
		"safety.review.started":        `{"schema":"paperclip.safety.review.v1","reviewId":"r","targetExecutionId":null,"status":"running","decision":"pending","summary":null}`,
		"terminal.input.sent":          `{"schema":"paperclip.terminal.input_sent.v1","executionId":"e","origin":"agent","inputClass":"eof","byteCount":0}`,
		"wait.started":                 `{"schema":"paperclip.wait.v1","waitId":"w","reason":"timer","status":"running","plannedDurationMs":1,"elapsedDurationMs":null}`,
		"provider.notice.recorded":     `{"schema":"paperclip.provider.notice.v1","noticeId":"n","severity":"info","category":"c","scope":"turn","recoverable":true,"userActionable":false,"summary":"s"}`,
		"workspace.change.updated":     diff,
		"workspace.diff.recorded":      diff,
		"workspace.file.referenced":    `{"schema":"paperclip.workspace.file_reference.v1","referenceId":"r","source":"harness_reported","path":"a","displayName":"a","mediaType":null,"presentation":"code","line":1,"preview":null,"previewTruncated":false,"contentDigest":null}`,
		"semantic_tool.input":          call("input", ""),
		"mcp_app.tool_input":           call("input", ""),
		"semantic_tool.result":         call("result", outcome),
		"mcp_app.tool_result":          call("result", outcome),
		"semantic_tool.reconciled":     call("reconciled", outcome),
		"run.terminal":                 `{"schema":"paperclip.prp.terminal.v1","turnTerminalState":"completed","runTerminalState":"succeeded","reportedWorkDisposition":"done","stopReason":{"schema":"paperclip.prp.stop_reason.v1","schemaVersion":1,"receiptId":"r","kind":"cost","code":"c","retryable":false,"decisionId":"d","limitClass":"run_cost","aggregate":{"unit":"cents","observed":1,"limit":2,"window":"run"}}}`,
		"run.result.proposed":          `{"schema":"paperclip.run_result.v1","reportedWorkDisposition":"done","summary":"s","completionClaim":{"contractRevision":"1","objectiveSatisfied":true,"criteria":[{"criterionId":"c","status":"satisfied","evidenceRefs":["e"]}],"remainingWork":[{"description":"d","blocksCompletion":false}]},"evidence":[{}],"verification":[{"commandOrCheck":"c","status":"not_run","reasonCode":"other"}],"attentionRequests":[],"artifacts":[{"kind":"k","ref":"r"}]}`,
		"output.body.chunk":            `{"schema":"paperclip.output.body.chunk.v1","body":` + bodyRef + `,"offset":"0","sha256":"` + digest64 + `","text":"x"}`,
		"session.goal.snapshot":        goal,
		"session.goal.updated":         `{"goal":null}`,
		"session.capabilities.updated": `{"sessionGoals":{}}`,
	}
}

func TestEveryEventTypeIsTaken(t *testing.T) {
	t.Parallel()
	n := 0
	for eventType := range eventTypes {
		payload := goodPayloads()[eventType]
		if family, _, found := strings.Cut(eventType, "."); payload == "" && found {
			payload = goodPayloads()[family+".started"] // the same for all of a family
		}
		if strings.HasPrefix(eventType, "safety.") {
			payload = goodPayloads()["safety.review.started"]
		}
		if payload == "" {
			payload = `{"anything":[1]}`
		}
		if err := ValidateEvent(testEvent(t, eventType, payload)); err != nil {
			t.Errorf("%s: %v", eventType, err)
		}
		n++
	}
	if n != 110 {
		t.Errorf("%d event types; prp.md 7.2 lists 106 of version 1 and 4 of version 2", n)
	}
}

func TestUnknownEventTypes(t *testing.T) {
	t.Parallel()
	for _, eventType := range []string{"", "provider.event", "runtime.input.requested", "turn.Started", "turn.started ", "session.goal", "item"} {
		if err := ValidateEvent(testEvent(t, eventType, `{}`)); wire.CodeOf(err) != wire.CodeProtocol {
			t.Errorf("%q: %v", eventType, err)
		}
	}
	for _, eventType := range []string{"runner.backpressure", "semantic_tool.reconciled"} {
		v := testEvent(t, eventType, `{}`).With("schema", canonjson.StringValue(EventSchemaV2)).With("schemaVersion", canonjson.IntValue(2))
		if err := ValidateEvent(v); err == nil {
			t.Errorf("%s is taken in version 2", eventType)
		}
	}
	v := testEvent(t, "session.goal.cleared", `{}`).With("schema", canonjson.StringValue(EventSchemaV1)).With("schemaVersion", canonjson.IntValue(1))
	if err := ValidateEvent(v); err == nil {
		t.Error("a goal event is taken in version 1")
	}
}

// edit applies a JSON value at a path ("a.b", "a.0"); "" removes.
func edit(t testing.TB, v canonjson.Value, path, with string) canonjson.Value {
	t.Helper()
	var doc any
	if err := json.Unmarshal(v.JSON(), &doc); err != nil {
		t.Fatal(err)
	}
	keys := strings.Split(path, ".")
	at := doc
	for _, key := range keys[:len(keys)-1] {
		switch x := at.(type) {
		case map[string]any:
			at = x[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil {
				t.Fatal(err)
			}
			at = x[i]
		default:
			t.Fatalf("no %s in %s", path, v.JSON())
		}
	}
	object, ok := at.(map[string]any)
	if !ok {
		t.Fatalf("no object at %s in %s", path, v.JSON())
	}
	last := keys[len(keys)-1]
	if with == "" {
		delete(object, last)
	} else {
		var value any
		if err := json.Unmarshal([]byte(with), &value); err != nil {
			t.Fatal(err)
		}
		object[last] = value
	}
	out, err := canonjson.FromGo(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func quoted(c string, n int) string { return `"` + strings.Repeat(c, n) + `"` }

func TestEventMembers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, with string
		ok         bool
	}{
		{"schema", "", false},
		{"schema", `"paperclip.prp.event.v3"`, false},
		{"schema", `1`, false},
		{"schema", `"paperclip.prp.event.v2"`, false},
		{"schemaVersion", "", false},
		{"schemaVersion", `2`, false},
		{"schemaVersion", `"1"`, false},
		{"schemaVersion", `1.0`, true},
		{"sourceEventId", "", false},
		{"sourceEventId", `""`, false},
		{"sourceEventId", quoted("a", 160), true},
		{"sourceEventId", quoted("a", 161), false},
		{"sourceEventId", quoted("🌀", 160), true},
		{"sourceEventId", quoted("🌀", 161), false},
		{"sourceEventId", `"any text ü"`, true},
		{"sourceEventId", `1`, false},
		{"sourceSeq", "", false},
		{"sourceSeq", `0`, false},
		{"sourceSeq", `-1`, false},
		{"sourceSeq", `1.5`, false},
		{"sourceSeq", `"1"`, false},
		{"sourceSeq", `9007199254740991`, true},
		{"sourceSeq", `9007199254740992`, false},
		{"sourceSeq", `null`, false},
		{"sourceInstanceId", "", false},
		{"sourceInstanceId", `""`, false},
		{"sourceInstanceId", quoted("a", 161), false},
		{"sourceKind", "", false},
		{"sourceKind", `"control_plane"`, true},
		{"sourceKind", `"host"`, false},
		{"runId", "", false},
		{"runId", quoted("a", 160), true},
		{"runId", quoted("a", 161), false},
		{"runId", `""`, false},
		{"normalizedSessionId", "", true},
		{"normalizedSessionId", quoted("a", 161), false},
		{"normalizedSessionId", `null`, false},
		{"normalizedSessionId", `""`, false},
		{"turnId", "", true},
		{"turnId", quoted("a", 240), true},
		{"turnId", quoted("a", 241), false},
		{"turnId", `""`, false},
		{"itemId", "", true},
		{"itemId", quoted("a", 240), true},
		{"itemId", quoted("a", 241), false},
		{"itemId", `1`, false},
		{"priority", "", false},
		{"priority", `0`, true},
		{"priority", `2`, true},
		{"priority", `3`, false},
		{"priority", `-1`, false},
		{"priority", `"1"`, false},
		{"priority", `0.5`, false},
		{"emittedAt", "", false},
		{"emittedAt", `"yesterday"`, false},
		{"emittedAt", `1`, false},
		{"emittedAt", `"2026-11-30T19:40:00Z"`, true},
		{"emittedAt", `"2026-11-30T19:40:00.123456+02:00"`, true},
		{"emittedAt", `"2026-11-30"`, false},
		{"emittedAt", `"2026-11-30T19:40:00"`, false},
		{"emittedAt", `""`, false},
		{"observedAt", `"2026-11-30T19:40:00.000Z"`, true},
		{"observedAt", `"x"`, false},
		{"observedAt", `null`, false},
		{"payload", "", false},
		{"payload", `null`, false},
		{"payload", `[]`, false},
		{"payload", `"x"`, false},
		{"debug", `{}`, true},
		{"debug", `null`, false},
		{"debug", `[]`, false},
		{"unknown", `{"a":1}`, true},
		{"eventType", `null`, false},
		{"eventType", "", false},
		{"payload.channel", `"final"`, true},
		{"payload.channel", `"loud"`, false},
		{"payload.channel", `null`, false},
		{"payload.providerPhase", `"x"`, true},
		{"payload.providerPhase", `1`, false},
		{"payload.providerMethod", `null`, false},
	} {
		err := ValidateEvent(edit(t, testEvent(t, "item.delta", `{"text":"x"}`), c.path, c.with))
		if c.ok != (err == nil) {
			t.Errorf("%s = %.60s: %v, want ok = %v", c.path, c.with, err, c.ok)
		}
		if err != nil && (wire.CodeOf(err) != wire.CodeProtocol || strings.Contains(err.Error(), "yesterday") || strings.Contains(err.Error(), "loud")) {
			t.Errorf("%s: error %v", c.path, err)
		}
	}
	for _, v := range []string{`[]`, `null`, `"x"`, `1`} {
		if err := ValidateEvent(parseText(t, v)); err == nil {
			t.Errorf("%s is taken as an event", v)
		}
	}
}

func parseText(t testing.TB, text string) canonjson.Value {
	t.Helper()
	v, err := canonjson.ParseText(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestV2EventMembers(t *testing.T) {
	t.Parallel()
	const uuid = `"0196dd8c-6efd-4a11-911f-bb587f4c2b80"`
	transition := `{"schema":"paperclip.prp.event-epoch.v1","runId":"r","transitionId":` + uuid + `,"fromEpoch":null,"nextEpoch":` + uuid + `,"finalOrdinal":1}`
	for _, c := range []struct {
		path, with string
		ok         bool
	}{
		{"turnId", quoted("a", 160), true},
		{"turnId", quoted("a", 161), false},
		{"itemId", quoted("a", 161), false},
		{"sourceEpoch", uuid, true},
		{"sourceEpoch", `"0196DD8C-6efd-4a11-911f-bb587f4c2b80"`, false},
		{"sourceEpoch", `"x"`, false},
		{"sourceEpochTransition", transition, true},
		{"sourceEpochTransition", `{}`, false},
		{"sourceEpochTransition", strings.Replace(transition, `{`, `{"x":1,`, 1), false},
		{"payload.goal", `null`, true},
		{"payload.goal", "", false},
		{"payload.goal", `1`, false},
		{"payload.goal.status", `"done"`, false},
		{"payload.goal.objective", "", false},
	} {
		err := ValidateEvent(edit(t, testEvent(t, "session.goal.snapshot", goodPayloads()["session.goal.snapshot"]), c.path, c.with))
		if c.ok != (err == nil) {
			t.Errorf("%s = %.80s: %v, want ok = %v", c.path, c.with, err, c.ok)
		}
	}
	// Version 2 does not close the payloads of version 1.
	v := testEvent(t, "plan.updated", `{}`).With("schema", canonjson.StringValue(EventSchemaV2)).With("schemaVersion", canonjson.IntValue(2))
	if err := ValidateEvent(v); err != nil {
		t.Errorf("an open payload in version 2: %v", err)
	}
}

// Removing any member that is required, adding one to a closed object and
// giving any member another type must each be noticed.
func TestPayloadSchemas(t *testing.T) {
	t.Parallel()
	optional := map[string]string{
		"plan.updated":         "explanation documentRevision",
		"tool.execution":       "name target namespace readOnly inputUpdated durationMs exitCode progress outputBody",
		"research.started":     "query url pattern",
		"artifact.generated":   "transparentBackground",
		"run.terminal":         "stopReason",
		"session.goal.updated": "",
	}
	openPayloads := "semantic_tool. mcp_app. run. session."
	for eventType, payload := range goodPayloads() {
		v := testEvent(t, eventType, payload)
		isOpen := false
		for prefix := range strings.FieldsSeq(openPayloads) {
			isOpen = isOpen || strings.HasPrefix(eventType, prefix)
		}
		if err := ValidateEvent(edit(t, v, "payload.somethingNew", `1`)); isOpen != (err == nil) {
			t.Errorf("%s with an unknown member: %v", eventType, err)
		}
		var names string
		for prefix, list := range optional {
			if strings.HasPrefix(eventType, prefix) {
				names = list
			}
		}
		for _, m := range v.Get("payload").Members() {
			mayMiss := m.Key == "x" || m.Key == "semantic_tool"
			for name := range strings.FieldsSeq(names) {
				mayMiss = mayMiss || name == m.Key
			}
			if err := ValidateEvent(edit(t, v, "payload."+m.Key, "")); mayMiss != (err == nil) {
				t.Errorf("%s without %s: %v", eventType, m.Key, err)
			}
			if m.Key == "x" {
				continue
			}
			if err := ValidateEvent(edit(t, v, "payload."+m.Key, `{"not":["this"]}`)); err == nil && m.Key != "sessionGoals" {
				t.Errorf("%s with an object as %s is taken", eventType, m.Key)
			}
		}
	}
}

func TestPayloadDetails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		eventType, path, with string
		ok                    bool
	}{
		{"plan.updated", "payload.planId", `"-x"`, false},
		{"plan.updated", "payload.planId", quoted("a", 160), true},
		{"plan.updated", "payload.planId", quoted("a", 161), false},
		{"plan.updated", "payload.revision", `0`, false},
		{"plan.updated", "payload.revision", `1.5`, false},
		{"plan.updated", "payload.steps.0.status", `"done"`, false},
		{"plan.updated", "payload.steps.0.extra", `1`, false},
		{"plan.updated", "payload.steps.0.body", "", false},
		{"plan.updated", "payload.steps.0.body", quoted("🌀", 4000), true},
		{"plan.updated", "payload.steps.0.body", quoted("🌀", 4001), false},
		{"plan.updated", "payload.steps", manyOf(`{"stepId":"s","body":"","status":"pending"}`, 256), true},
		{"plan.updated", "payload.steps", manyOf(`{"stepId":"s","body":"","status":"pending"}`, 257), false},
		{"plan.updated", "payload.documentRevision", `0`, false},
		{"plan.updated", "payload.documentRevision", `1`, true},
		{"plan.updated", "payload.channel", `"final"`, false},
		{"tool.execution.started", "payload.target", `"/etc/passwd"`, false},
		{"tool.execution.started", "payload.target", `"a/../b"`, false},
		{"tool.execution.started", "payload.target", `".."`, false},
		{"tool.execution.started", "payload.target", `"a/..b/c..d"`, true},
		{"tool.execution.started", "payload.target", `""`, true},
		{"tool.execution.started", "payload.target", `"a\nb"`, false},
		{"tool.execution.started", "payload.target", `null`, true},
		{"tool.execution.started", "payload.output", quoted("é", 65536), true},
		{"tool.execution.started", "payload.output", quoted("é", 65537), false},
		{"tool.execution.started", "payload.outputDigest", `"sha256:ABC"`, false},
		{"tool.execution.started", "payload.outputDigest", `"` + digest64 + `"`, false},
		{"tool.execution.started", "payload.outputDigest", `null`, true},
		{"tool.execution.started", "payload.outputBytes", `-1`, false},
		{"tool.execution.started", "payload.outputBody.byteLength", `"0"`, false},
		{"tool.execution.started", "payload.outputBody.byteLength", `12`, false},
		{"tool.execution.started", "payload.outputBody.byteLength", `"12345678"`, false},
		{"tool.execution.started", "payload.outputBody.extra", `1`, false},
		{"research.started", "payload.url", `"ftp://x"`, false},
		{"research.started", "payload.url", `null`, true},
		{"research.started", "payload.sources.0.url", `"x"`, false},
		{"workspace.change.updated", "payload.complete", `false`, true},
		{"workspace.diff.recorded", "payload.complete", `false`, false},
		{"workspace.diff.recorded", "payload.files.0.path", `"/a"`, false},
		{"workspace.diff.recorded", "payload.files.0.path", `""`, false},
		{"workspace.diff.recorded", "payload.files.0.diff", quoted("d", 262144), true},
		{"workspace.diff.recorded", "payload.files.0.diff", quoted("d", 262145), false},
		{"workspace.diff.recorded", "payload.files.0.extra", `1`, false},
		{"workspace.diff.recorded", "payload.totals.files", `-1`, false},
		{"workspace.file.referenced", "payload.line", `0`, false},
		{"workspace.file.referenced", "payload.contentDigest", `"sha256:` + digest64 + `"`, true},
		{"semantic_tool.input", "payload.semantic_tool", "", true},
		{"semantic_tool.input", "payload.semantic_tool.phase", `"result"`, false},
		{"semantic_tool.input", "payload.semantic_tool.idempotencyKey", "", false},
		{"semantic_tool.input", "payload.semantic_tool.idempotencyKey", `""`, false},
		{"semantic_tool.input", "payload.semantic_tool.idempotencyKey", quoted("k", 240), true},
		{"semantic_tool.input", "payload.semantic_tool.idempotencyKey", quoted("k", 241), false},
		{"semantic_tool.input", "payload.semantic_tool.callId", `"a b"`, false},
		{"semantic_tool.input", "payload.semantic_tool.callId", quoted("a", 240), true},
		{"semantic_tool.input", "payload.semantic_tool.callId", quoted("a", 241), false},
		{"semantic_tool.input", "payload.semantic_tool.input", "", true},
		{"semantic_tool.input", "payload.semantic_tool.correlation.turnId", "", false},
		{"semantic_tool.input", "payload.semantic_tool.correlation.more", `1`, true},
		{"semantic_tool.input", "payload.semantic_tool.correlation.requestId", `"r"`, true},
		{"semantic_tool.input", "payload.semantic_tool.correlation.requestId", `""`, false},
		{"semantic_tool.input", "payload.semantic_tool.content.digest", `"sha256:xyz"`, false},
		{"semantic_tool.input", "payload.semantic_tool.content.references", "", false},
		{"semantic_tool.input", "payload.semantic_tool.content.references", `[{"kind":"task","id":"a"},{"id":"a","kind":"task"}]`, false},
		{"semantic_tool.input", "payload.semantic_tool.content.references", `[{"kind":"task","id":"a"},{"id":"b","kind":"task"}]`, true},
		{"semantic_tool.input", "payload.semantic_tool.content.references", `[{"kind":"file","id":"a"}]`, false},
		{"semantic_tool.input", "payload.semantic_tool.outcome", `"maybe"`, false},
		{"semantic_tool.input", "payload.semantic_tool.schemaVersion", `2`, false},
		{"semantic_tool.result", "payload.semantic_tool.outcome", "", false},
		{"semantic_tool.result", "payload.semantic_tool.operationReceiptId", "", false},
		{"semantic_tool.result", "payload.semantic_tool.code", `"Bad"`, false},
		{"semantic_tool.reconciled", "payload.semantic_tool.phase", `"result"`, false},
		{"run.result.proposed", "payload.summary", `""`, false},
		{"run.result.proposed", "payload.summary", quoted("s", 12000), true},
		{"run.result.proposed", "payload.summary", quoted("s", 12001), false},
		{"run.result.proposed", "payload.reportedWorkDisposition", `"blocked"`, false},
		{"run.result.proposed", "payload.reportedWorkDisposition", `"yielded"`, false},
		{"run.result.proposed", "payload.reportedWorkDisposition", `"needs_review"`, true},
		{"run.result.proposed", "payload.verification.0.status", `"ok"`, false},
		{"run.result.proposed", "payload.verification.0.reasonCode", `"because"`, false},
		{"run.result.proposed", "payload.continuation", `{"kind":"retry","summary":"s","idempotencyKey":"k"}`, true},
		{"run.result.proposed", "payload.continuation", `{"kind":"later","summary":"s","idempotencyKey":"k"}`, false},
		{"run.result.proposed", "payload.completionClaim.criteria.0.evidenceRefs", `[1]`, false},
		{"run.result.proposed", "payload.artifacts.0.ref", "", false},
		{"run.terminal", "payload.runTerminalState", `"completed"`, false},
		{"run.terminal", "payload.stopReason", `{}`, false},
		{"run.terminal", "payload.stopReason", "", true},
		{"output.body.chunk", "payload.text", `""`, false},
		{"output.body.chunk", "payload.text", quoted("t", 32767), false},
		{"output.body.chunk", "payload.offset", `"00"`, false},
	} {
		v := testEvent(t, c.eventType, goodPayloads()[c.eventType])
		err := ValidateEvent(edit(t, v, c.path, c.with))
		if c.ok != (err == nil) {
			t.Errorf("%s: %s = %.80s: %v, want ok = %v", c.eventType, c.path, c.with, err, c.ok)
		}
	}
	blocked := edit(t, testEvent(t, "run.result.proposed", goodPayloads()["run.result.proposed"]), "payload.reportedWorkDisposition", `"blocked"`)
	blocked = edit(t, blocked, "payload.blocker", `{"reasonCode":"r","owner":{},"unblockAction":"u","scope":"task_wide"}`)
	if err := ValidateEvent(blocked); err != nil {
		t.Errorf("blocked with a blocker: %v", err)
	}
}

func manyOf(item string, n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
}

func TestDateTime(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"2026-11-30T19:40:00Z": true, "2026-11-30t19:40:00z": true, "2026-11-30T19:40:00.1Z": true, "2026-11-30T23:59:60Z": true,
		"2026-11-30T19:40:00+01:00": true, "2026-11-30T19:40:00-0100": true, "2026-11-30T19:40:00+01": true,
		"2026-11-30T19:40:00.Z": false, "2026-11-30T19:40:00": false, "2026-11-30 19:40:00Z": false, "2026-13-30T19:40:00Z": false, "2026-00-30T19:40:00Z": false,
		"2026-11-32T19:40:00Z": false, "2026-11-30T24:40:00Z": false, "2026-11-30T19:60:00Z": false, "2026-11-30T19:40:60Z": false, "26-11-30T19:40:00Z": false,
		"2026-11-30T19:40Z": false, "2026-11-30T19:40:00+1": false, "2026-11-30T19:40:00+01:": false, "2026-11-30T19:40:00+0:100": false, "2026-11-30T19:40:00ZZ": false,
		"2026-11-30T19:40:00+01:00Z": false, "2026-11-30T1a:40:00Z": false, "": false, "2026-11-30T19:40:00\n": false,
	} {
		if isDateTime(s) != want {
			t.Errorf("%q: %v, want %v", s, !want, want)
		}
	}
}

func TestEventReading(t *testing.T) {
	t.Parallel()
	v := testEvent(t, "turn.started", `{"providerTurnId":"p","x":{"unknown":[1]}}`).With("future", canonjson.StringValue("kept"))
	e, err := EventOf(v)
	if err != nil {
		t.Fatal(err)
	}
	if e.SourceSeq != 1 || e.Type != "turn.started" || e.Priority != 1 || e.SchemaVersion != 1 || e.SourceEventID != "event_runner-1_0000000000000001" ||
		e.Payload.Get("providerTurnId").Str() != "p" || e.EmittedAt != "2026-11-30T19:40:00.000Z" {
		t.Errorf("%+v", e)
	}
	if string(e.Whole.JSON()) != string(v.JSON()) || e.Whole.Get("future").Str() != "kept" {
		t.Error("the whole event is not kept")
	}
	if err := e.CheckIdentity(testIdentity()); err != nil {
		t.Error(err)
	}
	for i, m := range func() [6]identityMember { id := testIdentity(); return id.members() }() {
		id := testIdentity()
		*id.members()[i].value += "x"
		if err := e.CheckIdentity(id); (err == nil) != (m.name == "environmentLeaseId") {
			t.Errorf("%s changed: %v", m.name, err)
		}
	}
	if g, err := EventOf(testEvent(t, "session.goal.cleared", `{}`)); err != nil || g.SchemaVersion != 2 {
		t.Errorf("goal event: %+v, %v", g.SchemaVersion, err)
	}
}

func TestSemanticInput(t *testing.T) {
	t.Parallel()
	id := testIdentity()
	v := testEvent(t, "semantic_tool.input", goodPayloads()["semantic_tool.input"])
	read := func(v canonjson.Value) (SemanticInput, error) {
		e, err := EventOf(v)
		if err != nil {
			t.Fatal(err)
		}
		return SemanticInputOf(e, id)
	}
	in, err := read(v)
	if err != nil || in.CallID != "call" || in.OperationID != "op" || in.Input.Get("a").Kind() != canonjson.Number || in.DigestMatches() {
		t.Fatalf("%+v, %v", in, err)
	}
	good := edit(t, v, "payload.semantic_tool.content.digest", `"`+SemanticDigest(in.Input)+`"`)
	if in, err = read(good); err != nil || !in.DigestMatches() {
		t.Errorf("digest does not match: %v", err)
	}
	null := edit(t, v, "payload.semantic_tool.input", `null`)
	if in, err = read(null); err != nil || !in.Input.IsNull() {
		t.Errorf("a null input: %v", err)
	}
	for path, with := range map[string]string{
		"payload.semantic_tool": "", "payload.semantic_tool.input": "", "payload.semantic_tool.correlation.runId": `"other"`,
		"payload.semantic_tool.correlation.itemId": `"other"`,
	} {
		if _, err := read(edit(t, v, path, with)); wire.CodeOf(err) != wire.CodeProtocol {
			t.Errorf("%s = %s: %v", path, with, err)
		}
	}
	if in, err = read(edit(t, v, "payload.semantic_tool.correlation.requestId", `"r"`)); err != nil || in.Correlation.Len() != 5 {
		t.Errorf("with a request id: %v", err)
	}
}

func TestBridge(t *testing.T) {
	t.Parallel()
	plain := testEvent(t, "turn.started", `{}`)
	if got := BridgeToV1(plain); string(got.JSON()) != string(plain.JSON()) {
		t.Error("an event of version 1 is changed")
	}
	goal := testEvent(t, "session.goal.updated", `{"goal":null}`)
	before := string(goal.JSON())
	got := BridgeToV1(goal)
	if err := ValidateEvent(got); err != nil {
		t.Fatal(err)
	}
	if string(goal.JSON()) != before {
		t.Error("the original is changed")
	}
	if got.Get("eventType").Str() != "runner.diagnostic" || got.Get("sourceSeq").Kind() != canonjson.Number ||
		string(got.Get("payload").JSON()) != `{"reasonCode":"event_requires_prp_v2","originalEventType":"session.goal.updated"}` {
		t.Errorf("placeholder %s", got.JSON())
	}
	for eventType, family := range map[string]string{
		"session.capabilities.updated": "session.capabilities", "session.goal.cleared": "session.goal", "session.updated": "",
	} {
		if V2Family(eventType) != family {
			t.Errorf("family of %s is %q", eventType, V2Family(eventType))
		}
	}
}

func TestExecutorEventID(t *testing.T) {
	t.Parallel()
	id := ExecutorEventID("runner-1", "e1")
	if !strings.HasPrefix(id, "event_executor_") || len(id) != len("event_executor_")+64 || id == ExecutorEventID("runner-1e", "1") {
		t.Errorf("id %q", id)
	}
}

func FuzzValidateEvent(f *testing.F) {
	for eventType, payload := range goodPayloads() {
		f.Add(testEvent(f, eventType, payload).JSON())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := canonjson.Parse(b)
		if err != nil {
			return
		}
		e, err := EventOf(v)
		if err != nil {
			if wire.CodeOf(err) != wire.CodeProtocol {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if e.SourceSeq < 1 || e.SourceEventID == "" || !e.Payload.IsObject() || e.Priority < 0 || e.Priority > 2 {
			t.Fatalf("a valid event reads as %+v", e)
		}
	})
}

func BenchmarkReadEvent(b *testing.B) {
	event := testEvent(b, "item.delta", `{"itemId":"i","kind":"agentMessage","channel":"progress","text":"`+strings.Repeat("x", 512)+`"}`)
	text := AppendRunnerMessage(nil, 2, KindEvent, testIdentity(), event.JSON())
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		e, err := ParseEnvelope(text)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := EventOf(e.Payload); err != nil {
			b.Fatal(err)
		}
	}
}
