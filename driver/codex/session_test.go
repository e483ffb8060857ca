package codex_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"bowline/driver"
	"bowline/driver/codex"
	"bowline/driver/drivertest"
)

// withFake opens a session with the fake that plays a script.
func withFake(t *testing.T, d *codex.Driver, script string, mode driver.Permission) (*drivertest.Host, driver.Session) {
	t.Helper()
	host := drivertest.NewHost(t, nil)
	s, err := d.Open(t.Context(), host, fakeConfig(t, script, mode))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { closeSession(t, s) })
	return host, s
}

func fakeConfig(t *testing.T, script string, mode driver.Permission) driver.Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return driver.Config{
		Provider:  provider(t, map[string]any{"kind": "codex", "command": self, "args": []string{}}),
		Workspace: t.TempDir(), Env: []string{fakeVariable + "=" + script}, Permission: mode,
	}
}

// impatient does not wait long for a provider that is known to be silent.
func impatient() *codex.Driver {
	return &codex.Driver{InterruptGrace: 50 * time.Millisecond, CloseGrace: 50 * time.Millisecond, StopGrace: 50 * time.Millisecond}
}

func oneTurn(t *testing.T, script string) (*drivertest.Host, driver.Event) {
	t.Helper()
	host, s := withFake(t, codex.New(), script, driver.PermissionDefault)
	start(t, s, "go")
	end, _ := host.AwaitTerminal(0)
	return host, end
}

func terminals(events []driver.Event) (n int) {
	for _, ev := range events {
		if ev.Terminal {
			n++
		}
	}
	return n
}

func TestGarbageIsReportedAndTheTurnGoesOn(t *testing.T) {
	t.Parallel()
	host, end := oneTurn(t, "garbage")
	want(t, end, "turn.completed")
	if got := body(t, host.Events(), "agentMessage"); got != "hello" {
		t.Errorf("text %q", got)
	}
	lines := 0
	for _, ev := range host.Events() {
		if ev.Type == "harness.diagnostic" {
			if m := members(t, ev); m["code"] == "line_skipped" && len(m["sha256"].(string)) == 64 {
				lines++
			}
		}
	}
	if lines != 6 {
		t.Errorf("%d lines reported, want 6", lines)
	}
	for _, line := range host.Diagnostics() {
		if strings.Contains(line, "panic!") {
			t.Errorf("a diagnostic shows the provider's output: %s", line)
		}
	}
}

func TestGarbageReportsAreBounded(t *testing.T) {
	t.Parallel()
	host, end := oneTurn(t, "flood")
	want(t, end, "turn.completed")
	if n := len(host.Events()); n > 80 {
		t.Errorf("%d events for a flood of noise", n)
	}
}

func TestBannerAndEarlyNoticesComeAfterTheStart(t *testing.T) {
	t.Parallel()
	host, end := oneTurn(t, "noisy-start")
	want(t, end, "turn.completed")
	if first := host.Events()[0].Type; first != "session.started" {
		t.Errorf("first event %s", first)
	}
	host.AwaitType("provider.notice.recorded", 0)
}

func TestLineOf23MB(t *testing.T) {
	t.Parallel()
	host, end := oneTurn(t, "big")
	want(t, end, "turn.completed")
	text := body(t, host.Events(), "agentMessage")
	sum := sha256.Sum256([]byte(text))
	done, _ := host.AwaitType("item.completed", 0)
	m := members(t, done)
	if len(text) != fakeBig || m["bytes"] != float64(fakeBig) || m["sha256"] != hex.EncodeToString(sum[:]) {
		t.Errorf("%d bytes of %d, item.completed %s", len(text), fakeBig, done.Payload)
	}
}

func TestLinesBeyondTheLimit(t *testing.T) {
	for script, code := range map[string]string{"end-too-long": "provider_line_too_long", "unknown-too-long": "provider_line_too_long", "item-too-long": ""} {
		t.Run(script, func(t *testing.T) {
			host, end := oneTurn(t, script)
			host.Await("the skipped line", 0, func(ev driver.Event) bool {
				if ev.Type != "harness.diagnostic" {
					return false
				}
				m := members(t, ev)
				return m["code"] == "line_skipped" && m["line"] == "too_long" && m["bytes"].(float64) > 65<<20
			})
			if code == "" {
				want(t, end, "turn.completed")
				return
			}
			if e := want(t, end, "turn.failed")["error"].(map[string]any); e["code"] != code {
				t.Errorf("payload %s", end.Payload)
			}
		})
	}
}

func TestSilenceAndInterrupt(t *testing.T) {
	t.Parallel()
	host, s := withFake(t, impatient(), "silent", driver.PermissionDefault)
	id := start(t, s, "go")
	if _, err := s.StartTurn(t.Context(), driver.Turn{Text: "x"}); !errors.Is(err, driver.ErrTurnRunning) {
		t.Errorf("second StartTurn = %v", err)
	}
	if err := s.Interrupt(t.Context(), "another"); !errors.Is(err, driver.ErrNoTurn) {
		t.Errorf("Interrupt of another turn = %v", err)
	}
	for range 3 {
		if err := s.Interrupt(t.Context(), id); err != nil {
			t.Errorf("Interrupt = %v", err)
		}
	}
	end, _ := host.AwaitTerminal(0)
	if m := want(t, end, "turn.interrupted"); m["forced"] != true {
		t.Errorf("payload %s", end.Payload)
	}
}

func TestInterruptOfATurnThatIsNotAccepted(t *testing.T) {
	t.Parallel()
	host, s := withFake(t, impatient(), "stubborn", driver.PermissionDefault)
	got := make(chan error, 1)
	go func() {
		_, err := s.StartTurn(context.Background(), driver.Turn{Text: "go"})
		got <- err
	}()
	interruptSoon(t, s)
	select {
	case err := <-got:
		var pe *driver.ProviderError
		if !errors.As(err, &pe) || pe.Code != "provider_exited" {
			t.Errorf("StartTurn = %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("StartTurn did not return within 20 s of the interrupt")
	}
	closeSession(t, s)
	if n := terminals(host.Events()); n != 0 {
		t.Errorf("%d terminal events of a turn that was never accepted", n)
	}
}

// interruptSoon interrupts once the turn is there to be interrupted.
func interruptSoon(t *testing.T, s driver.Session) {
	t.Helper()
	limit, tick := time.NewTimer(20*time.Second), time.NewTicker(time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		err := s.Interrupt(t.Context(), "")
		if err == nil {
			return
		}
		if !errors.Is(err, driver.ErrNoTurn) {
			t.Fatalf("Interrupt = %v", err)
		}
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatal("no turn to interrupt within 20 s")
		}
	}
}

func TestStartTurnGivenUp(t *testing.T) {
	t.Parallel()
	_, s := withFake(t, impatient(), "stubborn", driver.PermissionDefault)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.StartTurn(ctx, driver.Turn{Text: "go"}); !errors.Is(err, context.Canceled) {
		t.Errorf("StartTurn = %v", err)
	}
	if err := s.Interrupt(t.Context(), ""); !errors.Is(err, driver.ErrNoTurn) {
		t.Errorf("Interrupt = %v", err)
	}
}

func TestOneTerminalEvent(t *testing.T) {
	t.Parallel()
	for script, typ := range map[string]string{
		"duplicate": "turn.failed", "early-end": "turn.completed", "malformed-end": "turn.failed", "unknown-status": "turn.failed",
		"exits": "turn.failed", "closes-output": "turn.failed", "wrong-thread": "turn.completed", "hostile": "turn.failed", "goal": "turn.completed",
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			host, s := withFake(t, codex.New(), script, driver.PermissionDefault)
			start(t, s, "go")
			end, _ := host.AwaitTerminal(0)
			m := want(t, end, typ)
			closeSession(t, s)
			if n := terminals(host.Events()); n != 1 {
				t.Errorf("%d terminal events", n)
			}
			if e, ok := m["error"].(map[string]any); typ == "turn.failed" && (!ok || e["code"] == "" || e["message"] == "" || len([]rune(e["message"].(string))) > codex.MaxMessage) {
				t.Errorf("payload %s", end.Payload)
			}
		})
	}
}

func TestUnexpectedExitSaysWhy(t *testing.T) {
	t.Parallel()
	host, end := oneTurn(t, "exits")
	e := want(t, end, "turn.failed")["error"].(map[string]any)
	if e["code"] != "provider_exited" || !strings.Contains(e["message"].(string), "status 3") || !strings.Contains(e["message"].(string), "out of memory") {
		t.Errorf("payload %s", end.Payload)
	}
	exit, _ := host.AwaitType("harness.exited", 0)
	if m := members(t, exit); m["exitCode"] != float64(3) {
		t.Errorf("harness.exited %s", exit.Payload)
	}
}

func TestTurnsThatAreNotAccepted(t *testing.T) {
	t.Parallel()
	for script, code := range map[string]string{"refuses": "turn_refused", "nameless": "turn_refused", "exits-before": "provider_exited"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			host, s := withFake(t, impatient(), script, driver.PermissionDefault)
			_, err := s.StartTurn(t.Context(), driver.Turn{Text: "go"})
			var pe *driver.ProviderError
			if !errors.As(err, &pe) || pe.Code != code {
				t.Errorf("StartTurn = %v, want %s", err, code)
			}
			closeSession(t, s)
			if n := terminals(host.Events()); n != 0 {
				t.Errorf("%d terminal events", n)
			}
		})
	}
}

func TestLateItems(t *testing.T) {
	t.Parallel()
	host, _ := oneTurn(t, "late")
	done, at := host.Await("the late command", 0, func(ev driver.Event) bool {
		return ev.Type == "item.completed" && members(t, ev)["kind"] == "commandExecution"
	})
	if m := members(t, done); m["late"] != true || m["providerTurnId"] != "tu-1" || m["bytes"] != float64(10) {
		t.Errorf("item.completed %s", done.Payload)
	}
	events := host.Events()[:at]
	if got := body(t, events, "commandExecution"); got != "head\ntail\n" {
		t.Errorf("output %q", got)
	}
	failed, i := host.AwaitType("item.failed", 0)
	if m := members(t, failed); m["itemId"] != "open" || m["bytes"] != float64(4) {
		t.Errorf("item.failed %s", failed.Payload)
	}
	if _, end := host.AwaitTerminal(0); i > end {
		t.Error("an item of the turn ended after it")
	}
}

func TestUnrequestedTurn(t *testing.T) {
	t.Parallel()
	host, _ := oneTurn(t, "goal")
	done, _ := host.Await("the item of the turn nobody asked for", 0, func(ev driver.Event) bool { return ev.Type == "item.completed" })
	if m := members(t, done); m["unrequested"] != true || m["late"] != true || m["providerTurnId"] != "tu-2" {
		t.Errorf("item.completed %s", done.Payload)
	}
}

func TestRewrittenText(t *testing.T) {
	t.Parallel()
	host, end := oneTurn(t, "rewrites")
	want(t, end, "turn.completed")
	if got := body(t, host.Events(), "agentMessage"); got != "second version" {
		t.Errorf("text %q", got)
	}
}

func TestEveryRequestIsAnswered(t *testing.T) {
	t.Parallel()
	refused := `{"code":-32600,"message":"not offered by this client"}`
	common := []string{
		`item/tool/requestUserInput {"answers":{}}`,
		`item/tool/call {"contentItems":[{"text":"this tool is not available","type":"inputText"}],"success":false}`,
		`mcpServer/elicitation/request {"action":"decline","content":null}`,
		"account/chatgptAuthTokens/refresh " + refused, "attestation/generate " + refused, "execCommandApproval " + refused, "applyPatchApproval " + refused,
		`brand/new {"code":-32601,"message":"method not found"}`,
	}
	for mode, approvals := range map[driver.Permission][]string{
		driver.PermissionDefault: {
			`item/commandExecution/requestApproval {"decision":"decline"}`, `item/fileChange/requestApproval {"decision":"decline"}`,
			`item/permissions/requestApproval {"permissions":{},"scope":"turn"}`,
		},
		driver.PermissionAllow: {
			`item/commandExecution/requestApproval {"decision":"accept"}`, `item/fileChange/requestApproval {"decision":"accept"}`,
			`item/permissions/requestApproval {"permissions":{"network":{"enabled":true}},"scope":"turn"}`,
		},
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			host, s := withFake(t, codex.New(), "requests", mode)
			start(t, s, "go")
			end, _ := host.AwaitTerminal(0)
			want(t, end, "turn.completed")
			got := strings.Split(strings.TrimSpace(body(t, host.Events(), "agentMessage")), "\n")
			all := append(append([]string(nil), approvals...), common...)
			if fmt.Sprint(got) != fmt.Sprint(all) {
				t.Errorf("answers:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(all, "\n"))
			}
		})
	}
}

func TestOpenFailures(t *testing.T) {
	t.Parallel()
	host := drivertest.NewHost(t, nil)
	d := impatient()
	d.OpenTimeout = 200 * time.Millisecond
	_, err := d.Open(t.Context(), host, fakeConfig(t, "mute", driver.PermissionDefault))
	var pe *driver.ProviderError
	if !errors.As(err, &pe) || pe.Code != "initialize_failed" {
		t.Errorf("Open of a mute provider = %v", err)
	}
	cfg := fakeConfig(t, "", driver.PermissionDefault)
	cfg.Provider = provider(t, map[string]any{"kind": "codex", "command": "/bin/sh", "args": []string{"-c", "echo no licence >&2; exit 3"}})
	_, err = codex.New().Open(t.Context(), host, cfg)
	if !errors.As(err, &pe) || pe.Code != "provider_exited" || !strings.Contains(pe.Message, "no licence") {
		t.Errorf("Open of a provider that exits = %v", err)
	}
	if n := len(host.Events()); n != 0 {
		t.Errorf("%d events of sessions that never were", n)
	}
}

func TestTheHostEndsTheSession(t *testing.T) {
	t.Parallel()
	host, s := withFake(t, codex.New(), "flood", driver.PermissionDefault)
	host.Refuse()
	start(t, s, "go")
	limit := time.After(20 * time.Second)
	for {
		_, err := s.StartTurn(t.Context(), driver.Turn{Text: "x"})
		var pe *driver.ProviderError
		if errors.As(err, &pe) {
			return
		}
		select {
		case <-limit:
			t.Fatalf("the provider was not stopped within 20 s: %v", err)
		default:
		}
	}
}

// A host that takes no more events holds the provider, not the caller of Close.
func TestBackPressureAndClose(t *testing.T) {
	t.Parallel()
	host, s := withFake(t, impatient(), "flood", driver.PermissionDefault)
	release := host.Hold()
	defer release()
	got := make(chan error, 1)
	go func() {
		_, err := s.StartTurn(context.Background(), driver.Turn{Text: "go"})
		got <- err
	}()
	interruptSoon(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v", err)
	}
	select {
	case err := <-got:
		t.Logf("StartTurn = %v", err) // either is fine: it may have been accepted
	case <-time.After(20 * time.Second):
		t.Fatal("StartTurn hangs 20 s after Close")
	}
}

// The same with a host that does not even take the first event.
func TestBackPressureAtOpen(t *testing.T) {
	t.Parallel()
	host := drivertest.NewHost(t, nil)
	release := host.Hold()
	defer release()
	d := impatient()
	d.OpenTimeout = time.Second
	if s, err := d.Open(t.Context(), host, fakeConfig(t, "plain", driver.PermissionDefault)); err == nil {
		closeSession(t, s)
		t.Error("opened although the host takes no events")
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := codex.New()
	for _, good := range []string{
		`{"kind":"codex"}`,
		`{"kind":"codex","provider":null,"driver":null,"providerVersion":null,"command":null,"args":null,"cwd":null,"model":null,"approvalPolicy":null,"externallySandboxed":null,"instructions":null,"collaborationMode":null,"includeCollaborationModeInstructions":null,"includeSkillInstructions":null,"runtimeContext":null}`,
		`{"kind":"codex","provider":"codex","driver":"codex_app_server","providerVersion":"codex-app-server-v1","command":"codex","args":["app-server"],"cwd":"/","model":"m","approvalPolicy":"on-request","externallySandboxed":false,"instructions":"","collaborationMode":"default","includeCollaborationModeInstructions":true,"includeSkillInstructions":true,"runtimeContext":{"x":[1]}}`,
	} {
		if err := d.Validate(json.RawMessage(good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, tc := range []struct{ object, code, member string }{
		{`{}`, "input_invalid", "kind"},
		{`{"kind":null}`, "input_invalid", "kind"},
		{`{"kind":"acpx"}`, "input_invalid", "kind"},
		{`{"kind":"codex","provider":"opencode"}`, "input_invalid", "provider"},
		{`{"kind":"codex","driver":"x"}`, "input_invalid", "driver"},
		{`{"kind":"codex","providerVersion":"codex-app-server-v2"}`, "input_invalid", "providerVersion"},
		{`{"kind":"codex","command":""}`, "input_invalid", "command"},
		{`{"kind":"codex","command":["codex"]}`, "input_invalid", "command"},
		{`{"kind":"codex","args":"app-server"}`, "input_invalid", "args"},
		{`{"kind":"codex","args":["a",null]}`, "input_invalid", "args[1]"},
		{`{"kind":"codex","args":["a\u0000"]}`, "input_invalid", "args[0]"},
		{`{"kind":"codex","cwd":"relative"}`, "input_invalid", "cwd"},
		{`{"kind":"codex","cwd":"/no/such/folder"}`, "workspace_invalid", "cwd"},
		{`{"kind":"codex","cwd":"` + file + `"}`, "workspace_invalid", "cwd"},
		{`{"kind":"codex","model":1}`, "input_invalid", "model"},
		{`{"kind":"codex","approvalPolicy":"always"}`, "input_invalid", "approvalPolicy"},
		{`{"kind":"codex","externallySandboxed":"yes"}`, "input_invalid", "externallySandboxed"},
		{`{"kind":"codex","instructions":{}}`, "input_invalid", "instructions"},
		{`{"kind":"codex","instructions":"` + strings.Repeat("x", 480<<10+1) + `"}`, "input_invalid", "instructions"},
		{`{"kind":"codex","collaborationMode":"chaos"}`, "input_invalid", "collaborationMode"},
		{`{"kind":"codex","includeSkillInstructions":1}`, "input_invalid", "includeSkillInstructions"},
		{`{"kind":"codex","includeCollaborationModeInstructions":"no"}`, "input_invalid", "includeCollaborationModeInstructions"},
		{`{"kind":"codex","kind":"codex"}`, "input_invalid", "kind"},
		{`{"kind":"codex","Model":"m"}`, "input_invalid", "Model"},
		{`[]`, "input_invalid", ""},
		{`{"kind":"codex"} {}`, "input_invalid", ""},
	} {
		err := d.Validate(json.RawMessage(tc.object))
		checkError(t, tc.object[:min(80, len(tc.object))], err, tc.code, tc.member)
	}
}

func TestOpenRefusals(t *testing.T) {
	t.Parallel()
	host := drivertest.NewHost(t, nil)
	for _, tc := range []struct {
		name, code, field string
		change            func(*driver.Config)
	}{
		{"ask", "not_available", "permission", func(c *driver.Config) { c.Permission = driver.PermissionAsk }},
		{"edits", "not_available", "permission", func(c *driver.Config) { c.Permission = driver.PermissionEdits }},
		{"unknown mode", "not_available", "permission", func(c *driver.Config) { c.Permission = "yolo" }},
		{"no workspace", "workspace_invalid", "cwd", func(c *driver.Config) { c.Workspace = "/no/such/folder" }},
		{"bad resume", "input_invalid", "resume.threadId", func(c *driver.Config) { c.Resume = json.RawMessage(`{}`) }},
		{"no program", "spawn_failed", "command", func(c *driver.Config) { c.Provider = json.RawMessage(`{"kind":"codex","command":"no-such-codex"}`) }},
	} {
		cfg := fakeConfig(t, "plain", driver.PermissionDefault)
		tc.change(&cfg)
		_, err := codex.New().Open(t.Context(), host, cfg)
		checkError(t, tc.name, err, tc.code, tc.field)
	}
	if len(host.Spawned()) != 0 || len(host.Events()) != 0 {
		t.Error("something was started")
	}
}

func TestDescriptor(t *testing.T) {
	t.Parallel()
	d := codex.New().Descriptor()
	var schema map[string]any
	if err := json.Unmarshal(d.InputSchema, &schema); err != nil || schema["type"] != "object" {
		t.Errorf("input schema: %v", err)
	}
	if d.Name != "codex" || d.ProviderVersion != "codex-app-server-v1" || len(d.PermissionModes) != 3 {
		t.Errorf("descriptor %+v", d)
	}
}

func TestResolveIsUnsupported(t *testing.T) {
	t.Parallel()
	_, s := withFake(t, codex.New(), "plain", driver.PermissionDefault)
	if err := s.Resolve(t.Context(), driver.Resolution{}); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Resolve = %v", err)
	}
}
