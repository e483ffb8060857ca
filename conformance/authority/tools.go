package authority

import (
	"fmt"
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// toolAnswer expects the acknowledgement of an input and the command with its
// result, in either order, and returns the command.
func (e *env) toolAnswer(r *peer.Runner, acked int64, callID string) peer.M {
	var cmd peer.M
	ack := false
	for range 2 {
		m, err := r.Next(peer.IOTimeout)
		e.OK(err, "waiting for ack and semantic_tool.result (ack seen %v, command seen %v)", ack, cmd != nil)
		switch {
		case m["kind"] == "ack" && !ack:
			ack = true
			e.Check(peer.Int(m, "payload", "ackedSourceSeq") == acked, "ack %v", peer.Get(m, "payload", "ackedSourceSeq"))
		case m["kind"] == "command" && cmd == nil:
			cmd = peer.Obj(m, "payload")
		default:
			e.Fatalf("unexpected %s", peer.Write(m))
		}
	}
	e.Check(peer.Str(cmd, "commandId") == peer.ToolCommandID(e.id.RunID, callID), "command id %v", cmd["commandId"])
	return cmd
}

// toolCases: semantic dispatch (5.6, 6.4, 8.7, 8.10, 10.9) and digests (7.4).
func toolCases(target Target) []suite.Case {
	badInput := func(name string, change func(b peer.M)) suite.Case {
		return with(target, "tool/input_"+name, "10.2 step 5", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", peer.M{})
			change(block(ev))
			e.send(r, r.EventEnvelope(ev))
			e.closed(r.Sock, name)
			e.noFault()
			e.Check(peer.Int(e.state(), "tools") == 0, "it was dispatched")
		})
	}
	set := func(n string, v any) func(peer.M) { return func(b peer.M) { b[n] = v } }
	del := func(n string) func(peer.M) { return func(b peer.M) { delete(b, n) } }
	content := func(n string, v any) func(peer.M) { return func(b peer.M) { peer.Obj(b, "content")[n] = v } }
	settle := func(name string, want bool, result func(r *peer.Runner, c peer.M) peer.M) suite.Case {
		return with(target, "tool/settled_"+name, "8.10", func(e *env) {
			r := e.join()
			e.Check(e.state()["settled"] == true, "settled at first")
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{"a": 1})))
			c := e.toolAnswer(r, 1, "call-1")
			e.Check(e.state()["settled"] == false, "settled before the result is delivered")
			m := result(r, c)
			e.send(r, m)
			s := e.until("the status", func(s peer.M) bool { return command(s, peer.Str(c, "commandId"))["status"] != "pending" })
			e.Check(s["settled"] == want, "settled is %v", s["settled"])
			e.restart(peer.M{})
			e.Check(e.state()["settled"] == want, "settled after a restart is %v", e.state()["settled"])
		})
	}
	delivered := func(r *peer.Runner, c peer.M) peer.M {
		return r.ResultEnvelope(c, "completed", peer.M{"status": "delivered", "callId": "call-1"})
	}
	out := []suite.Case{
		with(target, "tool/ok", "6.4", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", peer.M{"b": peer.A{1, nil}, "a": "x"})
			e.send(r, r.EventEnvelope(ev))
			c := e.toolAnswer(r, 1, "call-1")
			want := peer.M{
				"callId": "call-1", "operationId": "get_task_context", "input": block(ev)["input"], "sourceEventId": ev["sourceEventId"],
				"sourceEventType": "semantic_tool.input", "correlation": block(ev)["correlation"], "result": peer.M{"ok": true}, "isError": false,
			}
			e.Check(peer.Equal(c["payload"], want), "payload %s, expected %s", peer.Write(c["payload"]), peer.Write(want))
			e.Check(c["type"] == "semantic_tool.result" && peer.Int(c, "controllerSeq") == 1, "command %s", peer.Write(c))
			e.Check(peer.Int(e.state(), "tools") == 1, "tools %v", e.state()["tools"])
		}),
		with(target, "tool/ok_on_v1", "6.4", func(e *env) {
			r := e.joinV1()
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{})))
			e.toolAnswer(r, 1, "call-1")
		}),
		with(target, "tool/mcp_app_input", "10.2 step 5", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", peer.M{"a": 1})
			ev["eventType"] = "mcp_app.tool_input"
			e.send(r, r.EventEnvelope(ev))
			c := e.toolAnswer(r, 1, "call-1")
			e.Check(peer.Str(c, "payload", "sourceEventType") == "mcp_app.tool_input", "payload %s", peer.Write(c["payload"]))
			e.send(r, delivered(r, c))
			e.until("settled", func(s peer.M) bool { return s["settled"] == true })
		}),
		with(target, "tool/throw", "10.9", func(e *env) {
			r := e.join()
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{})))
			c := e.toolAnswer(r, 1, "call-1")
			e.Check(peer.Equal(peer.Get(c, "payload", "result"), peer.M{"code": "semantic_tool_bridge_failed"}) && peer.Get(c, "payload", "isError") == true,
				"payload %s", peer.Write(c["payload"]))
			e.send(r, delivered(r, c))
			e.until("settled", func(s peer.M) bool { return s["settled"] == true })
		}, peer.M{"tool": "throw"}),
		with(target, "tool/hold", "8.10", func(e *env) {
			r := e.join()
			ev := r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{}))
			e.send(r, ev)
			e.ack(r, 1)
			e.until("the dispatch", func(s peer.M) bool { return peer.Int(s, "tools") == 1 })
			e.send(r, ev) // while it runs: acknowledged, not dispatched again
			e.ack(r, 1)
			e.alive(r, 2) // a held handler holds nothing else
			s := e.state()
			e.Check(peer.Int(s, "tools") == 1 && s["settled"] == false && len(peer.List(s, "commands")) == 0, "state %.400s", peer.Write(s))
			e.Check(peer.Int(peer.List(s, "events")[0], "deliveryCount") == 2, "events %s", peer.Write(s["events"]))
		}, peer.M{"tool": "hold"}),
		with(target, "tool/redelivery_after_the_result", "5.6", func(e *env) {
			r := e.join()
			ev := r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{}))
			e.send(r, ev)
			c := e.toolAnswer(r, 1, "call-1")
			e.send(r, ev)
			e.ack(r, 1)
			e.send(r, delivered(r, c))
			e.until("settled", func(s peer.M) bool { return s["settled"] == true })
			e.send(r, ev)
			e.ack(r, 1)
			e.Check(peer.Int(e.state(), "tools") == 1, "it was dispatched again")
		}),
		with(target, "tool/not_dispatched_again_by_a_restart", "8.7", func(e *env) {
			r := e.join()
			ev := r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{}))
			e.send(r, ev)
			e.ack(r, 1)
			e.restart(peer.M{"tool": "ok"})
			r = e.again(r)
			e.silent(r.Sock, "nothing happens by itself")
			s := e.state()
			e.Check(peer.Int(s, "tools") == 0 && s["settled"] == false, "state %.300s", peer.Write(s))
			// But when the runner redelivers, its ack may have been lost: it is offered again.
			e.send(r, ev)
			c := e.toolAnswer(r, 1, "call-1")
			e.Check(peer.Int(e.state(), "tools") == 1, "tools %v", e.state()["tools"])
			e.send(r, delivered(r, c))
			e.until("settled", func(s peer.M) bool { return s["settled"] == true })
		}, peer.M{"tool": "hold"}),
		with(target, "tool/result_is_kept_over_a_restart", "8.7", func(e *env) {
			r := e.join()
			ev := r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{}))
			e.send(r, ev)
			c := e.toolAnswer(r, 1, "call-1")
			e.restart(peer.M{})
			r = e.again(r)
			e.Check(peer.Equal(r.Pending(), c), "pending %s", peer.Write(r.Pending()))
			e.send(r, ev)
			e.ack(r, 1)
			e.Check(peer.Int(e.state(), "tools") == 0, "it was dispatched again")
			e.send(r, delivered(r, c))
			e.until("settled", func(s peer.M) bool { return s["settled"] == true })
		}),
		with(target, "tool/waits_behind_a_pending_command", "5.4", func(e *env) {
			r := e.join()
			id := e.queue("turn.start", peer.M{"text": "x"}, deliver())
			c := e.commandFrame(r, id, 1)
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{})))
			seen := 0
			for range 2 { // the ack, and the outstanding command once more
				m, err := r.Next(peer.IOTimeout)
				e.OK(err, "ack and redelivery")
				if m["kind"] == "command" {
					e.Check(peer.Str(m, "payload", "commandId") == id, "command %s went ahead", peer.Write(m))
				}
				seen++
			}
			e.Check(seen == 2, "frames")
			// Answered from the journal while turn.start is pending (5.5).
			tool := peer.ToolCommandID(e.id.RunID, "call-1")
			e.send(r, r.ResultEnvelope(peer.M{"commandId": tool, "controllerSeq": 2, "type": "semantic_tool.result"}, "completed", peer.M{"status": "delivered"}))
			e.until("the tool result", func(s peer.M) bool { return command(s, tool)["status"] == "completed" && s["settled"] == true })
			e.send(r, r.ResultEnvelope(c, "completed", peer.M{"providerTurnId": "p"}))
			e.until("the turn", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
		}),
		settle("completed", true, delivered),
		settle("failed", false, func(r *peer.Runner, c peer.M) peer.M { return r.ResultEnvelope(c, "failed", peer.M{}) }),
		settle("rejected", false, func(r *peer.Runner, c peer.M) peer.M { return r.ResultEnvelope(c, "rejected", peer.M{}) }),
		settle("indeterminate", false, func(r *peer.Runner, c peer.M) peer.M { return r.ResultEnvelope(c, "indeterminate", nil) }),
		settle("other_sequence", false, func(r *peer.Runner, c peer.M) peer.M {
			m := delivered(r, c)
			peer.Obj(m, "payload")["controllerSeq"] = 9
			return m
		}),
		settle("other_type", false, func(r *peer.Runner, c peer.M) peer.M {
			m := delivered(r, c)
			peer.Obj(m, "payload")["commandType"] = "turn.start"
			return m
		}),
		with(target, "tool/request_id_never_settles", "8.10 (run)", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", peer.M{})
			peer.Obj(block(ev), "correlation")["requestId"] = "q-1"
			e.send(r, r.EventEnvelope(ev))
			c := e.toolAnswer(r, 1, "call-1")
			e.send(r, delivered(r, c))
			s := e.until("completion", func(s peer.M) bool { return command(s, peer.Str(c, "commandId"))["status"] == "completed" })
			e.Check(s["settled"] == false, "settled is %v", s["settled"])
		}),
		with(target, "tool/above_canonical_limits_never_settles", "8.10 (run)", func(e *env) {
			r := e.join()
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", nested(80))))
			c := e.toolAnswer(r, 1, "call-1")
			e.send(r, delivered(r, c))
			s := e.until("completion", func(s peer.M) bool { return command(s, peer.Str(c, "commandId"))["status"] == "completed" })
			e.Check(s["settled"] == false, "settled is %v", s["settled"])
		}),
		with(target, "tool/result_too_large_for_the_journal", "10.9", func(e *env) {
			idle := e.dial(e.config(1, 2))
			r := e.join()
			input := peer.A{strings.Repeat("a", 180_000), strings.Repeat("b", 180_000), strings.Repeat("c", maxCommandBytes-360_000)}
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", input)))
			e.OK(r.ExpectClose(closeWait, func([]byte) error { return nil }), "every connection must close")
			e.closed(idle.Sock, "a result that cannot be kept")
			s := e.state()
			e.Check(peer.Int(s, "ackedSourceSeq") == 1 && s["settled"] == false && s["fault"] == nil, "ackedSourceSeq %v settled %v fault %v", s["ackedSourceSeq"], s["settled"], s["fault"])
		}),
		with(target, "tool/commit_failure_does_not_dispatch", "10.2 step 10", func(e *env) {
			r := e.join()
			ev := r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{}))
			e.send(r, ev)
			e.closed(r.Sock, "a failed commit")
			e.Check(peer.Int(e.state(), "tools") == 0, "it was dispatched")
			r = e.again(r)
			e.send(r, ev)
			e.toolAnswer(r, 1, "call-1")
			e.Check(peer.Int(e.state(), "tools") == 1, "tools %v", e.state()["tools"])
		}, peer.M{"commit": "fail-once"}),
		with(target, "tool/input_null_is_present", "appendix B 7", func(e *env) {
			r := e.join()
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", nil)))
			c := e.toolAnswer(r, 1, "call-1")
			v, present := peer.Obj(c, "payload")["input"]
			e.Check(present && v == nil, "payload %s", peer.Write(c["payload"]))
			e.send(r, delivered(r, c))
			e.until("settled", func(s peer.M) bool { return s["settled"] == true })
		}),
		with(target, "tool/several_calls", "8.10", func(e *env) {
			r := e.join()
			for i := int64(1); i <= 3; i++ {
				call := fmt.Sprintf("call-%d", i)
				e.send(r, r.EventEnvelope(inputEvent(e, r, i, call, peer.M{"n": i})))
				c := e.toolAnswer(r, i, call)
				e.send(r, r.ResultEnvelope(c, "completed", peer.M{"status": "delivered", "callId": call}))
			}
			e.until("settled", func(s peer.M) bool { return s["settled"] == true && peer.Int(s, "tools") == 3 })
		}),
		badInput("without_input", del("input")),
		badInput("without_callId", del("callId")),
		badInput("callId_number", set("callId", 1)),
		badInput("callId_241", set("callId", strings.Repeat("c", 241))),
		badInput("callId_blank", set("callId", "a b")),
		badInput("operationId_empty", set("operationId", "")),
		badInput("without_operationId", del("operationId")),
		badInput("without_content", del("content")),
		badInput("content_array", set("content", peer.A{})),
		badInput("without_correlation", del("correlation")),
		badInput("correlation_other_run", func(b peer.M) { peer.Obj(b, "correlation")["runId"] = "other" }),
		badInput("correlation_other_item", func(b peer.M) { peer.Obj(b, "correlation")["itemId"] = "other" }),
		badInput("correlation_without_turn", func(b peer.M) { delete(peer.Obj(b, "correlation"), "turnId") }),
		badInput("phase_result", set("phase", "result")),
		badInput("phase_missing", del("phase")),
		badInput("schema_other", set("schema", "x")),
		badInput("schemaVersion_2", set("schemaVersion", 2)),
		badInput("without_idempotencyKey", del("idempotencyKey")),
		badInput("idempotencyKey_empty", set("idempotencyKey", "")),
		badInput("digest_without_prefix", content("digest", strings.Repeat("a", 64))),
		badInput("disposition_unknown", content("redactionDisposition", "none")),
		badInput("references_not_a_list", content("references", peer.M{})),
		badInput("reference_kind_unknown", content("references", peer.A{peer.M{"kind": "file", "id": "x"}})),
		badInput("references_not_unique", content("references", peer.A{peer.M{"kind": "task", "id": "x"}, peer.M{"kind": "task", "id": "x"}})),
		with(target, "tool/input_without_block", "10.2 step 5", func(e *env) {
			r := e.join()
			e.send(r, r.EventEnvelope(r.NewEvent(1, "semantic_tool.input", peer.M{})))
			e.closed(r.Sock, "an input without its block")
			e.noFault()
		}),
	}
	return append(out, digestCases(target)...)
}
