package authority

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// searchStateDir returns the first file below the state directory that
// contains the bytes.
func (e *env) searchStateDir(secret []byte) string {
	found := ""
	err := filepath.WalkDir(filepath.Join(e.dir, "state"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // a path of the case's own directory.
		if err == nil && bytes.Contains(text, secret) {
			found = path
			return fs.SkipAll
		}
		return err
	})
	e.OK(err, "search of the state directory")
	return found
}

// secureCases: secure frames (4.5 to 4.8) and the envelopes inside (5.1, 5.2).
func secureCases(target Target) []suite.Case {
	var out []suite.Case
	// bad sends a frame that counts as malformed and closes.
	bad := func(name, section string, make func(e *env, r *peer.Runner) []byte) {
		out = append(out, with(target, "secure/"+name, section, func(e *env) {
			r := e.join()
			e.alive(r, 1)
			e.OK(r.WriteText(make(e, r)), "write")
			e.closed(r.Sock, name)
			s := e.until("one malformed frame", func(s peer.M) bool { return peer.Int(s, "malformedFrames") == 1 })
			e.Check(peer.Int(s, "ackedSourceSeq") == 1 && s["fault"] == nil, "state %.300s", peer.Write(s))
			e.alive(e.again(r), 2)
		}))
	}
	good := func(r *peer.Runner) peer.M { return r.EventEnvelope(r.NewEvent(2, "harness.ready", peer.M{})) }
	frame := func(r *peer.Runner) peer.M {
		f := r.Frame(good(r))
		m, err := peer.ParseObject(f.Payload)
		if err != nil {
			panic("bug: own frame: " + err.Error())
		}
		return m
	}
	edit := func(change func(f peer.M)) func(*env, *peer.Runner) []byte {
		return func(_ *env, r *peer.Runner) []byte {
			f := frame(r)
			change(f)
			return peer.Write(f)
		}
	}
	at := func(counter uint64) func(*env, *peer.Runner) []byte {
		return func(_ *env, r *peer.Runner) []byte {
			return r.Session.SealFrame(peer.ClientToCore(), counter, peer.Write(good(r)))
		}
	}
	hex := func(change func(s string) string) func(*env, *peer.Runner) []byte {
		return edit(func(f peer.M) { f["ciphertext"] = change(peer.Str(f, "ciphertext")) })
	}
	bad("counter_gap", "4.6", at(2))
	bad("counter_used", "4.6", at(0))
	bad("counter_far", "4.6", at(1<<53-1))
	bad("counter_header_only", "4.6", edit(func(f peer.M) { f["counter"] = 2 }))
	bad("counter_string", "4.6", edit(func(f peer.M) { f["counter"] = "1" }))
	bad("counter_negative", "4.6", edit(func(f peer.M) { f["counter"] = -1 }))
	bad("counter_fraction", "4.6", edit(func(f peer.M) { f["counter"] = peer.Raw("1.5") }))
	bad("counter_null", "4.6", edit(func(f peer.M) { f["counter"] = nil }))
	bad("counter_missing", "4.6", edit(func(f peer.M) { delete(f, "counter") }))
	bad("counter_not_safe", "4.6", edit(func(f peer.M) { f["counter"] = peer.Raw("9007199254740993") }))
	bad("schema_other", "4.5", edit(func(f peer.M) { f["schema"] = "paperclip.runner.secure-frame.v2" }))
	bad("schema_missing", "4.5", edit(func(f peer.M) { delete(f, "schema") }))
	bad("ciphertext_missing", "4.5", edit(func(f peer.M) { delete(f, "ciphertext") }))
	bad("ciphertext_array", "4.5", edit(func(f peer.M) { f["ciphertext"] = peer.A{} }))
	bad("tag_tampered", "4.8", hex(func(s string) string { return s[:len(s)-1] + flip(s[len(s)-1]) }))
	bad("first_digit_tampered", "4.8", hex(func(s string) string { return flip(s[0]) + s[1:] }))
	bad("upper_case_hex", "4.5", hex(strings.ToUpper))
	bad("odd_hex", "4.5", hex(func(s string) string { return s[1:] }))
	bad("shorter_than_a_tag", "4.5", hex(func(s string) string { return s[:30] }))
	bad("empty_ciphertext", "4.5", hex(func(string) string { return "" }))
	bad("blank_behind_hex", "4.5", hex(func(s string) string { return s + " " }))
	bad("newline_behind_hex", "4.5", hex(func(s string) string { return s + "\n" }))
	bad("prefix_0x", "4.5", hex(func(s string) string { return "0x" + s }))
	bad("other_direction", "4.4", func(_ *env, r *peer.Runner) []byte {
		return r.Session.SealFrame(peer.CoreToClient(), 1, peer.Write(good(r)))
	})
	bad("other_session", "4.4", func(e *env, r *peer.Runner) []byte {
		n := e.again(r)
		b := n.Session.SealFrame(peer.ClientToCore(), 1, peer.Write(good(r)))
		// Only one connection at a time: come back on a third one and keep the keys of the second.
		r2 := e.again(r)
		e.closed(n.Sock, "newer connection")
		*r = *r2
		return bytes.Replace(b, []byte(`"counter":1`), []byte(`"counter":0`), 1)
	})
	bad("plaintext_event", "4.8", func(_ *env, r *peer.Runner) []byte { return peer.Write(good(r)) })
	bad("plaintext_hello", "4.8", func(_ *env, r *peer.Runner) []byte { return peer.Write(r.HelloEnvelope()) })
	bad("plaintext_pong", "4.8", func(_ *env, r *peer.Runner) []byte { return peer.Write(r.BoundEnvelope("pong", peer.M{})) })
	for name, text := range map[string]string{
		"empty": "", "half_object": `{"kind":`, "word": "hello", "trailing": `{"kind":"pong"} x`, "single_quotes": `{'kind':'pong'}`,
		"trailing_comma": `{"kind":"pong",}`, "nan": `{"kind":NaN}`, "leading_zero": `{"version":01}`, "control_character": "{\"kind\":\"a\nb\"}",
		"comment": `{/* */"kind":"pong"}`, "byte_order_mark_inside": "{\ufeff\"kind\":\"pong\"}",
	} {
		bad("inner_not_json_"+name, "4.8", func(_ *env, r *peer.Runner) []byte {
			return r.Session.SealFrame(peer.ClientToCore(), 1, []byte(text))
		})
	}

	// closes sends a well-sealed envelope that must close without a fault.
	closes := func(name, section string, make func(r *peer.Runner) any) {
		out = append(out, with(target, "envelope/"+name, section, func(e *env) {
			r := e.join()
			e.send(r, make(r))
			e.closed(r.Sock, name)
			e.noFault()
			e.Check(peer.Int(e.state(), "ackedSourceSeq") == 0, "the event was taken")
			e.alive(e.again(r), 1)
		}))
	}
	for _, kind := range []string{
		"hello", "welcome", "command", "ack", "ping", "heartbeat", "goodbye", "error", "auth_hello", "auth_response",
		"revoke", "lease_renewed", "command_epoch_committed", "event_epoch_rotate", "", "__proto__", "constructor",
	} {
		closes("kind_"+kind, "5.2", func(r *peer.Runner) any { return r.BoundEnvelope(kind, peer.M{}) })
	}
	with1 := func(change func(m peer.M)) func(r *peer.Runner) any {
		return func(r *peer.Runner) any {
			m := r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{}))
			change(m)
			return m
		}
	}
	closes("version_other", "3", with1(func(m peer.M) { m["version"] = 1 }))
	closes("version_3", "3", with1(func(m peer.M) { m["version"] = 3 }))
	closes("version_missing", "3", with1(func(m peer.M) { delete(m, "version") }))
	closes("version_string", "3", with1(func(m peer.M) { m["version"] = "2" }))
	closes("protocol_other", "3", with1(func(m peer.M) { m["protocol"] = "paperclip" }))
	closes("protocol_missing", "3", with1(func(m peer.M) { delete(m, "protocol") }))
	closes("kind_missing", "5.2", with1(func(m peer.M) { delete(m, "kind") }))
	closes("kind_number", "5.2", with1(func(m peer.M) { m["kind"] = 1 }))
	closes("payload_missing", "5.6", with1(func(m peer.M) { delete(m, "payload") }))
	closes("json_null", "4.8", func(*peer.Runner) any { return []byte("null") })
	closes("json_array", "4.8", func(*peer.Runner) any { return []byte("[]") })
	closes("json_number", "4.8", func(*peer.Runner) any { return []byte("1") })
	closes("second_hello_inside", "3", func(r *peer.Runner) any { return r.HelloEnvelope() })

	out = append(out,
		with(target, "secure/counter_spelled_as_float", "appendix B 3", func(e *env) {
			r := e.join()
			f := frame(r)
			f["counter"] = peer.Raw("0.0")
			e.OK(r.WriteText(peer.Write(f)), "write")
			e.closed(r.Sock, "an event with sequence 2") // the frame is opened; its event comes too early
			e.Check(peer.Int(e.state(), "malformedFrames") == 0, "counter 0.0 is the integer 0")
		}),
		with(target, "secure/long_exchange", "4.6", func(e *env) {
			r := e.join()
			const n = 300
			var frames []peer.Frame
			for seq := int64(1); seq <= n; seq++ {
				frames = append(frames, r.Frame(r.EventEnvelope(r.NewEvent(seq, "harness.ready", peer.M{}))))
			}
			e.OK(r.WriteFrames(frames...), "write")
			for seq := int64(1); seq <= n; seq++ {
				e.ack(r, seq)
			}
			e.Check(r.RecvCount == n+1, "%d frames received", r.RecvCount)
		}),
		with(target, "secure/malformed_counter_is_kept", "8.2", func(e *env) {
			r := e.join()
			for n := int64(1); n <= 3; n++ {
				e.OK(r.WriteText([]byte(`{"schema":"x"}`)), "write")
				e.closed(r.Sock, "a malformed frame")
				e.until("the count", func(s peer.M) bool { return peer.Int(s, "malformedFrames") == n })
				r = e.again(r)
			}
			e.restart(peer.M{})
			e.Check(peer.Int(e.state(), "malformedFrames") == 3, "malformedFrames after a restart: %v", e.state()["malformedFrames"])
		}),
		with(target, "envelope/pong_is_ignored", "5.2", func(e *env) {
			r := e.join()
			for _, p := range []peer.M{{"lifecycle": "ready", "ackedSourceSeq": 0, "outboxBytes": 0}, {}, {"warmTransitionId": "x"}} {
				e.send(r, r.BoundEnvelope("pong", p))
			}
			e.alive(r, 1)
		}),
		with(target, "envelope/integer_version_as_float", "appendix B 3", func(e *env) {
			r := e.join()
			m := r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{}))
			m["version"] = peer.Raw("2.0")
			peer.Obj(m, "payload")["sourceSeq"] = peer.Raw("1e0")
			peer.Obj(m, "payload")["schemaVersion"] = peer.Raw("1.0")
			peer.Obj(m, "payload")["priority"] = peer.Raw("10e-1")
			e.send(r, m)
			e.ack(r, 1)
		}),
		with(target, "envelope/white_space_in_plaintext", "4.5", func(e *env) {
			r := e.join()
			text := peer.Write(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{})))
			e.send(r, []byte(" \t\r\n"+strings.ReplaceAll(string(text), ",", " ,\n ")+"\n"))
			e.ack(r, 1)
		}),
	)
	return out
}

func flip(c byte) string {
	if c == '0' {
		return "1"
	}
	return "0"
}
