package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

// ev is an event of a run.
type ev struct {
	typ     string
	payload string
}

// both records stdout and stderr together, to see their order on a terminal.
type both struct{ out, err, all bytes.Buffer }

type tee struct{ own, all *bytes.Buffer }

func (t tee) Write(p []byte) (int, error) {
	t.all.Write(p)
	return t.own.Write(p)
}

func newRenderer() (*renderer, *both) {
	b := new(both)
	stderr := tee{&b.err, &b.all}
	return &renderer{stdout: tee{&b.out, &b.all}, stderr: stderr, talk: &talk{w: stderr}, provider: "codex"}, b
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func TestRender(t *testing.T) {
	t.Parallel()
	const msg = `"itemId":"i","kind":"agentMessage"`
	tests := []struct {
		name     string
		events   []ev
		out, err string
	}{
		{"a command's streams", []ev{
			{"item.delta", `{"itemId":"c","kind":"command_execution","stream":"stdout","text":"out\n"}`},
			{"item.delta", `{"itemId":"c","kind":"command_execution","stream":"stderr","text":"err"}`},
			{"item.delta", `{"itemId":"c","kind":"command_execution","stream":"pty","text":"p"}`},
			{"item.completed", `{"itemId":"c","kind":"command_execution","exitCode":0}`},
			{"run.ended", `{"status":"completed"}`},
		}, "out\np", "err"},
		{"bytes are exact", []ev{
			{"item.delta", `{"kind":"command_execution","stream":"stdout","encoding":"base64","data":"` + b64("\xff\x00\x1b[2J") + `"}`},
			{"item.delta", `{"kind":"command_execution","stream":"stderr","encoding":"base64","data":"` + b64("\xfe") + `"}`},
		}, "\xff\x00\x1b[2J", "\xfe"},
		{"odd deltas", []ev{
			{"item.delta", `{"stream":"stdout","encoding":"base64","data":"***"}`},
			{"item.delta", `{"stream":"stdout","encoding":"gzip","data":"AAAA"}`},
			{"item.delta", `{"stream":"stdout","text":""}`},
			{"item.delta", `{"stream":"stdout"}`},
			{"item.delta", `{"stream":7}`},
			{"item.delta", `[]`},
			{"item.completed", `7`},
			{"harness.diagnostic", `"x"`},
			{"harness.diagnostic", `{"code":"x"}`},
			{"from.the.future", `{"kind":"agentMessage","text":"no"}`},
		}, "", ""},
		{"the agent's own commands, files and thoughts", []ev{
			{"item.delta", `{"itemId":"c","kind":"commandExecution","text":"ls output"}`},
			{"item.delta", `{"itemId":"c","kind":"commandExecution","stream":"missing-1","offset":0,"text":"begin"}`},
			{"item.delta", `{"itemId":"c","kind":"commandExecution","stream":"restart","restart":true,"text":"all"}`},
			{"item.delta", `{"itemId":"f","kind":"fileChange","stream":"file-1","text":"+diff"}`},
			{"item.delta", `{"itemId":"r","kind":"reasoning","channel":"summary","text":"hm"}`},
			{"item.completed", `{"itemId":"r","kind":"reasoning","text":"hm"}`},
		}, "", ""},
		{"a message in deltas ends its line once", []ev{
			{"item.delta", `{` + msg + `,"text":"hello "}`},
			{"item.delta", `{` + msg + `,"text":"world"}`},
			{"item.completed", `{` + msg + `,"bytes":11}`},
			{"run.ended", `{}`},
		}, "hello world\n", ""},
		{"a message that has its newline", []ev{
			{"item.delta", `{` + msg + `,"text":"hello\n"}`},
			{"item.completed", `{` + msg + `}`},
		}, "hello\n", ""},
		{"a message without deltas", []ev{
			{"item.completed", `{` + msg + `,"text":"hello"}`},
		}, "hello\n", ""},
		{"a message twice told is shown once", []ev{
			{"item.delta", `{` + msg + `,"text":"hello"}`},
			{"item.completed", `{` + msg + `,"text":"hello"}`},
		}, "hello\n", ""},
		{"two messages at once", []ev{
			{"item.delta", `{"itemId":"a","kind":"agentMessage","text":"A"}`},
			{"item.delta", `{"itemId":"b","kind":"agentMessage","text":"B"}`},
			{"item.completed", `{"itemId":"a","kind":"agentMessage","text":"A"}`},
			{"item.completed", `{"itemId":"b","kind":"agentMessage","text":"B"}`},
		}, "AB\n", ""},
		{"an empty message", []ev{
			{"item.completed", `{` + msg + `,"text":""}`},
			{"run.ended", `{}`},
		}, "", ""},
		{"a message that was cut off", []ev{
			{"item.delta", `{` + msg + `,"text":"hel"}`},
			{"item.failed", `{` + msg + `}`},
			{"run.ended", `{}`},
		}, "hel\n", ""},
		{"a message in the middle of the run's end", []ev{
			{"item.delta", `{` + msg + `,"text":"hel"}`},
			{"run.ended", `{}`},
		}, "hel\n", ""},
		{"the end of a message comes late", []ev{
			{"item.delta", `{` + msg + `,"text":"hello"}`},
			{"item.delta", `{` + msg + `,"text":" world"}`},
			{"item.completed", `{` + msg + `}`},
		}, "hello world\n", ""},
		{"another message than was streamed", []ev{
			{"item.delta", `{` + msg + `,"text":"wrong"}`},
			{"item.delta", `{` + msg + `,"stream":"restart","restart":true,"text":"rig"}`},
			{"item.delta", `{` + msg + `,"stream":"restart","text":"ht"}`},
			{"item.completed", `{` + msg + `}`},
		}, "wrong\nright\n", "bowline: the agent's message was not what had arrived of it; this is it\n"},
		{"restart of a message that had not begun", []ev{
			{"item.delta", `{` + msg + `,"stream":"restart","restart":true,"text":"right"}`},
			{"item.completed", `{` + msg + `}`},
		}, "right\n", ""},
		{"the beginning of a message is missing", []ev{
			{"item.delta", `{` + msg + `,"text":" world"}`},
			{"item.delta", `{` + msg + `,"stream":"missing-1","offset":0,"text":"hel"}`},
			{"item.delta", `{` + msg + `,"stream":"missing-1","text":"lo"}`},
			{"item.completed", `{` + msg + `}`},
		}, " world\nhello world\n", "bowline: the agent's message was not what had arrived of it; this is it\n"},
		{"two holes", []ev{
			{"item.delta", `{` + msg + `,"text":"bd"}`},
			{"item.delta", `{` + msg + `,"stream":"missing-1","offset":0,"text":"a"}`},
			{"item.delta", `{` + msg + `,"stream":"missing-2","offset":2,"text":"c"}`},
			{"item.delta", `{` + msg + `,"text":"e"}`},
			{"item.completed", `{` + msg + `}`},
		}, "bde\nabcde\n", "bowline: the agent's message was not what had arrived of it; this is it\n"},
		{"late words of another turn", []ev{
			{"item.delta", `{` + msg + `,"late":true,"text":"no"}`},
			{"item.completed", `{` + msg + `,"late":true,"text":"no"}`},
		}, "", ""},
		{"what was declined", []ev{
			{"harness.diagnostic", `{"code":"approval_declined","message":"codex asked (x); declined"}`},
			{"provider.notice.recorded", `{"summary":"careful"}`},
			{"runner.diagnostic", `{"message":"a\nb\t\u001b[31mc\u0007\u009b"}`},
		}, "", "bowline: codex asked (x); declined\ncodex: careful\nbowline: a b [31mc\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, b := newRenderer()
			for _, e := range tt.events {
				if err := r.event(e.typ, json.RawMessage(e.payload)); err != nil {
					t.Fatalf("%s: %v", e.typ, err)
				}
			}
			if b.out.String() != tt.out {
				t.Errorf("stdout %q, want %q", b.out.String(), tt.out)
			}
			if b.err.String() != tt.err {
				t.Errorf("stderr %q, want %q", b.err.String(), tt.err)
			}
			if len(r.speeches) > 2 {
				t.Errorf("%d messages are kept", len(r.speeches))
			}
		})
	}
}

func TestRenderLongMessage(t *testing.T) {
	t.Parallel()
	r, b := newRenderer()
	piece := strings.Repeat("x", 64<<10)
	send := func(typ string, extra map[string]any) {
		t.Helper()
		p := map[string]any{"itemId": "i", "kind": "agentMessage"}
		for k, v := range extra {
			p[k] = v
		}
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.event(typ, raw); err != nil {
			t.Fatal(err)
		}
	}
	n := maxSpeech/len(piece) + 1
	for range n {
		send("item.delta", map[string]any{"text": piece})
	}
	if s := r.speeches["i"]; s == nil || s.shown != nil {
		t.Error("more than maxSpeech bytes of a message are kept")
	}
	send("item.delta", map[string]any{"text": "other", "stream": "restart", "restart": true})
	send("item.completed", nil)
	if got := b.out.Len(); got != n*len(piece)+1 {
		t.Errorf("%d bytes on stdout, want %d", got, n*len(piece)+1)
	}
	if !strings.Contains(b.err.String(), "the log has it whole") {
		t.Errorf("stderr %q does not tell of the correction", b.err.String())
	}
}

// TestRenderTames: the agent's words do not move a terminal's cursor; a
// command's output does what it wants.
func TestRenderTames(t *testing.T) {
	t.Parallel()
	r, b := newRenderer()
	r.tame = true
	for _, e := range []ev{
		{"item.delta", `{"itemId":"i","kind":"agentMessage","text":"a\u001b]0;x\u0007b\tc\nd"}`},
		{"item.delta", `{"itemId":"c","kind":"command_execution","stream":"stdout","text":"\u001b[1m"}`},
	} {
		if err := r.event(e.typ, json.RawMessage(e.payload)); err != nil {
			t.Fatal(err)
		}
	}
	if want := "a]0;xb\tc\nd\x1b[1m"; b.out.String() != want {
		t.Errorf("stdout %q, want %q", b.out.String(), want)
	}
}

func TestStatusLine(t *testing.T) {
	t.Parallel()
	r, b := newRenderer()
	r.tame = true
	r.talk.start(false)
	for _, e := range []ev{
		{"run.status", `{"status":"queued"}`},
		{"run.status", `{"status":"running"}`},
		{"item.delta", `{"kind":"command_execution","stream":"stdout","text":"half"}`},
		{"run.status", `{"status":"cancelling"}`}, // no room: it would take the half line with it
		{"harness.diagnostic", `{"message":"note"}`},
		{"run.status", `{"status":"waiting"}`},
	} {
		if err := r.event(e.typ, json.RawMessage(e.payload)); err != nil {
			t.Fatal(err)
		}
	}
	r.talk.hush()
	r.talk.status("never shown")
	const clear = "\r\x1b[K"
	want := "bowline: queued" + clear + "bowline: running" + clear + "half" + "\nbowline: note\n" + "bowline: waiting" + clear
	if b.all.String() != want {
		t.Errorf("terminal got %q, want %q", b.all.String(), want)
	}
	if b.out.String() != "half" {
		t.Errorf("stdout %q", b.out.String())
	}
	var dim bytes.Buffer
	tk := &talk{w: &dim}
	tk.status("not started")
	tk.start(true)
	tk.status("x")
	if want := "\x1b[2mbowline: x\x1b[0m"; dim.String() != want {
		t.Errorf("with color %q, want %q", dim.String(), want)
	}
}

type brokenWriter struct{}

var errBroken = &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestRenderBrokenStreams(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ payload, name string }{
		{`{"kind":"command_execution","stream":"stdout","text":"x"}`, "stdout"},
		{`{"kind":"command_execution","stream":"stderr","text":"x"}`, "stderr"},
		{`{"itemId":"i","kind":"agentMessage","text":"x"}`, "stdout"},
	} {
		r := &renderer{stdout: brokenWriter{}, stderr: brokenWriter{}, talk: &talk{w: brokenWriter{}}}
		err := r.event("item.delta", json.RawMessage(tt.payload))
		var broken *stdioError
		if !errors.As(err, &broken) || broken.name != tt.name || !strings.Contains(err.Error(), tt.name) {
			t.Errorf("%s: %v", tt.payload, err)
		}
	}
	full := &stdioError{"stdout", &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}}
	if got := full.why(); got != "stdout cannot be written: no space left on device" {
		t.Errorf("a full disk: %q", got)
	}
	// Talk that nobody hears is no failure.
	r := &renderer{talk: &talk{w: brokenWriter{}}}
	if err := r.event("harness.diagnostic", json.RawMessage(`{"message":"x"}`)); err != nil {
		t.Error(err)
	}
}
