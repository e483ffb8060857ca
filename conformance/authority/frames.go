package authority

import (
	"bytes"
	"errors"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// frameCases: the WebSocket parser (1.6).
func frameCases(target Target) []suite.Case {
	text := func(payload []byte) peer.Frame { return peer.Text(payload, true) }
	// destroyed sends a frame on a fresh and on an authenticated connection.
	destroyed := func(name string, make func(payload []byte) peer.Frame) suite.Case {
		return with(target, "frame/"+name, "1.6", func(e *env) {
			fresh := e.dial(e.config(1, 2))
			e.writeSome(fresh.Sock, make(peer.Write(fresh.HelloEnvelope())))
			e.closed(fresh.Sock, name+" before authentication")
			r := e.join()
			good := r.Frame(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{})))
			e.writeSome(r.Sock, make(good.Payload))
			e.closed(r.Sock, name+" after authentication")
			e.Check(peer.Int(e.state(), "ackedSourceSeq") == 0, "the event in the frame was taken")
		})
	}
	taken := func(name string, make func(payload []byte) peer.Frame) suite.Case {
		return with(target, "frame/"+name, "1.6", func(e *env) {
			r := e.dial(e.config(1, 2))
			hello := r.HelloEnvelope()
			e.OK(r.WriteFrames(make(peer.Write(hello))), "write")
			r.Hello = peer.CloneM(hello)
			e.OK(r.ReadChallenge(), "challenge")
			e.OK(r.WriteFrames(make(peer.Write(r.ResponseEnvelope()))), "write")
			e.OK(r.ReadWelcome(), "welcome")
			good := r.Frame(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{})))
			e.OK(r.WriteFrames(make(good.Payload)), "write")
			e.ack(r, 1)
		})
	}
	change := func(f func(*peer.Frame)) func([]byte) peer.Frame {
		return func(payload []byte) peer.Frame {
			frame := text(payload)
			f(&frame)
			return frame
		}
	}
	opcode := func(op byte) func([]byte) peer.Frame { return change(func(f *peer.Frame) { f.Opcode = op }) }
	padded := func(size int) func([]byte) peer.Frame {
		return func(payload []byte) peer.Frame {
			return text(append(bytes.Clone(payload), bytes.Repeat([]byte(" "), size-len(payload))...))
		}
	}
	huge, over := uint64(1)<<63, uint64(peer.MaxFrame+1)
	return []suite.Case{
		taken("fin_0_is_whole_message", change(func(f *peer.Frame) { f.Fin = false })),
		taken("rsv1_is_ignored", change(func(f *peer.Frame) { f.Rsv = 4 })),
		taken("rsv2_rsv3_are_ignored", change(func(f *peer.Frame) { f.Rsv = 3 })),
		taken("at_the_frame_limit", padded(peer.MaxFrame)),
		destroyed("one_past_the_frame_limit", padded(peer.MaxFrame+1)),
		destroyed("declared_one_past_the_limit", change(func(f *peer.Frame) { f.Payload, f.Declared = nil, &over })),
		destroyed("declared_2_to_63", change(func(f *peer.Frame) { f.Payload, f.Declared = nil, &huge })),
		destroyed("unmasked", change(func(f *peer.Frame) { f.Masked = false })),
		destroyed("continuation", opcode(peer.OpContinuation)),
		destroyed("binary", opcode(peer.OpBinary)),
		destroyed("opcode_3", opcode(3)),
		destroyed("opcode_11", opcode(11)),
		destroyed("opcode_15", opcode(15)),
		destroyed("close_is_not_answered", func([]byte) peer.Frame {
			return peer.Frame{Fin: true, Opcode: peer.OpClose, Masked: true, Payload: []byte{3, 232}}
		}),
		destroyed("close_without_payload", func([]byte) peer.Frame { return peer.Frame{Fin: true, Opcode: peer.OpClose, Masked: true} }),
		destroyed("invalid_json", func([]byte) peer.Frame { return text([]byte(`{"protocol":`)) }),
		destroyed("empty_text", func([]byte) peer.Frame { return text(nil) }),
		destroyed("json_array", func([]byte) peer.Frame { return text([]byte(`[]`)) }),
		destroyed("json_null", func([]byte) peer.Frame { return text([]byte(`null`)) }),
		destroyed("json_string", func([]byte) peer.Frame { return text([]byte(`"auth_hello"`)) }),
		destroyed("json_trailing_text", func(p []byte) peer.Frame { return text(append(bytes.Clone(p), "{}"...)) }),
		with(target, "frame/ping_pong", "1.6", func(e *env) {
			fresh := e.dial(e.config(1, 2))
			r := e.join()
			for _, s := range []*peer.Sock{fresh.Sock, r.Sock} {
				for _, n := range []int{0, 1, 125} {
					payload := bytes.Repeat([]byte("p"), n)
					e.OK(s.WriteFrames(peer.Frame{Fin: true, Opcode: peer.OpPing, Masked: true, Payload: payload}), "ping")
					f, err := s.ReadFrame(peer.IOTimeout)
					e.OK(err, "pong of %d bytes", n)
					e.Check(f.Opcode == peer.OpPong && bytes.Equal(f.Payload, payload), "got opcode %d, %d bytes", f.Opcode, len(f.Payload))
				}
			}
			e.alive(r, 1)
		}),
		with(target, "frame/long_ping_gets_no_pong", "1.6", func(e *env) {
			r := e.join()
			for _, n := range []int{126, 70_000} {
				e.OK(r.WriteFrames(peer.Frame{Fin: true, Opcode: peer.OpPing, Masked: true, Payload: bytes.Repeat([]byte("p"), n)}), "ping")
			}
			e.event(r, 1)
			f, err := r.ReadFrame(peer.IOTimeout)
			e.OK(err, "ack after long pings")
			e.Check(f.Opcode == peer.OpText, "a long ping was answered with opcode %d", f.Opcode)
			m, err := r.Open(f.Payload)
			e.OK(err, "ack")
			e.Check(m["kind"] == "ack", "got %v", m["kind"])
			e.silent(r.Sock, "no pong for long pings")
		}),
		with(target, "frame/pong_is_ignored", "1.6", func(e *env) {
			r := e.join()
			e.OK(r.WriteFrames(peer.Frame{Fin: true, Opcode: peer.OpPong, Masked: true, Payload: []byte("x")}), "pong")
			e.alive(r, 1)
		}),
		with(target, "frame/bytes_in_pieces", "1.6", func(e *env) {
			r := e.join()
			wire := r.Frame(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{}))).Encode()
			for i := 0; i < len(wire); i += 97 {
				e.OK(r.WriteBytes(wire[i:min(len(wire), i+97)]), "piece")
			}
			e.ack(r, 1)
		}),
		with(target, "frame/many_in_one_write", "1.6", func(e *env) {
			r := e.join()
			var frames []peer.Frame
			for seq := int64(1); seq <= 20; seq++ {
				frames = append(frames, r.Frame(r.EventEnvelope(r.NewEvent(seq, "harness.ready", peer.M{}))))
			}
			e.OK(r.WriteFrames(frames...), "write")
			for seq := int64(1); seq <= 20; seq++ {
				e.ack(r, seq)
			}
		}),
		with(target, "frame/half_close_is_close", "1.6", func(e *env) {
			r := e.join()
			e.OK(r.CloseWrite(), "half-close")
			e.closed(r.Sock, "TCP half-close")
			e.until("no connection", func(s peer.M) bool { return peer.Int(s, "connections") == 0 })
		}),
		with(target, "frame/idle_unauthenticated_stays", "3.8", func(e *env) {
			r := e.dial(e.config(1, 2))
			e.silent(r.Sock, "an idle socket before the hello")
			e.OK(r.Authenticate(), "handshake after a pause")
		}),
		with(target, "frame/event_behind_unknown_kind_is_committed", "1.6 (run)", func(e *env) {
			r := e.join()
			bad := r.Frame(r.BoundEnvelope("heartbeat", peer.M{}))
			good := r.Frame(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{})))
			e.OK(r.WriteFrames(bad, good), "write")
			e.OK(r.ExpectClose(closeWait, func([]byte) error { return nil }), "close after an unknown kind")
			e.acked(1)
		}),
		with(target, "frame/event_behind_wrong_tag_is_committed", "1.6 (run)", func(e *env) {
			r := e.join()
			bad := r.Frame(r.BoundEnvelope("pong", peer.M{}))
			tamper(bad.Payload)
			r.SendCount = 0
			good := r.Frame(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{})))
			e.OK(r.WriteFrames(bad, good), "write")
			e.OK(r.ExpectClose(closeWait, func([]byte) error { return nil }), "close after a wrong tag")
			e.acked(1)
			e.Check(peer.Int(e.state(), "malformedFrames") == 1, "malformedFrames %v", e.state()["malformedFrames"])
		}),
		with(target, "frame/response_behind_second_hello_consumes", "1.6 (run)", func(e *env) {
			cfg := e.config(1, 2)
			r := e.dial(cfg)
			e.OK(r.SendHello(nil), "hello")
			e.OK(r.ReadChallenge(), "challenge")
			e.OK(r.WriteFrames(text(peer.Write(r.HelloEnvelope())), text(peer.Write(r.ResponseEnvelope()))), "write")
			e.OK(r.ExpectClose(closeWait, func([]byte) error { return nil }), "close after a second hello")
			s := e.dial(cfg)
			e.OK(s.SendHello(nil), "hello with the consumed ticket")
			e.closed(s.Sock, "a consumed ticket")
		}),
	}
}

// tamper changes the first hex digit of a secure frame's ciphertext.
func tamper(frame []byte) {
	key := []byte(`"ciphertext":"`)
	i := bytes.Index(frame, key) + len(key)
	if frame[i] == '0' {
		frame[i] = '1'
	} else {
		frame[i] = '0'
	}
}

// writeSome writes a frame that the authority may refuse at its header.
func (e *env) writeSome(s *peer.Sock, f peer.Frame) {
	if err := s.WriteFrames(f); !errors.Is(err, peer.ErrClosed) {
		e.OK(err, "write")
	}
}
