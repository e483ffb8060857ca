package runner

import (
	"fmt"
	"math/rand/v2"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

const (
	crashRounds  = 8
	crashMaxWait = 120 * time.Millisecond // from admission to the kill
)

// crashRun is an authority that outlives its runner's deaths.
type crashRun struct {
	*env
	raw     map[int64]string // every event as first received
	ends    map[string]int   // ends of turns by providerTurnId
	turns   []string         // providerTurnIds of completed turn.start commands
	unknown int              // indeterminate commands
	pending peer.M           // the command without a result
}

// follow follows a connection until stop says so or it dies.
func (c *crashRun) follow(s *session, stop func() bool) {
	for !stop() {
		if c.pending == nil {
			c.pending = c.command("turn.start", peer.M{"text": "x", "turnId": "turn-" + peer.RandomHex(4)})
			if s.l.SendCommand(c.pending, 1) != nil {
				return
			}
		}
		m, err := s.l.Next(peer.IOTimeout)
		if err != nil {
			return
		}
		switch m["kind"] {
		case "event":
			c.event(s, peer.Obj(m, "payload"))
		case "command_result":
			c.result(peer.Obj(m, "payload"))
		}
	}
}

func (c *crashRun) event(s *session, ev peer.M) {
	seq := peer.Int(ev, "sourceSeq")
	text := s.l.Envelopes[len(s.l.Envelopes)-1]
	if old, known := c.raw[seq]; known {
		c.Check(old == text, "event %d changed from %s to %s", seq, old, text)
	} else {
		c.Check(seq == int64(len(c.raw))+1, "event %d after %d", seq, len(c.raw))
		c.raw[seq] = text
		switch peer.Str(ev, "eventType") {
		case "turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled":
			c.ends[peer.Str(ev, "payload", "providerTurnId")]++
		}
	}
	if err := s.l.Ack(max(seq, c.a.Acked)); err != nil {
		c.Logf("ack: %v", err)
	}
}

func (c *crashRun) result(p peer.M) {
	if c.pending == nil || p["commandId"] != c.pending["commandId"] {
		return
	}
	c.pending = nil
	if p["status"] == "completed" {
		c.turns = append(c.turns, peer.Str(p, "result", "providerTurnId"))
		return
	}
	c.Check(p["status"] == "failed" && peer.Str(p, "result", "code") == "execution_indeterminate", "result %s", peer.Write(p))
	c.unknown++
}

// crashCases: SIGKILL at random moments (2.6, 5.10, 9.7).
func crashCases(target Target) []suite.Case {
	var out []suite.Case
	for seed := uint64(1); seed <= 3; seed++ {
		c := with(target, fmt.Sprintf("crash/random_kills_%d", seed), "5.10, 9.7", func(e *env) {
			g := rand.New(rand.NewPCG(seed, 7))
			c := &crashRun{env: e, raw: map[int64]string{}, ends: map[string]int{}}
			p, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			for seq, text := range s.raw {
				c.raw[seq] = text
			}
			for range crashRounds {
				timer := time.AfterFunc(time.Duration(g.Int64N(int64(crashMaxWait))), p.kill)
				c.follow(s, func() bool { return false })
				timer.Stop()
				p.kill()
				e.a.Pending = nil
				if c.pending != nil {
					e.a.Pending = peer.A{c.pending}
				}
				p = e.start()
				s = e.session(e.admit())
			}
			// The last one lives: everything comes to its end.
			want := len(c.turns) + c.unknown + 3
			c.follow(s, func() bool {
				if len(c.turns)+c.unknown < want {
					return false
				}
				for _, id := range c.turns {
					if c.ends[id] == 0 {
						return false
					}
				}
				return true
			})
			p.running("the last runner")
			for _, id := range c.turns {
				e.Check(c.ends[id] == 1, "turn %s ended %d times", id, c.ends[id])
			}
			e.Check(len(c.turns) >= 3, "turns %d, indeterminate %d", len(c.turns), c.unknown)
			e.Logf("%d events, %d turns, %d indeterminate", len(c.raw), len(c.turns), c.unknown)
		})
		c.Timeout = time.Minute
		out = append(out, c)
	}
	return out
}
