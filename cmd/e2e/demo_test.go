package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDemo: the newcomer's first command works and leaves no process behind.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "demo")
	r := runProgram(t, cleanEnv(t), t.TempDir(), program(t, "bowline"), "demo", "--dir", dir)
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	for _, want := range []string{"SIGKILL", "fresh ticket", "each once, in order", "bowline runs show"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("the demo does not say %q:\n%s", want, r.stdout)
		}
	}
	again := runProgram(t, cleanEnv(t), t.TempDir(), program(t, "bowline"), "demo", "--dir", dir)
	if again.code != 2 || !strings.Contains(again.stderr, "is not empty") {
		t.Errorf("a second demo in the same folder: exit code %d, stderr %q", again.code, again.stderr)
	}
	waitFor(t, "the demo's processes to be gone", func() bool { return len(processesWith(dir)) == 0 })
}

// processesWith lists processes whose arguments mention a folder.
func processesWith(dir string) []string {
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	var out []string
	for _, p := range procs {
		raw, err := os.ReadFile(p)
		if err == nil && bytes.Contains(raw, []byte(dir)) {
			out = append(out, strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return out
}
