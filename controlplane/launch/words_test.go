package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bowline/controlplane/resource"
	"bowline/wire"
)

func TestLastWords(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", maxQuote)
	for name, tt := range map[string]struct{ log, want string }{
		"nothing":            {"", ""},
		"our log":            {`{"level":"INFO","msg":"connected"}` + "\n" + `{"level":"ERROR","msg":"runner ends","code":"disk_full","exit":1,"err":"disk_full: no space left for the session log"}` + "\n", "disk_full: no space left for the session log"},
		"code apart":         {`{"code":"refused","err":"who are you?"}`, "refused: who are you?"},
		"code only":          {`{"code":"refused"}`, "refused"},
		"error":              {`{"error":"no"}`, "no"},
		"no reason":          {`{"level":"INFO","msg":"connected"}`, ""},
		"another program":    {"one\ntwo\x1b[31m\tthree\a\n\n", "two[31m three"},
		"no JSON after all":  {"{braces", "{braces"},
		"no UTF-8":           {"a\xffb", "ab"},
		"long":               {long, long[:maxQuote] + "…"},
		"longer than a look": {strings.Repeat("x", 2*quoteWindow), ""},
		"ticket":             {"bad ticket: the-ticket-text", "bad ticket: [redacted]"},
		"handed on":          {"TOKEN=secret-value SHORT=abc", "TOKEN=[redacted] SHORT=abc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte("an earlier start\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			log, err := openLog(path)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			if _, err := log.file.WriteString(tt.log); err != nil {
				t.Fatal(err)
			}
			p := &Process{log: log}
			spec := &Spec{Env: []string{"TOKEN=secret-value", "SHORT=abc", "OTHER=earlier start"}, PassEnv: []string{"TOKEN", "SHORT"}}
			if got := p.lastWords(spec, "the-ticket-text"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestLastWordsOfAnEmptiedLog: a log is emptied when it outgrows its limit.
func TestLastWordsOfAnEmptiedLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("an earlier start\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := log.file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := log.file.WriteString("new\n"); err != nil {
		t.Fatal(err)
	}
	if got := (&Process{log: log}).lastWords(&Spec{}, ""); got != "new" {
		t.Errorf("got %q", got)
	}
}

// TestGivingUpSaysWhy: the run's result and the notes explain themselves.
func TestGivingUpSaysWhy(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"exit0": "the runner ended (code 0) without having joined",
		"exit7": "the runner ended (code 7): fake runner says hello",
	} {
		s, o := spec(t, mode), &testOwner{}
		var delays []time.Duration
		sup := supervisor(s, o, &delays)
		var restarts []string
		sup.Note = func(n Note) {
			if n.Kind == NoteRestarting || n.Kind == NoteGaveUp {
				restarts = append(restarts, n.Exit)
			}
		}
		if err := sup.Run(within(t)); err != nil {
			t.Fatal(err)
		}
		if o.lost != resource.LostGaveUp || o.detail != want {
			t.Errorf("%s: lost %q, %q; want %q", mode, o.lost, o.detail, want)
		}
		if len(restarts) != MaxRestarts+1 || restarts[0] != want || restarts[MaxRestarts] != want {
			t.Errorf("%s: notes %q", mode, restarts)
		}
	}
}

func TestDetail(t *testing.T) {
	t.Parallel()
	cause := &os.PathError{Op: "open", Path: "/secret/place", Err: syscall.ENOSPC}
	err := error(&wire.Error{Code: wire.CodeSpawnFailed, Message: "no log", Cause: cause})
	if got, want := Detail("", err), "no log (no space left on device)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Detail("it failed", fmt.Errorf("x: %w", cause)), "it failed (no space left on device)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
