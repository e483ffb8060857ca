package authority

import (
	"fmt"
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// payloadCase is one event payload and whether the event schema takes it.
type payloadCase struct {
	name    string
	kind    string
	ok      bool
	payload peer.M
}

// schemaCases: event types (7.2) and payload schemas (7.3).
func schemaCases(target Target) []suite.Case {
	var out []suite.Case
	add := func(name string, list []payloadCase) {
		out = append(out, with(target, "schema/"+name, "7.3", func(e *env) {
			r := e.join()
			seq := int64(1)
			for _, c := range list {
				e.send(r, r.EventEnvelope(r.NewEvent(seq, c.kind, c.payload)))
				if c.ok {
					m, err := r.Next(peer.IOTimeout)
					e.OK(err, "%s: valid payload must be acknowledged", c.name)
					e.Check(peer.Int(m, "payload", "ackedSourceSeq") == seq, "%s: got %s", c.name, peer.Write(m))
					seq++
					continue
				}
				e.OK(r.ExpectClose(closeWait, nil), "%s: invalid payload must close", c.name)
				r = e.again(r)
			}
			e.noFault()
			e.alive(r, seq)
		}))
	}
	var open []payloadCase
	for _, kind := range []string{
		"runner.connected", "runner.reconnected", "runner.reconciled", "runner.disconnected", "runner.draining", "runner.backpressure",
		"runner.suspending", "runner.suspended", "runner.stopped", "runner.diagnostic", "runtime.phase.changed", "sandbox.metric",
		"harness.starting", "harness.ready", "harness.exited", "harness.diagnostic", "session.starting", "session.started",
		"session.resuming", "session.resumed", "session.reconciled", "session.updated", "session.closed", "session.failed",
		"turn.submitted", "turn.accepted", "turn.started", "turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled",
		"item.started", "item.delta", "item.completed", "item.failed", "usage.reported", "run.attached", "run.detached",
	} {
		open = append(open,
			payloadCase{kind, kind, true, peer.M{"anything": peer.M{"x": 1}, "channel": "unknown"}},
			payloadCase{kind + " with a wrong channel", kind, false, peer.M{"channel": "everything"}})
	}
	add("open_payloads_1", open[:24])
	add("open_payloads_2", open[24:48])
	add("open_payloads_3", open[48:])
	var rest []payloadCase
	for _, kind := range []string{
		"workspace.ready", "mcp_app.discovered", "mcp_app.resource.resolved", "mcp_app.initializing", "mcp_app.ready", "mcp_app.tool_result",
		"mcp_app.action.requested", "mcp_app.action.resolved", "mcp_app.host_context.changed", "mcp_app.failed", "mcp_app.teardown",
		"interaction.request.materialized", "interaction.request.rejected", "interaction.response.progressed", "interaction.response.resolved",
		"interaction.response.delivered", "run.result.accepted", "run.result.rejected", "attention.request.proposed", "attention.request.routed",
		"attention.request.resolved", "attention.request.expired", "attention.request.superseded", "work.assessment.recorded",
		"issue.status.decision.recorded", "issue.status.decision.applied", "issue.status.decision.rejected", "issue.status.decision.superseded",
		"semantic_tool.result", "semantic_tool.reconciled",
	} {
		rest = append(rest, payloadCase{kind, kind, true, peer.M{"anything": 1}})
	}
	add("open_payloads_4", rest)
	add("open_payloads_on_the_wire", []payloadCase{
		{"session.started", "session.started", true, peer.M{"threadId": "t", "sessionId": "s", "runtimeIdentity": peer.M{"processId": 12, "executionKind": "local"}}},
		{"turn.started", "turn.started", true, peer.M{"providerTurnId": "p"}},
		{"item.delta", "item.delta", true, peer.M{"itemId": "i", "kind": "agentMessage", "channel": "progress", "text": "x"}},
		{"turn.completed", "turn.completed", true, peer.M{"providerTurnId": "p", "status": "completed"}},
		{"usage with extra members", "usage.reported", true, peer.M{"provider": "x", "extra": peer.M{}, "cumulative": 3}},
		{"runner.reconciled", "runner.reconciled", true, peer.M{"outcome": "same_durable_session_resumed"}},
		{"v2 placeholder", "runner.diagnostic", true, peer.M{"reasonCode": "event_requires_prp_v2", "originalEventType": "session.goal.updated"}},
	})

	edit := func(name, kind string, base peer.M, edits map[string]func(p peer.M)) []payloadCase {
		list := []payloadCase{{name + " valid", kind, true, base}}
		for what, f := range edits {
			p := peer.CloneM(base)
			f(p)
			list = append(list, payloadCase{name + " " + what, kind, false, p})
		}
		return append(list, payloadCase{name + " valid again", kind, true, base})
	}
	set := func(n string, v any) func(peer.M) { return func(p peer.M) { p[n] = v } }
	del := func(n string) func(peer.M) { return func(p peer.M) { delete(p, n) } }

	plan := peer.M{
		"schema": "paperclip.plan.updated.v1", "planId": "plan-1", "revision": 1, "complete": false, "syncStatus": "streaming",
		"steps": peer.A{peer.M{"stepId": "s1", "body": "do it", "status": "in_progress"}},
	}
	step := func(change func(s peer.M)) func(peer.M) {
		return func(p peer.M) {
			s, ok := peer.List(p, "steps")[0].(peer.M)
			if !ok {
				panic("bug: plan without step")
			}
			change(s)
		}
	}
	steps := func(n int) peer.A {
		var a peer.A
		for i := range n {
			a = append(a, peer.M{"stepId": fmt.Sprintf("s%d", i), "body": "b", "status": "pending"})
		}
		return a
	}
	add("plan_updated", append(edit("plan", "plan.updated", plan, map[string]func(peer.M){
		"without schema": del("schema"), "other schema": set("schema", "paperclip.plan.updated.v2"), "without planId": del("planId"),
		"unknown member": set("more", 1), "revision 0": set("revision", 0), "revision fraction": set("revision", peer.Raw("1.5")),
		"without steps": del("steps"), "257 steps": set("steps", steps(257)), "step status": step(set("status", "done")),
		"step without body": step(del("body")), "step unknown member": step(set("more", 1)), "complete text": set("complete", "yes"),
		"syncStatus": set("syncStatus", "late"), "without syncStatus": del("syncStatus"), "planId of 161": set("planId", strings.Repeat("p", 161)),
	}), payloadCase{"256 steps", "plan.updated", true, peer.Merge(plan, peer.M{"steps": steps(256)})}))

	tool := peer.M{
		"schema": "paperclip.tool.execution.v1", "executionId": "x-1", "transport": "process", "operation": "execute",
		"status": "running", "output": nil, "outputBytes": 0, "outputTruncated": false, "outputDigest": nil,
	}
	add("tool_execution", append(edit("tool", "tool.execution.started", tool, map[string]func(peer.M){
		"without executionId": del("executionId"), "transport": set("transport", "pipe"), "operation": set("operation", "run"),
		"status": set("status", "done"), "output of 65537": set("output", strings.Repeat("o", 65_537)), "outputBytes negative": set("outputBytes", -1),
		"outputTruncated text": set("outputTruncated", "no"), "outputDigest text": set("outputDigest", "abc"), "unknown member": set("more", 1),
		"schema": set("schema", "x"), "without output": del("output"), "without outputDigest": del("outputDigest"),
	}), payloadCase{"output of 65536", "tool.execution.completed", true, peer.Merge(tool, peer.M{
		"status": "completed", "output": strings.Repeat("o", 65_536), "outputBytes": 65_536, "exitCode": 0, "durationMs": 3,
		"outputDigest": "sha256:" + strings.Repeat("a", 64),
	})}))

	result := peer.M{
		"schema": "paperclip.run_result.v1", "reportedWorkDisposition": "done", "summary": "s",
		"completionClaim": peer.M{
			"contractRevision": "1", "objectiveSatisfied": true, "remainingWork": peer.A{},
			"criteria": peer.A{peer.M{"criterionId": "c", "status": "satisfied", "evidenceRefs": peer.A{}}},
		},
		"evidence": peer.A{}, "verification": peer.A{}, "attentionRequests": peer.A{}, "artifacts": peer.A{},
	}
	add("run_result_proposed", edit("result", "run.result.proposed", result, map[string]func(peer.M){
		"disposition": set("reportedWorkDisposition", "finished"), "empty summary": set("summary", ""),
		"summary of 12001": set("summary", strings.Repeat("s", 12_001)), "without claim": del("completionClaim"),
		"blocked without blocker":      set("reportedWorkDisposition", "blocked"),
		"yielded without continuation": set("reportedWorkDisposition", "yielded"), "other schema": set("schema", "x"),
		"verification status": set("verification", peer.A{peer.M{"commandOrCheck": "x", "status": "ok"}}), "evidence object": set("evidence", peer.M{}),
	}))
	terminal := peer.M{
		"schema": "paperclip.prp.terminal.v1", "turnTerminalState": "completed", "runTerminalState": "succeeded", "reportedWorkDisposition": "done",
	}
	add("run_terminal", edit("terminal", "run.terminal", terminal, map[string]func(peer.M){
		"turn state": set("turnTerminalState", "succeeded"), "run state": set("runTerminalState", "completed"), "without run state": del("runTerminalState"),
		"disposition": set("reportedWorkDisposition", "x"), "other schema": set("schema", "x"),
	}))
	for _, kind := range []string{
		"research.started", "delegation.started", "model.route.changed", "model.verification.updated", "context.compacted",
		"artifact.viewed", "artifact.generated", "review.mode.changed", "hook.started", "memory.citation.referenced",
		"safety.review.started", "terminal.input.sent", "wait.started", "provider.notice.recorded", "workspace.change.updated",
		"workspace.diff.recorded", "workspace.file.referenced", "output.body.chunk", "run.result.proposed", "run.terminal",
	} {
		add("closed_"+kind, []payloadCase{
			{"empty payload", kind, false, peer.M{}},
			{"foreign schema", kind, false, peer.M{"schema": "paperclip.something.v1"}},
		})
	}
	chunk := peer.M{
		"schema": "paperclip.output.body.chunk.v1", "offset": "0", "sha256": strings.Repeat("a", 64), "text": "x",
		"body": peer.M{
			"schema": "paperclip.output.body.v1", "bodyId": "b", "sha256": strings.Repeat("a", 64), "byteLength": "1",
			"mediaType": "text/plain; charset=utf-8",
		},
	}
	add("output_body_chunk_refused", []payloadCase{
		{"empty text", "output.body.chunk", false, peer.Merge(chunk, peer.M{"text": ""})},
		{"text of 32767", "output.body.chunk", false, peer.Merge(chunk, peer.M{"text": strings.Repeat("x", 32_767)})},
		{"offset number", "output.body.chunk", false, peer.Merge(chunk, peer.M{"offset": 0})},
		{"without body", "output.body.chunk", false, peer.M{"schema": "paperclip.output.body.chunk.v1", "offset": "0", "sha256": strings.Repeat("a", 64), "text": "x"}},
	})

	call := func(phase string, more peer.M) peer.M {
		return peer.M{"semantic_tool": peer.Merge(peer.M{
			"schema": "paperclip.prp.semantic_tool.v1", "schemaVersion": 1, "phase": phase, "operationId": "op", "callId": "call",
			"correlation": peer.M{"runId": "r", "normalizedSessionId": "s", "turnId": "t", "itemId": "i"}, "idempotencyKey": nil,
			"content": peer.M{"digest": "sha256:" + strings.Repeat("a", 64), "redactionDisposition": "digest_only", "references": peer.A{}},
		}, more)}
	}
	done := peer.M{"outcome": "succeeded", "code": "ok", "retryable": false, "authorizationBoundary": "run", "operationReceiptId": "receipt-1"}
	done["authorizationBoundary"] = "company"
	without := func(n string) peer.M {
		m := peer.Merge(done)
		delete(m, n)
		return m
	}
	add("semantic_tool_result", []payloadCase{
		{"valid", "semantic_tool.result", true, call("result", done)},
		{"open object", "semantic_tool.result", true, call("result", peer.Merge(done, peer.M{"more": 1}))},
		{"without the block", "semantic_tool.result", true, peer.M{"other": 1}},
		{"reconciled", "semantic_tool.reconciled", true, call("reconciled", done)},
		{"without outcome", "semantic_tool.result", false, call("result", without("outcome"))},
		{"reconciled without outcome", "semantic_tool.reconciled", false, call("reconciled", without("outcome"))},
		{"without code", "semantic_tool.result", false, call("result", without("code"))},
		{"without retryable", "semantic_tool.result", false, call("result", without("retryable"))},
		{"without boundary", "semantic_tool.result", false, call("result", without("authorizationBoundary"))},
		{"unknown outcome", "semantic_tool.result", false, call("result", peer.Merge(done, peer.M{"outcome": "fine"}))},
		{"unknown boundary", "semantic_tool.result", false, call("result", peer.Merge(done, peer.M{"authorizationBoundary": "run"}))},
		{"phase of another type", "semantic_tool.result", false, call("input", done)},
		{"phase unknown", "semantic_tool.result", false, call("done", done)},
	})
	out = append(out, with(target, "schema/goal_v2", "7.3", func(e *env) {
		goal := peer.M{
			"objective": "o", "status": "active", "tokenBudget": 5, "tokensUsed": 1, "elapsedSeconds": 2, "iterations": 1,
			"lastReason": nil, "createdAt": nil, "updatedAt": nil, "completedAt": nil, "workingNow": true,
		}
		r := e.join()
		for _, p := range []peer.M{
			{"goal": peer.Merge(goal, peer.M{"status": "sleeping"})},
			{"goal": peer.Merge(goal, peer.M{"tokensUsed": "many"})},
			{"goal": "none"},
			{},
		} {
			ev := r.NewEvent(1, "session.goal.updated", p)
			ev["schema"], ev["schemaVersion"] = "paperclip.prp.event.v2", 2
			e.send(r, r.EventEnvelope(ev))
			e.OK(r.ExpectClose(closeWait, nil), "goal payload %s must close", peer.Write(p))
			r = e.again(r)
		}
		e.noFault()
	}))
	return out
}
