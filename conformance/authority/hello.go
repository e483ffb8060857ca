package authority

import (
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// helloCases: auth_hello (3, 3.1, 3.2, 3.3) and the challenge (3.4).
func helloCases(target Target) []suite.Case {
	var out []suite.Case
	refuse := func(name, section string, change func(env, payload peer.M)) {
		out = append(out, with(target, "hello/"+name, section, func(e *env) {
			cfg := e.config(1, 2)
			r := e.dial(cfg)
			e.OK(r.SendHello(func(env peer.M) { change(env, peer.Obj(env, "payload")) }), "hello")
			e.closed(r.Sock, "hello "+name)
			e.joinWith(cfg) // the ticket is still good
		}))
	}
	accept := func(name, section string, version int64, change func(env, payload peer.M)) {
		out = append(out, with(target, "hello/"+name, section, func(e *env) {
			r := e.dial(e.config(1, 2))
			e.OK(r.SendHello(func(env peer.M) { change(env, peer.Obj(env, "payload")) }), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			e.Check(r.Selected == version, "selected %d, expected %d", r.Selected, version)
			e.OK(r.SendResponse(nil), "response")
			e.OK(r.ReadWelcome(), "welcome")
			e.alive(r, 1)
		}))
	}
	set := func(member string, v any) func(env, p peer.M) { return func(_, p peer.M) { p[member] = v } }
	del := func(member string) func(env, p peer.M) { return func(_, p peer.M) { delete(p, member) } }
	setEnv := func(member string, v any) func(env, p peer.M) { return func(env, _ peer.M) { env[member] = v } }

	for _, n := range peer.IdentityNames() {
		refuse(n+"_missing", "3.1", del(n))
		refuse(n+"_other", "3.1", set(n, "someone-else"))
		refuse(n+"_null", "3.1", set(n, nil))
	}
	refuse("identity_number", "3.1", set("runId", 7))
	for _, n := range []string{"credentialId", "clientNonce", "protocolMin", "protocolMax", "runnerVersion", "runnerDigest"} {
		refuse(n+"_missing", "3.1", del(n))
		refuse(n+"_null", "3.1", set(n, nil))
	}
	refuse("credentialId_unknown", "3.2", set("credentialId", "sha256:"+strings.Repeat("0", 64)))
	refuse("credentialId_number", "3.1", set("credentialId", 1))
	refuse("credentialId_upper_case", "3.2", func(_, p peer.M) {
		p["credentialId"] = "sha256:" + strings.ToUpper(strings.TrimPrefix(peer.Str(p, "credentialId"), "sha256:"))
	})
	refuse("credentialId_proto", "3.2", set("credentialId", "__proto__"))
	refuse("clientNonce_number", "3.1", set("clientNonce", 12))
	refuse("clientNonce_object", "3.1", set("clientNonce", peer.M{}))
	refuse("protocolMin_string", "3.1", set("protocolMin", "1"))
	refuse("protocolMin_fraction", "3.1", set("protocolMin", peer.Raw("1.5")))
	refuse("protocolMax_fraction", "3.1", set("protocolMax", peer.Raw("1.5")))
	refuse("protocolMin_above_max", "3.1", func(_, p peer.M) { p["protocolMin"], p["protocolMax"] = 2, 1 })
	refuse("protocol_3_only", "3.1", func(_, p peer.M) { p["protocolMin"], p["protocolMax"] = 3, 3 })
	refuse("protocol_0_only", "3.1", func(_, p peer.M) { p["protocolMin"], p["protocolMax"] = 0, 0 })
	refuse("runnerVersion_other", "3.1", set("runnerVersion", "0.3.1"))
	refuse("runnerDigest_other", "3.1", set("runnerDigest", "sha256:"+strings.Repeat("1", 64)))
	refuse("runnerDigest_upper_case", "3.1", func(_, p peer.M) {
		p["runnerDigest"] = "sha256:" + strings.ToUpper(strings.TrimPrefix(peer.Str(p, "runnerDigest"), "sha256:"))
	})
	for name, v := range map[string]any{"null": nil, "empty": "", "text": "0123", "hex": strings.Repeat("a", 64)} {
		refuse("warmTransitionId_"+name, "3.1 (run)", set("warmTransitionId", v))
	}
	refuse("protocol_name", "3", setEnv("protocol", "paperclip.runner2"))
	refuse("protocol_name_missing", "3", func(env, _ peer.M) { delete(env, "protocol") })
	refuse("version_0", "3", setEnv("version", 0))
	refuse("version_3", "3", setEnv("version", 3))
	refuse("version_string", "3", setEnv("version", "1"))
	refuse("version_fraction", "3", setEnv("version", peer.Raw("1.5")))
	refuse("version_missing", "3", func(env, _ peer.M) { delete(env, "version") })
	refuse("payload_missing", "3", func(env, _ peer.M) { delete(env, "payload") })
	refuse("payload_null", "3", setEnv("payload", nil))
	refuse("payload_array", "3", setEnv("payload", peer.A{}))
	for _, kind := range []string{"hello", "auth_response", "event", "command_result", "lease_renew", "pong", "auth_challenge"} {
		refuse("kind_"+kind, "3", setEnv("kind", kind))
	}
	refuse("kind_missing", "3", func(env, _ peer.M) { delete(env, "kind") })

	accept("envelope_version_2", "3", 2, setEnv("version", 2))
	accept("without_credentialKind_and_resume", "0.2", 2, func(_, p peer.M) {
		delete(p, "credentialKind")
		delete(p, "resume")
	})
	accept("wrong_credentialKind_not_read", "3.1", 2, set("credentialKind", "lease"))
	accept("odd_credentialKind_not_read", "3.1", 2, set("credentialKind", 7))
	accept("odd_resume_is_informative", "3.1", 2, set("resume", "none"))
	accept("resume_far_ahead_is_informative", "3.1", 2, set("resume", peer.M{"lastControllerCommandSeq": 99, "nextSourceEventSeq": 77, "ackedSourceSeq": 76}))
	accept("unknown_fields", "3.1", 2, set("somethingNew", peer.M{"a": 1}))
	accept("line_B_members_are_unknown", "3.1", 2, func(_, p peer.M) {
		p["durability"], p["outputBodies"], p["commandEpochs"] = "durability.indexed_state.v1", "history.output_bodies.v1", "transport.command_epochs.v1"
	})
	accept("free_form_nonce", "0.2", 2, set("clientNonce", "a human <readable> & \"text\" \u2028 \u00e9 \U0001F300 \a"))
	accept("empty_nonce", "3.1", 2, set("clientNonce", ""))
	accept("lone_surrogate_nonce", "3.9", 2, set("clientNonce", peer.Raw(`"x\ud83c y"`)))
	accept("long_nonce", "15.2", 2, set("clientNonce", strings.Repeat("n", 100_000)))
	accept("v1_only", "3.3", 1, func(_, p peer.M) { p["protocolMin"], p["protocolMax"] = 1, 1 })
	accept("v2_only", "3.3", 2, func(_, p peer.M) { p["protocolMin"], p["protocolMax"] = 2, 2 })
	accept("v1_to_99", "3.3", 2, set("protocolMax", 99))
	accept("v0_to_1", "3.3", 1, func(_, p peer.M) { p["protocolMin"], p["protocolMax"] = 0, 1 })
	accept("v_minus_5_to_2", "3.3", 2, set("protocolMin", -5))
	accept("integers_spelled_as_floats", "appendix B 3", 2, func(env, p peer.M) {
		env["version"], p["protocolMin"], p["protocolMax"] = peer.Raw("1.0"), peer.Raw("1e0"), peer.Raw("20e-1")
	})
	accept("warmTransitionVersion_1_is_echoed", "3.4", 2, set("warmTransitionVersion", 1))
	accept("duplicate_member_last_wins", "appendix B 4", 2, func(env, p peer.M) {
		good := string(peer.Write(p))
		env["payload"] = peer.Raw(`{"runId":"first","clientNonce":5,` + good[1:])
	})

	out = append(out,
		with(target, "hello/second_hello_while_pending", "3", func(e *env) {
			cfg := e.config(1, 2)
			r := e.dial(cfg)
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			e.OK(r.SendHello(nil), "second hello")
			e.closed(r.Sock, "a second hello")
			e.joinWith(cfg)
		}),
		with(target, "hello/fresh_nonce_for_each_challenge", "3.7", func(e *env) {
			cfg := e.config(1, 2)
			seen := map[string]bool{}
			for range 3 {
				r := e.dial(cfg)
				e.OK(r.SendHello(func(env peer.M) { peer.Obj(env, "payload")["clientNonce"] = "same" }), "hello")
				e.OK(r.ReadChallenge(), "challenge")
				n := peer.Str(r.Challenge, "serverNonce")
				e.Check(!seen[n], "serverNonce %s came twice", n)
				seen[n] = true
			}
		}),
		with(target, "hello/challenge_expiry_is_the_tickets", "3.4", func(e *env) {
			r := e.dial(e.config(1, 2))
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			left := peer.Int(r.Challenge, "credentialExpiresAtUnixMs") - nowMs()
			e.Check(left > 50_000 && left <= 60_000, "%d ms left of a ticket of 60 s", left)
		}),
		with(target, "hello/long_identity", "3.1", func(e *env) {
			e.joinWith(e.config(1, 2))
		}, peer.M{"identity": peer.M{
			"runnerInstanceId": "r" + strings.Repeat("a", 239), "environmentLeaseId": "l" + strings.Repeat(".", 239),
			"runId": "R" + strings.Repeat(":", 239), "normalizedSessionId": "s" + strings.Repeat("_", 239),
			"turnId": "0" + strings.Repeat("-", 239), "itemId": "i" + strings.Repeat("Z", 239),
		}}),
	)
	return out
}
