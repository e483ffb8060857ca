package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lastLine parses the last line of NDJSON.
func lastLine(t *testing.T, out string) map[string]any {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var m map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &m); err != nil {
		t.Fatalf("last line %q: %v", lines[len(lines)-1], err)
	}
	return m
}

// stopAfter ends the background server that a run on data started.
func stopAfter(t *testing.T, bin string, env []string, data string) {
	t.Helper()
	t.Cleanup(func() {
		if r := runStop(env, bin, data); r != nil {
			t.Errorf("bowline stop: %v", r)
		}
		if _, err := os.Stat(filepath.Join(data, "ready.json")); err == nil {
			t.Error("bowline stop left the ready file behind")
		}
	})
}

func runStop(env []string, bin, data string) error {
	cmd := exec.Command(bin, "stop", "--data", data)
	cmd.Env = env
	return cmd.Run()
}

func TestRunCommand(t *testing.T) {
	t.Parallel()
	bin := program(t, "bowline")
	env, dir, data := cleanEnv(t), t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	argv := []string{"--", "sh", "-c", "echo out; echo err >&2; exit 3"}

	r := runProgram(t, env, dir, bin, append([]string{"run", "--data", data}, argv...)...)
	if r.code != 1 {
		t.Errorf("exit code %d, want 1", r.code)
	}
	if r.stdout != "out\n" {
		t.Errorf("stdout %q", r.stdout)
	}
	if !strings.HasPrefix(r.stderr, "err\n") {
		t.Errorf("stderr %q does not begin with the command's", r.stderr)
	}

	r = runProgram(t, env, dir, bin, append([]string{"run", "--json", "--data", data}, argv...)...)
	if r.code != 1 {
		t.Errorf("--json: exit code %d, want 1", r.code)
	}
	for line := range strings.Lines(r.stdout) {
		if !json.Valid([]byte(line)) {
			t.Errorf("--json: a line of stdout is not JSON: %q", line)
		}
	}
	last := lastLine(t, r.stdout)
	result, _ := last["result"].(map[string]any)
	run, _ := last["run"].(map[string]any)
	if last["type"] != "result" || result["exitCode"] != 3.0 || run["status"] != "failed" {
		t.Errorf("--json: last line %v", last)
	}
}

func TestRunKeepsBytes(t *testing.T) {
	t.Parallel()
	bin := program(t, "bowline")
	env, dir, data := cleanEnv(t), t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	want := make([]byte, 1<<20)
	if _, err := rand.Read(want); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "random"), want, 0o600); err != nil {
		t.Fatal(err)
	}
	r := runProgram(t, env, dir, bin, "run", "--data", data, "--", "cat", "random")
	if r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	if sha256.Sum256([]byte(r.stdout)) != sha256.Sum256(want) {
		t.Errorf("1 MiB came back changed: %d bytes, equal prefix %d", len(r.stdout), commonPrefix([]byte(r.stdout), want))
	}
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// TestSecretsStay hands a secret to a command that prints it in pieces.
func TestSecretsStay(t *testing.T) {
	t.Parallel()
	bin := program(t, "bowline")
	const secret = "s3cr3t-value-0123456789"
	env := cleanEnv(t, "MY_SECRET="+secret)
	dir, data := t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	script := `printf %s "$MY_SECRET"; printf '\n'; printf s3cr3t-value; sleep 0.2; printf -- -0123456789; printf %s "${#MY_SECRET}"`
	r := runProgram(t, env, dir, bin, "run", "--json", "--data", data, "--env", "MY_SECRET", "--", "sh", "-c", script)
	if r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	all := r.stdout + r.stderr
	err := filepath.WalkDir(data, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if bytes.Contains(raw, []byte(secret)) {
			t.Errorf("the secret is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(all, secret) {
		t.Errorf("the secret came out: %s", all)
	}
	if !strings.Contains(all, `"[REDACTED]\n"`) || !strings.Contains(all, `"[REDACTED]23"`) {
		t.Errorf("the command did not get the secret, or nothing says that it was removed: %s", all)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	bin := program(t, "bowline")
	env, dir, data := cleanEnv(t), t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("drivers:\n  codex:\n    comand: [x]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	promptFile := strings.Repeat("x", 100<<10) // the kernel takes at most 128 KiB in one argument
	tests := []struct {
		name string
		args []string
		code int
		want string // in stderr
	}{
		{"no such workspace", []string{"run", "--workspace", dir + "/none", "--", "true"}, 2, "workspace_invalid"},
		{"workspace is a file", []string{"run", "--workspace", file, "--", "true"}, 2, "is not a directory"},
		{"unknown driver", []string{"run", "--driver", "gemini", "--prompt", "x"}, 2, "driver_unknown"},
		{"unknown flag", []string{"run", "--fast", "--", "true"}, 2, "unknown flag: --fast"},
		{"unknown verb", []string{"rum"}, 2, "rum"},
		{"nothing to run", []string{"run"}, 2, "--prompt"},
		{"both", []string{"run", "--prompt", "x", "--", "true"}, 2, "exclude each other"},
		{"command before dash", []string{"run", "true"}, 2, "behind --"},
		{"env with a value", []string{"run", "--env", "A=b", "--", "true"}, 2, "not a value"},
		{"env not set", []string{"run", "--env", "NOT_SET_HERE", "--", "true"}, 2, "not set"},
		{"mode not built", []string{"run", "--permission", "ask", "--", "true"}, 2, "not_available"},
		{"unknown mode", []string{"run", "--permission", "root", "--", "true"}, 2, "permission"},
		{"negative timeout", []string{"run", "--timeout", "-1s", "--", "true"}, 2, "--timeout"},
		{"config key", []string{"run", "--config", config, "--prompt", "x"}, 2, `line 3, column 5: unknown key "comand", did you mean "command"?`},
		{"token without server", []string{"run", "--token-file", file, "--", "true"}, 2, "--server"},
		{"no server", []string{"run", "--server", "http://127.0.0.1:9", "--token-file", file, "--", "true"}, 2, "does not hold one token"},
		{"no such runner", []string{"run", "--runner", dir + "/none", "--", "true"}, 1, "spawn_failed"},
		{"run not found", []string{"runs", "show", "01900000-0000-7000-8000-000000000000"}, 1, `no run has the id "01900000-0000-7000-8000-000000000000"`},
		{"bad cursor", []string{"runs", "events", "01900000-0000-7000-8000-000000000000", "--after", "x"}, 2, "bad_cursor"},
		{"listen beyond loopback", []string{"serve", "--listen", "0.0.0.0:0", "--data", filepath.Join(dir, "other")}, 2, "listen_refused"},
		{"long prompt is fine", []string{"run", "--driver", "scripted", "--prompt", promptFile}, 0, ""},
	}
	for _, tt := range tests {
		args := tt.args
		if at := map[string]int{"run": 1, "runs": 2}[args[0]]; at > 0 {
			args = slices.Insert(slices.Clone(args), at, "--data", data)
		}
		r := runProgram(t, env, dir, bin, args...)
		if r.code != tt.code || !strings.Contains(r.stderr, tt.want) {
			t.Errorf("%s: exit code %d, want %d; stderr %q, want %q in it", tt.name, r.code, tt.code, r.stderr, tt.want)
		}
	}
	r := runProgram(t, env, dir, bin, "run", "--data", data, "--json", "--workspace", dir+"/none", "--", "true")
	last := lastLine(t, r.stdout)
	if result, _ := last["result"].(map[string]any); last["type"] != "result" || last["run"] != nil || result["exitCode"] != nil || result["error"] == nil {
		t.Errorf("--json after a refusal: last line %v", last)
	}
	list := runProgram(t, env, dir, bin, "runs", "list", "--json", "--data", data)
	var runs struct{ Runs []any }
	if err := json.Unmarshal([]byte(list.stdout), &runs); err != nil || len(runs.Runs) != 1 {
		t.Errorf("refusals left runs behind: %v %s", err, list.stdout)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := runProgram(t, cleanEnv(t), t.TempDir(), program(t, "bowline"), "version", "--json")
	var v struct {
		Version, Go string
		PRPVersions []int `json:"prpVersions"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || r.code != 0 || v.Version == "" || len(v.PRPVersions) != 2 {
		t.Errorf("version --json: %d %q %v", r.code, r.stdout, err)
	}
}
