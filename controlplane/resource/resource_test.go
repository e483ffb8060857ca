package resource

import (
	"errors"
	"strings"
	"testing"

	"bowline/wire"
)

func TestCursor(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Cursor{
		"1.0": {1, 0}, "1.17": {1, 17}, "12.345": {12, 345}, "1.999999999999999999": {1, 999999999999999999},
	} {
		got, err := ParseCursor(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{
		"", ".", "1", "1.", ".1", "0.1", "01.1", "1.01", "+1.1", "1.+1", "-1.1", "1.-1", "1.1.1", " 1.1", "1.1 ", "1,1",
		"1.x", "x.1", "1.1000000000000000000", "1.1\n", "\u0661.1",
	} {
		if got, err := ParseCursor(bad); wire.CodeOf(err) != wire.CodeBadCursor {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
	if _, err := ParseCursor("s3cr3t"); strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("the error shows the value: %v", err)
	}
}

func TestErrorBodyHidesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	b := ErrorBodyOf(errors.New("s3cr3t"), "r1")
	if b.Code != wire.CodeInternal || strings.Contains(b.Message, "s3cr3t") || b.RequestID != "r1" {
		t.Errorf("%+v", b)
	}
	typed := &wire.Error{Code: wire.CodeConflict, Message: "m", Details: map[string]any{"field": "f"}, Cause: errors.New("s3cr3t")}
	b = ErrorBodyOf(errors.Join(errors.New("s3cr3t"), typed), "r2")
	if b.Code != wire.CodeConflict || b.Message != "m" || b.Details["field"] != "f" {
		t.Errorf("%+v", b)
	}
	if got := b.AsError(); got.Code != typed.Code || got.Message != typed.Message {
		t.Errorf("back again: %+v", got)
	}
}

func TestEnded(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]bool{
		"queued": false, "assigned": false, "starting": false, "running": false, "waiting": false, "cancelling": false,
		"completed": true, "failed": true, "cancelled": true, "orphaned": true,
	} {
		if got := (&Run{Status: status}).Ended(); got != want {
			t.Errorf("%s: %v", status, got)
		}
	}
}
