package authority

import (
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

func nowMs() int64 { return time.Now().UnixMilli() }

// responseCases: auth_response (3.6) and the welcome (4.9).
func responseCases(target Target) []suite.Case {
	var out []suite.Case
	refuse := func(name string, change func(env, payload peer.M)) {
		out = append(out, with(target, "response/"+name, "3.6", func(e *env) {
			cfg := e.config(1, 2)
			r := e.dial(cfg)
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			e.OK(r.SendResponse(func(env peer.M) { change(env, peer.Obj(env, "payload")) }), "response")
			e.closed(r.Sock, "response "+name)
			s := e.state()
			e.Check(peer.Int(s, "connections") == 0, "connections %v", s["connections"])
			// A failed proof does not consume the ticket and does not count as a
			// connection.
			again := e.joinWith(cfg)
			e.Check(again.ConnectionID == "connection_1", "connection is %s", again.ConnectionID)
		}))
	}
	for _, n := range []string{"credentialId", "clientNonce", "serverNonce", "clientProof"} {
		refuse(n+"_missing", func(_, p peer.M) { delete(p, n) })
		refuse(n+"_other", func(_, p peer.M) { p[n] = "sha256:" + strings.Repeat("0", 64) })
		refuse(n+"_null", func(_, p peer.M) { p[n] = nil })
	}
	refuse("proof_of_zeros", func(_, p peer.M) { p["clientProof"] = strings.Repeat("0", 64) })
	refuse("proof_upper_case", func(_, p peer.M) { p["clientProof"] = strings.ToUpper(peer.Str(p, "clientProof")) })
	refuse("proof_cut", func(_, p peer.M) { p["clientProof"] = peer.Str(p, "clientProof")[:62] })
	refuse("proof_longer", func(_, p peer.M) { p["clientProof"] = peer.Str(p, "clientProof") + "00" })
	refuse("proof_blank_behind", func(_, p peer.M) { p["clientProof"] = peer.Str(p, "clientProof") + "\n" })
	refuse("version_1_of_2", func(env, _ peer.M) { env["version"] = 1 })
	refuse("version_missing", func(env, _ peer.M) { delete(env, "version") })
	refuse("protocol_other", func(env, _ peer.M) { env["protocol"] = "x" })
	refuse("kind_other", func(env, _ peer.M) { env["kind"] = "auth_hello" })
	refuse("payload_array", func(env, _ peer.M) { env["payload"] = peer.A{} })
	out = append(out,
		with(target, "response/server_proof_is_no_client_proof", "3.6", func(e *env) {
			r := e.dial(e.config(1, 2))
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			e.OK(r.SendResponse(func(env peer.M) { peer.Obj(env, "payload")["clientProof"] = r.Challenge["serverProof"] }), "response")
			e.closed(r.Sock, "a reflected proof")
		}),
		with(target, "response/without_hello", "3", func(e *env) {
			r := e.dial(e.config(1, 2))
			e.OK(r.WriteText(peer.Write(peer.M{"protocol": peer.Protocol, "version": 1, "kind": "auth_response", "payload": peer.M{
				"credentialId": peer.CredentialID(r.Config.Token), "clientNonce": "", "serverNonce": "", "clientProof": strings.Repeat("0", 64),
			}})), "response")
			e.closed(r.Sock, "a response without a hello")
		}),
		with(target, "response/proof_for_another_connection", "3.7", func(e *env) {
			cfg := e.config(1, 2)
			a, b := e.dial(cfg), e.dial(cfg)
			for _, r := range []*peer.Runner{a, b} {
				e.OK(r.SendHello(nil), "hello")
				e.OK(r.ReadChallenge(), "challenge")
			}
			e.OK(b.WriteText(peer.Write(a.ResponseEnvelope())), "response")
			e.closed(b.Sock, "a proof made for another challenge")
			e.OK(a.SendResponse(nil), "response")
			e.OK(a.ReadWelcome(), "welcome on the right connection")
		}),
		with(target, "response/unknown_members_are_ignored", "3.6", func(e *env) {
			r := e.dial(e.config(1, 2))
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			e.OK(r.SendResponse(func(env peer.M) { peer.Obj(env, "payload")["more"] = 1 }), "response")
			e.OK(r.ReadWelcome(), "welcome")
		}),
		with(target, "response/event_while_challenge_is_pending", "3", func(e *env) {
			r := e.dial(e.config(1, 2))
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			e.OK(r.WriteText(peer.Write(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{})))), "event")
			e.closed(r.Sock, "an event before authentication")
			e.Check(peer.Int(e.state(), "ackedSourceSeq") == 0, "the event was taken")
		}),
		with(target, "response/secure_frame_before_authentication", "3", func(e *env) {
			r := e.dial(e.config(1, 2))
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			r.ResponseEnvelope()
			e.OK(r.Send(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{}))), "event")
			e.closed(r.Sock, "a secure frame before authentication")
			e.Check(peer.Int(e.state(), "ackedSourceSeq") == 0, "the event was taken")
		}),
		long(with(target, "response/challenge_lives_5_s", "3.8", func(e *env) {
			cfg := e.config(1, 2)
			r := e.dial(cfg)
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			e.OK(r.ExpectSilence(5200*time.Millisecond), "an idle challenge has no timer")
			e.OK(r.SendResponse(nil), "response")
			e.closed(r.Sock, "a response after 5 s")
			e.joinWith(cfg)
		}), 20*time.Second),
		with(target, "welcome/exact_v1", "4.9", func(e *env) {
			r := e.joinV1()
			e.Check(r.Selected == 1 && r.RecvCount == 1, "version %d, frames %d", r.Selected, r.RecvCount)
			e.Check(r.ConnectionID == "connection_1" && peer.Str(r.Welcome, "envelopeId") == "welcome_1", "%s %v", r.ConnectionID, r.Welcome["envelopeId"])
			e.Check(peer.Int(r.Welcome, "payload", "ackedSourceSeq") == 0, "ackedSourceSeq of a new authority")
			left := r.LeaseExpiry - nowMs()
			e.Check(left > 50_000 && left <= 60_000, "lease of %d ms", left)
			e.silent(r.Sock, "nothing follows the welcome")
		}),
		with(target, "welcome/lease_ttl_is_used", "2.7", func(e *env) {
			r := e.join()
			left := r.LeaseExpiry - nowMs()
			e.Check(left > 3_590_000 && left <= 3_600_000, "lease of %d ms", left)
		}, peer.M{"leaseTtlMs": 3_600_000}),
		with(target, "welcome/first_pending_command_only", "4.9", func(e *env) {
			a := e.queue("run.prepare", peer.M{"provider": peer.M{}})
			e.queue("session.open", peer.M{"reuse": "same_session"})
			r := e.join()
			c := r.Pending()
			e.Check(peer.Str(c, "commandId") == a && peer.Int(c, "controllerSeq") == 1, "pending is %s", peer.Write(c))
			e.silent(r.Sock, "no command frame follows for a command in the welcome")
		}),
		with(target, "welcome/state_shows_connection", "1.8", func(e *env) {
			e.Check(peer.Int(e.state(), "connections") == 0, "connections before")
			r := e.join()
			e.Check(peer.Int(e.state(), "connections") == 1, "connections after the welcome")
			e.OK(r.Close(), "close")
			e.until("no connection", func(s peer.M) bool { return peer.Int(s, "connections") == 0 })
		}),
	)
	return out
}
