package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// eventCases: the outbox, acknowledgements and re-sending (5.7, 5.8, 5.10, 9.6).
func eventCases(target Target) []suite.Case {
	// badAck sends an acknowledgement the process must not survive.
	badAck := func(name string, seq func(s *session) int64) suite.Case {
		return with(target, "ack/"+name, "5.7", func(e *env) {
			p, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			e.OK(s.l.Ack(seq(s)), "ack")
			p.exit(1, "ack "+name)
		})
	}
	return []suite.Case{
		badAck("below_the_cursor", func(s *session) int64 { return s.high - 1 }),
		badAck("above_the_highest", func(s *session) int64 { return s.high + 1 }),
		badAck("far_above", func(*session) int64 { return 1 << 40 }),
		with(target, "ack/equal_is_harmless", "5.7", func(e *env) {
			p, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			for range 3 {
				e.OK(s.l.Ack(s.high), "ack")
			}
			s.turn("x")
			s.event("turn.completed")
			p.running("repeated acknowledgements")
		}),
		with(target, "ack/cumulative", "5.7", func(e *env) {
			p, s := e.begin()
			s.quietly = true
			s.open(scripted())
			s.event("session.started")
			first := s.high
			e.OK(s.l.Ack(first), "ack")
			s.turn("x")
			s.event("turn.started")
			for {
				if _, err := s.step(quiet * 2); err != nil {
					break
				}
			}
			e.OK(s.l.Ack(s.high), "ack")
			s.quietly = false
			s.event("turn.completed")
			p.running("cumulative acknowledgements")
		}),
		with(target, "ack/welcome_below_the_cursor", "5.7", func(e *env) {
			p, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			s.do("session.snapshot", peer.M{}) // the acknowledgement has arrived
			e.a.Acked = 0
			e.OK(s.l.Close(), "close")
			e.admit()
			p.exit(1, "a welcome below the cursor")
		}),
		with(target, "events/identical_after_reconnect", "5.10", func(e *env) {
			_, s := e.begin()
			s.quietly = true
			s.open(scripted())
			s.event("session.started")
			for {
				if _, err := s.step(quiet); err != nil {
					break
				}
			}
			for round := range 3 {
				e.OK(s.l.Close(), "close")
				l := e.admit()
				n := e.session(l)
				n.high = e.a.Acked
				n.quietly = true
				n.until("the last event", func(peer.M) bool { return n.high == s.high })
				for seq, text := range n.raw {
					e.Check(text == s.raw[seq], "round %d: event %d changed from %s to %s", round, seq, s.raw[seq], text)
				}
				s.l = l
			}
		}),
		with(target, "events/only_unacknowledged_after_reconnect", "5.10", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			s.turn("x")
			s.event("turn.completed")
			e.OK(s.l.Close(), "close")
			n := e.session(e.admit())
			n.silence("everything was acknowledged")
			n.turn("y")
			ev := n.event("turn.started")
			e.Check(peer.Int(ev, "sourceSeq") > s.high, "event %v again", ev["sourceSeq"])
		}),
		with(target, "events/identical_after_kill", "5.10", func(e *env) {
			p, s := e.begin()
			s.quietly = true
			s.open(scripted())
			s.event("session.started")
			for {
				if _, err := s.step(quiet); err != nil {
					break
				}
			}
			p.kill()
			e.start()
			n := e.session(e.admit())
			ev := n.event("runner.reconciled")
			e.Check(peer.Int(ev, "sourceSeq") == s.high+1, "runner.reconciled is event %v after %d", ev["sourceSeq"], s.high)
			for seq, text := range s.raw {
				e.Check(n.raw[seq] == text, "event %d changed from %s to %s", seq, text, n.raw[seq])
			}
		}),
		with(target, "events/reconciled_each_time", "5.10", func(e *env) {
			p, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			high := s.high
			for range 2 {
				p.kill()
				e.a.Acked = high
				p = e.start()
				n := e.session(e.admit())
				ev := n.event("runner.reconciled")
				e.Check(peer.Str(ev, "sourceEventId") == fmt.Sprintf("event_%s_%016d", e.a.Identity.RunnerInstanceID, peer.Int(ev, "sourceSeq")), "id %v", ev["sourceEventId"])
				e.Check(peer.Str(ev, "payload", "outcome") == "same_durable_session_resumed" && peer.Int(ev, "priority") == 0, "event %s", peer.Write(ev))
				n.do("session.snapshot", peer.M{})
				high = n.high
			}
		}),
		with(target, "events/no_reconciled_in_a_first_process", "5.10", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			s.turn("x")
			s.event("turn.completed")
			for _, t := range s.types() {
				e.Check(t != "runner.reconciled", "events %v", s.types())
			}
		}),
		with(target, "events/ids_are_unique_and_times_ordered", "9.6", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			for range 3 {
				s.events = nil
				s.turn("x")
				s.event("turn.completed")
			}
			seen := map[string]bool{}
			for _, ev := range s.events {
				id := peer.Str(ev, "sourceEventId")
				e.Check(!seen[id], "id %s twice", id)
				seen[id] = true
			}
		}),
		with(target, "events/more_after_acknowledgement_only", "5.8", func(e *env) {
			_, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "echo one; sleep 0.3; echo two; sleep 0.3; echo three"))
			s.quietly = true
			s.turn("go")
			s.event("turn.started")
			for {
				if _, err := s.step(1200 * time.Millisecond); err != nil {
					break
				}
			}
			e.OK(s.l.Ack(s.high), "ack")
			s.quietly = false
			s.event("turn.completed")
			e.Check(s.streamed("stdout") == "one\ntwo\nthree\n", "output %q", s.streamed("stdout"))
		}),
		with(target, "events/small_outbox_loses_nothing", "9.4", func(e *env) {
			_, s := e.begin([2]string{"--max-outbox-bytes", "131072"}, [2]string{"--p0-reserve-bytes", "32768"})
			s.open(e.argv("/bin/sh", "-c", "i=0; while [ $i -lt 20000 ]; do echo line-$i-0123456789; i=$((i+1)); done"))
			s.quietly = true // acknowledge in lumps only
			s.turn("go")
			for len(s.terminalTurns()) == 0 {
				_, err := s.step(300 * time.Millisecond)
				if errors.Is(err, peer.ErrTimeout) && s.high > e.a.Acked {
					e.OK(s.l.Ack(s.high), "ack")
					continue
				}
				e.OK(err, "events so far %d", s.high)
			}
			e.OK(s.l.Ack(s.high), "ack")
			s.quietly = false
			s.do("session.snapshot", peer.M{})
			out := s.bytesOf("stdout")
			e.Check(strings.Count(out, "\n") == 20_000 && strings.HasSuffix(out, "line-19999-0123456789\n"), "%d lines", strings.Count(out, "\n"))
			m := e.readState()
			e.Check(peer.Int(m, "peakOutboxBytes") <= 131_072, "peakOutboxBytes %v of 131072", m["peakOutboxBytes"])
		}),
		with(target, "events/v1_connection", "5.10", func(e *env) {
			e.a.MaxVersion = 1
			_, s := e.begin()
			s.open(scripted())
			s.turn("x")
			s.event("turn.completed")
			for _, ev := range s.events {
				e.Check(peer.Int(ev, "schemaVersion") == 1, "event %s on a v1 connection", peer.Write(ev))
			}
		}),
	}
}

// stateCases: runner-state.json and the provider state file (9.1, 9.2, 11.11).
func stateCases(target Target) []suite.Case {
	return []suite.Case{
		with(target, "state/members", "9.1", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			s.do("session.snapshot", peer.M{})
			m := e.stateUntil("three commands", func(m peer.M) bool { return peer.Int(m, "lastControllerCommandSeq") == e.nextC })
			for _, n := range []string{
				"schema", "lifecycle", "nextSourceSeq", "ackedSourceSeq", "lastControllerCommandSeq", "compactedThroughControllerSeq",
				"reconnectCount", "maxOutboxBytes", "p0ReserveBytes", "peakOutboxBytes", "outbox", "processedCommands",
				"processedCommandFingerprints", "pendingTerminalDelivery", "executorEventReceipts", "v2ReplayEvents",
				"lastConnectionProtocolVersion", "diagnostics", "backpressure", "recoverableFailure",
			} {
				_, ok := m[n]
				e.Check(ok, "%s is missing in %s", n, peer.Write(m))
			}
			for n, v := range peer.Merge(e.a.Identity.Members(), peer.M{
				"schema": "paperclip.runner.durable.state.v1", "lifecycle": "ready", "maxOutboxBytes": 16_777_216, "p0ReserveBytes": 1_048_576,
				"backpressure": false, "recoverableFailure": nil, "compactedThroughControllerSeq": 0, "lastConnectionProtocolVersion": 2,
			}) {
				e.Check(peer.Equal(m[n], v), "%s is %s, expected %s", n, peer.Write(m[n]), peer.Write(v))
			}
			e.Check(peer.List(m, "diagnostics") != nil && len(peer.List(m, "diagnostics")) <= 32, "diagnostics %s", peer.Write(m["diagnostics"]))
		}),
		with(target, "state/commands_and_fingerprints", "9.1", func(e *env) {
			_, s := e.begin()
			c := e.command("run.prepare", scripted())
			e.OK(s.l.SendCommand(c, 1), "command")
			r := s.result(c)
			id := peer.Str(c, "commandId")
			m := e.stateUntil("the command", func(m peer.M) bool { return peer.Get(m, "processedCommands", id, "status") == "completed" })
			e.Check(peer.Equal(peer.Get(m, "processedCommands", id), r), "record %s, result %s", peer.Write(peer.Get(m, "processedCommands", id)), peer.Write(r))
			want, err := peer.CommandFingerprint(c)
			e.OK(err, "fingerprint")
			e.Check(peer.Str(m, "processedCommandFingerprints", id) == want, "fingerprint %v, expected %s", peer.Get(m, "processedCommandFingerprints", id), want)
		}),
		with(target, "state/outbox", "9.1", func(e *env) {
			_, s := e.begin()
			s.quietly = true
			s.open(scripted())
			s.event("session.started")
			m := e.stateUntil("an event in the outbox", func(m peer.M) bool { return len(peer.List(m, "outbox")) > 0 })
			first := peer.List(m, "outbox")[0]
			entry, ok := first.(peer.M)
			e.Check(ok, "entry %s", peer.Write(first))
			e.OK(peer.Members(entry, "sourceSeq", "priority", "eventType", "envelope", "byteSize"), "outbox entry")
			e.Check(peer.Int(entry, "sourceSeq") == 1 && entry["eventType"] == "session.started" && peer.Int(entry, "byteSize") > 0, "entry %s", peer.Write(entry))
			e.OK(s.l.Ack(s.high), "ack")
			s.quietly = false
			e.stateUntil("an empty outbox", func(m peer.M) bool {
				return len(peer.List(m, "outbox")) == 0 && peer.Int(m, "ackedSourceSeq") == s.high && peer.Int(m, "nextSourceSeq") == s.high+1
			})
		}),
		with(target, "state/private_modes", "9.5", func(e *env) {
			e.begin()
			info, err := os.Stat(e.state)
			e.OK(err, "state directory")
			e.Check(info.Mode().Perm() == 0o700, "directory mode %v", info.Mode())
			e.stateUntil("ready", func(m peer.M) bool { return m["lifecycle"] == "ready" })
			info, err = os.Stat(filepath.Join(e.state, "runner-state.json"))
			e.OK(err, "state file")
			e.Check(info.Mode().Perm() == 0o600, "file mode %v", info.Mode())
			entries, err := os.ReadDir(e.state)
			e.OK(err, "state directory")
			for _, d := range entries {
				e.Check(!strings.HasSuffix(d.Name(), ".tmp"), "left behind: %s", d.Name())
			}
		}),
		with(target, "state/pretty_json", "9.5", func(e *env) {
			e.begin()
			e.stateUntil("ready", func(m peer.M) bool { return m["lifecycle"] == "ready" })
			text, err := os.ReadFile(filepath.Join(e.state, "runner-state.json"))
			e.OK(err, "state file")
			e.Check(strings.Count(string(text), "\n") > 10, "not pretty: %.200s", text)
		}),
		with(target, "state/reconnect_count", "9.1", func(e *env) {
			_, s := e.begin()
			e.OK(s.l.Close(), "close")
			e.admit()
			e.stateUntil("one reconnect", func(m peer.M) bool { return peer.Int(m, "reconnectCount") >= 1 })
		}),
		with(target, "state/other_identity_is_refused", "9.1", func(e *env) {
			p, s := e.begin()
			s.open(scripted())
			p.kill()
			e.start([2]string{"--turn-id", "turn-other"}).exit(1, "another identity")
			e.noDial("another identity")
		}),
		with(target, "state/other_outbox_limit_is_refused", "9.3", func(e *env) {
			p, s := e.begin()
			s.open(scripted())
			p.kill()
			e.start([2]string{"--max-outbox-bytes", "8388608"}).exit(1, "another outbox limit")
		}),
		with(target, "state/one_process_at_a_time_keeps_data", "9.5", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			s.turn("x")
			s.event("turn.completed")
			m := e.stateUntil("three commands", func(m peer.M) bool { return peer.Int(m, "lastControllerCommandSeq") == 3 })
			e.Check(peer.Int(m, "ackedSourceSeq") <= s.high, "ackedSourceSeq %v of %d", m["ackedSourceSeq"], s.high)
		}),
	}
}
