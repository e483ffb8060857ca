package runner

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// slowCodex answers initialize after a while.
func slowCodex() string {
	return strings.Replace(fakeCodex, `*'"method":"initialize"'*) say`, `*'"method":"initialize"'*) sleep 1.5; say`, 1)
}

// stuck is a program that never answers.
const stuck = "#!/bin/sh\nexec sleep 30\n"

// pendingCases: what goes on while a command is executed (appendix B 13, 9.7).
func pendingCases(target Target) []suite.Case {
	// opening starts session.open on a provider and does not wait for it.
	opening := func(e *env, script string) (*proc, *session, peer.M) {
		p, s := e.begin()
		s.done("run.prepare", e.codex(e.file("codex", []byte(script), 0o700)))
		c := e.command("session.open", peer.M{"reuse": "same_session"})
		e.OK(s.l.SendCommand(c, 1), "session.open")
		return p, s, c
	}
	return []suite.Case{
		with(target, "pending/ping_is_answered", "appendix B 13", func(e *env) {
			_, s, _ := opening(e, stuck)
			for range 3 {
				e.OK(s.l.Send(s.l.Control("ping", "ping_1", peer.M{})), "ping")
				s.until("pong", func(m peer.M) bool { return m["kind"] == "pong" })
			}
		}),
		with(target, "pending/lease_is_renewed", "appendix B 13", func(e *env) {
			e.a.LeaseTTL = 3 * time.Second
			_, s, _ := opening(e, stuck)
			s.until("lease_renew", func(m peer.M) bool { return m["kind"] == "lease_renew" })
		}),
		with(target, "pending/revoke_ends_it", "5.2", func(e *env) {
			p, s, _ := opening(e, stuck)
			e.OK(s.l.Send(s.l.Control("revoke", "revoke_1", peer.M{"revocationEpoch": 1})), "revoke")
			p.exit(0, "revoke")
		}),
		with(target, "pending/redelivery_is_one_execution", "9.7", func(e *env) {
			_, s, c := opening(e, slowCodex())
			e.OK(s.l.SendCommand(c, 2), "the same command")
			e.OK(s.l.SendCommand(c, 3), "the same command")
			r := s.result(c)
			e.Check(r["status"] == "completed", "session.open ended %s", peer.Write(r))
			s.event("session.started")
			s.turn("x")
			s.turnEnd()
			n := 0
			for _, t := range s.types() {
				if t == "session.started" {
					n++
				}
			}
			e.Check(n == 1, "session.started came %d times", n)
			for _, m := range s.others {
				if m["kind"] == "command_result" && peer.Get(m, "payload", "commandId") == c["commandId"] {
					e.Check(peer.Equal(m["payload"], r), "results differ: %s %s", peer.Write(m["payload"]), peer.Write(r))
				}
			}
		}),
		with(target, "pending/reconnect_is_no_indeterminate", "9.7", func(e *env) {
			_, s, c := opening(e, slowCodex())
			e.stateUntil("the pending mark", func(m peer.M) bool {
				return peer.Int(m, "lastControllerCommandSeq") >= 2 || peer.Get(m, "processedCommands", peer.Str(c, "commandId")) != nil
			})
			e.a.Pending = peer.A{c}
			e.OK(s.l.Close(), "close")
			n := e.session(e.admit())
			r := n.result(c)
			e.Check(r["status"] == "completed", "session.open ended %s", peer.Write(r))
			n.event("session.started")
		}),
		with(target, "pending/deadline_in_the_past_is_not_enforced", "6.2", func(e *env) {
			_, s := e.begin()
			c := e.command("run.prepare", scripted())
			c["deadlineAt"] = "2001-01-01T00:00:00.000Z"
			e.OK(s.l.SendCommand(c, 1), "command")
			e.Check(s.result(c)["status"] == "completed", "run.prepare")
		}),
		with(target, "pending/malformed_commands_are_not_executed", "5.4", func(e *env) {
			for _, change := range []func(c peer.M){
				func(c peer.M) { c["payload"] = peer.A{} }, func(c peer.M) { delete(c, "payload") }, func(c peer.M) { delete(c, "commandId") },
				func(c peer.M) { c["controllerSeq"] = "1" }, func(c peer.M) { c["controllerSeq"] = 0 }, func(c peer.M) { c["schema"] = "x" },
				func(c peer.M) { delete(c, "type") }, func(c peer.M) { c["precondition"] = "ready" }, func(c peer.M) { c["commandId"] = "a b" },
			} {
				p, s := e.begin()
				c := e.commandAt(1, "command_prp_00000001", "run.prepare", scripted())
				change(c)
				m := s.l.Control("command", "command_x_1", c)
				e.OK(s.l.Send(m), "send")
				for {
					got, err := s.step(1500 * time.Millisecond)
					if err != nil {
						break
					}
					if got["kind"] == "command_result" {
						e.Check(peer.Get(got, "payload", "status") != "completed", "executed: %s", peer.Write(c))
						break
					}
				}
				p.kill()
				e.OK(os.RemoveAll(e.state), "remove state")
				e.a.Connections, e.a.Acked = 0, 0
			}
		}),
	}
}

// importCases: a runner that finds the state file of another one (9.1, 9.2).
func importCases(target Target) []suite.Case {
	state := func(e *env, change peer.M) {
		e.OK(os.MkdirAll(e.state, 0o700), "state directory")
		m := peer.Merge(e.a.Identity.Members(), peer.M{
			"schema": "paperclip.runner.durable.state.v1", "lifecycle": "ready", "nextSourceSeq": 1, "ackedSourceSeq": 0,
			"lastControllerCommandSeq": 0, "compactedThroughControllerSeq": 0, "reconnectCount": 0, "maxOutboxBytes": 16_777_216,
			"p0ReserveBytes": 1_048_576, "peakOutboxBytes": 0, "outbox": peer.A{}, "processedCommands": peer.M{},
			"processedCommandFingerprints": peer.M{}, "pendingTerminalDelivery": nil, "executorEventReceipts": peer.M{},
			"v2ReplayEvents": peer.A{}, "lastConnectionProtocolVersion": 2, "diagnostics": peer.A{}, "backpressure": false,
			"recoverableFailure": nil,
		}, change)
		e.OK(os.WriteFile(filepath.Join(e.state, "runner-state.json"), append(peer.Write(m), '\n'), 0o600), "runner-state.json")
	}
	event := func(e *env, seq int64) peer.M {
		r := &peer.Runner{Config: peer.RunnerConfig{Identity: e.a.Identity}, Selected: 2}
		return r.EventEnvelope(r.NewEvent(seq, "harness.ready", peer.M{"n": seq, "t": "\u00e9 <&>"}))
	}
	entry := func(e *env, seq int64) peer.M {
		m := event(e, seq)
		return peer.M{"sourceSeq": seq, "priority": 1, "eventType": "harness.ready", "envelope": m, "byteSize": len(peer.Write(m))}
	}
	return []suite.Case{
		with(target, "import/stopped_exits_0", "9.2", func(e *env) {
			state(e, peer.M{"lifecycle": "stopped"})
			e.start().exit(0, "a stopped runner")
			e.noDial("a stopped runner")
		}),
		with(target, "import/revoked_exits_0", "9.2", func(e *env) {
			state(e, peer.M{"lifecycle": "revoked"})
			e.start().exit(0, "a revoked runner")
			e.noDial("a revoked runner")
		}),
		with(target, "import/other_identity", "9.1", func(e *env) {
			state(e, peer.M{"turnId": "turn-other"})
			e.start().exit(1, "a state of another identity")
		}),
		with(target, "import/other_limits", "9.3", func(e *env) {
			state(e, peer.M{"maxOutboxBytes": 8_388_608})
			e.start().exit(1, "a state with another outbox limit")
		}),
		with(target, "import/garbage", "9.1", func(e *env) {
			e.OK(os.MkdirAll(e.state, 0o700), "state directory")
			e.OK(os.WriteFile(filepath.Join(e.state, "runner-state.json"), []byte("{"), 0o600), "runner-state.json")
			e.start().exit(1, "a damaged state")
		}),
		with(target, "import/outbox_is_sent", "9.1", func(e *env) {
			state(e, peer.M{
				"nextSourceSeq": 4, "ackedSourceSeq": 1, "lastControllerCommandSeq": 2, "outbox": peer.A{entry(e, 2), entry(e, 3)},
				"processedCommands": peer.M{}, "compactedThroughControllerSeq": 2, "lifecycle": "suspended",
			})
			e.a.Acked = 1
			e.start()
			l := e.hello()
			r := peer.Obj(l.Hello, "payload", "resume")
			e.Check(peer.Int(r, "lastControllerCommandSeq") == 2 && peer.Int(r, "ackedSourceSeq") == 1 && peer.Int(r, "nextSourceEventSeq") >= 4, "resume %s", peer.Write(r))
			e.OK(l.SendChallenge(nil, nil), "challenge")
			e.OK(l.ReadResponse(), "response")
			e.OK(l.SendWelcome(nil), "welcome")
			s := e.session(l)
			ev := s.event("runner.reconciled")
			e.Check(peer.Int(ev, "sourceSeq") == 4, "runner.reconciled is event %v", ev["sourceSeq"])
			for seq := int64(2); seq <= 3; seq++ {
				got, err := peer.Parse([]byte(s.raw[seq]))
				e.OK(err, "event %d", seq)
				e.Check(peer.Equal(got, event(e, seq)), "event %d is %s", seq, s.raw[seq])
			}
		}),
		with(target, "import/processed_command_is_replayed", "9.7", func(e *env) {
			c := e.command("run.prepare", scripted())
			id := peer.Str(c, "commandId")
			print, err := peer.CommandFingerprint(c)
			e.OK(err, "fingerprint")
			record := peer.M{"commandId": id, "controllerSeq": 1, "commandType": "run.prepare", "status": "completed", "result": peer.M{"marker": 4711}}
			state(e, peer.M{
				"lastControllerCommandSeq": 1, "lifecycle": "suspended",
				"processedCommands": peer.M{id: record}, "processedCommandFingerprints": peer.M{id: print},
			})
			e.a.Pending = peer.A{c}
			e.start()
			r := e.session(e.admit()).result(c)
			e.Check(peer.Equal(r, record), "result %s", peer.Write(r))
		}),
	}
}
