package runner

import (
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// handshakeCases: hello, challenge, response and welcome (3, 4.9, 2.6).
func handshakeCases(target Target) []suite.Case {
	var out []suite.Case
	// tampered sends a challenge that is correctly signed but says something
	// wrong, or is wrong in its envelope. The runner must not answer it; since
	// it has not used its ticket, it comes back with the same one.
	tampered := func(name, section string, change func(p peer.M), after func(env peer.M)) {
		out = append(out, with(target, "challenge/"+name, section, func(e *env) {
			p := e.start()
			l := e.hello()
			first := peer.Str(l.Hello, "payload", "clientNonce")
			e.OK(l.SendChallenge(change, after), "challenge")
			e.OK(l.ExpectClose(4*time.Second, nil), "challenge %s must be refused", name)
			again := e.hello()
			e.Check(peer.Str(again.Hello, "payload", "clientNonce") != first, "the clientNonce came twice")
			e.OK(again.SendChallenge(nil, nil), "challenge")
			e.OK(again.ReadResponse(), "response to the right challenge")
			e.OK(again.SendWelcome(nil), "welcome")
			e.session(again).open(scripted())
			p.running("after a refused challenge")
		}))
	}
	set := func(n string, v any) func(p peer.M) { return func(p peer.M) { p[n] = v } }
	for _, n := range peer.IdentityNames() {
		tampered(n, "3.5", set(n, "someone-else"), nil)
	}
	tampered("credentialId", "3.5", set("credentialId", "sha256:"+strings.Repeat("0", 64)), nil)
	tampered("credentialKind_lease", "3.5", set("credentialKind", "lease"), nil)
	tampered("clientNonce", "3.5", set("clientNonce", strings.Repeat("0", 64)), nil)
	tampered("serverNonce_empty", "3.5", set("serverNonce", ""), nil)
	tampered("serverNonce_missing", "3.5", func(p peer.M) { delete(p, "serverNonce") }, nil)
	tampered("runnerVersion", "3.5", set("runnerVersion", "9.9.9"), nil)
	tampered("runnerDigest", "3.5", set("runnerDigest", "sha256:"+strings.Repeat("0", 64)), nil)
	tampered("selectedVersion_3", "3.5", set("selectedVersion", 3), func(env peer.M) { env["version"] = 3 })
	tampered("selectedVersion_0", "3.5", set("selectedVersion", 0), func(env peer.M) { env["version"] = 0 })
	tampered("selectedVersion_text", "3.5", set("selectedVersion", "2"), nil)
	tampered("expired", "3.5", func(p peer.M) {
		past := time.Now().Add(-time.Second)
		p["credentialExpiresAt"], p["credentialExpiresAtUnixMs"] = peer.FormatISO(past), past.UnixMilli()
	}, nil)
	tampered("lease_id_for_a_ticket", "3.5", set("credentialLeaseId", "connection_lease_"+peer.NewUUID()), nil)
	tampered("proof_zero", "3.5", nil, func(env peer.M) { peer.Obj(env, "payload")["serverProof"] = strings.Repeat("0", 64) })
	tampered("proof_missing", "3.5", nil, func(env peer.M) { delete(peer.Obj(env, "payload"), "serverProof") })
	tampered("proof_cut", "3.5", nil, func(env peer.M) {
		p := peer.Obj(env, "payload")
		p["serverProof"] = peer.Str(p, "serverProof")[:32]
	})
	tampered("changed_after_signing", "3.5", nil, func(env peer.M) { peer.Obj(env, "payload")["serverNonce"] = peer.NewUUID() })
	tampered("expiry_changed_after_signing", "3.5", nil, func(env peer.M) {
		p := peer.Obj(env, "payload")
		p["credentialExpiresAtUnixMs"] = peer.Int(p, "credentialExpiresAtUnixMs") + 1
	})
	tampered("protocol", "3", nil, func(env peer.M) { env["protocol"] = "other" })
	tampered("kind", "3", nil, func(env peer.M) { env["kind"] = "auth_response" })
	tampered("version_not_selected", "3", nil, func(env peer.M) { env["version"] = 1 })
	tampered("payload_missing", "3", nil, func(env peer.M) { delete(env, "payload") })

	// spent sends a wrong welcome. The ticket may be used by then: the process
	// ends and asks for a fresh one.
	spent := func(name, section string, change func(env peer.M)) {
		out = append(out, with(target, "welcome/"+name, section, func(e *env) {
			p := e.start()
			l := e.answered()
			e.OK(l.SendWelcome(change), "welcome")
			e.OK(l.ExpectClose(4*time.Second, nil), "welcome %s must be refused", name)
			p.exit(1, "welcome "+name)
			e.noDial("a spent ticket")
		}))
	}
	setP := func(n string, v any) func(env peer.M) { return func(env peer.M) { peer.Obj(env, "payload")[n] = v } }
	setE := func(n string, v any) func(env peer.M) { return func(env peer.M) { env[n] = v } }
	for _, n := range peer.IdentityNames() {
		spent(n, "4.9", setE(n, "someone-else"))
	}
	spent("protocol", "5.1", setE("protocol", "other"))
	spent("version", "5.1", setE("version", 1))
	spent("kind", "4.9", setE("kind", "ack"))
	spent("selectedVersion", "4.9", setP("selectedVersion", 1))
	spent("lease_id_in_payload", "4.9", setP("connectionLeaseId", "connection_lease_"+peer.NewUUID()))
	spent("lease_id_in_envelope", "4.9", setE("connectionLeaseId", "connection_lease_"+peer.NewUUID()))
	spent("lease_expired", "4.9", func(env peer.M) {
		past := time.Now().Add(-time.Second)
		p := peer.Obj(env, "payload")
		p["connectionLeaseExpiresAt"], p["connectionLeaseExpiresAtUnixMs"] = peer.FormatISO(past), past.UnixMilli()
	})
	spent("token_missing", "4.9", func(env peer.M) { delete(peer.Obj(env, "payload"), "connectionLeaseToken") })
	spent("token_null", "4.9", setP("connectionLeaseToken", nil))
	spent("token_empty", "4.9", setP("connectionLeaseToken", ""))
	spent("acked_above_anything_produced", "5.7", setP("ackedSourceSeq", 5))

	broken := func(name, section string, send func(e *env, l *peer.Link)) {
		out = append(out, with(target, "welcome/"+name, section, func(e *env) {
			p := e.start()
			l := e.answered()
			send(e, l)
			e.OK(l.ExpectClose(4*time.Second, nil), "%s must be refused", name)
			p.exit(1, name)
		}))
	}
	broken("plaintext", "4.8", func(e *env, l *peer.Link) { e.OK(l.WriteText(peer.Write(l.WelcomeEnvelope())), "welcome") })
	broken("counter_1", "4.6", func(e *env, l *peer.Link) {
		l.SendCount = 1
		e.OK(l.SendWelcome(nil), "welcome")
	})
	broken("wrong_direction_key", "4.2", func(e *env, l *peer.Link) {
		e.OK(l.WriteText(l.Session.SealFrame(peer.ClientToCore(), 0, peer.Write(l.WelcomeEnvelope()))), "welcome")
	})
	broken("other_key", "4.2", func(e *env, l *peer.Link) {
		other := peer.NewSession(peer.AuthKey("bootstrap_other"), l.Canonical, l.Proof, "")
		e.OK(l.WriteText(other.SealFrame(peer.CoreToClient(), 0, peer.Write(l.WelcomeEnvelope()))), "welcome")
	})
	broken("closed_after_response", "2.6", func(e *env, l *peer.Link) { e.OK(l.Close(), "close") })
	broken("inner_not_json", "4.8", func(e *env, l *peer.Link) { e.OK(l.Send([]byte("welcome")), "welcome") })

	out = append(out,
		with(target, "hello/exact", "3.1", func(e *env) {
			e.start()
			l := e.hello() // checks every member
			p := peer.Obj(l.Hello, "payload")
			e.Check(p["credentialKind"] == "bootstrap", "credentialKind %v", p["credentialKind"])
			e.Check(peer.Equal(p["resume"], peer.M{"lastControllerCommandSeq": 0, "nextSourceEventSeq": 1, "ackedSourceSeq": 0}), "resume %s", peer.Write(p["resume"]))
		}),
		with(target, "hello/v1_only_authority", "3.3", func(e *env) {
			e.a.MaxVersion = 1
			e.start()
			s := e.session(e.admit())
			s.open(scripted())
			s.turn("hello")
			s.event("turn.completed")
		}),
		with(target, "hello/retry_with_the_same_ticket", "2.6", func(e *env) {
			e.start()
			for range 3 {
				l := e.hello()
				e.OK(l.Close(), "close")
			}
			e.admit()
		}),
		with(target, "hello/retry_after_silence", "3.8", func(e *env) {
			e.start()
			l := e.hello() // no challenge: 2 s per message
			e.OK(l.ExpectClose(5*time.Second, nil), "a silent authority")
			e.admit()
		}),
		with(target, "welcome/silence_is_fatal", "3.8", func(e *env) {
			p := e.start()
			l := e.answered()
			e.OK(l.ExpectClose(5*time.Second, nil), "no welcome within 2 s")
			p.exit(1, "no welcome")
		}),
		with(target, "welcome/message_asks_for_a_fresh_ticket", "2.6", func(e *env) {
			p := e.start()
			e.OK(e.answered().Close(), "close")
			p.exit(1, "connection lost after the response")
			text := strings.ToLower(p.stderr.String())
			e.Check(strings.Contains(text, "ticket"), "stderr does not speak of a ticket: %s", text)
			e.Check(!strings.Contains(p.stderr.String(), e.a.Ticket), "stderr shows the ticket")
		}),
		with(target, "welcome/unknown_members", "4.9", func(e *env) {
			e.start()
			l := e.answered()
			e.OK(l.SendWelcome(func(env peer.M) {
				env["more"] = 1
				peer.Obj(env, "payload")["more"] = peer.M{"a": 1}
			}), "welcome")
			e.session(l).open(scripted())
		}),
		with(target, "welcome/pending_command_is_executed", "4.9", func(e *env) {
			c := e.command("run.prepare", scripted())
			e.a.Pending = peer.A{c}
			e.start()
			s := e.session(e.admit())
			e.Check(s.result(c)["status"] == "completed", "run.prepare from the welcome")
		}),
		with(target, "lease/reconnect", "3.1", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			last := e.nextC
			e.a.Acked = s.high
			e.OK(s.l.Close(), "close")
			l := e.hello()
			e.Check(l.Lease, "the runner came back with its ticket")
			p := peer.Obj(l.Hello, "payload", "resume")
			want := peer.M{"lastControllerCommandSeq": last, "nextSourceEventSeq": s.high + 1, "ackedSourceSeq": s.high}
			e.Check(peer.Equal(p, want), "resume %s, expected %s", peer.Write(p), peer.Write(want))
			e.OK(l.SendChallenge(nil, nil), "challenge")
			e.OK(l.ReadResponse(), "response")
			e.OK(l.SendWelcome(nil), "welcome")
			e.session(l).turn("again")
		}),
	)
	out = append(out, with(target, "lease/welcome_with_token_null", "4.9", func(e *env) {
		_, s := e.begin()
		e.OK(s.l.Close(), "close")
		l := e.answered()
		e.OK(l.SendWelcome(func(env peer.M) { peer.Obj(env, "payload")["connectionLeaseToken"] = nil }), "welcome")
		e.session(l).open(scripted())
	}))
	// A wrong lease challenge or welcome is no reason to give up.
	leased := func(name, section string, change func(p peer.M), welcome func(env peer.M)) {
		out = append(out, with(target, "lease/"+name, section, func(e *env) {
			p, s := e.begin()
			e.OK(s.l.Close(), "close")
			l := e.hello()
			e.Check(l.Lease, "the runner came back with its ticket")
			e.OK(l.SendChallenge(change, nil), "challenge")
			if welcome != nil {
				e.OK(l.ReadResponse(), "response")
				e.OK(l.SendWelcome(welcome), "welcome")
			}
			e.OK(l.ExpectClose(4*time.Second, nil), "%s must be refused", name)
			p.running(name)
			e.session(e.admit()).open(scripted())
		}))
	}
	leased("challenge_other_lease_id", "3.5", set("credentialLeaseId", "connection_lease_"+peer.NewUUID()), nil)
	leased("challenge_no_lease_id", "3.5", set("credentialLeaseId", nil), nil)
	leased("challenge_kind_bootstrap", "3.5", set("credentialKind", "bootstrap"), nil)
	leased("challenge_later_expiry", "3.5", func(p peer.M) {
		ms := peer.Int(p, "credentialExpiresAtUnixMs") + 1000
		p["credentialExpiresAt"], p["credentialExpiresAtUnixMs"] = peer.FormatISO(time.UnixMilli(ms)), ms
	}, nil)
	leased("challenge_earlier_expiry", "3.5", func(p peer.M) {
		ms := peer.Int(p, "credentialExpiresAtUnixMs") - 1000
		p["credentialExpiresAt"], p["credentialExpiresAtUnixMs"] = peer.FormatISO(time.UnixMilli(ms)), ms
	}, nil)
	leased("challenge_revocation_epoch_1", "3.5", set("revocationEpoch", 1), nil)
	leased("welcome_with_token", "4.9", nil, setP("connectionLeaseToken", "lease_"+peer.NewUUID()))
	leased("welcome_other_revocation_epoch", "4.9", nil, setP("connectionLeaseRevocationEpoch", 7))
	leased("welcome_other_lease", "4.9", nil, func(env peer.M) {
		id := "connection_lease_" + peer.NewUUID()
		env["connectionLeaseId"] = id
		peer.Obj(env, "payload")["connectionLeaseId"] = id
	})
	return out
}
