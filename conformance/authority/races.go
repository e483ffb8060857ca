package authority

import (
	"fmt"
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// raceCases: things that go wrong when connections, redeliveries and results
// cross each other (1.6, 1.8, 5.5, 8.7, 15.2).
func raceCases(target Target) []suite.Case {
	return []suite.Case{
		with(target, "race/redelivery_while_committing_appends_once", "15.2 (18)", func(e *env) {
			r := e.join()
			for seq := int64(1); seq <= 25; seq++ {
				m := r.EventEnvelope(r.NewEvent(seq, "harness.ready", peer.M{"n": seq}))
				// The event and the reconnect cross: nobody waits for the ack.
				e.OK(r.WriteFrames(r.Frame(m)), "write")
				n := e.again(r)
				e.OK(r.Close(), "close")
				r = n
				e.send(r, m)
				e.ack(r, seq)
			}
			seen := map[int64]bool{}
			list := peer.List(e.state(), "events")
			for _, ev := range list {
				n := peer.Int(ev, "sourceSeq")
				e.Check(!seen[n], "event %d was appended twice", n)
				seen[n] = true
			}
			e.Check(len(list) == 25, "%d events", len(list))
			e.noFault()
		}),
		with(target, "race/tool_redelivery_while_committing_dispatches_once", "5.6", func(e *env) {
			r := e.join()
			for seq := int64(1); seq <= 10; seq++ {
				m := r.EventEnvelope(inputEvent(e, r, seq, fmt.Sprintf("call-%d", seq), peer.M{"n": seq}))
				e.OK(r.WriteFrames(r.Frame(m)), "write")
				n := e.again(r)
				e.OK(r.Close(), "close")
				r = n
				e.send(r, m)
				for { // ack and, in any order, the first pending command
					x, err := r.Next(peer.IOTimeout)
					e.OK(err, "ack of %d", seq)
					if x["kind"] == "ack" {
						break
					}
				}
			}
			e.until("ten dispatches", func(s peer.M) bool { return len(peer.List(s, "commands")) == 10 })
			e.Check(peer.Int(e.state(), "tools") == 10, "tools %v", e.state()["tools"])
		}),
		with(target, "race/many_reconnects_one_connection", "1.8", func(e *env) {
			r := e.join()
			cfg := r.LeaseConfig()
			var all []*peer.Runner
			for range 5 {
				n := e.dial(cfg)
				e.OK(n.SendHello(nil), "hello")
				e.OK(n.ReadChallenge(), "challenge")
				all = append(all, n)
			}
			for i, n := range all {
				e.OK(n.SendResponse(nil), "response")
				e.OK(n.ReadWelcome(), "welcome %d", i)
				e.OK(r.ExpectClose(closeWait, nil), "the connection before %d must be replaced", i)
				r = n
			}
			e.until("one connection", func(s peer.M) bool { return peer.Int(s, "connections") == 1 })
			e.alive(all[4], 1)
		}),
		with(target, "race/many_idle_sockets", "3.8", func(e *env) {
			var idle []*peer.Runner
			for range 12 {
				idle = append(idle, e.dial(e.config(1, 2)))
			}
			r := e.join()
			e.alive(r, 1)
			for i, n := range idle {
				e.OK(n.Authenticate(), "idle socket %d", i)
			}
		}),
		with(target, "race/two_authorities_do_not_mix", "3.2", func(e *env) {
			other := start(e.T, target)
			cfg := e.config(1, 2)
			cfg.URL = other.url
			r := e.dial(cfg)
			e.OK(r.SendHello(nil), "hello")
			e.closed(r.Sock, "a ticket of another authority")
		}),
		with(target, "race/queue_deliver_without_connection", "5.4", func(e *env) {
			id := e.queue("run.prepare", peer.M{}, deliver())
			r := e.join()
			e.Check(peer.Str(r.Pending(), "commandId") == id, "pending %s", peer.Write(r.Pending()))
			e.queue("session.open", peer.M{}, deliver())
			e.commandFrame(r, id, 2)
		}),
		with(target, "race/immediate_queueing_sends_the_first_pending", "5.4 (run)", func(e *env) {
			r := e.join()
			a := e.queue("run.prepare", peer.M{})
			b := e.queue("session.open", peer.M{})
			e.silent(r.Sock, "nothing was to be delivered")
			c := e.queue("turn.start", peer.M{}, deliver())
			for i, id := range []string{a, b, c} {
				cmd := e.commandFrame(r, id, 1)
				e.Check(peer.Int(cmd, "controllerSeq") == int64(i+1), "sequence %v", cmd["controllerSeq"])
				e.send(r, r.ResultEnvelope(cmd, "completed", peer.M{}))
			}
		}),
		with(target, "race/terminal_result_never_sent", "5.5", func(e *env) {
			r := e.join()
			id := e.queue("runner.suspend", peer.M{})
			e.silent(r.Sock, "not delivered")
			e.send(r, r.ResultEnvelope(peer.M{"commandId": id, "controllerSeq": 1, "type": "runner.suspend"}, "completed", peer.M{"status": "completed"}))
			e.next(r, "command_result_ack")
		}),
		with(target, "race/terminal_result_again_after_a_lost_ack", "9.8", func(e *env) {
			r := e.join()
			id := e.queue("runner.shutdown", peer.M{}, deliver())
			m := r.ResultEnvelope(e.commandFrame(r, id, 1), "completed", peer.M{"status": "completed"})
			e.send(r, m)
			e.until("completion", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
			r = e.again(r)
			e.Check(r.Pending() == nil, "pending %s", peer.Write(r.Pending()))
			e.send(r, m)
			p := peer.Obj(e.next(r, "command_result_ack"), "payload")
			e.Check(peer.Str(p, "commandId") == id, "acknowledgement %s", peer.Write(p))
		}),
		with(target, "race/result_and_event_in_one_write", "1.6", func(e *env) {
			r := e.join()
			id := e.queue("turn.start", peer.M{}, deliver())
			c := e.commandFrame(r, id, 1)
			e.OK(r.WriteFrames(
				r.Frame(r.EventEnvelope(r.NewEvent(1, "turn.started", peer.M{}))),
				r.Frame(r.ResultEnvelope(c, "completed", peer.M{"providerTurnId": "p"})),
				r.Frame(r.EventEnvelope(r.NewEvent(2, "turn.completed", peer.M{}))),
			), "write")
			e.ack(r, 1)
			e.ack(r, 2)
			e.Check(command(e.state(), id)["status"] == "completed", "the result before event 2 was handled before it")
		}),
		with(target, "race/event_then_close", "1.6", func(e *env) {
			r := e.join()
			e.OK(r.WriteFrames(r.Frame(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{}))), peer.Frame{Fin: true, Opcode: peer.OpClose, Masked: true}), "write")
			e.acked(1) // what came before the close is committed
		}),
		with(target, "tool/same_call_id_twice", "8.7, 8.10", func(e *env) {
			r := e.join()
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{})))
			c := e.toolAnswer(r, 1, "call-1")
			e.send(r, r.EventEnvelope(inputEvent(e, r, 2, "call-1", peer.M{})))
			e.ack(r, 2)
			e.send(r, r.ResultEnvelope(c, "completed", peer.M{"status": "delivered", "callId": "call-1"}))
			s := e.until("completion", func(s peer.M) bool { return command(s, peer.Str(c, "commandId"))["status"] == "completed" })
			e.Check(peer.Int(s, "tools") == 1 && s["settled"] == false, "tools %v settled %v", s["tools"], s["settled"])
		}),
		with(target, "tool/open_block_and_long_ids", "7.3", func(e *env) {
			r := e.join()
			call := "c" + strings.Repeat(":", 239)
			ev := inputEvent(e, r, 1, call, peer.M{})
			block(ev)["operationId"] = "o" + strings.Repeat("-", 239)
			block(ev)["more"] = peer.M{"x": 1}
			block(ev)["idempotencyKey"] = strings.Repeat("\U0001F300", 240)
			peer.Obj(block(ev), "content")["references"] = peer.A{peer.M{"kind": "task", "id": "x"}, peer.M{"kind": "operation", "id": "x"}}
			e.send(r, r.EventEnvelope(ev))
			e.toolAnswer(r, 1, call)
		}),
		with(target, "tool/idempotency_key_of_241", "7.3", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", peer.M{})
			block(ev)["idempotencyKey"] = strings.Repeat("k", 241)
			e.send(r, r.EventEnvelope(ev))
			e.closed(r.Sock, "a key of 241 characters")
		}),
		with(target, "tool/hold_does_not_block_results", "1.6", func(e *env) {
			r := e.join()
			id := e.queue("turn.start", peer.M{}, deliver())
			c := e.commandFrame(r, id, 1)
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", peer.M{})))
			e.ack(r, 1)
			e.send(r, r.ResultEnvelope(c, "completed", peer.M{"providerTurnId": "p"}))
			e.until("completion", func(s peer.M) bool { return command(s, id)["status"] == "completed" })
		}, peer.M{"tool": "hold"}),
	}
}
