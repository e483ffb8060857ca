package runner

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// mutate changes a few random bytes of a text.
func mutate(g *rand.Rand, text []byte) []byte {
	inserts := []string{"null", "{}", "[", "1e999", `"`, ",", "\x00", "-", "true", `\u`}
	out := append([]byte(nil), text...)
	for range 1 + g.IntN(3) {
		i := g.IntN(len(out))
		switch g.IntN(3) {
		case 0:
			out[i] = byte(g.IntN(256))
		case 1:
			out = append(out[:i], out[i+1:]...)
		default:
			out = append(out[:i], append([]byte(inserts[g.IntN(len(inserts))]), out[i:]...)...)
		}
		if len(out) == 0 {
			out = []byte("x")
		}
	}
	return out
}

// garbageCases: a runner must not crash on what an authority sends. Ending
// with its own message is allowed, a panic is not.
func garbageCases(target Target) []suite.Case {
	var out []suite.Case
	for seed := uint64(1); seed <= 4; seed++ {
		c := with(target, fmt.Sprintf("garbage/sealed_%d", seed), "5", func(e *env) {
			g := rand.New(rand.NewPCG(seed, 6))
			p := e.start()
			for range 40 {
				l, err := e.a.AcceptAndAdmit(acceptWait)
				if err != nil {
					break // it may have ended by a rule, with its message
				}
				forms := []peer.M{
					l.Control("ping", "ping_1", peer.M{}),
					l.Control("command", "command_x_1", e.commandAt(1, "command_prp_00000001", "run.prepare", scripted())),
					l.Control("lease_renewed", "lease_renewed_1", peer.M{
						"previousExpiresAtUnixMs": 1, "connectionLeaseExpiresAtUnixMs": e.a.LeaseExpiry, "connectionLeaseRevocationEpoch": 0,
					}),
					l.Control("command_result_ack", "command_result_ack_1", peer.M{"commandId": "x", "commandType": "runner.drain", "controllerSeq": 1, "status": "completed"}),
				}
				err = l.Send(mutate(g, peer.Write(forms[g.IntN(len(forms))])))
				if err == nil {
					for {
						if _, err = l.ReadFrame(20 * time.Millisecond); err != nil {
							break
						}
					}
				}
				e.Logf("garbage: %v", err)
				e.OK(l.Close(), "close")
				select {
				case <-p.done:
					e.Check(p.cmd.ProcessState.ExitCode() == 1, "exit code %d; stderr %.600s", p.cmd.ProcessState.ExitCode(), p.stderr.String())
					p = nil
				default:
				}
				if p == nil {
					return
				}
			}
			text := p.stderr.String()
			e.Check(!strings.Contains(text, "panic") && !strings.Contains(text, "goroutine "), "the runner crashed: %.1500s", text)
		})
		c.Timeout = time.Minute
		out = append(out, c)
	}
	return out
}
