package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bowline/driver/codex/modelserver"
)

// codexSetup is a user with Codex: a config file that names the binary, and a
// CODEX_HOME that points at the scripted model.
func codexSetup(t *testing.T) (bin string, env []string, dir, data, config string) {
	t.Helper()
	codex := modelserver.RequireCodex(t)
	model := modelserver.Start(t)
	home := t.TempDir()
	if err := modelserver.WriteCodexHome(home, model.URL); err != nil {
		t.Fatal(err)
	}
	bin = program(t, "bowline")
	env = cleanEnv(t, "CODEX_HOME="+home, modelserver.KeyName+"="+modelserver.Key)
	dir, data = t.TempDir(), filepath.Join(t.TempDir(), "data")
	config = filepath.Join(t.TempDir(), "config.yaml")
	yaml := "drivers:\n  codex:\n    command: [" + codex + ", app-server]\n    env:\n      " + modelserver.KeyName + ": {from: " + modelserver.KeyName + "}\n"
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	stopAfter(t, bin, env, data)
	return bin, env, dir, data, config
}

func TestCodexText(t *testing.T) {
	t.Parallel()
	bin, env, dir, data, config := codexSetup(t)
	r := runProgram(t, env, dir, bin, "run", "--data", data, "--config", config, "--prompt", "MODEL: text hello from the model")
	if r.code != 0 || !strings.Contains(r.stdout, "hello from the model") {
		t.Errorf("exit code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
}

func TestCodexShell(t *testing.T) {
	t.Parallel()
	bin, env, dir, data, config := codexSetup(t)
	for _, tt := range []struct {
		mode string
		made bool
	}{{"allow", true}, {"deny", false}} {
		file := "made-by-" + tt.mode
		r := runProgram(t, env, dir, bin, "run", "--data", data, "--config", config, "--permission", tt.mode,
			"--prompt", "MODEL: shell touch "+file+"\nMODEL: text done")
		_, err := os.Stat(filepath.Join(dir, file))
		if made := err == nil; made != tt.made || r.code != 0 {
			t.Errorf("%s: made %v, want %v; exit code %d, stdout %q, stderr %q", tt.mode, made, tt.made, r.code, r.stdout, r.stderr)
		}
		if !tt.made && !strings.Contains(r.stderr, "declined") {
			t.Errorf("%s: nothing on stderr says that the command was declined: %q", tt.mode, r.stderr)
		}
	}
}

func TestCodexModelFailure(t *testing.T) {
	t.Parallel()
	bin, env, dir, data, config := codexSetup(t)
	r := runProgram(t, env, dir, bin, "run", "--json", "--data", data, "--config", config, "--prompt", "MODEL: fail 500")
	last := lastLine(t, r.stdout)
	run, _ := last["run"].(map[string]any)
	if r.code != 1 || run["status"] != "failed" {
		t.Errorf("exit code %d, run %v", r.code, run)
	}
}

// TestCodexRunnerKilled: what a killed runnerd leaves of Codex is ended by the
// next one, and the run says so.
func TestCodexRunnerKilled(t *testing.T) {
	t.Parallel()
	bin, env, dir, data, config := codexSetup(t)
	p := startProgram(t, env, dir, bin, "run", "--json", "--data", data, "--config", config, "--permission", "allow",
		"--prompt", "MODEL: shell echo $$ > pid.tmp; mv pid.tmp pid; sleep 3600\nMODEL: text done")
	waitFor(t, "the agent's command to run", func() bool {
		_, err := os.Stat(filepath.Join(dir, "pid"))
		return err == nil
	})
	runID := p.runID()
	if err := syscall.Kill(runnerPID(runID), syscall.SIGKILL); err != nil {
		t.Fatalf("kill runnerd: %v", err)
	}
	r := p.wait()
	last := lastLine(t, r.stdout)
	run, _ := last["run"].(map[string]any)
	if r.code != 1 || run["status"] != "failed" || run["reason"] != "runner_lost" {
		t.Errorf("exit code %d, run %v, stderr %q", r.code, run, r.stderr)
	}
	pid := readPID(t, filepath.Join(dir, "pid"))
	waitFor(t, "the agent's command to be gone", func() bool { return !living(pid) })
}

// TestCodexInterrupt: the first Ctrl-C cancels and waits.
func TestCodexInterrupt(t *testing.T) {
	t.Parallel()
	bin, env, dir, data, config := codexSetup(t)
	p := startProgram(t, env, dir, bin, "run", "--json", "--data", data, "--config", config, "--permission", "allow",
		"--prompt", "MODEL: shell echo $$ > pid.tmp; mv pid.tmp pid; sleep 3600\nMODEL: text done")
	waitFor(t, "the agent's command to run", func() bool {
		_, err := os.Stat(filepath.Join(dir, "pid"))
		return err == nil
	})
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	r := p.wait()
	last := lastLine(t, r.stdout)
	run, _ := last["run"].(map[string]any)
	if r.code != 130 || run["status"] != "cancelled" {
		t.Errorf("exit code %d, run %v, stderr %q", r.code, run, r.stderr)
	}
	pid := readPID(t, filepath.Join(dir, "pid"))
	waitFor(t, "the agent's command to be gone", func() bool { return !living(pid) })
}

// TestCodexTimeout: a turn that uses up its time fails with that reason.
func TestCodexTimeout(t *testing.T) {
	t.Parallel()
	bin, env, dir, data, config := codexSetup(t)
	r := runProgram(t, env, dir, bin, "run", "--json", "--data", data, "--config", config, "--timeout", "1s", "--prompt", "MODEL: hang")
	last := lastLine(t, r.stdout)
	run, _ := last["run"].(map[string]any)
	res, _ := last["result"].(map[string]any)
	if r.code != 1 || run["status"] != "failed" || run["reason"] != "timeout" || res["outcome"] != "timeout" {
		t.Errorf("exit code %d, run %v, stderr %q", r.code, run, r.stderr)
	}
}

// TestCodexOutput: a person sees each message once, ended by a newline, and
// nothing of what the agent's own commands print.
func TestCodexOutput(t *testing.T) {
	t.Parallel()
	bin, env, dir, data, config := codexSetup(t)
	r := runProgram(t, env, dir, bin, "run", "--data", data, "--config", config, "--permission", "allow",
		"--prompt", "MODEL: shell printf 'inner-%s' output\nMODEL: patch made.txt a line of a diff\nMODEL: text first words of the answer")
	if r.code != 0 || !strings.HasSuffix(r.stdout, "\n") || strings.Count(r.stdout, "first words of the answer\n") != 1 {
		t.Errorf("exit code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "made.txt")); err != nil {
		t.Errorf("the agent did not work: %v", err)
	}
	thinking := runProgram(t, env, dir, bin, "run", "--data", data, "--config", config, "--prompt", "MODEL: think about it")
	if thinking.code != 0 || thinking.stdout != "thought\n" {
		t.Errorf("thinking: exit code %d, stdout %q", thinking.code, thinking.stdout)
	}
	for _, inner := range []string{"inner-output", "a line of a diff"} {
		if strings.Contains(r.stdout, inner) {
			t.Errorf("stdout shows %q: %q", inner, r.stdout)
		}
	}
}

// TestCodexMissing: a machine without Codex says so before anything is started.
func TestCodexMissing(t *testing.T) {
	t.Parallel()
	bin, dir, data := program(t, "bowline"), t.TempDir(), filepath.Join(t.TempDir(), "data")
	env := []string{"PATH=" + dir, "HOME=" + dir}
	r := runProgram(t, env, dir, bin, "run", "--data", data, "--prompt", "x")
	if r.code != 1 || !strings.Contains(r.stderr, "spawn_failed") || !strings.Contains(r.stderr, "--config") {
		t.Errorf("exit code %d, stderr %q", r.code, r.stderr)
	}
	if _, err := os.Stat(data); err == nil {
		t.Error("a data folder was made")
	}
}

// TestCodexDeclined: in mode default the agent's own sandbox stands, and what
// it asks for beyond that is declined and said.
func TestCodexDeclined(t *testing.T) {
	t.Parallel()
	bin, env, dir, data, config := codexSetup(t)
	home := ""
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, "CODEX_HOME="); ok {
			home = filepath.Join(value, "config.toml")
		}
	}
	raw, err := os.ReadFile(home)
	if err != nil {
		t.Fatal(err)
	}
	raw = []byte(strings.Replace(string(raw), "danger-full-access", "workspace-write", 1))
	if err := os.WriteFile(home, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	r := runProgram(t, env, dir, bin, "run", "--data", data, "--config", config,
		"--prompt", "MODEL: escalate touch escaped\nMODEL: text done")
	if _, err := os.Stat(filepath.Join(dir, "escaped")); err == nil {
		t.Error("the command ran outside of the sandbox")
	}
	if r.code != 0 || strings.Count(r.stdout, "done") != 1 || !strings.Contains(r.stderr, "declined") {
		t.Errorf("exit code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
}
