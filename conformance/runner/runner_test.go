package runner

import (
	"os/exec"
	"testing"

	"bowline/conformance/suite"
)

func TestCasesAreComplete(t *testing.T) {
	t.Parallel()
	cases := Cases(Target{})
	if err := suite.Validate(cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 80 {
		t.Errorf("%d cases", len(cases))
	}
	t.Logf("%d cases", len(cases))
}

// A program that ends at once with the wrong code must fail.
func TestSelfWrongTargetFails(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("true")
	if err != nil {
		t.Skip("no program \"true\" on this machine")
	}
	cases := Cases(Target{Argv: []string{path}, Dir: t.TempDir()})
	report := suite.Execute(t.Context(), cases[:20], suite.Options{})
	if n := len(report.Failed()); n != 20 {
		t.Errorf("%d of 20 cases failed", n)
	}
}
