package authority

import (
	"fmt"
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// inputEvent is a correct semantic input; input is any JSON value.
func inputEvent(e *env, r *peer.Runner, seq int64, callID string, input any) peer.M {
	digest, err := peer.SemanticDigest(input)
	e.OK(err, "digest of the test's own input")
	id := r.Config.Identity
	return r.NewEvent(seq, "semantic_tool.input", peer.M{"semantic_tool": peer.M{
		"schema": "paperclip.prp.semantic_tool.v1", "schemaVersion": 1, "phase": "input", "operationId": "get_task_context", "callId": callID,
		"correlation":    peer.M{"runId": id.RunID, "normalizedSessionId": id.NormalizedSessionID, "turnId": id.TurnID, "itemId": id.ItemID},
		"idempotencyKey": nil, "input": input,
		"content": peer.M{"digest": digest, "redactionDisposition": "digest_only", "references": peer.A{}},
	}})
}

func block(ev peer.M) peer.M { return peer.Obj(ev, "payload", "semantic_tool") }

func setDigest(ev peer.M, digest string) { peer.Obj(block(ev), "content")["digest"] = digest }

// faultCases: detection order (10.2) and the latch (10.3, 5.13).
func faultCases(target Target) []suite.Case {
	zero := "sha256:" + strings.Repeat("0", 64)
	// latched joins, commits one event and latches a digest fault.
	latched := func(e *env) *peer.Runner {
		r := e.join()
		e.alive(r, 1)
		ev := inputEvent(e, r, 2, "call-1", peer.M{"a": 1})
		setDigest(ev, zero)
		e.send(r, r.EventEnvelope(ev))
		e.closed(r.Sock, "a wrong digest")
		e.fault("semantic_input_digest_mismatch")
		return r
	}
	closesWithoutFault := func(name, section string, change func(env, ev peer.M)) suite.Case {
		return with(target, "fault/"+name, section, func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", peer.M{"a": 1})
			setDigest(ev, zero) // would be a fault, were it looked at
			m := r.EventEnvelope(ev)
			change(m, ev)
			e.send(r, m)
			e.closed(r.Sock, name)
			e.noFault()
			s := e.state()
			e.Check(peer.Int(s, "ackedSourceSeq") == 0 && peer.Int(s, "tools") == 0, "state %.300s", peer.Write(s))
		})
	}
	return []suite.Case{
		with(target, "fault/digest_mismatch", "10.2 step 7", func(e *env) {
			latched(e)
			s := e.state()
			e.Check(peer.Int(s, "ackedSourceSeq") == 1 && len(peer.List(s, "events")) == 1, "something was committed: %.300s", peer.Write(s))
			e.Check(peer.Int(s, "tools") == 0 && len(peer.List(s, "commands")) == 0, "something was dispatched: %.300s", peer.Write(s))
		}),
		with(target, "fault/digest_mismatch_on_v1", "10.7", func(e *env) {
			r := e.joinV1()
			ev := inputEvent(e, r, 1, "call-1", peer.M{})
			setDigest(ev, zero)
			e.send(r, r.EventEnvelope(ev))
			e.closed(r.Sock, "a wrong digest")
			e.fault("semantic_input_digest_mismatch")
		}),
		with(target, "fault/digest_mismatch_mcp_app", "10.2 step 5", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", peer.M{})
			ev["eventType"] = "mcp_app.tool_input"
			setDigest(ev, zero)
			e.send(r, r.EventEnvelope(ev))
			e.closed(r.Sock, "a wrong digest")
			e.fault("semantic_input_digest_mismatch")
		}),
		with(target, "fault/step_7_before_8", "10.2", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", peer.M{"a": 1})
			e.send(r, r.EventEnvelope(ev))
			e.toolAnswer(r, 1, "call-1")
			block(ev)["input"] = peer.M{"a": 2}
			e.send(r, r.EventEnvelope(ev))
			e.closed(r.Sock, "changed input under its old digest")
			e.fault("semantic_input_digest_mismatch")
		}),
		with(target, "fault/changed_input_with_matching_digest", "10.2", func(e *env) {
			r := e.join()
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{"a": 1})))
			e.toolAnswer(r, 1, "call-1")
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{"a": 2})))
			e.closed(r.Sock, "changed input with a matching digest")
			e.fault("source_event_replay_conflict")
		}),
		closesWithoutFault("step_2_before_7", "10.2 step 2", func(env, _ peer.M) { env["runId"] = "other" }),
		closesWithoutFault("step_3_before_7", "10.2 step 3", func(_, ev peer.M) { ev["priority"] = 9 }),
		closesWithoutFault("step_4_before_7", "10.2 step 4", func(_, ev peer.M) { ev["turnId"] = "other" }),
		closesWithoutFault("step_5_before_7", "10.2 step 5", func(_, ev peer.M) { peer.Obj(block(ev), "correlation")["turnId"] = "other" }),
		closesWithoutFault("step_6_before_7", "10.2 step 6", func(_, ev peer.M) { ev["sourceSeq"] = 2 }),
		with(target, "fault/step_2_before_8", "10.2 step 2", func(e *env) {
			r := e.join()
			m := e.event(r, 1)
			e.ack(r, 1)
			m["itemId"] = "other"
			e.send(r, m)
			e.closed(r.Sock, "a foreign frame")
			e.noFault()
		}),
		with(target, "fault/step_3_before_8", "10.2 step 3", func(e *env) {
			r := e.join()
			m := e.event(r, 1)
			e.ack(r, 1)
			peer.Obj(m, "payload")["emittedAt"] = "never"
			e.send(r, m)
			e.closed(r.Sock, "an invalid replay")
			e.noFault()
		}),
		with(target, "fault/step_6_before_8", "10.2 step 6", func(e *env) {
			r := e.join()
			m := e.event(r, 1)
			e.ack(r, 1)
			peer.Obj(m, "payload")["sourceSeq"] = 2
			e.send(r, m)
			e.closed(r.Sock, "a known id with another sequence")
			e.noFault()
		}),
		with(target, "fault/first_wins_and_events_close", "10.3", func(e *env) {
			r := latched(e)
			for range 2 {
				r = e.again(r)
				e.event(r, 2)
				e.closed(r.Sock, "an event after a fault")
			}
			r = e.again(r)
			e.send(r, peer.Merge(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{"n": 9})), peer.M{"x": 1}))
			e.closed(r.Sock, "a conflicting replay after a fault")
			e.fault("semantic_input_digest_mismatch")
			e.Check(peer.Int(e.state(), "ackedSourceSeq") == 1, "something was committed after the fault")
		}),
		with(target, "fault/identical_replay_closes_too", "10.2 step 1", func(e *env) {
			r := e.join()
			m := e.event(r, 1)
			e.ack(r, 1)
			bad := peer.CloneM(m)
			bad["x"] = 1
			e.send(r, bad)
			e.closed(r.Sock, "a conflicting replay")
			r = e.again(r)
			e.send(r, m)
			e.closed(r.Sock, "any event after a fault")
			e.fault("source_event_replay_conflict")
		}),
		with(target, "fault/renewal_results_and_commands_go_on", "5.13", func(e *env) {
			r := latched(e)
			r = e.again(r)
			e.silent(r.Sock, "no answer yet")
			e.send(r, r.RenewEnvelope(r.LeaseExpiry))
			e.next(r, "lease_renewed")
			id := e.queue("runner.drain", peer.M{}, deliver())
			e.send(r, r.ResultEnvelope(e.commandFrame(r, id, 1), "completed", peer.M{"status": "completed", "retainedEventsDrained": false}))
			e.until("drain", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
			id = e.queue("runner.suspend", peer.M{}, deliver())
			e.send(r, r.ResultEnvelope(e.commandFrame(r, id, 1), "completed", peer.M{"status": "completed"}))
			e.next(r, "command_result_ack")
		}),
		with(target, "fault/fresh_ticket_still_joins", "10.3", func(e *env) {
			latched(e)
			r := e.join()
			e.Check(peer.Int(r.Welcome, "payload", "ackedSourceSeq") == 1, "welcome")
			e.event(r, 2)
			e.closed(r.Sock, "an event after a fault")
		}),
		with(target, "fault/carries_no_payload_text", "10.1", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", peer.M{"a": "MARKER-31415"})
			setDigest(ev, zero)
			e.send(r, r.EventEnvelope(ev))
			e.closed(r.Sock, "a wrong digest")
			e.fault("semantic_input_digest_mismatch")
			e.Check(!strings.Contains(string(peer.Write(e.state())), "MARKER"), "the state shows input text")
			e.Check(!strings.Contains(e.stderr.String(), "MARKER"), "stderr shows input text")
		}),
		with(target, "fault/not_kept_over_restart_but_found_again", "10.3", func(e *env) {
			r := latched(e)
			e.restart(peer.M{})
			e.noFault()
			r = e.again(r)
			e.alive(r, 2)
			e.send(r, peer.Merge(r.EventEnvelope(r.NewEvent(2, "harness.ready", peer.M{"n": 2})), peer.M{"x": 1}))
			e.closed(r.Sock, "a conflicting replay")
			e.fault("source_event_replay_conflict")
		}),
	}
}

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

// digestCases: inputs whose digest depends on redaction and bounds (7.4).
func digestCases(target Target) []suite.Case {
	repeat := func(v any, n int) peer.A {
		a := make(peer.A, n)
		for i := range a {
			a[i] = v
		}
		return a
	}
	manyKeys := func(n int) peer.M {
		m := peer.M{}
		for i := range n {
			m[fmt.Sprintf("k%d", i)] = i
		}
		return m
	}
	jwt := "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2Q"
	inputs := map[string]any{
		"secret_keys": peer.M{
			"sessionToken": "abc", "tokenBudget": 5, "AUTHORIZATION": peer.M{"x": 1}, "my-cookie-jar": peer.A{1}, "private_key": "k", "privatekey": "k",
			"private  key": "two blanks are not one", "api-key": 1, "apikey": 1, "apiXkey": 1, "connection string": 1, "connectionString": nil,
			"passwd": "", "credentials": false, "plain": "kept",
		},
		"bearer":                        peer.M{"t": "Bearer 0123456789 and bearer\tabcdefgh, Bearer short, xBearer 0123456789, Bearer  a+b/c~d.e=-_"},
		"prefixes":                      peer.M{"t": "sk_abcdefgh pk_12345678 pcgw_abcd-efgh GHP_abcdefgh github_pat_abcdefgh sk_short ask_abcdefgh sk-abcdefghijkl"},
		"jwt":                           peer.M{"t": "x " + jwt + " y " + jwt + "." + "zzzzzzzz eyJshort.eyJshort.x"},
		"query_parameters":              peer.M{"u": "https://h/p?code=1&key=2&x=3&api_key=4#f ?access-token=5 &ACCESSTOKEN=6 &state=&secret=7\n?token=8&apikey=9"},
		"array_of_512":                  repeat(1, 512),
		"array_of_513":                  repeat(1, 513),
		"string_200000":                 strings.Repeat("y", 200_000),
		"string_200001":                 strings.Repeat("y", 200_001),
		"string_cut_in_a_pair":          strings.Repeat("y", 199_999) + "\U0001F300\U0001F300",
		"depth_16":                      nested(16),
		"depth_17":                      nested(17),
		"object_of_512":                 manyKeys(512),
		"object_of_513":                 manyKeys(513),
		"object_of_600":                 manyKeys(600),
		"nodes_10001":                   repeat(repeat(0, 99), 100),
		"nodes_10100":                   repeat(repeat(0, 100), 100),
		"nodes_before_keys":             peer.M{"a": repeat(repeat(0, 511), 25), "token": "z"},
		"locale_order":                  peer.M{"b": 1, "A": 2, "a": 3, "B": 4, "\u00e9": 5, "e": 6, "_": 7, "1": 8, "\U0001F300": 9, "\uff61": 10},
		"number_forms":                  peer.M{"n": peer.A{peer.Raw("1.0"), peer.Raw("-0"), peer.Raw("1e21"), peer.Raw("1e-7"), peer.Raw("123456789012345680000")}},
		"html_and_controls":             peer.M{"s": "<&>\u2028\u2029\x01\x7f\"\\"},
		"lone_surrogate":                peer.M{"s": peer.Raw(`"\ud83c lone"`)},
		"proto":                         peer.Raw(`{"__proto__":{"a":1},"b":2}`),
		"long_s_and_kelvin_do_not_fold": peer.M{"\u017fecret": 1, "to\u212aen": 2, "t": "s\u212a_abcdefgh Bearer abcd\u017fefghijk"},
		"unicode_white_space":           peer.M{"t": "Bearer\u00a0abcdefgh https://h/?code=1\u00a0after"},
		"top_level_string":              "Bearer 0123456789",
		"top_level_array":               peer.A{},
		"top_level_number":              5,
		"top_level_false":               false,
	}
	for name, v := range map[string]int{"exact": 0} {
		inputs["astral_keys_"+name] = peer.M{"\uff61": v, "\U0001F300": v + 1, "z": v + 2}
	}
	var out []suite.Case
	for name, input := range inputs {
		out = append(out, with(target, "digest/"+name, "7.4", func(e *env) {
			r := e.join()
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", input)))
			e.toolAnswer(r, 1, "call-1")
			e.noFault()
		}))
	}
	for name, input := range map[string]any{
		"tokenBudget": peer.M{"tokenBudget": 5}, "bearer": "Bearer 0123456789", "array_of_600": repeat(1, 600), "nesting_of_20": nested(20),
	} {
		out = append(out, with(target, "digest/plain_"+name+"_is_a_fault", "7.4", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", input)
			text, err := peer.CanonicalUnbounded(input)
			e.OK(err, "canonical form")
			setDigest(ev, "sha256:"+peer.SHA256Hex(text))
			e.send(r, r.EventEnvelope(ev))
			e.closed(r.Sock, "a plain digest")
			e.fault("semantic_input_digest_mismatch")
		}))
	}
	return out
}
