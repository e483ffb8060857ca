package authority

import (
	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// restartCases: everything in the state survives a restart (8.2, 8.7).
func restartCases(target Target) []suite.Case {
	return []suite.Case{
		with(target, "restart/keeps_everything", "8.2", func(e *env) {
			r := e.join()
			a := e.queue("run.prepare", peer.M{"x": 1}, deliver())
			e.send(r, r.ResultEnvelope(e.commandFrame(r, a, 1), "completed", peer.M{"r": 1}))
			e.until("completion", func(s peer.M) bool { return command(s, a)["status"] == "completed" })
			b := e.queue("session.open", peer.M{}, deliver())
			cb := e.commandFrame(r, b, 1)
			first := e.event(r, 1)
			e.ack(r, 1)
			e.send(r, first)
			e.ack(r, 1)
			e.alive(r, 2)
			before := e.state()
			e.restart(peer.M{})
			e.OK(r.ExpectClose(closeWait, nil), "a restart closes the connection")
			after := e.state()
			before["connections"], before["tools"] = 0, 0
			e.Check(peer.Equal(before, after) || equalState(before, after), "state changed from %s to %s", peer.Write(before), peer.Write(after))
			r = e.again(r)
			e.Check(r.ConnectionID == "connection_2", "connection %s", r.ConnectionID)
			e.Check(peer.Equal(r.Pending(), cb) && peer.Int(r.Welcome, "payload", "ackedSourceSeq") == 2, "welcome %s", peer.Write(r.Welcome["payload"]))
			e.queue("turn.start", peer.M{}, deliver())
			e.commandFrame(r, b, 3) // delivery counts go on: frame, welcome, frame
			e.alive(r, 3)
		}),
		with(target, "restart/unused_ticket_still_works", "2.4", func(e *env) {
			cfg := e.config(1, 2)
			e.restart(peer.M{})
			e.joinWith(cfg)
		}),
		with(target, "restart/used_ticket_stays_used", "2.6", func(e *env) {
			cfg := e.config(1, 2)
			e.joinWith(cfg)
			e.restart(peer.M{})
			s := e.dial(cfg)
			e.OK(s.SendHello(nil), "hello")
			e.closed(s.Sock, "a used ticket after a restart")
		}),
		with(target, "restart/lease_version_stays", "2.7", func(e *env) {
			r := e.joinV1()
			e.restart(peer.M{})
			cfg := r.LeaseConfig()
			cfg.Max = 2
			n := e.joinWith(cfg)
			e.Check(n.Selected == 1 && n.LeaseID == r.LeaseID && n.LeaseExpiry == r.LeaseExpiry, "lease changed")
		}),
		with(target, "restart/challenge_does_not_survive", "3.7", func(e *env) {
			cfg := e.config(1, 2)
			r := e.dial(cfg)
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			old := r.ResponseEnvelope()
			e.restart(peer.M{})
			e.closed(r.Sock, "a restart")
			n := e.dial(cfg)
			e.OK(n.SendHello(nil), "hello")
			e.OK(n.ReadChallenge(), "challenge")
			e.OK(n.WriteText(peer.Write(old)), "old response")
			e.closed(n.Sock, "a proof for an old challenge")
			e.joinWith(cfg)
		}),
		with(target, "restart/odd_json_is_kept_exactly", "appendix B 4 (run)", func(e *env) {
			r := e.join()
			text := func(c string) []byte {
				m := r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{}))
				peer.Obj(m, "payload")["payload"] = peer.Raw(`{"__proto__":{"a":` + c + `},"s":"\ud83c","n":[1e21,-0,1E-7,9007199254740993],"d":1,"d":2,"h":"<&>\u2028"}`)
				return peer.Write(m)
			}
			e.send(r, text("1"))
			e.ack(r, 1)
			e.restart(peer.M{})
			r = e.again(r)
			e.send(r, text("1.0"))
			e.ack(r, 1)
			e.noFault()
			e.send(r, text("2"))
			e.closed(r.Sock, "a changed __proto__ member")
			e.fault("source_event_replay_conflict")
		}),
		with(target, "restart/many_times", "8.7", func(e *env) {
			r := e.join()
			for n := int64(1); n <= 4; n++ {
				e.alive(r, n)
				e.queue("turn.stop", peer.M{"n": n})
				e.restart(peer.M{})
				r = e.again(r)
				e.Check(peer.Int(r.Welcome, "payload", "ackedSourceSeq") == n, "ackedSourceSeq %v", peer.Get(r.Welcome, "payload", "ackedSourceSeq"))
			}
			s := e.state()
			e.Check(len(peer.List(s, "commands")) == 4 && len(peer.List(s, "events")) == 4, "state %.300s", peer.Write(s))
		}),
		with(target, "restart/new_process_same_state", "8.7", func(e *env) {
			r := e.join()
			e.alive(r, 1)
			a := e.queue("run.prepare", peer.M{})
			e.op("stop", peer.M{})
			e.gone()
			n := newProcess(e.T, target)
			n.id, n.digest = e.id, e.digest
			n.begin(peer.M{"stateDir": e.startArgs()["stateDir"]})
			cfg := r.LeaseConfig()
			cfg.URL = n.url
			r2 := n.joinWith(cfg)
			n.Check(peer.Int(r2.Welcome, "payload", "ackedSourceSeq") == 1 && peer.Str(r2.Pending(), "commandId") == a, "welcome %s", peer.Write(r2.Welcome["payload"]))
			n.Check(r2.ConnectionID == "connection_2", "connection %s", r2.ConnectionID)
		}),
		with(target, "restart/killed_process_same_state", "8.7", func(e *env) {
			r := e.join()
			e.alive(r, 1)
			e.alive(r, 2)
			a := e.queue("run.prepare", peer.M{})
			e.OK(e.cmd.Process.Kill(), "kill")
			e.gone()
			n := newProcess(e.T, target)
			n.id, n.digest = e.id, e.digest
			n.begin(peer.M{"stateDir": e.startArgs()["stateDir"]})
			cfg := r.LeaseConfig()
			cfg.URL = n.url
			r2 := n.joinWith(cfg)
			n.Check(peer.Int(r2.Welcome, "payload", "ackedSourceSeq") == 2 && peer.Str(r2.Pending(), "commandId") == a, "welcome %s", peer.Write(r2.Welcome["payload"]))
		}),
		with(target, "restart/other_identity_is_refused", "8.6", func(e *env) {
			e.op("stop", peer.M{})
			e.gone()
			n := newProcess(e.T, target)
			n.refused("start", peer.Merge(n.startArgs(), peer.M{"stateDir": e.startArgs()["stateDir"]}))
		}),
	}
}

// equalState compares two states without the ids of the answers.
func equalState(a, b peer.M) bool {
	x, y := peer.Merge(a), peer.Merge(b)
	delete(x, "id")
	delete(y, "id")
	return peer.Equal(x, y)
}
