package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bowline/conformance/authority"
	"bowline/conformance/runner"
	"bowline/conformance/suite"
)

// conformanceOnly selects the cases whose name contains the value of
// BOWLINE_CONFORMANCE, for work on a single case. Without it the slow cases,
// which wait for a minute, are left out.
func conformanceOnly(cases []suite.Case) []suite.Case {
	want := os.Getenv("BOWLINE_CONFORMANCE")
	var out []suite.Case
	for _, c := range cases {
		if strings.Contains(c.Name, want) && (!c.Slow || want != "") {
			out = append(out, c)
		}
	}
	return out
}

// buildBinary builds one of our commands for a black-box test.
func buildBinary(t *testing.T, pkg string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), filepath.Base(pkg))
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, pkg).CombinedOutput()
	if err != nil {
		t.Fatalf("build of %s: %v\n%s", pkg, err, out)
	}
	return bin
}

// runConformance runs the cases as subtests, a few at a time.
func runConformance(t *testing.T, cases []suite.Case) {
	t.Helper()
	if err := suite.Validate(cases); err != nil {
		t.Fatal(err)
	}
	slots := make(chan struct{}, suite.DefaultParallel)
	for _, c := range conformanceOnly(cases) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			r := suite.RunCase(t.Context(), c)
			if r.Err != "" {
				t.Errorf("prp.md %s: %s\n%s", r.Section, r.Err, strings.Join(r.Log, "\n"))
			}
		})
	}
}

// TestConformanceAuthority drives `bowline harness prp` with the black-box
// suite for authorities.
func TestConformanceAuthority(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of processes: not in short mode")
	}
	bin := buildBinary(t, "bowline/cmd/bowline")
	runConformance(t, authority.Cases(authority.Target{Argv: []string{bin, "harness", "prp"}, Dir: t.TempDir()}))
}

// TestConformanceRunner drives the slim runnerd with the black-box suite for
// runners.
func TestConformanceRunner(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of processes: not in short mode")
	}
	bin := buildBinary(t, "bowline/cmd/runnerd")
	runConformance(t, runner.Cases(runner.Target{Argv: []string{bin}, Dir: t.TempDir()}))
}
