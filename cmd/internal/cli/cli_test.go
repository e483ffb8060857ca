package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowline/wire"
)

// invoke runs the program in this process.
func invoke(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = Main(t.Context(), Process{
		Args: args, Env: env, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &err,
		Dir: t.TempDir(), Self: "/nonexistent/bowline",
	})
	return code, out.String(), err.String()
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args   []string
		code   int
		stdout string // in it
		stderr string // in it; "" = nothing there
	}{
		{nil, 0, "bowline [command]", ""},
		{[]string{"help"}, 0, "Available Commands", ""},
		{[]string{"help", "run"}, 0, "--prompt TEXT", ""},
		{[]string{"help", "runs", "show"}, 0, "show RUN", ""},
		{[]string{"run", "--help"}, 0, "Exit codes:", ""},
		{[]string{"help", "nope"}, 2, "", `unknown command "nope"`},
		{[]string{"rum"}, 2, "", "did you mean run?"},
		{[]string{"runs"}, 2, "", "list|show|events|cancel"},
		{[]string{"runs", "liszt"}, 2, "", "did you mean list?"},
		{[]string{"harness"}, 2, "", "bowline harness prp"},
		{[]string{"run", "--fast"}, 2, "", "unknown flag: --fast (see bowline run --help) (usage)"},
		{[]string{"run", "--timeout", "soon", "--", "true"}, 2, "", "--timeout"},
		{[]string{"run", "true"}, 2, "", "behind --"},
		{[]string{"run", "true", "--", "x"}, 2, "", "behind --"},
		{[]string{"runs", "show"}, 2, "", "takes one argument: a run id"},
		{[]string{"runs", "show", "a", "b"}, 2, "", "takes one argument: a run id"},
		{[]string{"runs", "events", "x", "--after", "17"}, 2, "", "bad_cursor"},
		{[]string{"stop", "now"}, 2, "", "takes no arguments"},
		{[]string{"stop"}, 2, "", "no data folder"},
		{[]string{"serve", "--allow-env", "A=b"}, 2, "", "no data folder"},
		{[]string{"serve", "--data", "d", "--allow-env", "A=b"}, 2, "", "--allow-env"},
		{[]string{"run", "--", "printf", "a\xff"}, 2, "", "argv[1]: holds bytes that are not UTF-8"},
		{[]string{"run", "--prompt", "a\xff"}, 2, "", "prompt: holds bytes that are not UTF-8"},
		{[]string{"run", "--workspace", "/\xff", "--", "true"}, 2, "", "workspace: holds bytes that are not UTF-8"},
		{[]string{"stop", "--data", "/\xff"}, 2, "", "data folder: holds bytes that are not UTF-8"},
		{[]string{"version"}, 0, "bowline ", ""},
		{[]string{"--version"}, 0, "bowline ", ""},
		{[]string{"serve", "--data", "/dev/null/x"}, 3, "", "the data folder /dev/null/x cannot be used: not a directory (unavailable)"},
		{[]string{"completion"}, 2, "", "bash|zsh|fish|powershell"},
		{[]string{"completion", "tcsh"}, 2, "", `unknown command "tcsh"`},
		{[]string{"completion", "bash"}, 0, "__start_bowline", ""},
		{[]string{"completion", "zsh"}, 0, "#compdef bowline", ""},
		{[]string{"completion", "fish"}, 0, "fish completion for bowline", ""},
		{[]string{"__complete", "run", "--permission", ""}, 0, "deny\nallow\n", "ShellCompDirectiveNoFileComp"},
	} {
		code, stdout, stderr := invoke(t, nil, tt.args...)
		if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
			t.Errorf("%q: exit code %d, want %d; stdout %q, want %q in it; stderr %q, want %q in it", tt.args, code, tt.code, stdout, tt.stdout, stderr, tt.stderr)
		}
		if (tt.stderr == "") != (stderr == "") {
			t.Errorf("%q: stderr %q", tt.args, stderr)
		}
		if tt.code != 0 && stdout != "" {
			t.Errorf("%q: a refusal writes to stdout: %q", tt.args, stdout)
		}
	}
}

// TestRefusedRun: with --json the last line is the result, also of a run that
// never was.
func TestRefusedRun(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := invoke(t, nil, "run", "--json", "--driver", "gemini", "--prompt", "x")
	var line struct {
		Type   string
		Run    any
		Result struct {
			Status   string
			ExitCode any
			Error    struct{ Code, Message string }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &line); err != nil {
		t.Fatalf("stdout %q: %v", stdout, err)
	}
	if code != 2 || line.Type != "result" || line.Run != nil || line.Result.Status != "refused" || line.Result.Error.Code != "driver_unknown" {
		t.Errorf("exit code %d, %+v", code, line)
	}
	if !strings.Contains(stderr, "(driver_unknown)") {
		t.Errorf("stderr %q", stderr)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	typed := wire.Errorf(wire.CodeUnauthorized, "a\nb\x1b[2J")
	for _, tt := range []struct {
		name   string
		err    error
		verb   bool
		code   int
		stderr string
	}{
		{"none", nil, true, wire.ExitOK, ""},
		{"typed", typed, true, wire.ExitRefused, "bowline: a b[2J (unauthorized)\n"},
		{"wrapped", fmt.Errorf("x: %w", typed), true, wire.ExitRefused, "bowline: a b[2J (unauthorized)\n"},
		{"already said", errors.Join(errors.New("x"), &exitError{wire.ExitIntegrity}), true, wire.ExitIntegrity, ""},
		{"interrupted", fmt.Errorf("x: %w", context.Canceled), true, wire.ExitSignal, ""},
		{"cobra's", errors.New("accepts 0 args"), false, wire.ExitUsage, "bowline: accepts 0 args (usage)\n"},
		{"our own", errors.New("unforeseen"), true, wire.ExitFailed, "bowline: unforeseen (internal)\n"},
		{"closed stdout", stdoutFailed(errBroken), true, wire.ExitFailed, "bowline: stdout cannot be written: broken pipe (internal)\n"},
	} {
		a, b := testApp(t)
		a.verb = tt.verb
		if code := a.exit(tt.err); code != tt.code || b.err.String() != tt.stderr {
			t.Errorf("%s: exit code %d, want %d; stderr %q, want %q", tt.name, code, tt.code, b.err.String(), tt.stderr)
		}
	}
}

func TestDataDir(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env        []string
		flag, want string
	}{
		{[]string{"HOME=/h"}, "", "/h/.local/state/bowline"},
		{[]string{"HOME=/h", "XDG_STATE_HOME=/x"}, "", "/x/bowline"},
		{[]string{"HOME=/h", "XDG_STATE_HOME=relative"}, "", "/h/.local/state/bowline"}, // the XDG rule: ignored
		{[]string{"HOME=/h"}, "/d/", "/d"},
		{nil, "d", "DIR/d"},
	} {
		a, _ := testApp(t, tt.env...)
		got, err := a.dataDir(tt.flag)
		if want := strings.Replace(tt.want, "DIR", a.Dir, 1); err != nil || got != want {
			t.Errorf("%v %q: %q, %v, want %q", tt.env, tt.flag, got, err, want)
		}
	}
}

func TestReadLedger(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, ledger string
		want         string // digests
		lines        int
		bad          string
	}{
		{"empty", "", "", 0, ""},
		{"in order", `{"event":0,"sha256":"a"}` + "\n" + `{"event":1,"sha256":"b"}` + "\n", "a b", 2, ""},
		{"produced again", `{"event":0,"sha256":"a"}` + "\n" + `{"event":1,"sha256":"b"}` + "\n" + `{"event":1,"sha256":"b"}` + "\n" + `{"event":2,"sha256":"c"}`, "a b c", 4, ""},
		{"effects and session events", `{"effect":"x"}` + "\n" + `{"event":-1,"sha256":"z"}` + "\n" + `{"event":0,"sha256":"a"}`, "a", 3, ""},
		{"again and different", `{"event":0,"sha256":"a"}` + "\n" + `{"event":0,"sha256":"x"}`, "", 0, "ledger line 2"},
		{"a hole", `{"event":0,"sha256":"a"}` + "\n" + `{"event":2,"sha256":"c"}`, "", 0, "ledger line 2"},
		{"torn", `{"event":0,"sha2`, "", 0, "ledger line 1"},
	} {
		path := filepath.Join(t.TempDir(), "ledger")
		if err := os.WriteFile(path, []byte(tt.ledger), 0o600); err != nil {
			t.Fatal(err)
		}
		digests, lines, err := readLedger(path)
		if tt.bad != "" {
			if err == nil || !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("%s: %v, want %q in it", tt.name, err, tt.bad)
			}
			continue
		}
		if err != nil || lines != tt.lines || strings.Join(digests, " ") != tt.want {
			t.Errorf("%s: %q, %d lines, %v", tt.name, digests, lines, err)
		}
	}
	if _, _, err := readLedger(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a ledger that does not exist was read")
	}
}

// TestDescriptors: what the control plane is told of the drivers is what the
// CLI offers.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	var names []string
	for _, d := range descriptors() {
		names = append(names, d.Name)
		if len(d.InputSchema) == 0 || len(d.PermissionModes) == 0 || d.Version == "" {
			t.Errorf("descriptor %+v", d)
		}
	}
	if got := strings.Join(names, " "); got != "codex command scripted" {
		t.Errorf("drivers %s", got)
	}
}

// TestManPage: every verb and flag is in it, and nothing is taken for a
// request of roff.
func TestManPage(t *testing.T) {
	t.Parallel()
	code, page, stderr := invoke(t, nil, "man")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	for _, want := range []string{
		".TH BOWLINE 1\n", ".SS bowline run [flags] [\\-\\-prompt TEXT | \\-\\- ARGV...]\n", ".B \\-\\-token\\-file FILE\n",
		".SS bowline runs events RUN", ".SS bowline harness prp", ".SS bowline completion", ".B 130\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for line := range strings.Lines(page) {
		request, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(line, ".") && !strings.Contains(" .TH .SH .SS .TP .B .nf .fi ", " "+request+" ") {
			t.Errorf("line %q is a request", line)
		}
	}
	if got := roff(".x\n'y\na-b\\c…\n"); got != "\\&.x\n\\&'y\na\\-b\\ec..." {
		t.Errorf("escaped as %q", got)
	}
}
