package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bowline/cmd/internal/config"
	"bowline/controlplane/launch"
	"bowline/controlplane/resource"
	"bowline/wire"
)

// testApp is an app in an empty folder with that environment.
func testApp(t *testing.T, env ...string) (*app, *both) {
	t.Helper()
	b := new(both)
	return newApp(Process{
		Env: env, Stdin: strings.NewReader(""), Stdout: tee{&b.out, &b.all}, Stderr: tee{&b.err, &b.all},
		Dir: t.TempDir(), Self: "/nonexistent/bowline",
	}), b
}

func wantCode(t *testing.T, err error, code wire.Code, parts ...string) {
	t.Helper()
	var we *wire.Error
	if !errors.As(err, &we) || we.Code != code {
		t.Fatalf("error is %v, want code %s", err, code)
	}
	for _, p := range parts {
		if !strings.Contains(we.Message, p) {
			t.Errorf("message %q does not contain %q", we.Message, p)
		}
	}
}

func TestChooseDriver(t *testing.T) {
	t.Parallel()
	cfg := &config.Config{Drivers: map[string]config.Driver{
		"mine":  {Kind: "codex", Command: []string{"/opt/codex", "app-server"}},
		"check": {Kind: "command", Command: []string{"make", "check"}},
		"codex": {Kind: "codex", Command: []string{"my-codex"}},
		"play":  {Kind: "scripted"},
	}}
	argv := []string{"true"}
	tests := []struct {
		name   string
		flags  runFlags
		driver string // chosen name
		kind   string
		code   wire.Code
		want   string // in the message
	}{
		{"argv", runFlags{argv: argv}, "command", "command", "", ""},
		{"prompt", runFlags{prompt: "x", promptSet: true}, "codex", "codex", "", ""},
		{"named", runFlags{driver: "mine", prompt: "x", promptSet: true}, "mine", "codex", "", ""},
		{"a command of the config", runFlags{driver: "check"}, "check", "command", "", ""},
		{"and more arguments", runFlags{driver: "check", argv: argv}, "check", "command", "", ""},
		{"scripted alone", runFlags{driver: "scripted"}, "scripted", "scripted", "", ""},
		{"scripted with a prompt", runFlags{driver: "play", prompt: "x", promptSet: true}, "play", "scripted", "", ""},
		{"pty", runFlags{argv: argv, pty: true}, "command", "command", "", ""},
		{"nothing", runFlags{}, "", "", wire.CodeUsage, "--prompt TEXT or -- ARGV"},
		{"both", runFlags{argv: argv, prompt: "x", promptSet: true}, "", "", wire.CodeUsage, "exclude each other"},
		{"unknown", runFlags{driver: "gemini", argv: argv}, "", "", wire.CodeDriverUnknown, "[check codex command mine play scripted]"},
		{"command without", runFlags{driver: "command"}, "", "", wire.CodeUsage, "give -- ARGV"},
		{"command with a prompt", runFlags{driver: "check", prompt: "x", promptSet: true}, "", "", wire.CodeUsage, "takes no --prompt"},
		{"codex without", runFlags{driver: "codex"}, "", "", wire.CodeUsage, "--prompt"},
		{"codex with an empty prompt", runFlags{promptSet: true}, "", "", wire.CodeUsage, "not empty"},
		{"codex with a command", runFlags{driver: "codex", argv: argv}, "", "", wire.CodeUsage, "--prompt"},
		{"scripted with a command", runFlags{driver: "scripted", argv: argv}, "", "", wire.CodeUsage, "takes --prompt"},
		{"pty for an agent", runFlags{prompt: "x", promptSet: true, pty: true}, "", "", wire.CodeUsage, "--pty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, name, err := chooseDriver(cfg, &tt.flags)
			if tt.code != "" {
				wantCode(t, err, tt.code, tt.want)
				return
			}
			if err != nil || name != tt.driver || d.Kind != tt.kind {
				t.Errorf("got %q of kind %q, %v; want %q of kind %q", name, d.Kind, err, tt.driver, tt.kind)
			}
		})
	}
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	a, _ := testApp(t, "PATH=/usr/bin:/bin", "HOME=/home/me", "MY_TOKEN=0123456789", "OTHER=x")
	runner := filepath.Join(a.Dir, "runner")
	if err := os.WriteFile(runner, []byte("#!/bin/true\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := filepath.Join(a.Dir, "config.yaml")
	if err := os.WriteFile(cfg, []byte("drivers:\n  quick:\n    kind: command\n    env:\n      A: literal\n      OTHER: {from: MY_TOKEN}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A relative --runner and --config count from the current folder.
	p, err := a.prepare(&runFlags{
		argv: []string{"make"}, driver: "quick", config: "config.yaml", runner: "runner",
		env: []string{"MY_TOKEN", "MY_TOKEN"}, timeout: 1500 * time.Millisecond, permission: "deny",
	})
	if err != nil {
		t.Fatal(err)
	}
	digest, err := launch.Digest(runner)
	if err != nil {
		t.Fatal(err)
	}
	r := p.request
	switch {
	case r.Driver != "quick" || r.Provider.Kind != "command" || r.Placement != resource.PlacementAttached:
		t.Errorf("request %+v", r)
	case r.Workspace != a.Dir || !slices.Equal(r.Argv, []string{"make"}) || r.Permission != "deny":
		t.Errorf("request %+v", r)
	case !slices.Equal(r.Env, []string{"MY_TOKEN", "A", "OTHER"}):
		t.Errorf("env %q", r.Env)
	case r.Limits == nil || r.Limits.TurnTimeMs != 1500:
		t.Errorf("limits %+v", r.Limits)
	case r.Runner.Version != launch.StandInVersion || r.Runner.Digest != digest:
		t.Errorf("runner %+v", r.Runner)
	}
	s := p.spec
	if !s.StandIn || s.Path != runner {
		t.Errorf("spec %+v", s)
	}
	want := []string{"PATH=/usr/bin:/bin", "HOME=/home/me", "MY_TOKEN=0123456789", "A=literal", "OTHER=0123456789"}
	if !slices.Equal(s.Env, want) {
		t.Errorf("a stand-in's environment is %q, want %q", s.Env, want)
	}
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(body), "0123456789") || strings.Contains(string(body), "literal") {
		t.Errorf("a value is in the request: %s", body)
	}
}

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	a, _ := testApp(t, "PATH=/nonexistent", "SET=1")
	file := filepath.Join(a.Dir, "file")
	if err := os.WriteFile(file, []byte("x: y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(a.Dir, "from.yaml")
	if err := os.WriteFile(from, []byte("drivers:\n  command:\n    env:\n      A: {from: NOT_SET}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	argv := []string{"true"}
	for _, tt := range []struct {
		name  string
		flags runFlags
		code  wire.Code
		want  string
	}{
		{"workspace missing", runFlags{argv: argv, workspace: "none"}, wire.CodeWorkspaceInvalid, "no such file"},
		{"workspace is a file", runFlags{argv: argv, workspace: "file"}, wire.CodeWorkspaceInvalid, "not a directory"},
		{"timeout negative", runFlags{argv: argv, timeout: -1}, wire.CodeUsage, "--timeout"},
		{"timeout below a millisecond", runFlags{argv: argv, timeout: time.Microsecond}, wire.CodeUsage, "--timeout"},
		{"timeout too long", runFlags{argv: argv, timeout: (resource.MaxTurnTimeMs + 1) * time.Millisecond}, wire.CodeUsage, "at most 168h"},
		{"env with a value", runFlags{argv: argv, env: []string{"SET=secret"}}, wire.CodeUsage, "not a value"},
		{"env not set", runFlags{argv: argv, env: []string{"UNSET"}}, wire.CodeUsage, "UNSET"},
		{"config missing", runFlags{argv: argv, config: "none"}, wire.CodeConfigInvalid, "no such file"},
		{"config wrong", runFlags{argv: argv, config: "file"}, wire.CodeConfigInvalid, "line 1"},
		{"config env not set", runFlags{argv: argv, config: "from.yaml"}, wire.CodeConfigInvalid, "NOT_SET"},
		{"runner missing", runFlags{argv: argv, runner: "none"}, wire.CodeSpawnFailed, "none"},
		{"runner is a folder", runFlags{argv: argv, runner: "."}, wire.CodeSpawnFailed, "regular file"},
		{"no codex", runFlags{prompt: "x", promptSet: true}, wire.CodeSpawnFailed, `"codex"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := a.prepare(&tt.flags)
			if err == nil {
				t.Fatalf("prepared %+v", p)
			}
			wantCode(t, err, tt.code, tt.want)
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows a value: %v", err)
			}
		})
	}
	// With --runner no local provider is looked for.
	if _, err := a.prepare(&runFlags{prompt: "x", promptSet: true, runner: "file"}); err != nil {
		t.Errorf("--runner and no codex here: %v", err)
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		run  resource.Run
		code int
		say  string
	}{
		{"completed", resource.Run{Status: "completed"}, wire.ExitOK, ""},
		{"failed", resource.Run{ID: "r", Status: "failed", Reason: "exit", Result: json.RawMessage(`{"message":"exit code 3","exitCode":3}`)}, wire.ExitFailed, "run r failed (exit): exit code 3"},
		{"failed without a word", resource.Run{ID: "r", Status: "failed"}, wire.ExitFailed, "run r failed"},
		{"odd result", resource.Run{ID: "r", Status: "failed", Result: json.RawMessage(`[]`)}, wire.ExitFailed, "run r failed"},
		{"cancelled", resource.Run{ID: "r", Status: "cancelled"}, wire.ExitFailed, "run r cancelled"},
		{"orphaned", resource.Run{ID: "r", Status: "orphaned", Reason: "lease_expired"}, wire.ExitFailed, "run r orphaned (lease_expired)"},
		{"fault", resource.Run{ID: "r", Status: "failed", Reason: "integrity_fault"}, wire.ExitIntegrity, "run r: integrity fault; an operator has to look at it"},
		{"fault after the end", resource.Run{ID: "r", Status: "completed", Runner: &resource.RunRunner{Fault: "x"}}, wire.ExitIntegrity, "run r: integrity fault; an operator has to look at it"},
	} {
		code, say := outcome(&tt.run)
		if code != tt.code || say != tt.say {
			t.Errorf("%s: %d %q, want %d %q", tt.name, code, say, tt.code, tt.say)
		}
	}
}

func TestResultLines(t *testing.T) {
	t.Parallel()
	run := &resource.Run{ID: "r", Status: "failed", Reason: "exit", Result: json.RawMessage(`{"exitCode":3,"outcome":"exit"}`)}
	bare := &resource.Run{ID: "r", Status: "cancelled"}
	line := func(r *resource.Run) any {
		l, err := resultLine(r)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for _, tt := range []struct {
		name           string
		line           any
		status         string
		exitCode, code any
		withRun        bool
	}{
		{"ended", line(run), "failed", 3.0, nil, true},
		{"ended without a result", line(bare), "cancelled", nil, nil, true},
		{"refused", untold(nil, wire.Errorf(wire.CodeDriverUnknown, "x").With("field", "driver")), "refused", nil, "driver_unknown", false},
		{"interrupted while joining", untold(nil, &exitError{wire.ExitSignal}), "interrupted", nil, nil, false},
		{"lost", untold(bare, wire.Errorf(wire.CodeUnavailable, "x")), "cancelled", nil, "unavailable", true},
		{"our own fault", untold(nil, errors.New("x")), "refused", nil, "internal", false},
	} {
		raw, err := json.Marshal(tt.line)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Type   string
			Run    map[string]any
			Result map[string]any
		}
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		exit, has := got.Result["exitCode"]
		e, _ := got.Result["error"].(map[string]any)
		if got.Type != "result" || got.Result["status"] != tt.status || !has || exit != tt.exitCode || e["code"] != tt.code || (got.Run != nil) != tt.withRun {
			t.Errorf("%s: %s", tt.name, raw)
		}
	}
	if _, err := resultLine(&resource.Run{Result: json.RawMessage(`[]`)}); wire.CodeOf(err) != wire.CodeInternal {
		t.Errorf("a result that is no object: %v", err)
	}
}

func TestLookPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(filepath.Join(bin, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"tool": 0o700, "text": 0o600} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=/nonexistent", "PATH=relative:" + bin}
	for name, want := range map[string]string{
		"tool": bin + "/tool", "text": "", "folder": "", "none": "",
		"bin/tool": bin + "/tool", "./bin/text": "", bin + "/tool": bin + "/tool",
	} {
		if got := lookPath(env, dir, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestCheckDial(t *testing.T) {
	t.Parallel()
	for url, ok := range map[string]bool{
		"": true, "http://127.0.0.1:1": true, "http://[::1]:1/x": true, "https://192.0.2.1": true,
		"not a url": true, "http://": true, // the client's to refuse
		"http://192.0.2.1:1": false, "http://[2001:db8::1]": false,
	} {
		err := checkDial(t.Context(), url)
		if ok && err != nil {
			t.Errorf("%q: %v", url, err)
		}
		if !ok {
			wantCode(t, err, wire.CodeUsage, "https://")
		}
	}
}
