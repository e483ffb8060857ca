// Package cli is the bowline command: what each verb does with the control
// plane's client, the launcher and the terminal. The programs in cmd/ only wire
// it to the process.
//
// Results go to stdout, talk goes to stderr. Exit codes are those of
// wire.Code.ExitCode: 0 ok, 1 failed, 2 usage, 3 not ready, 4 refused by peer,
// 5 integrity fault, 130 interrupted.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bowline/wire"
)

// Process is what a program hands over of itself. Nothing below reads the
// process's globals.
type Process struct {
	Args   []string // without the program's name
	Env    []string // "NAME=value"
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Dir is the current folder, absolute.
	Dir string
	// Self is the path of the running executable ("/proc/self/exe").
	Self string
	// Signals delivers SIGINT and SIGTERM.
	Signals <-chan os.Signal
}

// exitError carries an exit code whose message was already shown.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// app is one invocation.
type app struct {
	Process
	getenv map[string]string
	talk   *talk
	// verb says that a verb was reached: an untyped error is not cobra's.
	verb bool
}

func newApp(p Process) *app {
	a := &app{Process: p, getenv: make(map[string]string, len(p.Env)), talk: &talk{w: p.Stderr}}
	for _, kv := range p.Env {
		if name, value, ok := strings.Cut(kv, "="); ok {
			a.getenv[name] = value
		}
	}
	return a
}

// Root is the tree of verbs and flags, for documents and completions.
func Root() *cobra.Command { return newApp(Process{Stderr: io.Discard}).root() }

// Main runs one invocation and returns its exit code.
func Main(ctx context.Context, p Process) int {
	a := newApp(p)
	root := a.root()
	root.SetArgs(p.Args)
	err := root.ExecuteContext(ctx)
	return a.exit(err)
}

func (a *app) root() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "bowline",
		Short: "Run coding agents in places you do not trust and lose nothing",
		Long: "Bowline runs coding agents in places you do not trust and loses nothing.\n\n" +
			"  bowline demo                        watch a runner being killed and come back\n" +
			"  bowline run -- make test            run a command in a runner\n" +
			"  bowline run --prompt 'fix the bug'  run Codex in the current folder",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return a.printVersion()
			}
			return cmd.Help()
		},
		PersistentPreRun: func(*cobra.Command, []string) { a.verb = true },
	}
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return wire.Errorf(wire.CodeUsage, "%v (see %s --help)", err, cmd.CommandPath())
	})
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout) // before generated: cobra's completion keeps it
	root.SetErr(a.Stderr)
	root.AddCommand(a.runCommand(), a.runsCommand(), a.serveCommand(), a.stopCommand(),
		a.demoCommand(), a.harnessCommand(), a.versionCommand(), a.manCommand())
	generated(root)
	return root
}

// generated gives cobra's own commands our errors: an unknown shell or topic is
// a usage error, not a page of help and exit code 0.
func generated(root *cobra.Command) {
	root.InitDefaultCompletionCmd("completion")
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Short, cmd.Args, cmd.RunE = "Print the completion script of a shell", noCommand, whichVerb("which shell?", "bash|zsh|fish|powershell")
		case "help":
			cmd.Run, cmd.RunE = nil, func(cmd *cobra.Command, args []string) error {
				about, rest, err := cmd.Root().Find(args)
				if err != nil || len(rest) > 0 {
					return noCommand(cmd.Root(), args)
				}
				return about.Help()
			}
		}
	}
}

// whichVerb is the error of a command that only groups others.
func whichVerb(question, verbs string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		return wire.Errorf(wire.CodeUsage, "%s %s %s", question, cmd.CommandPath(), verbs)
	}
}

// exit shows an error that ended the command and gives its code.
func (a *app) exit(err error) int {
	if err == nil {
		return wire.ExitOK
	}
	var ee *exitError
	if errors.As(err, &ee) {
		return ee.code
	}
	if errors.Is(err, context.Canceled) {
		return wire.ExitSignal
	}
	var we *wire.Error
	if !errors.As(err, &we) {
		// Before a verb is reached, only cobra complains (arguments of its own
		// commands).
		we = &wire.Error{Code: wire.CodeUsage, Message: err.Error()}
		if a.verb {
			we.Code = wire.CodeInternal
		}
	}
	a.warn("bowline: %s (%s)", printable(withReason(we)), we.Code)
	return we.Code.ExitCode()
}

// printJSON writes v as one line on stdout.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.Stdout)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return stdoutFailed(err)
	}
	return nil
}

// terminal tells whether w is one, and its width does not matter.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// dataDir is the data folder: the flag, else XDG_STATE_HOME/bowline, else
// ~/.local/state/bowline. A HOME that is not absolute is none: the background
// server has another current folder.
func (a *app) dataDir(flag string) (string, error) {
	var dir string
	switch {
	case flag != "":
		dir = a.abs(flag)
	case filepath.IsAbs(a.getenv["XDG_STATE_HOME"]):
		dir = filepath.Join(a.getenv["XDG_STATE_HOME"], "bowline")
	case filepath.IsAbs(a.getenv["HOME"]):
		dir = filepath.Join(a.getenv["HOME"], ".local", "state", "bowline")
	default:
		return "", wire.Errorf(wire.CodeUsage, "no data folder: neither --data is given nor is XDG_STATE_HOME or HOME an absolute path")
	}
	return dir, utf8Only("data folder", dir)
}

// utf8Only refuses what JSON cannot carry: a byte that silently became another
// one would name another file, or run another command.
func utf8Only(what, text string) error {
	if !utf8.ValidString(text) {
		return wire.Errorf(wire.CodeUsage, "%s: holds bytes that are not UTF-8, which cannot be handed over as they are", what).With("field", what)
	}
	return nil
}

// abs makes a path of the command line absolute.
func (a *app) abs(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(a.Dir, path)
}

// noCommand refuses a verb that does not exist and suggests the one that was
// meant.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	cmd.SuggestionsMinimumDistance = 2 // edits, cobra's own default
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = ", did you mean " + near[0] + "?"
	}
	return wire.Errorf(wire.CodeUsage, "unknown command %q for %q%s (see %s --help)", args[0], cmd.CommandPath(), hint, cmd.CommandPath())
}

// noArgs refuses arguments with a typed error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return wire.Errorf(wire.CodeUsage, "%s takes no arguments", cmd.CommandPath())
	}
	return nil
}

// oneArg wants exactly one argument, called name in the error.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return wire.Errorf(wire.CodeUsage, "%s takes one argument: %s", cmd.CommandPath(), name)
		}
		return nil
	}
}
