package authority

import (
	"regexp"
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

const uuid4 = `[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`

// ticketCases: bootstrap tickets (2.1, 2.2, 2.6).
func ticketCases(target Target) []suite.Case {
	ttl := func(name string, v any, ok bool) suite.Case {
		return with(target, "ticket/ttl_"+name, "2.2", func(e *env) {
			m := e.try("ticket", peer.M{"ttlMs": v})
			e.Check((m["ok"] == true) == ok, "ttlMs %s answered %s", peer.Write(v), peer.Write(peer.M{"ok": m["ok"], "error": m["error"]}))
		})
	}
	return []suite.Case{
		with(target, "ticket/form", "2.1", func(e *env) {
			seen := map[string]bool{}
			for range 5 {
				s := e.ticket()
				e.Check(regexp.MustCompile("^bootstrap_"+uuid4+"$").MatchString(s) && !seen[s], "ticket %q", s)
				seen[s] = true
			}
		}),
		ttl("999", 999, false), ttl("1000", 1000, true), ttl("60000", 60000, true), ttl("60001", 60001, false),
		ttl("fraction", peer.Raw("1000.5"), false), ttl("negative", -5000, false), ttl("string", "5000", false),
		with(target, "ticket/one_use", "2.6", func(e *env) {
			cfg := e.config(1, 2)
			r := e.joinWith(cfg)
			s := e.dial(cfg)
			e.OK(s.SendHello(nil), "hello")
			e.closed(s.Sock, "a used ticket")
			e.alive(r, 1)
		}),
		with(target, "ticket/abandoned_proof_keeps_it", "2.6", func(e *env) {
			cfg := e.config(1, 2)
			for range 3 {
				r := e.dial(cfg)
				e.OK(r.SendHello(nil), "hello")
				e.OK(r.ReadChallenge(), "challenge")
				e.OK(r.Close(), "close")
			}
			e.joinWith(cfg)
		}),
		with(target, "ticket/two_challenges_one_winner", "2.6", func(e *env) {
			cfg := e.config(1, 2)
			a, b := e.dial(cfg), e.dial(cfg)
			for _, r := range []*peer.Runner{a, b} {
				e.OK(r.SendHello(nil), "hello")
				e.OK(r.ReadChallenge(), "challenge")
			}
			e.OK(a.SendResponse(nil), "response")
			e.OK(a.ReadWelcome(), "welcome")
			e.OK(b.SendResponse(nil), "second response")
			e.closed(b.Sock, "the second proof for a consumed ticket")
			e.alive(a, 1)
		}),
		with(target, "ticket/several_are_live", "2.4", func(e *env) {
			one, two := e.config(1, 2), e.config(1, 2)
			first := e.joinWith(two)
			e.joinWith(one)
			e.closed(first.Sock, "a newer connection")
		}),
		with(target, "ticket/expired_before_hello", "2.2", func(e *env) {
			cfg := e.config(1, 2)
			cfg.Token = peer.Str(e.op("ticket", peer.M{"ttlMs": 1000}), "ticket")
			idle := e.dial(cfg)
			e.OK(idle.ExpectSilence(1150*time.Millisecond), "idle")
			e.OK(idle.SendHello(nil), "hello")
			e.closed(idle.Sock, "an expired ticket")
		}),
		with(target, "ticket/expired_before_response", "3.4", func(e *env) {
			cfg := e.config(1, 2)
			cfg.Token = peer.Str(e.op("ticket", peer.M{"ttlMs": 1000}), "ticket")
			r := e.dial(cfg)
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			e.OK(r.ExpectSilence(1150*time.Millisecond), "idle")
			e.OK(r.SendResponse(nil), "response")
			e.closed(r.Sock, "a ticket that expired under its challenge")
			s := e.state()
			e.Check(peer.Int(s, "connections") == 0, "connections %v", s["connections"])
		}),
		with(target, "ticket/raw_text_is_not_stored", "2.4", func(e *env) {
			cfg := e.config(1, 2)
			r := e.joinWith(cfg)
			for name, secret := range map[string]string{"ticket": cfg.Token, "lease token": r.LeaseToken} {
				found := e.searchStateDir([]byte(secret))
				e.Check(found == "", "the %s lies in %s", name, found)
			}
		}),
		with(target, "ticket/never_on_the_wire", "2.1", func(e *env) {
			cfg := e.config(1, 2)
			r := e.dial(cfg)
			e.OK(r.SendHello(nil), "hello")
			text, err := r.ReadText(peer.IOTimeout)
			e.OK(err, "challenge")
			e.Check(!strings.Contains(string(text), cfg.Token), "the challenge shows the ticket")
		}),
	}
}

// leaseCases: connection leases (2.7, 1.8) and their renewal (5.9).
func leaseCases(target Target) []suite.Case {
	out := []suite.Case{
		with(target, "lease/reconnect", "2.7", func(e *env) {
			r := e.join()
			for n := int64(2); n <= 4; n++ {
				r2 := e.again(r)
				e.closed(r.Sock, "a newer connection")
				e.Check(r2.ConnectionID == "connection_"+string(rune('0'+n)), "connection is %s", r2.ConnectionID)
				e.Check(r2.LeaseID == r.LeaseID && r2.LeaseExpiry == r.LeaseExpiry, "the lease changed")
				e.alive(r2, n-1)
				r = r2
			}
		}),
		with(target, "lease/challenge_shows_lease", "3.4", func(e *env) {
			r := e.join()
			r2 := e.again(r)
			e.Check(peer.Int(r2.Challenge, "credentialExpiresAtUnixMs") == r.LeaseExpiry, "expiry %v", r2.Challenge["credentialExpiresAtUnixMs"])
		}),
		with(target, "lease/version_is_fixed_v1", "2.7", func(e *env) {
			r := e.joinV1()
			cfg := r.LeaseConfig()
			cfg.Min, cfg.Max = 1, 2
			e.Check(e.joinWith(cfg).Selected == 1, "a v1 lease was upgraded")
		}),
		with(target, "lease/version_is_fixed_v2", "2.7", func(e *env) {
			r := e.join()
			cfg := r.LeaseConfig()
			cfg.Min, cfg.Max = 1, 99
			e.Check(e.joinWith(cfg).Selected == 2, "a v2 lease changed its version")
		}),
		with(target, "lease/range_below_its_version", "3.2", func(e *env) {
			r := e.join()
			cfg := r.LeaseConfig()
			cfg.Max = 1
			s := e.dial(cfg)
			e.OK(s.SendHello(nil), "hello")
			e.closed(s.Sock, "a range below the lease's version")
			e.alive(r, 1)
		}),
		with(target, "lease/range_above_its_version", "3.2", func(e *env) {
			r := e.joinV1()
			cfg := r.LeaseConfig()
			cfg.Min, cfg.Max = 2, 2
			s := e.dial(cfg)
			e.OK(s.SendHello(nil), "hello")
			e.closed(s.Sock, "a range above the lease's version")
			e.alive(r, 1)
		}),
		with(target, "lease/other_identity", "3.2", func(e *env) {
			r := e.join()
			cfg := r.LeaseConfig()
			cfg.Identity.TurnID = "turn-other"
			s := e.dial(cfg)
			e.OK(s.SendHello(nil), "hello")
			e.closed(s.Sock, "a lease with another identity")
		}),
		with(target, "lease/second_connection_replaces_first", "1.8", func(e *env) {
			r := e.join()
			pending := e.dial(r.LeaseConfig())
			e.OK(pending.SendHello(nil), "hello")
			e.OK(pending.ReadChallenge(), "challenge")
			e.alive(r, 1) // a pending handshake replaces nobody
			e.OK(pending.SendResponse(nil), "response")
			e.OK(pending.ReadWelcome(), "welcome")
			e.closed(r.Sock, "a newer authenticated connection")
			e.until("one connection", func(s peer.M) bool { return peer.Int(s, "connections") == 1 })
			e.alive(pending, 2)
		}),
		with(target, "lease/unauthenticated_neighbours_stay", "1.8", func(e *env) {
			idle := e.dial(e.config(1, 2))
			e.join()
			e.silent(idle.Sock, "an idle neighbour")
			e.OK(idle.Authenticate(), "handshake of the neighbour")
		}),
		with(target, "lease/fresh_ticket_makes_a_new_lease", "2.7", func(e *env) {
			r := e.join()
			n := e.join()
			e.Check(n.LeaseID != r.LeaseID && n.LeaseToken != r.LeaseToken, "the lease was handed out twice")
			e.closed(r.Sock, "a newer connection")
			e.again(r) // the old lease is still good
		}),
		with(target, "lease/renew_extends", "5.9", func(e *env) {
			r := e.join()
			e.silent(r.Sock, "nothing yet")
			old := r.LeaseExpiry
			e.send(r, r.RenewEnvelope(old))
			p := peer.Obj(e.next(r, "lease_renewed"), "payload")
			now := peer.Int(p, "connectionLeaseExpiresAtUnixMs")
			e.Check(peer.Int(p, "previousExpiresAtUnixMs") == old && peer.Int(p, "connectionLeaseRevocationEpoch") == 0, "answer %s", peer.Write(p))
			e.Check(now > old && now <= nowMs()+60_000, "expiry went from %d to %d", old, now)
			r2 := e.again(r)
			e.Check(r2.LeaseExpiry == now && peer.Int(r2.Challenge, "credentialExpiresAtUnixMs") == now, "the extension is not in the next handshake")
			e.send(r2, r2.RenewEnvelope(old))
			p = peer.Obj(e.next(r2, "lease_renewed"), "payload")
			e.Check(peer.Int(p, "previousExpiresAtUnixMs") == old && peer.Int(p, "connectionLeaseExpiresAtUnixMs") == now, "an older expiry must replay the current one: %s", peer.Write(p))
		}),
		with(target, "lease/renew_small_expiry_is_replayed", "5.9", func(e *env) {
			r := e.join()
			e.send(r, r.RenewEnvelope(1))
			p := peer.Obj(e.next(r, "lease_renewed"), "payload")
			e.Check(peer.Int(p, "connectionLeaseExpiresAtUnixMs") == r.LeaseExpiry, "expiry %v", p["connectionLeaseExpiresAtUnixMs"])
			e.Check(peer.Int(p, "previousExpiresAtUnixMs") == 1, "previous %v", p["previousExpiresAtUnixMs"])
		}),
		with(target, "lease/renew_survives_restart", "2.8", func(e *env) {
			r := e.join()
			e.silent(r.Sock, "nothing yet")
			e.send(r, r.RenewEnvelope(r.LeaseExpiry))
			now := peer.Int(e.next(r, "lease_renewed"), "payload", "connectionLeaseExpiresAtUnixMs")
			e.restart(peer.M{})
			e.Check(e.again(r).LeaseExpiry == now, "the extension was lost")
		}),
		with(target, "lease/renew_after_terminal_command_is_ignored", "5.9", func(e *env) {
			r := e.join()
			id := e.queue("runner.suspend", peer.M{}, deliver())
			e.commandFrame(r, id, 1)
			e.send(r, r.RenewEnvelope(r.LeaseExpiry))
			e.silent(r.Sock, "a renewal after a terminal command")
			e.alive(r, 1)
		}),
	}
	expiry := long(with(target, "lease/expiry", "5.3", func(e *env) {
		ticket := e.config(1, 2)
		idle, r := e.dial(ticket), e.join()
		e.alive(r, 1)
		e.OK(r.ExpectSilence(time.Until(time.UnixMilli(r.LeaseExpiry))+200*time.Millisecond), "an expiring lease closes nothing by itself")
		e.event(r, 2)
		e.closed(r.Sock, "an event under an expired lease")
		e.Check(peer.Int(e.state(), "ackedSourceSeq") == 1, "the event was taken")
		s := e.dial(r.LeaseConfig())
		e.OK(s.SendHello(nil), "hello")
		e.closed(s.Sock, "an expired lease")
		e.OK(idle.SendHello(nil), "hello")
		e.closed(idle.Sock, "an expired ticket")
		e.alive(e.join(), 2)
	}), 100*time.Second)
	expiry.Slow = true
	renewed := long(with(target, "lease/expiry_is_moved_by_renewal", "2.8", func(e *env) {
		r := e.join()
		old := r.LeaseExpiry
		e.OK(r.ExpectSilence(30*time.Second), "half of the life")
		e.send(r, r.RenewEnvelope(old))
		e.next(r, "lease_renewed")
		e.OK(r.ExpectSilence(time.Until(time.UnixMilli(old))+500*time.Millisecond), "the old expiry")
		e.alive(r, 1)
		e.alive(e.again(r), 2)
	}), 100*time.Second)
	renewed.Slow = true
	out = append(out, expiry, renewed)
	bad := func(name string, change func(r *peer.Runner, env, p peer.M)) {
		out = append(out, with(target, "lease/renew_"+name, "5.9", func(e *env) {
			r := e.join()
			m := r.RenewEnvelope(r.LeaseExpiry)
			change(r, m, peer.Obj(m, "payload"))
			e.send(r, m)
			e.closed(r.Sock, "lease_renew "+name)
			e.Check(e.again(r).LeaseExpiry == r.LeaseExpiry, "the lease was extended all the same")
		}))
	}
	setP := func(n string, v any) func(*peer.Runner, peer.M, peer.M) {
		return func(_ *peer.Runner, _, p peer.M) { p[n] = v }
	}
	setE := func(n string, v any) func(*peer.Runner, peer.M, peer.M) {
		return func(_ *peer.Runner, m, _ peer.M) { m[n] = v }
	}
	bad("future_expiry", func(r *peer.Runner, _, p peer.M) { p["connectionLeaseExpiresAtUnixMs"] = r.LeaseExpiry + 1 })
	bad("zero_expiry", setP("connectionLeaseExpiresAtUnixMs", 0))
	bad("negative_expiry", setP("connectionLeaseExpiresAtUnixMs", -1))
	bad("fraction_expiry", setP("connectionLeaseExpiresAtUnixMs", peer.Raw("1.5")))
	bad("string_expiry", func(r *peer.Runner, _, p peer.M) {
		p["connectionLeaseExpiresAtUnixMs"] = string(peer.Write(r.LeaseExpiry))
	})
	bad("no_expiry", func(_ *peer.Runner, _, p peer.M) { delete(p, "connectionLeaseExpiresAtUnixMs") })
	bad("epoch_1", setP("connectionLeaseRevocationEpoch", 1))
	bad("no_epoch", func(_ *peer.Runner, _, p peer.M) { delete(p, "connectionLeaseRevocationEpoch") })
	bad("other_connection", setE("connectionId", "connection_9"))
	bad("other_lease", setE("connectionLeaseId", "connection_lease_"+peer.NewUUID()))
	bad("no_connection", func(_ *peer.Runner, m, _ peer.M) { delete(m, "connectionId") })
	bad("no_lease", func(_ *peer.Runner, m, _ peer.M) { delete(m, "connectionLeaseId") })
	for _, n := range peer.IdentityNames() {
		bad("other_"+n, setE(n, "someone-else"))
	}
	bad("other_version", setE("version", 1))
	bad("no_payload", func(_ *peer.Runner, m, _ peer.M) { delete(m, "payload") })
	return out
}
