package authority

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// generator makes random JSON values out of what tells implementations apart.
type generator struct{ *rand.Rand }

func (g generator) pick(list []string) string { return list[g.IntN(len(list))] }

// text returns the JSON text of a random string.
func (g generator) text() string {
	parts := []string{
		"a", "Z", "0", " ", "_", "-", ".", `\"`, `\\`, `\/`, "/", `\b`, `\f`, `\n`, `\r`, `\t`, `\u0000`, `\u001f`, "\x7f", "<", ">", "&", "'",
		"\u2028", `\u2029`, "\u00e9", "e\u0301", "\u20ac", `\u20ac`, "\U0001F300", `\ud83c\udf00`, `\ud83c`, `\udf00`, `\uFFFD`, "\ufeff", "\uff61",
		"Bearer ", "bearer\u00a0", "sk_", "pk_abcdefgh", "ghp_ABCDEFGH", "github_pat_12345678", "eyJabcdefgh.abcdefgh.abcdefgh", "abcdefgh",
		"?token=", "&code=x", "&state=", "?api-key=1", "#", "=", "secret", "password", "\u017f", "\u212a",
	}
	var b strings.Builder
	b.WriteByte('"')
	for range g.IntN(9) {
		b.WriteString(g.pick(parts))
	}
	b.WriteByte('"')
	return b.String()
}

func (g generator) number() string {
	return g.pick([]string{
		"0", "-0", "1", "-1", "1.0", "1e0", "10E-1", "100", "1e2", "0.1", "1e-6", "1e-7", "0.00001234", "123456789012345678901", "1e20", "1e21", "1.5e300",
		"9007199254740991", "9007199254740993", "-9007199254740992", "5e-324", "1.7976931348623157e308", "4.35", "0.1e1", "2.5E+3",
		fmt.Sprint(g.Int64()), fmt.Sprint(g.Float64()), fmt.Sprintf("%e", g.NormFloat64()), fmt.Sprintf("%.20f", g.Float64()), fmt.Sprint(g.Float64() * 1e18),
	})
}

func (g generator) value(depth int) string {
	kind := g.IntN(10)
	if depth > 5 {
		kind = g.IntN(6)
	}
	switch {
	case kind < 2:
		return g.text()
	case kind < 5:
		return g.number()
	case kind < 6:
		return g.pick([]string{"null", "true", "false", "{}", "[]", " [ ] "})
	case kind < 8:
		var list []string
		for range g.IntN(5) {
			list = append(list, g.value(depth+1))
		}
		return "[" + strings.Join(list, " ,") + "]"
	}
	return g.object(depth)
}

func (g generator) object(depth int) string {
	var list []string
	for range g.IntN(6) {
		key := g.text()
		if g.IntN(3) == 0 {
			key = `"` + g.pick([]string{"a", "b", "token", "apiKey", "private_key", "__proto__", "constructor", "x", "Cookie", "connection string", "1", "10", "2"}) + `"`
		}
		list = append(list, key+": "+g.value(depth+1))
	}
	return "{" + strings.Join(list, ",") + "}"
}

// respelled returns another text of the same value: canonical order, other
// escapes, shortest numbers.
func respelled(t *suite.T, text string) (string, bool) {
	v, err := peer.Parse([]byte(text))
	t.OK(err, "own text %s", text)
	out, err := peer.CanonicalUnbounded(v)
	if err != nil {
		return "", false
	}
	return strings.ReplaceAll(out, "/", `\/`), true
}

const randomRounds = 120

// randomCases: many random values with fixed seeds.
func randomCases(target Target) []suite.Case {
	var out []suite.Case
	for seed := uint64(1); seed <= 3; seed++ {
		out = append(out,
			long(with(target, fmt.Sprintf("random/replays_%d", seed), "3.9", func(e *env) {
				g := generator{rand.New(rand.NewPCG(seed, 1))}
				r := e.join()
				seq := int64(0)
				for range randomRounds {
					text := g.object(0)
					again, ok := respelled(e.T, text)
					if !ok {
						continue
					}
					seq++
					ev := r.NewEvent(seq, "harness.ready", nil)
					for _, payload := range []string{text, again} {
						ev["payload"] = peer.Raw(`{"v":` + payload + `}`)
						e.send(r, r.EventEnvelope(ev))
						m, err := r.Next(peer.IOTimeout)
						e.OK(err, "payload %s spelled %s", text, payload)
						e.Check(peer.Int(m, "payload", "ackedSourceSeq") == seq, "payload %s: %s", text, peer.Write(m))
					}
				}
				e.noFault()
			}), time.Minute),
			long(with(target, fmt.Sprintf("random/digests_%d", seed), "7.4", func(e *env) {
				g := generator{rand.New(rand.NewPCG(seed, 2))}
				r := e.join()
				for seq := int64(1); seq <= randomRounds; seq++ {
					text := g.value(0)
					call := fmt.Sprintf("call-%d", seq)
					v, err := peer.Parse([]byte(text))
					e.OK(err, "own text %s", text)
					ev := inputEvent(e, r, seq, call, v)
					block(ev)["input"] = peer.Raw(text)
					e.send(r, r.EventEnvelope(ev))
					for {
						m, err := r.Next(peer.IOTimeout)
						e.OK(err, "input %s", text)
						if m["kind"] == "ack" {
							break
						}
					}
				}
				e.noFault()
			}, peer.M{"tool": "hold"}), time.Minute),
			long(with(target, fmt.Sprintf("random/conflicts_%d", seed), "5.6", func(e *env) {
				g := generator{rand.New(rand.NewPCG(seed, 3))}
				r := e.join()
				var text, other string
				var ok bool
				for !ok || other == "" { // two values that differ canonically
					text = g.object(0)
					a, fine := respelled(e.T, text)
					b, fine2 := respelled(e.T, g.object(0))
					if ok = fine && fine2 && a != b; ok {
						other = b
					}
				}
				ev := r.NewEvent(1, "harness.ready", nil)
				ev["payload"] = peer.Raw(text)
				e.send(r, r.EventEnvelope(ev))
				e.ack(r, 1)
				ev["payload"] = peer.Raw(other)
				e.send(r, r.EventEnvelope(ev))
				e.closed(r.Sock, "a different payload")
				e.fault("source_event_replay_conflict")
			}), time.Minute),
		)
	}
	return out
}

// mutate changes a few random bytes of a text.
func (g generator) mutate(text []byte) []byte {
	out := append([]byte(nil), text...)
	for range 1 + g.IntN(4) {
		i := g.IntN(len(out))
		switch g.IntN(4) {
		case 0:
			out[i] = byte(g.IntN(256))
		case 1:
			out = append(out[:i], out[i+1:]...)
		case 2:
			out = append(out[:i], append([]byte(g.pick([]string{"null", "{}", "[", "1e999", `"`, ",", "\x00", "-", "true", "\\u"})), out[i:]...)...)
		case 3:
			out = append(out[:i], append(append([]byte(nil), out[i:]...), out[i:min(len(out), i+g.IntN(40))]...)...)
		}
		if len(out) == 0 {
			out = []byte("x")
		}
	}
	return out
}

// garbageCases: an authority must survive whatever arrives.
func garbageCases(target Target) []suite.Case {
	var out []suite.Case
	for seed := uint64(1); seed <= 4; seed++ {
		out = append(out,
			long(with(target, fmt.Sprintf("garbage/handshake_%d", seed), "3", func(e *env) {
				g := generator{rand.New(rand.NewPCG(seed, 4))}
				cfg := e.config(1, 2)
				for range 40 {
					r, err := peer.Dial(cfg)
					e.OK(err, "dial")
					hello := peer.Write(r.HelloEnvelope())
					if g.IntN(3) == 0 {
						e.OK(r.WriteBytes(g.mutate(peer.Text(hello, true).Encode())), "write")
					} else {
						e.OK(r.WriteText(g.mutate(hello)), "write")
					}
					e.OK(r.Close(), "close")
				}
				e.alive(e.joinWith(cfg), 1)
				e.noFault()
			}), time.Minute),
			long(with(target, fmt.Sprintf("garbage/sealed_%d", seed), "5", func(e *env) {
				g := generator{rand.New(rand.NewPCG(seed, 5))}
				r := e.join()
				ev := inputEvent(e, r, 1, "call-1", peer.M{"a": 1})
				setDigest(ev, "sha256:"+strings.Repeat("0", 63)) // never a valid digest, so never a fault
				for range 60 {
					text := g.pick([]string{
						string(peer.Write(r.EventEnvelope(ev))), string(peer.Write(r.RenewEnvelope(r.LeaseExpiry))),
						string(peer.Write(r.ResultEnvelope(peer.M{"commandId": "c-1", "controllerSeq": 1, "type": "turn.start"}, "completed", peer.M{}))),
						string(peer.Write(r.BoundEnvelope("pong", peer.M{"lifecycle": "ready"}))),
					})
					e.OK(r.WriteFrames(r.Frame(g.mutate([]byte(text)))), "write")
					if _, err := r.ReadFrame(3 * time.Millisecond); err == nil || !errors.Is(err, peer.ErrTimeout) {
						n := e.again(r)
						e.OK(r.Close(), "close")
						r = n
					}
				}
				r = e.again(r)
				e.alive(r, peer.Int(e.state(), "ackedSourceSeq")+1)
				e.noFault()
			}), time.Minute),
		)
	}
	return out
}
