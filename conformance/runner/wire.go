package runner

import (
	"bytes"
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// wireCases: WebSocket and secure frames as the runner receives them (1.4, 4, 5.1).
func wireCases(target Target) []suite.Case {
	var out []suite.Case
	// dropped sends something wrong after the handshake; the runner drops the
	// connection and comes back with its lease.
	dropped := func(name, section string, send func(e *env, l *peer.Link)) {
		out = append(out, with(target, "wire/"+name, section, func(e *env) {
			p, s := e.begin()
			send(e, s.l)
			e.OK(s.l.ExpectClose(4*time.Second, nil), "%s must close", name)
			l := e.admit()
			e.Check(l.Lease, "the runner came back with its ticket")
			e.session(l).open(scripted())
			p.running(name)
		}))
	}
	ping := func(l *peer.Link) peer.M { return l.Control("ping", "ping_1", peer.M{}) }
	envelope := func(name string, change func(env peer.M)) {
		dropped("envelope_"+name, "5.1", func(e *env, l *peer.Link) {
			m := ping(l)
			change(m)
			e.OK(l.Send(m), "send")
		})
	}
	for _, n := range peer.IdentityNames() {
		envelope(n, func(env peer.M) { env[n] = "someone-else" })
	}
	envelope("connectionId", func(env peer.M) { env["connectionId"] = "connection_99" })
	envelope("connectionLeaseId", func(env peer.M) { env["connectionLeaseId"] = "connection_lease_" + peer.NewUUID() })
	envelope("version", func(env peer.M) { env["version"] = 1 })
	envelope("protocol", func(env peer.M) { env["protocol"] = "other" })
	envelope("connectionId_missing", func(env peer.M) { delete(env, "connectionId") })
	envelope("kind_unknown", func(env peer.M) { env["kind"] = "surprise" })

	frame := func(name, section string, change func(l *peer.Link, f peer.M)) {
		dropped("frame_"+name, section, func(e *env, l *peer.Link) {
			f, err := peer.ParseObject(l.Session.SealFrame(peer.CoreToClient(), l.SendCount, peer.Write(ping(l))))
			e.OK(err, "own frame")
			change(l, f)
			e.OK(l.WriteText(peer.Write(f)), "send")
		})
	}
	frame("tag", "4.8", func(_ *peer.Link, f peer.M) {
		s := peer.Str(f, "ciphertext")
		last := "0"
		if s[len(s)-1] == '0' {
			last = "1"
		}
		f["ciphertext"] = s[:len(s)-1] + last
	})
	frame("counter_gap", "4.6", func(l *peer.Link, f peer.M) {
		f["counter"] = l.SendCount + 1
		f["ciphertext"] = l.Session.Seal(peer.CoreToClient(), l.SendCount+1, peer.Write(ping(l)))
	})
	frame("counter_repeated", "4.6", func(l *peer.Link, f peer.M) {
		f["counter"] = l.SendCount - 1
		f["ciphertext"] = l.Session.Seal(peer.CoreToClient(), l.SendCount-1, peer.Write(ping(l)))
	})
	frame("schema", "4.5", func(_ *peer.Link, f peer.M) { f["schema"] = "paperclip.runner.secure-frame.v2" })
	frame("odd_hex", "4.5", func(_ *peer.Link, f peer.M) { f["ciphertext"] = peer.Str(f, "ciphertext")[1:] })
	frame("short", "4.5", func(_ *peer.Link, f peer.M) { f["ciphertext"] = "00" })
	dropped("plaintext", "4.8", func(e *env, l *peer.Link) { e.OK(l.WriteText(peer.Write(ping(l))), "send") })
	dropped("inner_not_json", "4.8", func(e *env, l *peer.Link) { e.OK(l.Send([]byte("{")), "send") })
	dropped("text_not_json", "4.5", func(e *env, l *peer.Link) { e.OK(l.WriteText([]byte("hello")), "send") })
	dropped("binary", "1.4", func(e *env, l *peer.Link) {
		e.OK(l.WriteFrames(peer.Frame{Fin: true, Opcode: peer.OpBinary, Payload: []byte("{}")}), "send")
	})
	dropped("continuation", "1.4", func(e *env, l *peer.Link) {
		e.OK(l.WriteFrames(peer.Frame{Fin: true, Opcode: peer.OpContinuation, Payload: []byte("{}")}), "send")
	})
	dropped("above_max_frame_bytes", "1.4", func(e *env, l *peer.Link) {
		n := uint64(peer.MaxFrame + 1)
		e.OK(l.WriteFrames(peer.Frame{Fin: true, Opcode: peer.OpText, Declared: &n}), "send")
	})
	dropped("close_frame", "1.4", func(e *env, l *peer.Link) {
		e.OK(l.WriteFrames(peer.Frame{Fin: true, Opcode: peer.OpClose, Payload: []byte{3, 232}}), "send")
	})
	dropped("masked_frame", "RFC 6455 5.1", func(e *env, l *peer.Link) {
		e.OK(l.WriteFrames(peer.Text(l.Session.SealFrame(peer.CoreToClient(), l.SendCount, peer.Write(ping(l))), true)), "send")
	})
	dropped("reserved_bit", "RFC 6455 5.2", func(e *env, l *peer.Link) {
		f := peer.Text(l.Session.SealFrame(peer.CoreToClient(), l.SendCount, peer.Write(ping(l))), false)
		f.Rsv = 4
		e.OK(l.WriteFrames(f), "send")
	})

	// refusedUpgrade answers the opening request wrongly; the runner comes back.
	refusedUpgrade := func(name string, answer func(l *peer.Link) string) {
		out = append(out, with(target, "upgrade/"+name, "1.4", func(e *env) {
			p := e.start()
			l := e.accept()
			e.OK(l.CheckRequest(), "opening request")
			e.OK(l.WriteBytes([]byte(answer(l))), "answer")
			e.OK(l.ExpectClose(4*time.Second, nil), "no hello after a wrong answer")
			e.admit()
			p.running(name)
		}))
	}
	const head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
	refusedUpgrade("404", func(*peer.Link) string {
		return "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
	})
	refusedUpgrade("200", func(*peer.Link) string { return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" })
	refusedUpgrade("wrong_accept_key", func(*peer.Link) string {
		return head + "Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n"
	})
	refusedUpgrade("no_accept_key", func(*peer.Link) string { return head + "\r\n" })
	refusedUpgrade("unasked_extension", func(l *peer.Link) string {
		return head + "Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Accept: " + peer.AcceptKey(strings.Join(l.Request.Header("Sec-WebSocket-Key"), "")) + "\r\n\r\n"
	})
	refusedUpgrade("unasked_protocol", func(l *peer.Link) string {
		return head + "Sec-WebSocket-Protocol: prp\r\nSec-WebSocket-Accept: " + peer.AcceptKey(strings.Join(l.Request.Header("Sec-WebSocket-Key"), "")) + "\r\n\r\n"
	})

	out = append(out,
		with(target, "upgrade/request", "1.1", func(e *env) {
			e.start()
			a := e.accept()
			e.OK(a.CheckRequest(), "opening request")
			e.OK(a.Close(), "close")
			b := e.accept()
			e.OK(b.CheckRequest(), "second opening request")
			e.Check(strings.Join(a.Request.Header("Sec-WebSocket-Key"), "") != strings.Join(b.Request.Header("Sec-WebSocket-Key"), ""), "the key came twice")
		}),
		with(target, "upgrade/silent_authority", "1.4", func(e *env) {
			e.start()
			l := e.accept() // no answer: 2 s budget
			e.OK(l.ExpectClose(5*time.Second, nil), "an opening request without an answer")
			e.admit()
		}),
		with(target, "wire/ping_is_answered", "1.4", func(e *env) {
			_, s := e.begin()
			for _, n := range []int{0, 5, 125} {
				payload := bytes.Repeat([]byte("p"), n)
				e.OK(s.l.WriteFrames(peer.Frame{Fin: true, Opcode: peer.OpPing, Payload: payload}), "ping")
				f, err := s.l.ReadFrame(peer.IOTimeout)
				e.OK(err, "pong")
				e.Check(f.Opcode == peer.OpPong && bytes.Equal(f.Payload, payload), "opcode %d, %d bytes", f.Opcode, len(f.Payload))
			}
			s.open(scripted())
		}),
		with(target, "wire/upper_case_hex_is_accepted", "4.5", func(e *env) {
			_, s := e.begin()
			f, err := peer.ParseObject(s.l.Session.SealFrame(peer.CoreToClient(), s.l.SendCount, peer.Write(ping(s.l))))
			e.OK(err, "own frame")
			s.l.SendCount++
			f["ciphertext"] = strings.ToUpper(peer.Str(f, "ciphertext"))
			e.OK(s.l.WriteText(peer.Write(f)), "send")
			s.until("pong", func(m peer.M) bool { return m["kind"] == "pong" })
		}),
		with(target, "wire/frame_at_the_limit", "1.4", func(e *env) {
			_, s := e.begin()
			text := s.l.Session.SealFrame(peer.CoreToClient(), s.l.SendCount, peer.Write(ping(s.l)))
			s.l.SendCount++
			e.OK(s.l.WriteText(append(text, bytes.Repeat([]byte(" "), peer.MaxFrame-len(text))...)), "send")
			s.until("pong", func(m peer.M) bool { return m["kind"] == "pong" })
		}),
		with(target, "wire/max_frame_bytes_flag", "11.4", func(e *env) {
			p, s := e.begin([2]string{"--max-frame-bytes", "65536"})
			n := uint64(65_537)
			e.OK(s.l.WriteFrames(peer.Frame{Fin: true, Opcode: peer.OpText, Declared: &n}), "send")
			e.OK(s.l.ExpectClose(4*time.Second, nil), "a frame above --max-frame-bytes")
			e.admit()
			p.running("a frame above --max-frame-bytes")
		}),
		with(target, "wire/ping_kind_is_answered", "5.2", func(e *env) {
			_, s := e.begin()
			for range 3 {
				e.OK(s.l.Send(ping(s.l)), "ping")
				m := s.until("pong", func(m peer.M) bool { return m["kind"] == "pong" })
				p := peer.Obj(m, "payload")
				e.Check(p["lifecycle"] == "ready" && peer.Int(p, "ackedSourceSeq") == 0 && peer.Int(p, "outboxBytes") == 0, "pong %s", peer.Write(p))
			}
			s.open(scripted())
			s.event("session.started")
			e.OK(s.l.Send(ping(s.l)), "ping")
			m := s.until("pong", func(m peer.M) bool { return m["kind"] == "pong" })
			e.Check(peer.Int(m, "payload", "ackedSourceSeq") == s.high && peer.Int(m, "payload", "outboxBytes") == 0, "pong %s", peer.Write(m["payload"]))
		}),
		with(target, "wire/pong_counts_the_outbox", "14.2", func(e *env) {
			_, s := e.begin()
			s.quietly = true
			s.open(scripted())
			s.event("session.started")
			e.OK(s.l.Send(ping(s.l)), "ping")
			m := s.until("pong", func(m peer.M) bool { return m["kind"] == "pong" })
			e.Check(peer.Int(m, "payload", "ackedSourceSeq") == 0 && peer.Int(m, "payload", "outboxBytes") > 0, "pong %s", peer.Write(m["payload"]))
		}),
		with(target, "wire/nothing_unasked", "5.2", func(e *env) {
			_, s := e.begin()
			s.silence("an idle runner")
		}),
		with(target, "wire/two_commands_in_one_write", "5.8", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			e.OK(s.l.Send(ping(s.l)), "ping")
			e.OK(s.l.Send(s.l.Control("ping", "ping_2", peer.M{})), "ping")
			for range 2 {
				s.until("pong", func(m peer.M) bool { return m["kind"] == "pong" })
			}
		}),
	)
	return out
}
