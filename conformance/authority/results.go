package authority

import (
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// resultCases: command_result (5.5).
func resultCases(target Target) []suite.Case {
	closes := func(name string, make func(r *peer.Runner, c peer.M) peer.M) suite.Case {
		return with(target, "result/"+name, "5.5", func(e *env) {
			r := e.join()
			id := e.queue("turn.start", peer.M{"text": "x"}, deliver())
			c := e.commandFrame(r, id, 1)
			e.send(r, make(r, c))
			e.closed(r.Sock, name)
			e.Check(command(e.state(), id)["status"] == "pending", "status %v", command(e.state(), id)["status"])
			r2 := e.again(r)
			e.Check(peer.Str(r2.Pending(), "commandId") == id, "the command is still pending")
		})
	}
	set := func(member string, v any) func(r *peer.Runner, c peer.M) peer.M {
		return func(r *peer.Runner, c peer.M) peer.M {
			m := r.ResultEnvelope(c, "completed", peer.M{})
			peer.Obj(m, "payload")[member] = v
			return m
		}
	}
	del := func(member string) func(r *peer.Runner, c peer.M) peer.M {
		return func(r *peer.Runner, c peer.M) peer.M {
			m := r.ResultEnvelope(c, "completed", peer.M{})
			delete(peer.Obj(m, "payload"), member)
			return m
		}
	}
	stored := func(name, status string, result any) suite.Case {
		return with(target, "result/"+name, "5.5", func(e *env) {
			r := e.join()
			id := e.queue("turn.start", peer.M{"text": "x"}, deliver())
			c := e.commandFrame(r, id, 1)
			m := r.ResultEnvelope(c, status, result)
			e.send(r, m)
			s := e.until("the result", func(s peer.M) bool { return command(s, id)["status"] == status })
			e.Check(peer.Equal(command(s, id)["result"], m["payload"]), "result is %s, expected %s", peer.Write(command(s, id)["result"]), peer.Write(m["payload"]))
			e.silent(r.Sock, "no acknowledgement for an ordinary result")
		})
	}
	return []suite.Case{
		closes("unknown_command", set("commandId", "command_prp_00000099")),
		closes("command_id_missing", del("commandId")),
		closes("command_id_number", set("commandId", 1)),
		closes("command_id_proto", set("commandId", "__proto__")),
		closes("status_pending", set("status", "pending")),
		closes("status_other", set("status", "done")),
		closes("status_upper_case", set("status", "Completed")),
		closes("status_missing", del("status")),
		closes("status_null", set("status", nil)),
		closes("payload_missing", func(r *peer.Runner, c peer.M) peer.M {
			m := r.ResultEnvelope(c, "completed", peer.M{})
			delete(m, "payload")
			return m
		}),
		closes("other_version", func(r *peer.Runner, c peer.M) peer.M {
			return peer.Merge(r.ResultEnvelope(c, "completed", peer.M{}), peer.M{"version": 1})
		}),
		stored("completed", "completed", peer.M{"providerTurnId": "p-1"}),
		stored("failed", "failed", peer.M{"code": "command_execution_failed", "message": "m"}),
		stored("rejected", "rejected", peer.M{"code": "command_history_compacted"}),
		stored("indeterminate", "indeterminate", nil),
		stored("any_json", "completed", peer.A{1, "two", nil, peer.M{"\u2028": "<&>"}}),
		with(target, "result/without_identity", "0.2", func(e *env) {
			r := e.joinV1()
			id := e.queue("session.open", peer.M{"reuse": "same_session"}, deliver())
			c := e.commandFrame(r, id, 1)
			m := r.ResultEnvelope(c, "completed", peer.M{})
			for _, n := range peer.IdentityNames() {
				delete(m, n)
			}
			e.send(r, m)
			e.until("completion", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
		}),
		with(target, "result/foreign_identity_is_not_checked", "5.1", func(e *env) {
			r := e.join()
			id := e.queue("session.open", peer.M{}, deliver())
			c := e.commandFrame(r, id, 1)
			e.send(r, peer.Merge(r.ResultEnvelope(c, "completed", peer.M{}), peer.M{"runId": "other", "turnId": 5}))
			e.until("completion", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
		}),
		with(target, "result/sequence_and_type_are_not_compared", "5.5", func(e *env) {
			r := e.join()
			id := e.queue("session.open", peer.M{}, deliver())
			c := e.commandFrame(r, id, 1)
			m := r.ResultEnvelope(c, "completed", peer.M{})
			peer.Obj(m, "payload")["controllerSeq"], peer.Obj(m, "payload")["commandType"] = 77, "turn.stop"
			e.send(r, m)
			s := e.until("completion", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
			e.Check(peer.Equal(command(s, id)["result"], m["payload"]), "result %s", peer.Write(command(s, id)["result"]))
		}),
		with(target, "result/never_sent_and_out_of_order", "5.5", func(e *env) {
			r := e.join()
			a := e.queue("run.prepare", peer.M{})
			b := e.queue("session.open", peer.M{})
			e.silent(r.Sock, "nothing sent")
			e.send(r, r.ResultEnvelope(peer.M{"commandId": b, "controllerSeq": 2, "type": "session.open"}, "completed", peer.M{"n": 2}))
			ca := e.commandFrame(r, a, 1) // the next pending one goes out
			s := e.state()
			e.Check(command(s, b)["status"] == "completed" && command(s, a)["status"] == "pending", "states %s", peer.Write(s["commands"]))
			e.send(r, r.ResultEnvelope(ca, "completed", peer.M{}))
			e.until("both", func(s peer.M) bool { return command(s, a)["status"] == "completed" })
		}),
		with(target, "result/duplicate_identical", "5.5", func(e *env) {
			r := e.join()
			a := e.queue("run.prepare", peer.M{}, deliver())
			b := e.queue("session.open", peer.M{})
			c := e.commandFrame(r, a, 1)
			m := r.ResultEnvelope(c, "completed", peer.M{"x": peer.A{1, 2}, "y": "z"})
			e.send(r, m)
			e.commandFrame(r, b, 1)
			e.send(r, m)
			e.commandFrame(r, b, 2) // a duplicate is followed by the next command again
			same := strings.Replace(string(peer.Write(m)), "[1,2]", "[1.0, 2e0]", 1)
			e.send(r, []byte(same))
			e.commandFrame(r, b, 3)
			e.alive(r, 1)
		}),
		with(target, "result/duplicate_different_closes", "5.5", func(e *env) {
			for i, change := range []func(p peer.M){
				func(p peer.M) { p["result"] = peer.M{"x": 2} },
				func(p peer.M) { p["status"] = "failed" },
				func(p peer.M) { p["controllerSeq"] = 9 },
				func(p peer.M) { p["extra"] = nil },
			} {
				r := e.join()
				id := e.queue("turn.start", peer.M{"n": i}, deliver())
				c := e.commandFrame(r, id, 1)
				m := r.ResultEnvelope(c, "completed", peer.M{"x": 1})
				e.send(r, m)
				e.until("completion", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
				n := peer.CloneM(m)
				change(peer.Obj(n, "payload"))
				e.send(r, n)
				e.closed(r.Sock, "a different result")
				e.Check(peer.Equal(command(e.state(), id)["result"], m["payload"]), "the first result was replaced")
			}
			e.noFault()
		}),
		with(target, "result/duplicate_after_reconnect_and_restart", "5.5", func(e *env) {
			r := e.join()
			id := e.queue("turn.start", peer.M{}, deliver())
			m := r.ResultEnvelope(e.commandFrame(r, id, 1), "completed", peer.M{"x": 1})
			e.send(r, m)
			e.until("completion", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
			r = e.again(r)
			e.send(r, m)
			e.alive(r, 1)
			e.restart(peer.M{})
			r = e.again(r)
			e.send(r, m)
			e.alive(r, 2)
			peer.Obj(m, "payload")["result"] = peer.M{"x": 2}
			e.send(r, m)
			e.closed(r.Sock, "a different result after a restart")
		}),
		with(target, "result/terminal_is_acknowledged", "5.2", func(e *env) {
			r := e.join()
			for i, kind := range []string{"runner.suspend", "runner.shutdown"} {
				id := e.queue(kind, peer.M{}, deliver())
				c := e.commandFrame(r, id, 1)
				m := r.ResultEnvelope(c, "completed", peer.M{"status": "completed"})
				for range 2 { // the duplicate is acknowledged again
					e.send(r, m)
					p := peer.Obj(e.next(r, "command_result_ack"), "payload")
					want := peer.M{"commandId": id, "commandType": kind, "controllerSeq": i + 1, "status": "completed"}
					e.Check(peer.Equal(p, want), "acknowledgement %s", peer.Write(p))
				}
				r = e.again(r)
			}
		}),
		with(target, "result/failed_terminal_is_acknowledged", "5.5", func(e *env) {
			r := e.join()
			id := e.queue("runner.suspend", peer.M{}, deliver())
			e.send(r, r.ResultEnvelope(e.commandFrame(r, id, 1), "failed", peer.M{"code": "x"}))
			p := peer.Obj(e.next(r, "command_result_ack"), "payload")
			e.Check(p["status"] == "failed", "acknowledgement %s", peer.Write(p))
		}),
		with(target, "result/above_canonical_limits", "3.9 (run)", func(e *env) {
			r := e.join()
			id := e.queue("turn.start", peer.M{}, deliver())
			m := r.ResultEnvelope(e.commandFrame(r, id, 1), "completed", nested(80))
			e.send(r, m)
			e.until("completion", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
			for range 2 {
				e.send(r, m)
				e.closed(r.Sock, "a duplicate above the canonical limits")
				r = e.again(r)
			}
			e.noFault()
		}),
	}
}

// nested returns n levels of {"d": …} around 1.
func nested(n int) any {
	var v any = 1
	for range n {
		v = peer.M{"d": v}
	}
	return v
}
