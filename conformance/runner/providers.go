package runner

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// fakeCodex is a stand-in for `codex app-server`: it answers initialize,
// thread/start and turn/start and plays one turn with one agent message.
const fakeCodex = `#!/bin/sh
say() { printf '%s\n' "$1"; }
while IFS= read -r line; do
  rest=${line#*\"id\":}; id=${rest%%[,\}]*}
  case $line in
  *'"method":"initialize"'*) say '{"id":'$id',"result":{"userAgent":"fake/0.171.0","codexHome":"/nowhere","platformFamily":"unix","platformOs":"linux"}}';;
  *'"method":"thread/start"'*) say '{"id":'$id',"result":{"thread":{"id":"thread-7","sessionId":"session-7","status":{"type":"idle"},"turns":[]},"model":"m","modelProvider":"p","cwd":"/","approvalPolicy":"never","sandbox":{"type":"dangerFullAccess"}}}';;
  *'"method":"turn/start"'*)
    say '{"id":'$id',"result":{"turn":{"id":"codex-turn-1","status":"inProgress","items":[],"error":null}}}'
    say '{"method":"turn/started","params":{"threadId":"thread-7","turn":{"id":"codex-turn-1","status":"inProgress","items":[],"error":null}}}'
    say '{"method":"item/started","params":{"threadId":"thread-7","turnId":"codex-turn-1","item":{"type":"agentMessage","id":"msg-1","text":""}}}'
    say '{"method":"item/agentMessage/delta","params":{"threadId":"thread-7","turnId":"codex-turn-1","itemId":"msg-1","delta":"hello "}}'
    say '{"method":"item/agentMessage/delta","params":{"threadId":"thread-7","turnId":"codex-turn-1","itemId":"msg-1","delta":"world"}}'
    say '{"method":"item/completed","params":{"threadId":"thread-7","turnId":"codex-turn-1","item":{"type":"agentMessage","id":"msg-1","text":"hello world"}}}'
    if [ "$1" = stay ]; then continue; fi
    say '{"method":"turn/completed","params":{"threadId":"thread-7","turn":{"id":"codex-turn-1","status":"completed","items":[],"error":null}}}';;
  *'"method":"turn/interrupt"'*)
    say '{"id":'$id',"result":{}}'
    say '{"method":"turn/completed","params":{"threadId":"thread-7","turn":{"id":"codex-turn-1","status":"interrupted","items":[],"error":null}}}';;
  *'"method":'*'"id":'*|*'"id":'*'"method":'*) say '{"id":'$id',"error":{"code":-32600,"message":"Invalid request"}}';;
  esac
done
`

// terminalTurns counts the events that end a turn.
func (s *session) terminalTurns() []string {
	var out []string
	for _, t := range s.types() {
		switch t {
		case "turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled":
			out = append(out, t)
		}
	}
	return out
}

// turnEnd waits for the event that ends the turn and returns it.
func (s *session) turnEnd() peer.M {
	if len(s.terminalTurns()) == 0 {
		s.until("the end of the turn", func(peer.M) bool { return len(s.terminalTurns()) > 0 })
	}
	for _, ev := range s.events {
		switch peer.Str(ev, "eventType") {
		case "turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled":
			return ev
		}
	}
	panic("bug: a terminal event was counted but not found")
}

// bytesOf joins the exact bytes of one stream's deltas.
func (s *session) bytesOf(stream string) string {
	var b strings.Builder
	for _, ev := range s.events {
		if peer.Str(ev, "eventType") != "item.delta" || peer.Str(ev, "payload", "stream") != stream {
			continue
		}
		if peer.Str(ev, "payload", "encoding") == "base64" {
			raw, err := base64.StdEncoding.DecodeString(peer.Str(ev, "payload", "data"))
			s.OK(err, "base64 of a delta")
			b.Write(raw)
			continue
		}
		b.WriteString(peer.Str(ev, "payload", "text"))
	}
	return b.String()
}

// driverCases: the provider kinds in more depth (6.4, 6.5, 11.10, 11.11, issue 2).
func driverCases(target Target) []suite.Case {
	codexRefused := func(name string, change func(p peer.M)) suite.Case {
		return with(target, "codex/prepare_"+name, "6.5", func(e *env) {
			_, s := e.begin()
			m := e.codex(e.file("codex", []byte(fakeCodex), 0o700))
			change(peer.Obj(m, "provider"))
			p := s.do("run.prepare", m)
			e.Check(p["status"] == "failed" || p["status"] == "rejected", "run.prepare ended %s", peer.Write(p))
		})
	}
	outcome := func(name string, argv []string, want string) suite.Case {
		return with(target, "provider/outcome_"+name, "issue 2", func(e *env) {
			_, s := e.begin()
			prepare := e.argv(argv...)
			if name == "timeout" {
				peer.Obj(prepare, "provider")["timeoutMs"] = 400
			}
			s.open(prepare)
			s.turn("go")
			end := s.turnEnd()
			text := strings.ToLower(string(peer.Write(end)))
			e.Check(strings.Contains(text, want), "%q is not in %s", want, text)
			s.silence("nothing follows the end of the turn")
			e.Check(len(s.terminalTurns()) == 1, "ends of the turn: %v", s.terminalTurns())
		})
	}
	return []suite.Case{
		with(target, "codex/session_and_turn", "6.4", func(e *env) {
			p, s := e.begin()
			s.open(e.codex(e.file("codex", []byte(fakeCodex), 0o700)))
			ev := s.event("session.started")
			e.Check(peer.Int(ev, "sourceSeq") == 1, "session.started is event %v", ev["sourceSeq"])
			id := peer.Str(ev, "payload", "threadId") + peer.Str(ev, "payload", "driverSessionId")
			e.Check(strings.Contains(id, "thread-7"), "identity %s", peer.Write(ev["payload"]))
			e.Check(peer.Int(ev, "payload", "runtimeIdentity", "processId") > 1 || peer.Int(ev, "payload", "processId") > 1 || peer.Int(ev, "payload", "pid") > 1, "no process id in %s", peer.Write(ev["payload"]))
			turn := s.turn("say hello")
			e.Check(turn == "codex-turn-1", "providerTurnId %s", turn)
			end := s.turnEnd()
			e.Check(end["eventType"] == "turn.completed" && peer.Str(end, "payload", "providerTurnId") == turn && peer.Str(end, "payload", "status") == "completed", "end %s", peer.Write(end))
			var text strings.Builder
			for _, d := range s.events {
				if d["eventType"] == "item.delta" {
					text.WriteString(peer.Str(d, "payload", "text"))
				}
			}
			e.Check(text.String() == "hello world", "deltas %q", text.String())
			p.running("after the turn")
		}),
		with(target, "codex/provider_state_file", "11.11", func(e *env) {
			_, s := e.begin()
			s.open(e.codex(e.file("codex", []byte(fakeCodex), 0o700)))
			s.turn("say hello")
			s.turnEnd()
			r := s.done("runner.drain", peer.M{})
			if r["retainedEventsDrained"] != true {
				s.silence("events of the drain")
				s.done("runner.drain", peer.M{})
			}
			text, err := os.ReadFile(filepath.Join(e.state, "codex-provider-state.json"))
			e.OK(err, "codex-provider-state.json")
			m, err := peer.ParseObject(text)
			e.OK(err, "codex-provider-state.json")
			e.Check(peer.List(m, "pendingEvents") != nil && len(peer.List(m, "pendingEvents")) == 0, "pendingEvents %s", peer.Write(m["pendingEvents"]))
			v, ok := m["activeProviderTurnId"]
			e.Check(ok && v == nil, "activeProviderTurnId %s", peer.Write(v))
		}),
		with(target, "codex/active_turn_in_provider_state_file", "11.11", func(e *env) {
			_, s := e.begin()
			prepare := e.codex(e.file("codex", []byte(fakeCodex), 0o700))
			peer.Obj(prepare, "provider")["args"] = peer.A{"stay"}
			s.open(prepare)
			turn := s.turn("say hello")
			s.event("item.completed")
			text, err := os.ReadFile(filepath.Join(e.state, "codex-provider-state.json"))
			e.OK(err, "codex-provider-state.json")
			m, err := peer.ParseObject(text)
			e.OK(err, "codex-provider-state.json")
			e.Check(peer.Str(m, "activeProviderTurnId") == turn, "activeProviderTurnId %v, turn %s", m["activeProviderTurnId"], turn)
		}),
		with(target, "codex/interrupt", "6.4", func(e *env) {
			_, s := e.begin()
			prepare := e.codex(e.file("codex", []byte(fakeCodex), 0o700))
			peer.Obj(prepare, "provider")["args"] = peer.A{"stay"}
			s.open(prepare)
			turn := s.turn("say hello")
			s.event("item.completed")
			s.do("turn.interrupt", peer.M{"threadId": "thread-7", "turnId": turn})
			end := s.turnEnd()
			e.Check(end["eventType"] == "turn.interrupted" || end["eventType"] == "turn.cancelled", "end %s", peer.Write(end))
			e.Check(len(s.terminalTurns()) == 1, "ends %v", s.terminalTurns())
		}),
		with(target, "codex/turn_stop_proves_the_exit", "6.4", func(e *env) {
			_, s := e.begin()
			prepare := e.codex(e.file("codex", []byte(fakeCodex), 0o700))
			peer.Obj(prepare, "provider")["args"] = peer.A{"stay"}
			s.open(prepare)
			s.turn("say hello")
			s.event("item.completed")
			r := s.done("turn.stop", peer.M{"reason": "test"})
			e.Check(r["providerExitConfirmed"] == true, "turn.stop result %s", peer.Write(r))
		}),
		with(target, "codex/process_dies", "issue 2", func(e *env) {
			p, s := e.begin()
			script := strings.Replace(fakeCodex, `if [ "$1" = stay ]; then continue; fi`, "exit 7", 1)
			s.open(e.codex(e.file("codex", []byte(script), 0o700)))
			s.turn("say hello")
			end := s.turnEnd()
			e.Check(end["eventType"] == "turn.failed", "end %s", peer.Write(end))
			p.running("a dead provider ends the turn, not the runner")
		}),
		with(target, "codex/no_program", "9.7", func(e *env) {
			p, s := e.begin()
			r := s.do("run.prepare", e.codex(filepath.Join(e.dir, "no-such-program")))
			if r["status"] == "completed" {
				r = s.do("session.open", peer.M{"reuse": "same_session"})
			}
			e.Check(r["status"] == "failed" && peer.Str(r, "result", "code") == "command_execution_failed", "result %s", peer.Write(r))
			p.running("a missing program")
		}),
		codexRefused("other_driver", func(p peer.M) { p["driver"] = "opencode_server" }),
		codexRefused("other_version", func(p peer.M) { p["providerVersion"] = "codex-app-server-v2" }),
		codexRefused("command_not_text", func(p peer.M) { p["command"] = 7 }),
		codexRefused("args_text", func(p peer.M) { p["args"] = "app-server" }),
		codexRefused("unknown_policy", func(p peer.M) { p["approvalPolicy"] = "sometimes" }),
		codexRefused("unknown_collaboration_mode", func(p peer.M) { p["collaborationMode"] = "jazz" }),

		outcome("exit_code", []string{"/bin/sh", "-c", "exit 42"}, "42"),
		outcome("signal", []string{"/bin/sh", "-c", "kill -9 $$"}, "sig"),
		outcome("timeout", []string{"/bin/sh", "-c", "sleep 30"}, "time"),
		outcome("spawn_error", []string{"/no/such/program"}, "spawn"),
		with(target, "provider/command_with_argv_alone", "issue 2", func(e *env) {
			_, s := e.begin()
			s.open(peer.M{"provider": peer.M{"kind": "command", "argv": peer.A{"/bin/sh", "-c", "echo hi; pwd"}}})
			s.turn("go")
			s.turnEnd()
			dir, err := filepath.EvalSymlinks(e.dir)
			e.OK(err, "directory")
			e.Check(s.streamed("stdout") == "hi\n"+dir+"\n", "stdout %q", s.streamed("stdout"))
			first := s.types()[0]
			e.Check(first == "session.started" || first == "harness.ready" || first == "session.resumed", "first event %s", first)
		}),
		with(target, "provider/command_in_a_terminal", "issue 2", func(e *env) {
			_, s := e.begin()
			prepare := e.argv("/bin/sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo is-a-tty")
			peer.Obj(prepare, "provider")["pty"] = true
			s.open(prepare)
			s.turn("go")
			s.turnEnd()
			text, err := peer.CanonicalUnbounded(s.eventList())
			e.OK(err, "events")
			e.Check(strings.Contains(text, "is-a-tty"), "events %.600s", text)
		}),
		with(target, "provider/item_never_repeats_its_deltas", "issue 2", func(e *env) {
			_, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "printf 'MARK%s' ER-1; printf 'MARK%s' ER-2 >&2"))
			s.turn("go")
			s.turnEnd()
			for _, ev := range s.events {
				if t := peer.Str(ev, "eventType"); t != "item.delta" {
					e.Check(!strings.Contains(string(peer.Write(ev["payload"])), "MARKER-"), "%s repeats output: %s", t, peer.Write(ev["payload"]))
				}
			}
		}),
		with(target, "provider/bytes_are_exact", "issue 2", func(e *env) {
			_, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", `printf 'a\377\376\000b\303\251\n'; printf 'no newline' >&2`))
			s.turn("go")
			s.turnEnd()
			e.Check(s.bytesOf("stdout") == "a\xff\xfe\x00b\u00e9\n", "stdout %q", s.bytesOf("stdout"))
			e.Check(s.bytesOf("stderr") == "no newline", "stderr %q", s.bytesOf("stderr"))
		}),
		with(target, "provider/large_output_is_exact", "issue 2", func(e *env) {
			_, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "i=0; while [ $i -lt 20000 ]; do echo line-$i-0123456789; i=$((i+1)); done"))
			s.turn("go")
			s.turnEnd()
			out := s.bytesOf("stdout")
			e.Check(strings.Count(out, "\n") == 20_000 && strings.HasSuffix(out, "line-19999-0123456789\n"), "%d lines, %d bytes", strings.Count(out, "\n"), len(out))
		}),
		with(target, "provider/interrupt_kills_the_tree", "issue 2", func(e *env) {
			_, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "sleep 300 & echo pid=$!=; wait"))
			s.turn("go")
			s.when("the pid", func() bool { return strings.Count(s.streamed("stdout"), "=") == 2 })
			pid := strings.Split(s.streamed("stdout"), "=")[1]
			s.do("turn.interrupt", peer.M{})
			end := s.turnEnd()
			e.Check(end["eventType"] != "turn.completed", "end %s", peer.Write(end))
			e.Check(processGone(pid), "process %s survived", pid)
		}),
		with(target, "provider/snapshot", "6.4", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			started := s.event("session.started")
			r := s.done("session.snapshot", peer.M{})
			e.Check(r["status"] == "session_open", "snapshot %s", peer.Write(r))
			v, ok := r["activeProviderTurnId"]
			e.Check(ok && v == nil, "activeProviderTurnId %s", peer.Write(r))
			id := func(m peer.M) string {
				thread, session := peer.Str(m, "threadId"), peer.Str(m, "sessionId")
				if thread == "" {
					thread = peer.Str(m, "driverSessionId")
				}
				if session == "" {
					session = peer.Str(m, "providerSessionId")
				}
				return thread + "/" + session
			}
			e.Check(id(r) == id(peer.Obj(started, "payload")) && len(id(r)) > 2, "ids %s, session.started %s", peer.Write(r), peer.Write(started["payload"]))
		}),
		with(target, "provider/second_open_is_one_session", "6.4", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			s.do("session.open", peer.M{"reuse": "same_session"})
			s.turn("x")
			s.turnEnd()
			n := 0
			for _, t := range s.types() {
				if t == "session.started" {
					n++
				}
			}
			e.Check(n == 1, "session.started came %d times", n)
		}),
		with(target, "provider/turn_after_close_is_refused", "6.4", func(e *env) {
			_, s := e.begin()
			s.open(scripted())
			s.event("session.started")
			s.done("session.close", peer.M{})
			r := s.do("turn.start", peer.M{"text": "x", "turnId": "t"})
			e.Check(r["status"] != "completed", "turn.start after session.close: %s", peer.Write(r))
		}),
		with(target, "provider/reconnect_during_a_turn", "5.10", func(e *env) {
			_, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo n$i; sleep 0.05; done"))
			s.turn("go")
			s.event("turn.started")
			for range 3 {
				s.until("more output", func(peer.M) bool { return true })
				e.OK(s.l.Close(), "close")
				s.l = e.admit()
			}
			s.turnEnd()
			e.Check(s.streamed("stdout") == "n1\nn2\nn3\nn4\nn5\nn6\nn7\nn8\n", "output %q", s.streamed("stdout"))
			e.Check(len(s.terminalTurns()) == 1, "ends %v", s.terminalTurns())
		}),
		with(target, "provider/kill_during_a_turn_fails_it", "issue 2", func(e *env) {
			p, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "sleep 300 & echo pid=$!=; wait"))
			s.turn("go")
			s.when("the pid", func() bool { return strings.Count(s.streamed("stdout"), "=") == 2 })
			pid := strings.Split(s.streamed("stdout"), "=")[1]
			p.kill()
			e.a.Acked = s.high
			e.start()
			n := e.session(e.admit())
			end := n.turnEnd()
			e.Check(end["eventType"] == "turn.failed" && strings.Contains(string(peer.Write(end)), "runner_lost"), "end %s", peer.Write(end))
			e.Check(processGone(pid), "process %s survived the death of its runner", pid)
		}),
		with(target, "diagnostics/directory", "14.3", func(e *env) {
			dir := filepath.Join(e.dir, "diagnostics")
			e.OK(os.Mkdir(dir, 0o700), "mkdir")
			p := e.spawn(append(e.flags("http://x/"), "--diagnostics-directory", dir), e.a.NewTicket())
			<-p.done
			e.Check(p.cmd.ProcessState.ExitCode() == 1, "exit code %d", p.cmd.ProcessState.ExitCode())
			text, err := os.ReadFile(filepath.Join(dir, "runnerd.stderr.log"))
			e.Check(strings.Contains(p.stderr.String(), "paperclip-runnerd: ") || (err == nil && strings.Contains(string(text), "paperclip-runnerd: ")), "no message: stderr %q, file %q %v", p.stderr.String(), text, err)
		}),
	}
}
