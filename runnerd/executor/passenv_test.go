package executor

import (
	"strings"
	"testing"

	"bowline/wire/prp"
)

// Where the user said which variables are handed on, an authority cannot name
// another one; where nobody did (PRP use), its names are the only ones there are.
func TestEnvNamesOfTheAuthority(t *testing.T) {
	t.Parallel()
	for _, only := range []bool{true, false} {
		f := &fake{}
		r := newRig(t, t.TempDir(), Kind{Driver: f}, "PATH=/bin", "SECRET=a-secret-value", "OTHER=not-for-agents")
		r.e.opt.OnlyPassEnv = only
		r.run()
		res := r.do(prp.CommandRunPrepare, `{"provider":{"kind":"fake","envNames":["SECRET","OTHER"]}}`)
		if only {
			if res.Status != prp.StatusFailed || res.Result.Get("errorCode").Str() != "env_not_allowed" || strings.Contains(text(res.Whole), "not-for-agents") {
				t.Errorf("only what was passed: %s", res.Whole.JSON())
			}
			continue
		}
		if res.Status != prp.StatusCompleted {
			t.Errorf("PRP use: %s", res.Whole.JSON())
		}
	}
}
