package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// processGone reports whether a process is gone or a zombie.
func processGone(pid string) bool {
	for range 200 {
		text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if errors.Is(err, os.ErrNotExist) || (err == nil && strings.Contains(string(text), ") Z ")) {
			return true
		}
		<-time.After(10 * time.Millisecond)
	}
	return false
}

// terminal plays a terminal command to its acknowledgement.
func (s *session) terminal(kind string) {
	c := s.command(kind, peer.M{})
	s.OK(s.l.SendCommand(c, 1), "%s", kind)
	p := s.result(c)
	s.Check(p["status"] == "completed" && peer.Get(p, "result", "status") == "completed", "%s ended %s", kind, peer.Write(p))
	s.OK(s.l.AckResult(p), "acknowledgement")
}

// lifecycleCases: drain, suspend, shutdown, revoke, grace (9.8, 9.9, 6.4).
func lifecycleCases(target Target) []suite.Case {
	var out []suite.Case
	for kind, lifecycle := range map[string]string{"runner.suspend": "suspended", "runner.shutdown": "stopped"} {
		name := strings.TrimPrefix(kind, "runner.")
		out = append(out,
			with(target, name+"/exit_0", "9.8", func(e *env) {
				p, s := e.begin()
				s.open(scripted())
				s.turn("x")
				s.event("turn.completed")
				c := s.command(kind, peer.M{})
				e.OK(s.l.SendCommand(c, 1), "command")
				r := s.result(c)
				// The fence is durable before the result is sent.
				m := e.readState()
				e.Check(m["lifecycle"] == lifecycle, "lifecycle %v before the acknowledgement", m["lifecycle"])
				e.Check(m["pendingTerminalDelivery"] != nil && m["pendingTerminalDelivery"] != false, "no fence: %s", peer.Write(m["pendingTerminalDelivery"]))
				e.OK(s.l.AckResult(r), "acknowledgement")
				e.OK(s.l.ExpectClose(4*time.Second, nil), "the end of the connection")
				p.exit(0, kind)
				m = e.readState()
				e.Check(m["lifecycle"] == lifecycle && (m["pendingTerminalDelivery"] == nil || m["pendingTerminalDelivery"] == false), "state %s %s", peer.Write(m["lifecycle"]), peer.Write(m["pendingTerminalDelivery"]))
			}),
			with(target, name+"/ack_and_ping_while_waiting", "9.8", func(e *env) {
				p, s := e.begin()
				s.quietly = true
				s.open(scripted())
				s.event("session.started")
				c := s.command(kind, peer.M{})
				e.OK(s.l.SendCommand(c, 1), "command")
				r := s.result(c)
				e.OK(s.l.Send(s.l.Control("ping", "ping_1", peer.M{})), "ping")
				e.OK(s.l.Ack(s.high), "ack")
				s.until("pong", func(m peer.M) bool { return m["kind"] == "pong" })
				e.OK(s.l.AckResult(r), "acknowledgement")
				p.exit(0, kind)
			}),
			with(target, name+"/without_acknowledgement", "9.8", func(e *env) {
				p, s := e.begin()
				c := s.command(kind, peer.M{})
				e.OK(s.l.SendCommand(c, 1), "command")
				r := s.result(c)
				e.OK(s.l.ExpectClose(5*time.Second, nil), "2 s without an acknowledgement")
				p.exit(1, "no acknowledgement")
				m := e.readState()
				e.Check(m["pendingTerminalDelivery"] != nil && m["pendingTerminalDelivery"] != false, "the fence is gone")
				// The next process only reconciles the receipt.
				e.a.Pending = peer.A{c}
				p2 := e.start()
				s2 := e.session(e.admit())
				e.Check(peer.Equal(s2.result(c), r), "the result changed")
				e.OK(s2.l.AckResult(r), "acknowledgement")
				p2.exit(0, "reconciled receipt")
				m = e.readState()
				e.Check(m["pendingTerminalDelivery"] == nil || m["pendingTerminalDelivery"] == false, "the fence is still there")
			}),
			with(target, name+"/receipt_absent_in_welcome", "9.8", func(e *env) {
				p, s := e.begin()
				c := s.command(kind, peer.M{})
				e.OK(s.l.SendCommand(c, 1), "command")
				s.result(c)
				e.OK(s.l.Close(), "close")
				p.exit(1, "delivery failed")
				p2 := e.start()
				e.admit() // nothing pending: it was delivered
				p2.exit(0, "delivered receipt")
			}),
		)
		wrong := func(what string, change func(r peer.M)) suite.Case {
			return with(target, name+"/acknowledgement_"+what, "9.8", func(e *env) {
				p, s := e.begin()
				c := s.command(kind, peer.M{})
				e.OK(s.l.SendCommand(c, 1), "command")
				r := peer.CloneM(s.result(c))
				change(r)
				e.OK(s.l.AckResult(r), "acknowledgement")
				p.exit(1, "a wrong acknowledgement")
			})
		}
		out = append(out,
			wrong("other_command", func(r peer.M) { r["commandId"] = "other" }),
			wrong("other_sequence", func(r peer.M) { r["controllerSeq"] = 9 }),
			wrong("other_type", func(r peer.M) { r["commandType"] = "runner.drain" }),
			wrong("other_status", func(r peer.M) { r["status"] = "failed" }),
		)
	}
	out = append(out,
		with(target, "shutdown/command_while_waiting_is_an_error", "9.8", func(e *env) {
			p, s := e.begin()
			c := s.command("runner.shutdown", peer.M{})
			e.OK(s.l.SendCommand(c, 1), "command")
			s.result(c)
			e.OK(s.l.SendCommand(s.command("session.snapshot", peer.M{}), 1), "another command")
			p.exit(1, "a command after a terminal one")
		}),
		with(target, "shutdown/start_again_exits_0", "9.2", func(e *env) {
			p, s := e.begin()
			s.terminal("runner.shutdown")
			p.exit(0, "shutdown")
			e.start().exit(0, "start of a stopped runner")
			e.noDial("a stopped runner")
		}),
		with(target, "suspend/resume_goes_on", "9.8", func(e *env) {
			p, s := e.begin()
			s.open(scripted())
			s.turn("x")
			s.event("turn.completed")
			s.terminal("runner.suspend")
			p.exit(0, "suspend")
			high := s.high
			e.a.Acked = high
			e.start()
			l := e.hello()
			want := peer.M{"lastControllerCommandSeq": e.nextC, "nextSourceEventSeq": peer.Get(l.Hello, "payload", "resume", "nextSourceEventSeq"), "ackedSourceSeq": high}
			e.Check(peer.Equal(peer.Get(l.Hello, "payload", "resume"), want), "resume %s", peer.Write(peer.Get(l.Hello, "payload", "resume")))
			e.OK(l.SendChallenge(nil, nil), "challenge")
			e.OK(l.ReadResponse(), "response")
			e.OK(l.SendWelcome(nil), "welcome")
			s2 := e.session(l)
			ev := s2.event("runner.reconciled")
			e.Check(peer.Int(ev, "sourceSeq") == high+1, "runner.reconciled is event %v after %d", ev["sourceSeq"], high)
			s2.do("session.snapshot", peer.M{})
		}),
		with(target, "drain/everything_acknowledged", "6.4", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			s.turn("x")
			s.event("turn.completed")
			s.silence("all events are here")
			r := s.done("runner.drain", peer.M{})
			if r["retainedEventsDrained"] != true { // one prefix may have been moved
				s.silence("events of the drain")
				r = s.done("runner.drain", peer.M{})
			}
			e.Check(peer.Equal(r, peer.M{"status": "completed", "retainedEventsDrained": true}), "drain result %s", peer.Write(r))
		}),
		with(target, "drain/unacknowledged_events", "6.4", func(e *env) {
			_, s := e.begin()
			s.quietly = true
			s.open(scripted())
			s.event("session.started")
			r := s.done("runner.drain", peer.M{})
			e.Check(r["status"] == "completed" && r["retainedEventsDrained"] == false, "drain result %s", peer.Write(r))
			e.OK(s.l.Ack(s.high), "ack")
			s.quietly = false
			r = s.done("runner.drain", peer.M{})
			e.Check(r["retainedEventsDrained"] == true, "drain result %s", peer.Write(r))
		}),
		with(target, "revoke/exit_0", "5.2", func(e *env) {
			p, s := e.begin()
			e.OK(s.l.Send(s.l.Control("revoke", "revoke_1", peer.M{"revocationEpoch": 1})), "revoke")
			p.exit(0, "revoke")
			e.Check(e.readState()["lifecycle"] == "revoked", "lifecycle %v", e.readState()["lifecycle"])
			e.start().exit(0, "start of a revoked runner")
			e.noDial("a revoked runner")
		}),
		with(target, "revoke/kills_the_provider", "5.2", func(e *env) {
			p, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "sleep 300 & echo pid=$!=; wait"))
			s.turn("go")
			s.when("the pid", func() bool { return strings.Count(s.streamed("stdout"), "=") == 2 })
			pid := strings.Split(s.streamed("stdout"), "=")[1]
			e.OK(s.l.Send(s.l.Control("revoke", "revoke_1", peer.M{"revocationEpoch": 1})), "revoke")
			p.exit(0, "revoke")
			e.Check(processGone(pid), "process %s survived", pid)
		}),
		with(target, "revoke/epoch_must_grow", "5.2", func(e *env) {
			_, s := e.begin()
			e.OK(s.l.Send(s.l.Control("revoke", "revoke_1", peer.M{"revocationEpoch": 0})), "revoke")
			e.OK(s.l.ExpectClose(4*time.Second, nil), "an old revocation epoch")
			m := e.readState()
			e.Check(m["lifecycle"] != "revoked", "lifecycle %v", m["lifecycle"])
		}),
		with(target, "grace/exceeded", "9.9", func(e *env) {
			p, s := e.begin([2]string{"--reconnect-grace-ms", "600"})
			s.open(scripted())
			e.OK(e.a.Close(), "stop listening")
			e.OK(s.l.Close(), "close")
			p.exit(1, "reconnect grace")
			m := e.readState()
			e.Check(m["lifecycle"] == "recoverable_failure" && m["recoverableFailure"] == "transport_reconnect_grace_exceeded", "state %s %s", peer.Write(m["lifecycle"]), peer.Write(m["recoverableFailure"]))
		}),
		with(target, "grace/not_before_the_first_authentication", "9.9", func(e *env) {
			e.OK(e.a.Close(), "stop listening")
			p := e.start([2]string{"--reconnect-grace-ms", "300"})
			<-time.After(900 * time.Millisecond)
			p.running("before the first authentication")
			e.OK(e.a.Reopen(), "listen again")
			e.admit()
		}),
		with(target, "grace/reconnect_in_time", "9.9", func(e *env) {
			p, s := e.begin([2]string{"--reconnect-grace-ms", "5000"})
			s.open(scripted())
			e.a.Acked = s.high
			e.OK(e.a.Close(), "stop listening")
			e.OK(s.l.Close(), "close")
			<-time.After(500 * time.Millisecond)
			e.OK(e.a.Reopen(), "listen again")
			e.session(e.admit()).turn("x")
			p.running("after a reconnect")
		}),
		with(target, "grace/resume_after_exceeded", "9.9", func(e *env) {
			p, s := e.begin([2]string{"--reconnect-grace-ms", "300"})
			s.open(scripted())
			s.event("session.started")
			e.a.Acked = s.high
			e.OK(s.l.Close(), "close")
			e.OK(e.a.Close(), "stop listening")
			p.exit(1, "reconnect grace")
			e.OK(e.a.Reopen(), "listen again")
			e.start()
			e.session(e.admit()).event("runner.reconciled")
		}),
		with(target, "runtime/deadline", "9.9", func(e *env) {
			p := e.start([2]string{"--max-runtime-ms", "1200"})
			s := e.session(e.admit())
			s.open(scripted())
			e.OK(e.a.Close(), "stop listening")
			e.OK(s.l.Close(), "close")
			p.exit(1, "runtime deadline")
			m := e.readState()
			e.Check(m["recoverableFailure"] == "transport_reconnect_deadline_exceeded", "state %s %s", peer.Write(m["lifecycle"]), peer.Write(m["recoverableFailure"]))
		}),
		with(target, "reconnect/delays", "1.7", func(e *env) {
			const base = 60 * time.Millisecond
			p := e.start([2]string{"--reconnect-delay-ms", "60"})
			var at []time.Time
			for range 6 {
				l := e.accept()
				at = append(at, time.Now())
				e.OK(l.Close(), "close")
			}
			for i := range 5 {
				gap, least, most := at[i+1].Sub(at[i]), base<<i*3/4, base<<(i+1)*5/4+2*time.Second
				e.Check(gap >= least-5*time.Millisecond && gap <= most, "delay %d is %v, expected between %v and %v", i, gap, least, most)
			}
			p.running("six failures")
		}),
		with(target, "reconnect/delay_starts_over_after_success", "1.7", func(e *env) {
			_, s := e.begin([2]string{"--reconnect-delay-ms", "20"})
			for range 8 { // 2^8 times the base would be 5 s
				e.OK(s.l.Close(), "close")
				s.l = e.admit()
			}
			s.open(scripted())
		}),
		with(target, "runtime/deadline_while_connected", "9.9", func(e *env) {
			p := e.start([2]string{"--max-runtime-ms", "1500"})
			s := e.session(e.admit())
			s.open(scripted())
			e.OK(s.l.ExpectClose(6*time.Second, func([]byte) error { return nil }), "the end of the runtime")
			p.exit(1, "runtime deadline")
		}),
		with(target, "sigterm/loses_nothing", "11.7", func(e *env) {
			p, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			s.quietly = true
			s.turn("x")
			s.event("turn.completed")
			e.OK(p.cmd.Process.Signal(syscall.SIGTERM), "signal")
			timer := time.NewTimer(exitWait)
			defer timer.Stop()
			select {
			case <-p.done:
			case <-timer.C:
				e.Fatalf("SIGTERM did not end the runner")
			}
			e.start()
			n := e.session(e.admit())
			n.event("runner.reconciled")
			for seq, text := range s.raw {
				if seq > e.a.Acked {
					continue
				}
				e.Check(n.raw[seq] == "" || n.raw[seq] == text, "event %d changed", seq)
			}
			e.Check(n.high > s.high, "runner.reconciled is event %d after %d", n.high, s.high)
		}),
	)
	return out
}

// leaseCases: renewal and expiry seen by the runner (2.8, 5.9).
func leaseCases(target Target) []suite.Case {
	renew := func(s *session) peer.M {
		return peer.Obj(s.until("lease_renew", func(m peer.M) bool { return m["kind"] == "lease_renew" }), "payload")
	}
	answer := func(s *session, previous, expiry, epoch int64) {
		s.OK(s.l.Send(s.l.Control("lease_renewed", "lease_renewed_"+string(peer.Write(previous)), peer.M{
			"previousExpiresAtUnixMs": previous, "connectionLeaseExpiresAtUnixMs": expiry, "connectionLeaseRevocationEpoch": epoch,
		})), "lease_renewed")
	}
	// refused answers a renewal wrongly.
	refused := func(name string, send func(e *env, s *session)) suite.Case {
		return with(target, "renewal/"+name, "5.9", func(e *env) {
			e.a.LeaseTTL = 4 * time.Second
			_, s := e.begin()
			renew(s)
			send(e, s)
			e.OK(s.l.ExpectClose(1500*time.Millisecond, func([]byte) error { return nil }), "%s must be refused", name)
		})
	}
	return []suite.Case{
		with(target, "renewal/at_half_of_the_life", "2.8", func(e *env) {
			e.a.LeaseTTL = 4 * time.Second
			start := time.Now()
			p, s := e.begin()
			for round := range 2 {
				m := renew(s)
				since := time.Since(start)
				e.Check(since > 1500*time.Millisecond && since < 3500*time.Millisecond, "round %d: renewal after %v of 4 s", round, since)
				e.Check(peer.Int(m, "connectionLeaseExpiresAtUnixMs") == e.a.LeaseExpiry && peer.Int(m, "connectionLeaseRevocationEpoch") == 0, "payload %s", peer.Write(m))
				start = time.Now()
				old := e.a.LeaseExpiry
				e.a.LeaseExpiry = start.Add(4 * time.Second).UnixMilli()
				answer(s, old, e.a.LeaseExpiry, 0)
			}
			s.open(scripted())
			p.running("renewed")
		}),
		with(target, "renewal/repeated_without_answer", "2.8", func(e *env) {
			e.a.LeaseTTL = 3 * time.Second
			_, s := e.begin()
			a := renew(s)
			b := renew(s)
			e.Check(peer.Equal(a, b), "renewals differ: %s %s", peer.Write(a), peer.Write(b))
		}),
		with(target, "renewal/not_without_the_announcement", "2.8", func(e *env) {
			e.a.LeaseTTL = 2 * time.Second
			e.start()
			l := e.answered()
			e.OK(l.SendWelcome(func(env peer.M) { delete(peer.Obj(env, "payload"), "connectionLeaseRenewalVersion") }), "welcome")
			e.OK(l.ExpectSilence(1500*time.Millisecond), "no renewal when the welcome does not offer it")
		}),
		with(target, "renewal/same_expiry_is_harmless", "5.9", func(e *env) {
			e.a.LeaseTTL = 6 * time.Second
			p, s := e.begin()
			renew(s)
			answer(s, e.a.LeaseExpiry, e.a.LeaseExpiry, 0)
			s.open(scripted())
			p.running("an equal expiry")
		}),
		with(target, "renewal/answer_lost_then_later_expiry_in_challenge", "3.5", func(e *env) {
			e.a.LeaseTTL = 4 * time.Second
			_, s := e.begin()
			renew(s)
			e.a.LeaseExpiry = time.Now().Add(20 * time.Second).UnixMilli() // extended, but the answer is lost
			e.OK(s.l.Close(), "close")
			l := e.admit()
			e.Check(l.Lease, "the runner came back with its ticket")
			e.session(l).open(scripted())
		}),
		refused("other_epoch", func(e *env, s *session) { answer(s, e.a.LeaseExpiry, e.a.LeaseExpiry+4000, 1) }),
		refused("earlier_expiry", func(e *env, s *session) { answer(s, e.a.LeaseExpiry, e.a.LeaseExpiry-500, 0) }),
		refused("previous_in_the_future", func(e *env, s *session) { answer(s, e.a.LeaseExpiry+1, e.a.LeaseExpiry+4000, 0) }),
		with(target, "renewal/unasked_increase_is_refused", "5.9", func(e *env) {
			_, s := e.begin()
			answer(s, e.a.LeaseExpiry, e.a.LeaseExpiry+60_000, 0)
			e.OK(s.l.ExpectClose(4*time.Second, nil), "an increase nobody asked for")
		}),
		with(target, "lease/expiry_needs_a_new_ticket", "9.9", func(e *env) {
			e.a.LeaseTTL = 1500 * time.Millisecond
			p, s := e.begin()
			e.OK(s.l.ExpectClose(5*time.Second, func([]byte) error { return nil }), "an expired lease")
			p.exit(1, "lease expiry")
			m := e.readState()
			e.Check(m["recoverableFailure"] == "lease_expired_requires_bootstrap" && m["lifecycle"] == "recoverable_failure", "state %s %s", peer.Write(m["lifecycle"]), peer.Write(m["recoverableFailure"]))
		}),
	}
}
