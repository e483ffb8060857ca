package runner

import (
	"fmt"
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// commandCases: the runner's command journal (9.7, 5.4, 5.5).
func commandCases(target Target) []suite.Case {
	// failsProcess sends something the runner must not survive.
	failsProcess := func(name, section string, send func(s *session, first peer.M) peer.M) suite.Case {
		return with(target, "command/"+name, section, func(e *env) {
			p, s := e.begin()
			first := e.command("run.prepare", scripted())
			e.OK(s.l.SendCommand(first, 1), "command")
			s.result(first)
			e.OK(s.l.SendCommand(send(s, first), 1), "command")
			e.OK(s.l.ExpectClose(4e9, nil), "%s must not be answered", name)
			p.exit(1, name)
		})
	}
	return []suite.Case{
		with(target, "command/scripted_session", "6.6", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			ev := s.event("session.started")
			e.Check(peer.Int(ev, "sourceSeq") == 1, "session.started is event %v", ev["sourceSeq"])
			p := peer.Obj(ev, "payload")
			e.Check(peer.Str(p, "threadId")+peer.Str(p, "driverSessionId") != "" && peer.Str(p, "sessionId")+peer.Str(p, "providerSessionId") != "",
				"session.started carries no identity: %s", peer.Write(p))
			id := s.turn("hello")
			for _, kind := range []string{"turn.started", "item.completed", "turn.completed"} {
				s.event(kind)
			}
			var order []string
			for _, t := range s.types() {
				if t == "turn.started" || t == "item.completed" || t == "turn.completed" {
					order = append(order, t)
				}
			}
			e.Check(strings.Join(order, " ") == "turn.started item.completed turn.completed", "order %v", order)
			for _, kind := range []string{"turn.started", "turn.completed"} {
				e.Check(peer.Str(s.event(kind), "payload", "providerTurnId") == id, "%s names %v, turn.start %s", kind, peer.Get(s.event(kind), "payload", "providerTurnId"), id)
			}
			for kind, priority := range map[string]int64{"turn.started": 0, "item.completed": 1, "turn.completed": 0} {
				e.Check(peer.Int(s.event(kind), "priority") == priority, "priority of %s is %v", kind, s.event(kind)["priority"])
			}
		}),
		with(target, "command/two_turns", "6.4", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			one := s.turn("first")
			s.event("turn.completed")
			s.events = nil
			two := s.turn("second")
			ev := s.event("turn.completed")
			e.Check(one != two && peer.Str(ev, "payload", "providerTurnId") == two, "turn ids %s %s, event %s", one, two, peer.Write(ev["payload"]))
		}),
		with(target, "command/result_envelope", "5.1", func(e *env) {
			_, s := e.begin()
			p := s.do("run.prepare", scripted()) // members are checked by the peer
			e.Check(p["status"] == "completed", "result %s", peer.Write(p))
		}),
		with(target, "command/duplicate_is_replayed", "9.7", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			c := e.command("turn.start", peer.M{"text": "x", "turnId": "t-1"})
			e.OK(s.l.SendCommand(c, 1), "command")
			one := s.result(c)
			s.event("turn.completed")
			n := len(s.events)
			e.OK(s.l.SendCommand(c, 2), "again")
			two := s.result(c)
			e.Check(peer.Equal(one, two), "results differ: %s, %s", peer.Write(one), peer.Write(two))
			s.silence("a duplicate has no second effect")
			e.Check(len(s.events) == n, "events after a duplicate: %v", s.types()[n:])
		}),
		with(target, "command/duplicate_over_reconnect", "9.7", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			c := e.command("turn.start", peer.M{"text": "x", "turnId": "t-1"})
			e.OK(s.l.SendCommand(c, 1), "command")
			one := s.result(c)
			s.event("turn.completed")
			e.a.Acked, e.a.Pending = s.high, peer.A{c}
			e.OK(s.l.Close(), "close")
			s2 := e.session(e.admit())
			two := s2.result(c)
			e.Check(peer.Equal(one, two), "results differ: %s, %s", peer.Write(one), peer.Write(two))
			s2.silence("a duplicate has no second effect")
		}),
		with(target, "command/member_order_is_free", "9.7", func(e *env) {
			_, s := e.begin()
			c := e.command("run.prepare", scripted())
			e.OK(s.l.SendCommand(c, 1), "command")
			one := s.result(c)
			spelled := fmt.Sprintf(`{"type":%s,"payload":{"provider":{"kind":"scripted"}},"issuedAt":%s,"controllerSeq":1,"commandId":%s,"schema":%s}`,
				peer.Write(c["type"]), peer.Write(c["issuedAt"]), peer.Write(c["commandId"]), peer.Write(c["schema"]))
			m := s.l.Control("command", "command_x_2", nil)
			m["payload"] = peer.Raw(spelled)
			e.OK(s.l.Send(m), "again")
			e.Check(peer.Equal(one, s.result(c)), "results differ")
		}),
		failsProcess("same_id_other_payload", "9.7", func(_ *session, first peer.M) peer.M {
			return peer.Merge(first, peer.M{"payload": peer.M{"provider": peer.M{"kind": "scripted"}, "more": 1}})
		}),
		failsProcess("same_id_other_issuedAt", "9.7", func(_ *session, first peer.M) peer.M {
			return peer.Merge(first, peer.M{"issuedAt": "2020-01-01T00:00:00.000Z"})
		}),
		failsProcess("same_id_other_type", "9.7", func(_ *session, first peer.M) peer.M {
			return peer.Merge(first, peer.M{"type": "session.open"})
		}),
		with(target, "command/sequence_gap_is_refused", "5.4", func(e *env) {
			_, s := e.begin()
			s.done("run.prepare", scripted())
			c := e.commandAt(3, "command_prp_00000003", "session.open", peer.M{"reuse": "same_session"})
			e.OK(s.l.SendCommand(c, 1), "command")
			e.OK(s.l.ExpectClose(4e9, nil), "a gap must not be answered")
		}),
		with(target, "command/first_sequence_must_be_one", "5.4", func(e *env) {
			_, s := e.begin()
			c := e.commandAt(2, "command_prp_00000002", "run.prepare", scripted())
			e.OK(s.l.SendCommand(c, 1), "command")
			e.OK(s.l.ExpectClose(4e9, nil), "a gap must not be answered")
		}),
		with(target, "command/known_sequence_other_id", "9.7", func(e *env) {
			_, s := e.begin()
			s.done("run.prepare", scripted())
			c := e.commandAt(1, "someone-else", "session.open", peer.M{})
			e.OK(s.l.SendCommand(c, 1), "command")
			e.OK(s.l.ExpectClose(4e9, nil), "a used sequence must not be answered")
		}),
		with(target, "command/history_is_compacted", "9.7", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			first := e.command("session.snapshot", peer.M{})
			e.OK(s.l.SendCommand(first, 1), "command")
			s.result(first)
			for range 140 {
				s.do("session.snapshot", peer.M{})
			}
			e.OK(s.l.SendCommand(first, 2), "old command")
			p := s.result(first)
			e.Check(p["status"] == "rejected" && peer.Str(p, "result", "code") == "command_history_compacted", "result %s", peer.Write(p))
			s.do("session.snapshot", peer.M{})
			m := e.readState()
			e.Check(len(peer.Obj(m, "processedCommands")) <= 128, "%d commands are kept", len(peer.Obj(m, "processedCommands")))
			e.Check(peer.Int(m, "compactedThroughControllerSeq") >= 3, "compactedThroughControllerSeq %v", m["compactedThroughControllerSeq"])
		}),
		with(target, "command/executor_error_is_failed", "9.7", func(e *env) {
			_, s := e.begin()
			p := s.do("turn.start", peer.M{"text": "x", "turnId": "t"})
			e.Check(p["status"] == "failed" && peer.Str(p, "result", "code") == "command_execution_failed" && peer.Str(p, "result", "message") != "",
				"turn.start before session.open: %s", peer.Write(p))
			s.open(scripted())
		}),
		with(target, "command/turn_start_without_text", "6.4", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			for _, payload := range []peer.M{{}, {"turnId": "t"}, {"text": 5, "turnId": "t"}} {
				p := s.do("turn.start", payload)
				e.Check(p["status"] == "failed" || p["status"] == "rejected", "turn.start %s ended %s", peer.Write(payload), peer.Write(p))
			}
			s.turn("x")
			s.turnEnd()
		}),
		with(target, "command/every_type_is_answered", "6.1", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			for _, kind := range []string{
				"session.snapshot", "session.goal.get", "session.goal.set", "session.goal.clear", "turn.steer", "turn.interrupt",
				"request.resolve", "interaction.receipt", "session.budget.increase", "semantic_tool.result", "turn.stop", "runner.drain", "session.close",
			} {
				s.do(kind, peer.M{"objective": "x", "reason": "test"})
			}
		}),
		with(target, "command/unknown_type", "6.1", func(e *env) {
			_, s := e.begin()
			c := e.command("session.dance", peer.M{})
			e.OK(s.l.SendCommand(c, 1), "command")
			m, err := s.step(2e9)
			if err == nil {
				e.Check(m["kind"] == "command_result" && peer.Get(m, "payload", "status") != "completed", "an unknown command was executed: %s", peer.Write(m))
			}
		}),
		with(target, "command/deadline_and_precondition_are_taken", "6.2", func(e *env) {
			_, s := e.begin()
			c := e.command("run.prepare", scripted())
			c["deadlineAt"] = "2099-01-01T00:00:00.000Z"
			c["precondition"] = peer.M{"runnerState": peer.A{"ready"}}
			e.OK(s.l.SendCommand(c, 1), "command")
			e.Check(s.result(c)["status"] == "completed", "run.prepare")
			want, err := peer.CommandFingerprint(c)
			e.OK(err, "fingerprint")
			m := e.stateUntil("the fingerprint", func(m peer.M) bool {
				return peer.Str(m, "processedCommandFingerprints", peer.Str(c, "commandId")) != ""
			})
			e.Check(peer.Str(m, "processedCommandFingerprints", peer.Str(c, "commandId")) == want, "fingerprint %s", peer.Write(m["processedCommandFingerprints"]))
		}),
		with(target, "command/large_payload", "1.5", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			c := e.command("turn.start", peer.M{"text": strings.Repeat("\u00e9", 240_000), "turnId": "t"})
			e.OK(s.l.SendCommand(c, 1), "command")
			e.Check(s.result(c)["status"] == "completed", "a command of 480 kB")
		}),
		with(target, "command/indeterminate_after_kill", "5.10", func(e *env) {
			p, s := e.begin()
			s.done("run.prepare", e.codex(e.file("stuck", []byte("#!/bin/sh\nexec sleep 20\n"), 0o700)))
			c := e.command("session.open", peer.M{"reuse": "same_session"})
			e.OK(s.l.SendCommand(c, 1), "command")
			e.stateUntil("the pending mark", func(m peer.M) bool {
				return peer.Int(m, "lastControllerCommandSeq") >= 2 || peer.Get(m, "processedCommands", peer.Str(c, "commandId")) != nil
			})
			p.kill()
			e.a.Acked, e.a.Pending = s.high, peer.A{c}
			e.start()
			s2 := e.session(e.admit())
			ev := s2.event("runner.reconciled")
			e.Check(peer.Int(ev, "priority") == 0 && peer.Str(ev, "payload", "outcome") == "same_durable_session_resumed", "runner.reconciled %s", peer.Write(ev))
			var r peer.M
			for _, m := range s2.others {
				if m["kind"] == "command_result" {
					r = peer.Obj(m, "payload")
				}
			}
			if r == nil {
				r = s2.result(c)
			}
			e.Check(r["status"] == "failed" && peer.Str(r, "result", "code") == "execution_indeterminate", "result %s", peer.Write(r))
			e.OK(s2.l.SendCommand(c, 2), "again")
			e.Check(peer.Equal(s2.result(c), r), "the indeterminate result changed")
		}),
	}
}

// codex is a run.prepare payload of kind codex (6.5) for a program.
func (e *env) codex(program string) peer.M {
	return peer.M{"authorizedTools": e.tools(), "provider": peer.M{
		"kind": "codex", "provider": "codex", "driver": "codex_app_server", "providerVersion": "codex-app-server-v1",
		"command": program, "args": peer.A{"app-server"}, "cwd": e.dir, "model": nil, "approvalPolicy": "never", "externallySandboxed": true,
		"instructions": "", "collaborationMode": "default", "includeCollaborationModeInstructions": false,
		"includeSkillInstructions": false, "runtimeContext": nil,
	}}
}

// tools is a valid, empty set of authorised tools (6.5).
func (e *env) tools(operations ...any) peer.M {
	ops := peer.A{}
	ops = append(ops, operations...)
	text, err := peer.CanonicalUnbounded(ops)
	e.OK(err, "catalogue")
	return peer.M{
		"schema": "paperclip.runner.authorized-tools.v1", "schemaVersion": 1, "catalogDigest": "sha256:" + peer.SHA256Hex(text), "operations": ops,
	}
}

// contract is a completionContract (6.5).
func contract(revision string, criteria ...string) peer.M {
	ids := peer.A{}
	for _, c := range criteria {
		ids = append(ids, c)
	}
	return peer.M{"completionContract": peer.M{"revision": revision, "criterionIds": ids}}
}

// providerCases: run.prepare and the provider kinds (6.4, 6.5, issue 2).
func providerCases(target Target) []suite.Case {
	refused := func(name string, prepare func(e *env) peer.M) suite.Case {
		return with(target, "prepare/"+name, "6.5", func(e *env) {
			_, s := e.begin()
			p := s.do("run.prepare", prepare(e))
			e.Check(p["status"] == "failed" || p["status"] == "rejected", "run.prepare ended %s", peer.Write(p))
			s.silence("nothing is started")
		})
	}
	tool := func(id string) peer.M {
		return peer.M{"operationId": id, "version": 1, "description": "d", "inputSchema": peer.M{"type": "object"}, "responseSchema": peer.M{"type": "object"}}
	}
	return []suite.Case{
		refused("no_provider", func(*env) peer.M { return peer.M{} }),
		refused("provider_null", func(*env) peer.M { return peer.M{"provider": nil} }),
		refused("unknown_kind", func(*env) peer.M { return peer.M{"provider": peer.M{"kind": "horoscope"}} }),
		refused("no_kind", func(*env) peer.M { return peer.M{"provider": peer.M{}} }),
		refused("command_without_argv", func(e *env) peer.M {
			return peer.M{"provider": peer.M{"kind": "command", "cwd": e.dir, "envNames": peer.A{}, "pty": false, "timeoutMs": 1000}}
		}),
		refused("command_empty_argv", func(e *env) peer.M { return e.argv() }),
		refused("command_missing_cwd", func(e *env) peer.M {
			m := e.argv("/bin/true")
			peer.Obj(m, "provider")["cwd"] = e.dir + "/none"
			return m
		}),
		refused("tools_wrong_digest", func(e *env) peer.M {
			t := e.tools(tool("a"))
			t["catalogDigest"] = "sha256:" + strings.Repeat("0", 64)
			return peer.Merge(scripted(), peer.M{"authorizedTools": t})
		}),
		refused("tools_257", func(e *env) peer.M {
			var ops []any
			for i := range 257 {
				ops = append(ops, tool(fmt.Sprintf("op%03d", i)))
			}
			return peer.Merge(scripted(), peer.M{"authorizedTools": e.tools(ops...)})
		}),
		refused("tools_description_above_16_KiB", func(e *env) peer.M {
			return peer.Merge(scripted(), peer.M{"authorizedTools": e.tools(peer.Merge(tool("a"), peer.M{"description": strings.Repeat("d", 16<<10+1)}))})
		}),
		refused("contract_empty_revision", func(*env) peer.M { return peer.Merge(scripted(), contract("", "c")) }),
		refused("contract_revision_of_121", func(*env) peer.M { return peer.Merge(scripted(), contract(strings.Repeat("r", 121), "c")) }),
		refused("contract_without_criteria", func(*env) peer.M { return peer.Merge(scripted(), contract("1")) }),
		refused("contract_criterion_of_241", func(*env) peer.M { return peer.Merge(scripted(), contract("1", strings.Repeat("c", 241))) }),
		refused("contract_257_criteria", func(*env) peer.M {
			var ids []string
			for i := range 257 {
				ids = append(ids, fmt.Sprintf("c-%d", i))
			}
			return peer.Merge(scripted(), contract("1", ids...))
		}),
		with(target, "prepare/at_the_limits", "6.5", func(e *env) {
			_, s := e.begin()
			var ops []any
			var ids []string
			for i := range 256 {
				ops = append(ops, tool(fmt.Sprintf("op%03d", i)))
				ids = append(ids, fmt.Sprintf("c-%0237d", i))
			}
			ops[0] = peer.Merge(tool("op000"), peer.M{"description": strings.Repeat("d", 16<<10)})
			s.done("run.prepare", peer.Merge(scripted(), contract(strings.Repeat("r", 120), ids...), peer.M{"authorizedTools": e.tools(ops...)}))
			s.done("session.open", peer.M{"reuse": "same_session"})
		}),
		with(target, "prepare/tools_are_accepted", "6.5", func(e *env) {
			_, s := e.begin()
			s.done("run.prepare", peer.Merge(scripted(), peer.M{
				"authorizedTools":    e.tools(tool("a"), tool("b")),
				"completionContract": peer.M{"revision": "1", "criterionIds": peer.A{"c-1"}},
			}))
			s.done("session.open", peer.M{"reuse": "same_session"})
		}),
		with(target, "prepare/tools_digest_of_sorted_operations", "6.5", func(e *env) {
			_, s := e.begin()
			t := e.tools(tool("a"), tool("b"))
			t["operations"] = peer.A{tool("b"), tool("a")}
			s.done("run.prepare", peer.Merge(scripted(), peer.M{"authorizedTools": t}))
		}),
		with(target, "provider/command_streams_and_exit_code", "issue 2", func(e *env) {
			_, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "printf 'out\\n'; printf 'err\\n' >&2; exit 3"))
			s.turn("go")
			s.turnEnd()
			e.Check(s.streamed("stdout") == "out\n" && s.streamed("stderr") == "err\n", "streams %q %q", s.streamed("stdout"), s.streamed("stderr"))
			end := s.events[len(s.events)-1]
			text := string(peer.Write(end))
			e.Check(strings.Contains(text, "3"), "the exit code is not in %s", text)
		}),
		with(target, "provider/command_gets_named_variables_only", "issue 2", func(e *env) {
			p := e.spawn(e.flags(e.a.URL()), e.a.NewTicket(), "GIVEN=given-value", "OTHER=other-value")
			s := e.session(e.admit())
			prepare := e.argv("/bin/sh", "-c", "echo \"<$GIVEN><$OTHER>\"")
			peer.Obj(prepare, "provider")["envNames"] = peer.A{"GIVEN"}
			s.open(prepare)
			s.turn("go")
			s.event("turn.completed")
			out := s.streamed("stdout")
			e.Check(strings.HasSuffix(out, "><>\n") && out != "<><>\n", "environment %q", out)
			p.running("after the turn")
		}),
		with(target, "provider/values_are_redacted", "issue 2", func(e *env) {
			e.spawn(e.flags(e.a.URL()), e.a.NewTicket(), "GIVEN=given-value-12345")
			s := e.session(e.admit())
			prepare := e.argv("/bin/sh", "-c", "echo before; echo \"$GIVEN\"; printf given-; sleep 0.3; printf 'value-%s' 12345; echo; echo \"$GIVEN\" >&2; echo after")
			peer.Obj(prepare, "provider")["envNames"] = peer.A{"GIVEN"}
			s.open(prepare)
			s.turn("go")
			s.turnEnd()
			out := s.bytesOf("stdout")
			e.Check(strings.HasPrefix(out, "before\n") && strings.HasSuffix(out, "after\n"), "stdout %q", out)
			for _, text := range []string{out, s.bytesOf("stderr"), string(peer.Write(s.eventList()))} {
				e.Check(!strings.Contains(text, "given-value-12345") && !strings.Contains(text, "value-12345"), "the value is in %q", text)
			}
			found := e.search([]byte("given-value-12345"))
			e.Check(found == "", "the value lies in %s", found)
		}),
		with(target, "provider/turn_stop_proves_the_exit", "6.4", func(e *env) {
			_, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "echo started; sleep 300 & wait"))
			s.turn("go")
			s.when("output", func() bool { return strings.Contains(s.streamed("stdout"), "started") })
			r := s.done("turn.stop", peer.M{"reason": "test"})
			e.Check(r["providerExitConfirmed"] == true, "turn.stop result %s", peer.Write(r))
		}),
		with(target, "provider/tree_is_killed_at_shutdown", "11.10", func(e *env) {
			p, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "sleep 300 & echo pid=$!=; wait"))
			s.turn("go")
			s.when("the pid", func() bool { return strings.Count(s.streamed("stdout"), "=") == 2 })
			pid := strings.Split(s.streamed("stdout"), "=")[1]
			s.terminal("runner.shutdown")
			p.exit(0, "shutdown")
			e.Check(processGone(pid), "process %s survived", pid)
		}),
	}
}

// streamed joins the text of the item deltas of one stream.
func (s *session) streamed(stream string) string {
	var b strings.Builder
	for _, ev := range s.events {
		if peer.Str(ev, "eventType") == "item.delta" && peer.Str(ev, "payload", "stream") == stream {
			b.WriteString(peer.Str(ev, "payload", "text"))
		}
	}
	return b.String()
}
