package suite

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestExecute(t *testing.T) {
	t.Parallel()
	cleaned := make(chan string, 8)
	cases := []Case{
		{Name: "pass", Section: "1", Run: Do(func(t *T) { t.Cleanup(func() { cleaned <- "pass" }) })},
		{Name: "fatal", Section: "1", Run: Do(func(t *T) {
			t.Cleanup(func() { cleaned <- "fatal" })
			t.Fatalf("broken %d", 7)
			cleaned <- "not reached"
		})},
		{Name: "error", Section: "1", Run: func(context.Context, *T) error { return errors.New("returned") }},
		{Name: "panic", Section: "1", Run: Do(func(*T) { panic("ouch") })},
		{Name: "late", Section: "1", Timeout: time.Millisecond, Run: Do(func(t *T) {
			end := make(chan struct{})
			t.Cleanup(func() { close(end) })
			<-end
		})},
	}
	if err := Validate(cases); err != nil {
		t.Fatal(err)
	}
	report := Execute(t.Context(), cases, Options{})
	want := []string{"", "broken 7", "returned", "panic: ouch", "not finished"}
	for i, r := range report.Results {
		if (want[i] == "") != (r.Err == "") || !strings.Contains(r.Err, want[i]) {
			t.Errorf("%s: error %q, expected %q", r.Name, r.Err, want[i])
		}
	}
	if n := len(report.Failed()); n != 4 {
		t.Errorf("%d failures", n)
	}
	close(cleaned)
	for s := range cleaned {
		if s == "not reached" {
			t.Error("the case went on after Fatalf")
		}
	}
	var b strings.Builder
	if err := report.Write(&b); err != nil || !strings.Contains(b.String(), "5 cases, 1 passed, 4 failed") {
		t.Errorf("report %v: %s", err, b.String())
	}
	if Validate([]Case{cases[0], cases[0], {}}) == nil {
		t.Error("a bad list was accepted")
	}
}
