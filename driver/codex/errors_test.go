package codex_test

import (
	"errors"
	"testing"

	"bowline/wire"
)

// checkError holds an error against its code and the member or field it names.
func checkError(t *testing.T, what string, err error, code, name string) {
	t.Helper()
	var e *wire.Error
	if !errors.As(err, &e) {
		t.Errorf("%s: %v, want a *wire.Error", what, err)
		return
	}
	got, _ := e.Details["member"].(string)
	if got == "" {
		got, _ = e.Details["field"].(string)
	}
	if string(e.Code) != code || got != name {
		t.Errorf("%s: %v naming %q, want %s naming %q", what, err, got, code, name)
	}
}
