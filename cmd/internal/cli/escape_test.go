package cli

import (
	"strings"
	"testing"

	"bowline/controlplane/resource"
)

// What a runner said must not move a terminal's cursor: JSON escapes the
// control characters below U+0020 only, and U+009B begins a sequence too.
func TestShownResultIsTame(t *testing.T) {
	t.Parallel()
	a, _ := testApp(t)
	var out strings.Builder
	a.Stdout = &out
	if err := a.showRun(&resource.Run{ID: "r", Result: []byte("{\"message\":\"a\u009b2Jb\u007fc\"}")}, false); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); strings.ContainsAny(s, "\u009b\u007f") || !strings.Contains(s, "a2Jbc") {
		t.Errorf("shown: %q", s)
	}
}
