package authority

import (
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// maxCommandBytes is the limit of a stored command record in JSON bytes:
// floor((1 MiB - 4096) / 2) - 4096 (1.5 with the project's rule for line M).
const maxCommandBytes = (peer.MaxFrame-4096)/2 - 4096

// maxCommands is the journal limit of line M (5.4).
const maxCommands = 500

// harnessCases: the operations themselves.
func harnessCases(target Target) []suite.Case {
	refuseStart := func(name, section string, change peer.M) suite.Case {
		return suite.Case{Name: "authority/start/" + name, Section: section, Run: suite.Do(func(t *suite.T) {
			e := newProcess(t, target)
			e.refused("start", peer.Merge(e.startArgs(), change))
		})}
	}
	ids := func(change peer.M) peer.M {
		return peer.M{"identity": peer.Merge(peer.NewIdentity().Members(), change)}
	}
	missing := peer.NewIdentity().Members()
	delete(missing, "itemId")
	return []suite.Case{
		refuseStart("identity_241", "3.1", ids(peer.M{"runId": strings.Repeat("r", 241)})),
		refuseStart("identity_empty", "3.1", ids(peer.M{"turnId": ""})),
		refuseStart("identity_blank", "3.1", ids(peer.M{"runId": "run 1"})),
		refuseStart("identity_slash", "3.1", ids(peer.M{"itemId": "a/b"})),
		refuseStart("identity_first_character", "3.1", ids(peer.M{"itemId": "-a"})),
		refuseStart("identity_newline", "3.1", ids(peer.M{"itemId": "a\n"})),
		refuseStart("identity_not_ascii", "3.1", ids(peer.M{"itemId": "\u00e9"})),
		refuseStart("identity_missing", "3.1", peer.M{"identity": missing}),
		refuseStart("digest_short", "3.1", peer.M{"runnerDigest": "sha256:" + strings.Repeat("a", 63)}),
		refuseStart("digest_upper_case", "3.1", peer.M{"runnerDigest": "sha256:" + strings.Repeat("A", 64)}),
		refuseStart("digest_without_prefix", "3.1", peer.M{"runnerDigest": strings.Repeat("a", 64)}),
		refuseStart("lease_ttl_59999", "2.7", peer.M{"leaseTtlMs": 59_999}),
		refuseStart("lease_ttl_86400001", "2.7", peer.M{"leaseTtlMs": 86_400_001}),
		refuseStart("lease_ttl_fraction", "2.7", peer.M{"leaseTtlMs": peer.Raw("60000.5")}),
		with(target, "start/lease_ttl_at_the_upper_limit", "2.7", func(e *env) {
			left := e.join().LeaseExpiry - nowMs()
			e.Check(left > 86_390_000 && left <= 86_400_000, "lease of %d ms", left)
		}, peer.M{"leaseTtlMs": 86_400_000}),
		with(target, "harness/unknown_op", "harness", func(e *env) {
			e.refused("frobnicate", peer.M{})
			e.join()
		}),
		with(target, "harness/first_state", "harness", func(e *env) {
			s := e.state()
			for n, v := range map[string]any{
				"ackedSourceSeq": 0, "connections": 0, "malformedFrames": 0, "fault": nil, "faults": 0, "settled": true,
				"tools": 0, "commands": peer.A{}, "events": peer.A{},
			} {
				got, present := s[n]
				e.Check(present && peer.Equal(got, v), "%s is %s, expected %s", n, peer.Write(got), peer.Write(v))
			}
		}),
		with(target, "harness/stop_then_exit", "harness", func(e *env) {
			e.op("stop", peer.M{})
			e.gone()
		}),
		with(target, "harness/stop_closes_connections", "harness", func(e *env) {
			r := e.join()
			e.op("stop", peer.M{})
			e.closed(r.Sock, "stop")
			e.gone()
		}),
		with(target, "harness/end_of_input_is_exit", "harness", func(e *env) {
			e.join()
			e.OK(e.stdin.Close(), "close of stdin")
			e.gone()
		}),
	}
}

// gone waits until the process has closed its stdout.
func (e *env) gone() {
	timer := time.NewTimer(closeWait)
	defer timer.Stop()
	select {
	case <-e.ended:
	case <-timer.C:
		e.Fatalf("the harness process did not exit")
	}
}

func commandTypes() []string {
	return []string{
		"run.prepare", "run.attach", "session.open", "turn.start", "turn.steer", "turn.interrupt", "turn.stop",
		"request.resolve", "interaction.receipt", "semantic_tool.result", "session.snapshot", "session.goal.get",
		"session.goal.set", "session.goal.clear", "session.close", "session.budget.increase", "session.destroy",
		"run.cancel", "runner.drain", "runner.suspend", "runner.shutdown",
	}
}

// commandCases: the journal and delivery (5.4, 6).
func commandCases(target Target) []suite.Case {
	open := func() peer.M { return peer.M{"reuse": "same_session"} }
	out := []suite.Case{
		with(target, "command/ids_and_sequence", "5.4", func(e *env) {
			e.Check(e.queue("run.prepare", peer.M{}) == "command_prp_00000001", "first id")
			e.Check(e.queue("session.open", open(), peer.M{"commandId": "my:own.id-1"}) == "my:own.id-1", "own id")
			e.Check(e.queue("turn.start", peer.M{"text": "x"}) == "command_prp_00000003", "third id")
			s := e.state()
			list := peer.List(s, "commands")
			e.Check(len(list) == 3, "%d commands", len(list))
			for i, want := range []peer.M{
				{"commandId": "command_prp_00000001", "controllerSeq": 1, "type": "run.prepare", "status": "pending", "result": nil},
				{"commandId": "my:own.id-1", "controllerSeq": 2, "type": "session.open", "status": "pending", "result": nil},
				{"commandId": "command_prp_00000003", "controllerSeq": 3, "type": "turn.start", "status": "pending", "result": nil},
			} {
				e.Check(peer.Equal(list[i], want), "command %d is %s", i, peer.Write(list[i]))
			}
		}),
		with(target, "command/every_type", "6.1", func(e *env) {
			for i, kind := range commandTypes() {
				e.queue(kind, peer.M{})
				r := e.join()
				c := r.Pending()
				e.Check(peer.Str(c, "type") == kind && peer.Int(c, "controllerSeq") == int64(i+1), "pending is %s", peer.Write(c))
				e.send(r, r.ResultEnvelope(c, "completed", peer.M{}))
				e.until("completion", func(s peer.M) bool { return command(s, peer.Str(c, "commandId"))["status"] == "completed" })
				e.OK(r.Close(), "close")
			}
		}),
		with(target, "command/unknown_type", "6.1", func(e *env) {
			for _, kind := range []string{"session.goal", "external_provider.operation", "", "Turn.start", "__proto__", "toString"} {
				e.refused("queue", peer.M{"type": kind, "payload": peer.M{}})
			}
			e.Check(len(peer.List(e.state(), "commands")) == 0, "a refused command was journaled")
		}),
		with(target, "command/payload_must_be_object", "5.4", func(e *env) {
			for _, p := range []any{nil, peer.A{}, "text", 1, true} {
				e.refused("queue", peer.M{"type": "turn.start", "payload": p})
			}
		}),
		with(target, "command/id_shape", "5.4", func(e *env) {
			for _, id := range []string{"", strings.Repeat("c", 161), "a b", "-a", "a/b", "\u00e9", "a\n", ":a"} {
				e.refused("queue", peer.M{"type": "turn.start", "payload": peer.M{}, "commandId": id})
			}
			for _, id := range []string{strings.Repeat("c", 160), "0", "A.b_c:d-e"} {
				e.Check(e.queue("turn.start", peer.M{}, peer.M{"commandId": id}) == id, "id %s", id)
			}
		}),
		with(target, "command/goal_commands_are_schema_v2_on_v1", "0.2", func(e *env) {
			r := e.joinV1()
			for _, kind := range []string{"session.goal.get", "session.goal.set", "session.goal.clear"} {
				id := e.queue(kind, peer.M{"objective": "x"}, deliver())
				c := e.commandFrame(r, id, 1)
				e.Check(c["schema"] == "paperclip.prp.command.v2", "schema %v", c["schema"])
				e.send(r, r.ResultEnvelope(c, "completed", peer.M{"goal": nil}))
				e.until("completion", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
			}
		}),
		with(target, "command/deliver_sends_at_once", "5.4", func(e *env) {
			r := e.join()
			id := e.queue("turn.start", peer.M{"text": "h\u00e9llo <&> \u2028 \U0001F300", "turnId": "t"}, deliver())
			c := e.commandFrame(r, id, 1)
			e.Check(peer.Equal(c["payload"], peer.M{"text": "h\u00e9llo <&> \u2028 \U0001F300", "turnId": "t"}), "payload %s", peer.Write(c["payload"]))
		}),
		with(target, "command/without_deliver_waits", "5.4", func(e *env) {
			r := e.join()
			a := e.queue("run.prepare", peer.M{})
			e.silent(r.Sock, "queueing without delivery")
			e.Check(peer.Str(e.again(r).Pending(), "commandId") == a, "pending after a reconnect")
		}),
		with(target, "command/one_outstanding", "5.4", func(e *env) {
			r := e.join()
			a := e.queue("run.prepare", peer.M{}, deliver())
			ca := e.commandFrame(r, a, 1)
			b := e.queue("session.open", open(), deliver())
			e.commandFrame(r, a, 2) // A again, not B
			c := e.queue("turn.start", peer.M{})
			e.silent(r.Sock, "the third waits")
			e.send(r, r.ResultEnvelope(ca, "completed", peer.M{}))
			cb := e.commandFrame(r, b, 1)
			e.send(r, r.ResultEnvelope(cb, "completed", peer.M{}))
			cc := e.commandFrame(r, c, 1)
			e.send(r, r.ResultEnvelope(cc, "completed", peer.M{"providerTurnId": "p"}))
			e.silent(r.Sock, "nothing is left")
		}),
		with(target, "command/welcome_counts_as_delivery", "4.9", func(e *env) {
			a := e.queue("run.prepare", peer.M{})
			r := e.join()
			e.Check(peer.Str(r.Pending(), "commandId") == a, "pending in the welcome")
			e.queue("session.open", open(), deliver())
			e.commandFrame(r, a, 2)
		}),
		with(target, "command/redelivered_on_reconnect", "5.4", func(e *env) {
			r := e.join()
			a := e.queue("run.prepare", peer.M{"x": 1}, deliver())
			c := e.commandFrame(r, a, 1)
			r2 := e.again(r)
			e.Check(peer.Equal(r2.Pending(), c), "the command changed: %s", peer.Write(r2.Pending()))
			e.silent(r2.Sock, "no frame for it")
		}),
		with(target, "command/queued_before_join_and_next", "5.4", func(e *env) {
			a := e.queue("run.prepare", peer.M{})
			b := e.queue("session.open", open())
			r := e.join()
			e.Check(peer.Str(r.Pending(), "commandId") == a, "pending")
			e.send(r, r.ResultEnvelope(r.Pending(), "completed", peer.M{}))
			e.commandFrame(r, b, 1)
		}),
		with(target, "command/requeue_same", "5.4", func(e *env) {
			own := peer.M{"commandId": "own-1"}
			e.queue("turn.start", peer.M{"a": 1, "b": peer.M{"c": peer.A{1, "x"}}}, own)
			e.queue("turn.start", peer.M{"b": peer.M{"c": peer.A{peer.Raw("1.0"), "x"}}, "a": peer.Raw("1e0")}, own)
			e.Check(len(peer.List(e.state(), "commands")) == 1, "the same command was journaled twice")
			r := e.join()
			e.queue("turn.start", peer.M{"a": 1, "b": peer.M{"c": peer.A{1, "x"}}}, own, deliver())
			c := e.commandFrame(r, "own-1", 2)
			e.send(r, r.ResultEnvelope(c, "completed", peer.M{}))
			e.until("completion", func(s peer.M) bool { return command(s, "own-1")["status"] == "completed" })
			e.queue("turn.start", peer.M{"a": 1, "b": peer.M{"c": peer.A{1, "x"}}}, own, deliver())
			e.silent(r.Sock, "a completed command is not sent again")
		}),
		with(target, "command/requeue_different", "5.4", func(e *env) {
			e.queue("turn.start", peer.M{"a": 1}, peer.M{"commandId": "own-1"})
			e.refused("queue", peer.M{"type": "turn.start", "payload": peer.M{"a": 2}, "commandId": "own-1"})
			e.refused("queue", peer.M{"type": "turn.start", "payload": peer.M{"a": "1"}, "commandId": "own-1"})
			e.refused("queue", peer.M{"type": "turn.start", "payload": peer.M{"a": 1, "b": nil}, "commandId": "own-1"})
			e.refused("queue", peer.M{"type": "turn.steer", "payload": peer.M{"a": 1}, "commandId": "own-1"})
			s := e.state()
			e.Check(len(peer.List(s, "commands")) == 1, "a conflicting command was journaled")
		}),
		with(target, "command/requeue_lone_surrogate_differs", "3.9", func(e *env) {
			e.queue("turn.start", peer.M{"a": peer.Raw(`"\ud83c"`)}, peer.M{"commandId": "own-1"})
			e.queue("turn.start", peer.M{"a": peer.Raw(`"\ud83c"`)}, peer.M{"commandId": "own-1"})
			e.refused("queue", peer.M{"type": "turn.start", "payload": peer.M{"a": peer.Raw(`"\ud83d"`)}, "commandId": "own-1"})
			e.refused("queue", peer.M{"type": "turn.start", "payload": peer.M{"a": "\ufffd"}, "commandId": "own-1"})
		}),
		with(target, "command/requeue_after_restart", "5.4", func(e *env) {
			e.queue("turn.start", peer.M{"a": 1}, peer.M{"commandId": "own-1"})
			e.restart(peer.M{})
			e.queue("turn.start", peer.M{"a": 1}, peer.M{"commandId": "own-1"})
			e.refused("queue", peer.M{"type": "turn.start", "payload": peer.M{"a": 2}, "commandId": "own-1"})
			e.Check(e.queue("turn.stop", peer.M{}) == "command_prp_00000002", "the sequence went on")
		}),
		with(target, "command/size_limit", "1.5", func(e *env) {
			record := func(n int) peer.M {
				return peer.M{
					"schema": "paperclip.prp.command.v1", "commandId": "big", "controllerSeq": 1, "type": "turn.start",
					"issuedAt": "2026-01-02T03:04:05.006Z", "payload": peer.M{"text": strings.Repeat("x", n)}, "status": "pending", "result": nil,
				}
			}
			n := maxCommandBytes - len(peer.Write(record(0)))
			e.refused("queue", peer.M{"type": "turn.start", "payload": peer.M{"text": strings.Repeat("x", n+1)}, "commandId": "big"})
			e.Check(len(peer.List(e.state(), "commands")) == 0, "a refused command was journaled")
			e.queue("turn.start", peer.M{"text": strings.Repeat("x", n)}, peer.M{"commandId": "big"})
			r := e.join()
			c := r.Pending()
			e.Check(len(peer.Str(c, "payload", "text")) == n, "text of %d bytes", len(peer.Str(c, "payload", "text")))
			e.queue("turn.stop", peer.M{}, deliver())
			e.commandFrame(r, "big", 2)
		}),
		with(target, "command/size_counts_bytes_not_characters", "1.5", func(e *env) {
			e.refused("queue", peer.M{"type": "turn.start", "payload": peer.M{"text": strings.Repeat("\u20ac", maxCommandBytes/3)}})
			e.queue("turn.start", peer.M{"text": strings.Repeat("\u20ac", maxCommandBytes/3-200)})
		}),
		long(with(target, "command/500_in_total", "5.4", func(e *env) {
			var ids []int64
			for range maxCommands {
				ids = append(ids, e.post("queue", peer.M{"type": "turn.stop", "payload": peer.M{}}))
			}
			for i, id := range ids {
				m := e.answer(id, "queue")
				e.Check(m["ok"] == true, "command %d refused: %v", i+1, m["error"])
			}
			e.refused("queue", peer.M{"type": "turn.stop", "payload": peer.M{}})
			e.refused("queue", peer.M{"type": "turn.stop", "payload": peer.M{}, "commandId": "own"})
			e.Check(e.queue("turn.stop", peer.M{}, peer.M{"commandId": "command_prp_00000001"}) == "command_prp_00000001", "an existing command is still found")
			r := e.join()
			e.send(r, r.ResultEnvelope(r.Pending(), "completed", peer.M{}))
			e.commandFrame(r, "command_prp_00000002", 1)
			e.refused("queue", peer.M{"type": "turn.stop", "payload": peer.M{}}) // completed ones count
		}), 60*time.Second),
		with(target, "command/no_command_after_terminal", "5.4", func(e *env) {
			r := e.join()
			id := e.queue("runner.suspend", peer.M{}, deliver())
			c := e.commandFrame(r, id, 1)
			next := e.queue("runner.drain", peer.M{}, deliver())
			e.silent(r.Sock, "no command follows a terminal one")
			e.send(r, r.ResultEnvelope(c, "completed", peer.M{"status": "completed"}))
			e.next(r, "command_result_ack")
			e.silent(r.Sock, "no command follows a terminal one")
			e.Check(peer.Str(e.again(r).Pending(), "commandId") == next, "the next command on the next connection")
		}),
		with(target, "command/no_command_after_terminal_in_welcome", "5.4", func(e *env) {
			e.queue("runner.shutdown", peer.M{})
			r := e.join()
			e.queue("runner.drain", peer.M{}, deliver())
			e.silent(r.Sock, "no command follows a terminal one")
			e.send(r, r.ResultEnvelope(r.Pending(), "completed", peer.M{"status": "completed"}))
			e.next(r, "command_result_ack")
			e.silent(r.Sock, "no command follows a terminal one")
		}),
	}
	return out
}
