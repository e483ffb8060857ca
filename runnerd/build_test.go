package runnerd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSlimBuild builds cmd/runnerd as it is shipped and looks at what is in it.
func TestSlimBuild(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds a binary")
	}
	const maxBinary = 20 << 20 // bytes (quality.md)
	bin := filepath.Join(t.TempDir(), "runnerd")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "../cmd/runnerd") //nolint:gosec // G204: constant
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	info, err := os.Stat(bin)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxBinary {
		t.Errorf("%d bytes, at most %d are allowed", info.Size(), maxBinary)
	}
	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", bin).Output() //nolint:gosec // G204: constant
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "github.com/coder/websocket") {
		t.Fatalf("the list of modules is not what it was: %s", out)
	}
	for _, module := range []string{"sqlite", "goose", "pgx", "nats", "huma", "cobra", "otlp", "bbolt"} {
		if strings.Contains(string(out), module) {
			t.Errorf("%s is linked into runnerd", module)
		}
	}
}
