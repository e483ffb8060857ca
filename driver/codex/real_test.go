package codex_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bowline/driver"
	"bowline/driver/codex"
	"bowline/driver/codex/modelserver"
	"bowline/driver/drivertest"
)

// rig is the real Codex against the scripted model.
type rig struct {
	t     *testing.T
	model *modelserver.Server
	host  *drivertest.Host
	d     *codex.Driver
	cfg   driver.Config
	ws    string
}

func newRig(t *testing.T, home modelserver.Home, mode driver.Permission) *rig {
	t.Helper()
	bin := modelserver.RequireCodex(t)
	r := &rig{t: t, model: modelserver.Start(t), host: drivertest.NewHost(t, nil), d: codex.New(), ws: t.TempDir()}
	dir := t.TempDir()
	if err := home.Write(dir, r.model.URL); err != nil {
		t.Fatal(err)
	}
	r.cfg = driver.Config{
		Provider:  provider(t, map[string]any{"kind": "codex", "command": bin}),
		Workspace: r.ws, Env: modelserver.Env(dir), Permission: mode,
	}
	return r
}

func provider(t *testing.T, members map[string]any) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func (r *rig) open() driver.Session {
	r.t.Helper()
	s, err := r.d.Open(r.t.Context(), r.host, r.cfg)
	if err != nil {
		r.t.Fatalf("Open: %v", err)
	}
	r.t.Cleanup(func() { closeSession(r.t, s) })
	return s
}

func closeSession(t *testing.T, s driver.Session) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func start(t *testing.T, s driver.Session, prompt ...string) string {
	t.Helper()
	id, err := s.StartTurn(t.Context(), driver.Turn{ID: "t1", Text: strings.Join(prompt, "\n")})
	if err != nil {
		t.Fatalf("StartTurn: %v", err)
	}
	return id
}

func (r *rig) run(s driver.Session, prompt ...string) driver.Event {
	r.t.Helper()
	from := len(r.host.Events())
	start(r.t, s, prompt...)
	ev, _ := r.host.AwaitTerminal(from)
	return ev
}

func members(t *testing.T, ev driver.Event) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(ev.Payload, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// body puts an item's text together as the package comment says.
func body(t *testing.T, events []driver.Event, kind string) string {
	t.Helper()
	var text []byte
	at := map[any]int{} // where a named stream goes on
	for _, ev := range events {
		if ev.Type != "item.delta" {
			continue
		}
		m := members(t, ev)
		if m["kind"] != kind {
			continue
		}
		part, _ := m["text"].(string)
		stream, named := m["stream"]
		if m["restart"] == true {
			text = nil
		}
		if offset, ok := m["offset"].(float64); ok {
			at[stream] = int(offset)
		}
		if !named {
			text = append(text, part...)
			continue
		}
		text = slices.Insert(text, at[stream], []byte(part)...)
		at[stream] += len(part)
	}
	return string(text)
}

func want(t *testing.T, ev driver.Event, typ string) map[string]any {
	t.Helper()
	if ev.Type != typ {
		t.Fatalf("%s %s, want %s", ev.Type, ev.Payload, typ)
	}
	return members(t, ev)
}

func TestRealText(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionDefault)
	s := r.open()
	first := r.host.Events()[0]
	m := want(t, first, "session.started")
	if m["threadId"] == "" || m["sessionId"] == "" || first.Resume == nil {
		t.Errorf("session.started %s, resume %s", first.Payload, first.Resume)
	}
	if pid := m["runtimeIdentity"].(map[string]any)["processId"]; pid != float64(s.Identity().ProcessID) {
		t.Errorf("processId %v, identity %+v", pid, s.Identity())
	}
	end := r.run(s, "MODEL: text hello big world")
	if m := want(t, end, "turn.completed"); m["status"] != "completed" || m["providerTurnId"] == "" {
		t.Errorf("payload %s", end.Payload)
	}
	if got := body(t, r.host.Events(), "agentMessage"); got != "hello big world" {
		t.Errorf("text %q", got)
	}
	done, _ := r.host.Await("the completed message", 0, func(ev driver.Event) bool {
		return ev.Type == "item.completed" && members(t, ev)["kind"] == "agentMessage"
	})
	if m := members(t, done); m["bytes"] != float64(15) || m["text"] != nil || len(m["sha256"].(string)) != 64 {
		t.Errorf("item.completed %s", done.Payload)
	}
	usage, _ := r.host.AwaitType("usage.reported", 0)
	if d := members(t, usage)["runDelta"].(map[string]any); d["inputTokens"] != float64(10) || d["outputTokens"] != float64(5) {
		t.Errorf("usage %s", usage.Payload)
	}
	// A second turn in the same thread.
	want(t, r.run(s, "MODEL: think deep thoughts"), "turn.completed")
	if got := body(t, r.host.Events(), "reasoning"); got != "deep thoughts" {
		t.Errorf("reasoning %q", got)
	}
}

func TestRealProviderObject(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionDefault)
	other := t.TempDir()
	r.cfg.Provider = provider(t, map[string]any{
		"kind": "codex", "provider": "codex", "driver": "codex_app_server", "providerVersion": "codex-app-server-v1",
		"command": modelserver.RequireCodex(t), "args": []string{"app-server"}, "cwd": other, "model": "other-model",
		"approvalPolicy": "never", "externallySandboxed": true, "instructions": "SPEAK LATIN", "collaborationMode": "plan",
		"includeCollaborationModeInstructions": false, "includeSkillInstructions": false, "runtimeContext": map[string]any{"a": 1},
	})
	s := r.open()
	want(t, r.run(s, "MODEL: shell pwd", "MODEL: text x"), "turn.completed")
	if got := strings.TrimSpace(body(t, r.host.Events(), "commandExecution")); got != other {
		t.Errorf("pwd %q, want %q", got, other)
	}
	asked := r.model.Requests()[0]
	if !strings.Contains(string(asked.Body), "SPEAK LATIN") || !strings.Contains(string(asked.Body), `"model":"other-model"`) {
		t.Errorf("the request lacks instructions or model")
	}
	if strings.Contains(string(asked.Body), "<skills_instructions>") {
		t.Error("skill instructions were sent all the same")
	}
	d := members(t, r.host.Events()[0])["providerDescriptor"].(map[string]any)
	if d["sandbox"] != "dangerFullAccess" || d["approvalPolicy"] != "never" || d["model"] != "other-model" {
		t.Errorf("descriptor %v", d)
	}
}

func TestRealShellAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{Sandbox: "read-only"}, driver.PermissionAllow)
	s := r.open()
	want(t, r.run(s, "MODEL: shell echo one; touch y.txt; sleep 0.5; echo two", "MODEL: text done"), "turn.completed")
	if _, err := os.Stat(filepath.Join(r.ws, "y.txt")); err != nil {
		t.Errorf("the command did not run: %v", err)
	}
	if got := body(t, r.host.Events(), "commandExecution"); got != "one\ntwo\n" {
		t.Errorf("output %q", got)
	}
	done, _ := r.host.Await("the completed command", 0, func(ev driver.Event) bool {
		return ev.Type == "item.completed" && members(t, ev)["kind"] == "commandExecution"
	})
	if m := members(t, done); m["exitCode"] != float64(0) || m["bytes"] != float64(8) || !strings.Contains(m["command"].(string), "touch y.txt") {
		t.Errorf("item.completed %s", done.Payload)
	}
}

func TestRealFileChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	want(t, r.run(s, "MODEL: patch new.txt a new line", "MODEL: text done"), "turn.completed")
	if text, err := os.ReadFile(filepath.Join(r.ws, "new.txt")); err != nil || string(text) != "a new line\n" {
		t.Errorf("new.txt: %q %v", text, err)
	}
	done, _ := r.host.Await("the completed change", 0, func(ev driver.Event) bool {
		return ev.Type == "item.completed" && members(t, ev)["kind"] == "fileChange"
	})
	if m := members(t, done); m["status"] != "completed" || m["fileCount"] != float64(1) {
		t.Errorf("item.completed %s", done.Payload)
	}
	delta, _ := r.host.Await("its diff", 0, func(ev driver.Event) bool {
		return ev.Type == "item.delta" && members(t, ev)["kind"] == "fileChange"
	})
	if m := members(t, delta); !strings.Contains(m["text"].(string), "a new line") || !strings.HasSuffix(m["path"].(string), "new.txt") {
		t.Errorf("item.delta %s", delta.Payload)
	}
}

// More output than Codex keeps: what it streamed and what it kept make the
// whole, each byte once.
func TestRealLongOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	want(t, r.run(s, `MODEL: shell for i in 1 2 3 4 5; do head -c 300000 /dev/zero | tr '\0' $i; sleep 0.2; done`, "MODEL: text done"), "turn.completed")
	var b strings.Builder
	for _, c := range "12345" {
		b.WriteString(strings.Repeat(string(c), 300000))
	}
	if got := body(t, r.host.Events(), "commandExecution"); got != b.String() {
		t.Errorf("output of %d bytes differs from the %d written", len(got), b.Len())
	}
}

func TestRealShellDenied(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		home   modelserver.Home
		mode   driver.Permission
		prompt string
	}{
		{"deny", modelserver.Home{}, driver.PermissionDeny, "MODEL: shell touch y.txt"},
		{"default", modelserver.Home{Sandbox: "read-only"}, driver.PermissionDefault, "MODEL: escalate touch y.txt"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tc.home, tc.mode)
			s := r.open()
			want(t, r.run(s, tc.prompt, "MODEL: text done"), "turn.completed")
			if _, err := os.Stat(filepath.Join(r.ws, "y.txt")); !os.IsNotExist(err) {
				t.Errorf("the command ran: %v", err)
			}
			said := strings.Join(r.host.Diagnostics(), "\n")
			if !strings.Contains(said, "approval_declined") {
				t.Errorf("nothing was said of the decline: %q", said)
			}
			done, _ := r.host.Await("the declined command", 0, func(ev driver.Event) bool {
				return ev.Type == "item.completed" && members(t, ev)["kind"] == "commandExecution"
			})
			if m := members(t, done); m["status"] != "declined" {
				t.Errorf("item.completed %s", done.Payload)
			}
		})
	}
}

func TestRealInterruptEndsTheCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	id := start(t, s, "MODEL: shell echo $$ > pid; echo ready; sleep 300; echo never")
	pid := awaitPID(t, filepath.Join(r.ws, "pid"))
	if err := s.Interrupt(t.Context(), id); err != nil {
		t.Fatalf("Interrupt: %v", err)
	}
	end, _ := r.host.AwaitTerminal(0)
	if m := want(t, end, "turn.interrupted"); m["providerTurnId"] != id || m["forced"] != nil {
		t.Errorf("payload %s", end.Payload)
	}
	if alive(t, pid) {
		t.Errorf("the command's process %d lives on", pid)
	}
	if err := s.Interrupt(t.Context(), id); err != driver.ErrNoTurn { //nolint:errorlint // the contract is this value
		t.Errorf("second Interrupt = %v", err)
	}
	want(t, r.run(s, "MODEL: text still here"), "turn.completed")
}

// awaitPID waits for a command to write its process id. The file system has no
// barrier, so this is a poll, bounded by time.
func awaitPID(t *testing.T, path string) int {
	t.Helper()
	limit, tick := time.NewTimer(20*time.Second), time.NewTicker(10*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		if text, err := os.ReadFile(path); err == nil {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				return pid
			}
		}
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatal("the command did not start within 20 s")
		}
	}
}

// alive also waits out a process that has ended but is not reaped yet.
func alive(t *testing.T, pid int) bool {
	t.Helper()
	limit, tick := time.NewTimer(5*time.Second), time.NewTicker(10*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		if err := syscall.Kill(pid, 0); err != nil {
			return false
		}
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return false
		}
		select {
		case <-tick.C:
		case <-limit.C:
			return true
		}
	}
}

func TestRealInterruptOfASilentModel(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	start(t, s, "MODEL: hang")
	r.model.WaitRequests(1)
	if err := s.Interrupt(t.Context(), ""); err != nil {
		t.Fatalf("Interrupt: %v", err)
	}
	end, _ := r.host.AwaitTerminal(0)
	want(t, end, "turn.interrupted")
}

func TestRealSteer(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	id := start(t, s, "MODEL: shell sleep 1")
	r.model.WaitRequests(1)
	if err := s.Steer(t.Context(), id, "MODEL: text steered"); err != nil {
		t.Fatalf("Steer: %v", err)
	}
	end, _ := r.host.AwaitTerminal(0)
	want(t, end, "turn.completed")
	if got := body(t, r.host.Events(), "agentMessage"); !strings.Contains(got, "steered") {
		t.Errorf("text %q", got)
	}
	if err := s.Steer(t.Context(), id, "x"); err != driver.ErrNoTurn { //nolint:errorlint // the contract is this value
		t.Errorf("Steer after the turn = %v", err)
	}
}

func TestRealModelFailures(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	for _, tc := range []struct{ line, code string }{
		{"fail 500", "internal_server_error"},
		{"fail 400", "other"},
		{"failed rate_limit_exceeded slow down", "rate_limit_exceeded"},
		{"failed context_length_exceeded too long", "context_window_exceeded"},
		{"drop", "other"},
	} {
		end := r.run(s, "MODEL: "+tc.line)
		m := want(t, end, "turn.failed")
		e, _ := m["error"].(map[string]any)
		if m["status"] != "failed" || e["code"] != tc.code || e["message"] == "" {
			t.Errorf("%s: %s, want code %s", tc.line, end.Payload, tc.code)
		}
	}
	want(t, r.run(s, "MODEL: text fine again"), "turn.completed")
}

func TestRealRetriesAreNotices(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{Retries: 1}, driver.PermissionAllow)
	s := r.open()
	want(t, r.run(s, "MODEL: drop"), "turn.failed")
	r.host.Await("a retry notice", 0, func(ev driver.Event) bool {
		return ev.Type == "provider.notice.recorded" && members(t, ev)["category"] == "retry"
	})
}

func TestRealKilledInATurn(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	start(t, s, "MODEL: hang")
	r.model.WaitRequests(1)
	if err := syscall.Kill(s.Identity().ProcessID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	end, _ := r.host.AwaitTerminal(0)
	m := want(t, end, "turn.failed")
	e, _ := m["error"].(map[string]any)
	if e["code"] != "provider_exited" || !strings.Contains(e["message"].(string), "SIGKILL") {
		t.Errorf("payload %s", end.Payload)
	}
	_, err := s.StartTurn(t.Context(), driver.Turn{Text: "x"})
	if pe, ok := err.(*driver.ProviderError); !ok || pe.Code != "provider_exited" { //nolint:errorlint // the contract is this type
		t.Errorf("StartTurn after the exit = %v", err)
	}
}

func TestRealResume(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	want(t, r.run(s, "MODEL: text the first words"), "turn.completed")
	r.cfg.Resume = resumeOf(r.host.Events())
	before := s.Identity()
	closeSession(t, s)

	from := len(r.host.Events())
	s = r.open()
	ev, _ := r.host.AwaitType("session.resumed", from)
	if m := members(t, ev); m["threadId"] != before.ThreadID || s.Identity().ThreadID != before.ThreadID {
		t.Errorf("resumed %s, was %+v", ev.Payload, before)
	}
	want(t, r.run(s, "MODEL: text the second words"), "turn.completed")
	all := r.model.Requests()
	if !strings.Contains(string(all[len(all)-1].Body), "the first words") {
		t.Error("the resumed thread has no history")
	}
	closeSession(t, s)

	r.cfg.Resume = json.RawMessage(`{"threadId":"01a22df8-16df-7303-bb7c-0dc63ee9ec09","used":true}`)
	_, err := r.d.Open(t.Context(), r.host, r.cfg)
	if pe, ok := err.(*driver.ProviderError); !ok || pe.Code != "resume_failed" { //nolint:errorlint // the contract is this type
		t.Errorf("Open of an unknown thread = %v", err)
	}
}

// resumeOf is the state a runner would hand back.
func resumeOf(events []driver.Event) (state json.RawMessage) {
	for _, ev := range events {
		if ev.Resume != nil {
			state = ev.Resume
		}
	}
	return state
}

// Codex forgets a thread that had no turn: there is nothing to lose in it.
func TestRealResumeOfAnUnusedThread(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	before := s.Identity().ThreadID
	closeSession(t, s)
	r.cfg.Resume = resumeOf(r.host.Events())
	from := len(r.host.Events())
	s = r.open()
	r.host.AwaitType("session.started", from)
	if id := s.Identity().ThreadID; id == "" || id == before {
		t.Errorf("thread %q, before %q", id, before)
	}
	want(t, r.run(s, "MODEL: text hello"), "turn.completed")
}

// A turn that was running when its process was killed is in the history of the
// resumed thread, and the next turn runs.
func TestRealResumeAfterKill(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	start(t, s, "remember me", "MODEL: hang")
	r.model.WaitRequests(1)
	if err := syscall.Kill(s.Identity().ProcessID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, at := r.host.AwaitTerminal(0)
	closeSession(t, s)
	r.cfg.Resume = resumeOf(r.host.Events())
	s = r.open()
	r.host.AwaitType("session.resumed", at)
	want(t, r.run(s, "MODEL: text again"), "turn.completed")
	all := r.model.Requests()
	if !strings.Contains(string(all[len(all)-1].Body), "remember me") {
		t.Error("the resumed thread has lost its last prompt")
	}
}

func TestRealCloseCancelsTheTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{}, driver.PermissionAllow)
	s := r.open()
	start(t, s, "MODEL: hang")
	r.model.WaitRequests(1)
	closeSession(t, s)
	end, _ := r.host.AwaitTerminal(0)
	want(t, end, "turn.cancelled")
	if _, err := s.StartTurn(t.Context(), driver.Turn{Text: "x"}); err != driver.ErrClosed { //nolint:errorlint // the contract is this value
		t.Errorf("StartTurn after Close = %v", err)
	}
}

func TestRealBadConfiguration(t *testing.T) {
	t.Parallel()
	r := newRig(t, modelserver.Home{Sandbox: "no-such-mode"}, driver.PermissionDefault)
	_, err := r.d.Open(t.Context(), r.host, r.cfg)
	pe, ok := err.(*driver.ProviderError) //nolint:errorlint // the contract is this type
	if !ok || pe.Code != "thread_failed" || !strings.Contains(pe.Message, "no-such-mode") {
		t.Errorf("Open = %v", err)
	}
	if n := len(r.host.Events()); n != 0 {
		t.Errorf("%d events of a session that was never open", n)
	}
}
