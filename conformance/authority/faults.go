package authority

import (
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
			s := e.state()
			e.Check(s["fault"] == nil, "fault is %s", peer.Write(s["fault"]))
			r = e.again(r)
			e.alive(r, 2)
			e.send(r, peer.Merge(r.EventEnvelope(r.NewEvent(2, "harness.ready", peer.M{"n": 2})), peer.M{"x": 1}))
			e.closed(r.Sock, "a conflicting replay")
			// Whether the harness counts the callbacks of both authorities is its own affair.
			s = e.until("a fault", func(s peer.M) bool { return s["fault"] != nil })
			e.Check(peer.Str(s, "fault", "reason") == "source_event_replay_conflict", "fault is %s", peer.Write(s["fault"]))
		}),
	}
}
