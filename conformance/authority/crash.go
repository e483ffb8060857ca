package authority

import (
	"fmt"
	"math/rand/v2"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

const (
	crashRounds  = 6
	crashMaxWait = 80 * time.Millisecond // from the welcome to the kill
)

// crashCases: SIGKILL of the authority at random moments; what it acknowledged
// must be there again (8.5, 8.7).
func crashCases(target Target) []suite.Case {
	var out []suite.Case
	for seed := uint64(1); seed <= 3; seed++ {
		out = append(out, long(with(target, fmt.Sprintf("crash/random_kills_%d", seed), "8.7", func(e *env) {
			g := rand.New(rand.NewPCG(seed, 8))
			ticket := e.config(1, 2)
			r := e.joinWith(ticket)
			sent, acked, done := int64(0), int64(0), map[string]bool{}
			var pending peer.M
			for range crashRounds {
				timer := time.AfterFunc(time.Duration(g.Int64N(int64(crashMaxWait))), e.killNow)
				sent, acked = e.traffic(r, sent, acked, pending, done)
				timer.Stop()
				e.killNow()
				e = e.successor()
				cfg := r.LeaseConfig()
				cfg.URL = e.url
				n := e.joinWith(cfg)
				n.LeaseToken = cfg.Token
				at := peer.Int(n.Welcome, "payload", "ackedSourceSeq")
				e.Check(at >= acked && at <= sent, "welcome acknowledges %d; seen %d, sent %d", at, acked, sent)
				s := e.state()
				for id := range done {
					e.Check(command(s, id)["status"] == "completed", "the acknowledged result of %s was lost", id)
				}
				e.Check(int64(len(peer.List(s, "events"))) == at, "%d events of %d", len(peer.List(s, "events")), at)
				acked, r, pending = at, n, n.Pending()
				used := e.dial(peer.RunnerConfig{URL: e.url, Token: ticket.Token, Identity: e.id, Version: "0.3.0", Digest: e.digest, Min: 1, Max: 2})
				e.OK(used.SendHello(nil), "hello")
				e.closed(used.Sock, "the used ticket")
			}
			for seq := acked + 1; seq <= sent; seq++ { // what was not acknowledged comes again
				e.event(r, seq)
				e.ack(r, seq)
			}
			for seq := int64(1); seq <= sent; seq++ { // and what was is known
				e.event(r, seq)
				e.ack(r, sent)
			}
			e.noFault()
			e.Check(sent > crashRounds, "only %d events in all", sent)
		}), time.Minute))
	}
	return out
}

// killNow kills the process; it may be dead already.
func (e *env) killNow() {
	if err := e.cmd.Process.Kill(); err != nil {
		e.Logf("kill: %v", err)
	}
}

// successor starts another process on the same state.
func (e *env) successor() *env {
	e.gone()
	n := newProcess(e.T, e.target)
	n.id, n.digest, n.state0 = e.id, e.digest, e.stateDir()
	n.begin(peer.M{"stateDir": n.state0})
	return n
}

// traffic sends events from acked on and answers commands until the
// connection ends. done collects commands whose result was acknowledged by
// what followed: a terminal acknowledgement or a later answer.
func (e *env) traffic(r *peer.Runner, sent, acked int64, pending peer.M, done map[string]bool) (int64, int64) {
	next := acked + 1
	last := ""
	for {
		if pending != nil {
			if r.Send(r.ResultEnvelope(pending, "completed", peer.M{"n": peer.Get(pending, "controllerSeq")})) != nil {
				return sent, acked
			}
			last, pending = peer.Str(pending, "commandId"), nil
		}
		if next > sent {
			sent = next
		}
		if r.Send(r.EventEnvelope(r.NewEvent(next, "harness.ready", peer.M{"n": next}))) != nil {
			return sent, acked
		}
		for {
			m, err := r.Next(peer.IOTimeout)
			if err != nil {
				return sent, acked
			}
			if m["kind"] == "command" {
				pending = peer.Obj(m, "payload")
				continue
			}
			acked = peer.Int(m, "payload", "ackedSourceSeq")
			break
		}
		// Frames are handled in order: the result before this event is durable.
		if last != "" {
			done[last] = true
			last = ""
		}
		next = acked + 1
		if next%3 == 0 {
			e.lastID++
			line := peer.Write(peer.M{"id": e.lastID, "op": "queue", "type": "turn.stop", "payload": peer.M{"n": next}, "deliver": true})
			if _, err := e.stdin.Write(append(line, '\n')); err != nil {
				e.Logf("queue: %v", err) // the process is being killed
			}
		}
	}
}
