package runnerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"bowline/runnerd/journal"
	"bowline/runnerd/link"
	"bowline/runnerd/redact"
	"bowline/runnerd/supervise"
	"bowline/wire"
	"bowline/wire/prp"
)

// Stdio is where the program talks.
type Stdio struct {
	Out io.Writer
	Err io.Writer
}

// Main is the whole program; it returns the exit code. args are the arguments
// behind the program's name, env its environment. Ending ctx is like SIGTERM.
func Main(ctx context.Context, args, env []string, stdio Stdio) int {
	// A spawner that was killed leaves pipes without reader: a line for stderr
	// must not end the process with a signal. Caught rather than ignored,
	// because children would inherit an ignored signal.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, unix.SIGPIPE)
	defer signal.Stop(pipe)
	env, own, foreign, err := takeTickets(env)
	chosen := own != nil || mentions(args, "ticket-fd", "ticket-file")
	prpUse := !chosen
	if err == nil {
		err = errors.Join(supervise.CloseOnExec(), supervise.ClearDumpable())
	}
	if prpUse && foreign == nil && !mentions(args, "connect-url", "listen-address", "listen-port", "listen-path") {
		// Neither a ticket nor a mode: somebody at a terminal.
		prpUse = false
	}
	if err == nil && !prpUse && len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
		p := program{stdio: stdio, redactor: redact.New()}
		return p.exit(printHelp(stdio.Out))
	}
	var c config
	if err == nil {
		c, err = parseFlags(args, prpUse)
	}
	c.prpUse = prpUse
	p := program{config: c, env: env, stdio: stdio}
	p.redactor = redact.New(passed(env, c.passEnv)...)
	if err != nil {
		return p.exit(err)
	}
	switch {
	case c.buildMetadata:
		return p.exit(printMetadata(stdio.Out))
	case c.printVersion:
		_, err := fmt.Fprintf(stdio.Out, "bowline-runnerd %s (prp %d..%d)\n", buildVersion(), prp.VersionMin, prp.VersionMax)
		return p.exit(err)
	}
	if p.ticket, err = c.ticket(own, foreign); err != nil {
		return p.exit(err)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
	defer stop()
	return p.exit(p.run(ctx))
}

func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// metadata is the object of prp.md 11.3. Listener mode is not offered, so it is
// not among the transport modes.
type metadata struct {
	Schema                     string   `json:"schema"`
	BinaryName                 string   `json:"binaryName"`
	PackageName                string   `json:"packageName"`
	PackageVersion             string   `json:"packageVersion"`
	BinaryContractVersion      int      `json:"binaryContractVersion"`
	DurableSessionCapabilities []string `json:"durableSessionCapabilities"`
	NativeExecutionVersion     int      `json:"nativeExecutionVersion"`
	HarnessDriverVersion       int      `json:"harnessDriverVersion"`
	PRP                        struct {
		Name           string `json:"name"`
		MinimumVersion int    `json:"minimumVersion"`
		MaximumVersion int    `json:"maximumVersion"`
	} `json:"prp"`
	PRPTransportModes []string `json:"prpTransportModes"`
}

// standInVersion is the runner version whose contract this program fulfils
// (prp.md 11.1).
const standInVersion = "0.3.0"

func printMetadata(w io.Writer) error {
	m := metadata{
		Schema: "paperclip-runner/runnerd-build-metadata/v1", BinaryName: "paperclip-runnerd",
		PackageName: "@paperclipai/paperclip-runner", PackageVersion: standInVersion, BinaryContractVersion: 2,
		DurableSessionCapabilities: []string{"unlimited_runtime", "connection_lease_renewal"},
		NativeExecutionVersion:     1, HarnessDriverVersion: 1,
		PRPTransportModes: []string{"dial_ws_loopback", "dial_wss"},
	}
	m.PRP.Name, m.PRP.MinimumVersion, m.PRP.MaximumVersion = prp.Protocol, prp.VersionMin, prp.VersionMax
	return json.NewEncoder(w).Encode(m)
}

// program is one start of a runner.
type program struct {
	config
	env      []string
	ticket   string
	stdio    Stdio
	redactor *redact.Redactor
}

// logger writes JSON to stderr; in PRP use nothing but the last word goes there.
func (p *program) logger() *slog.Logger {
	if p.prpUse {
		return slog.New(slog.DiscardHandler)
	}
	opt := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch v := a.Value.Any().(type) {
		case string:
			a.Value = slog.StringValue(p.redactor.String(v))
		case error:
			a.Value = slog.StringValue(p.redactor.String(v.Error()))
		}
		return a
	}}
	var h slog.Handler = slog.NewJSONHandler(p.stdio.Err, opt)
	if p.logFormat == "text" {
		h = slog.NewTextHandler(p.stdio.Err, opt)
	}
	return slog.New(h).With("session", p.identity.NormalizedSessionID, "run", p.identity.RunID)
}

// exit says why the program ends and gives the exit code.
func (p *program) exit(err error) int {
	if err == nil {
		return wire.ExitOK
	}
	text := p.redactor.String(onceEach(err.Error()))
	if p.prpUse {
		line := "paperclip-runnerd: " + text + "\n"
		if _, werr := io.WriteString(p.stdio.Err, line); werr != nil {
			return wire.ExitFailed
		}
		p.keepDiagnostics(line)
		return wire.ExitFailed
	}
	code := exitCode(err)
	slog.New(slog.NewJSONHandler(p.stdio.Err, nil)).Error("runner ends", "code", codeOf(err), "exit", code, "err", text)
	return code
}

// onceEach drops repeated lines: several parts of a runner end with the same
// error.
func onceEach(text string) string {
	seen := make(map[string]bool)
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if !seen[line] {
			seen[line] = true
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// diagnosticsLimit bounds the file of --diagnostics-directory, in bytes (prp.md
// 14.3).
const diagnosticsLimit = 64 << 10

// keepDiagnostics writes the last word into --diagnostics-directory, where a
// spawner that ignores stderr looks.
func (p *program) keepDiagnostics(line string) {
	if p.diagnosticsDir == "" {
		return
	}
	if len(line) > diagnosticsLimit {
		line = line[:diagnosticsLimit] + "…[truncated]"
	}
	v := journal.View{Dir: p.diagnosticsDir, PID: os.Getpid()}
	if err := v.Write("runnerd.stderr.log", []byte(line)); err != nil {
		// There is nowhere left to say it; stderr has the line itself.
		return
	}
}

func codeOf(err error) string {
	switch {
	case errors.Is(err, link.ErrTicketSpent), errors.Is(err, link.ErrTicketRefused):
		return "ticket_spent"
	case errors.Is(err, link.ErrLeaseExpired):
		return link.ErrLeaseExpired.Error()
	case errors.Is(err, link.ErrGrace):
		return link.ErrGrace.Error()
	case errors.Is(err, link.ErrDeadline):
		return link.ErrDeadline.Error()
	case errors.Is(err, journal.ErrIdentity):
		return "runner_state_identity_mismatch"
	}
	return string(wire.CodeOf(err))
}

func exitCode(err error) int {
	switch {
	case errors.Is(err, link.ErrTicketSpent), errors.Is(err, link.ErrTicketRefused), errors.Is(err, link.ErrLeaseExpired):
		return wire.ExitRefused
	case errors.Is(err, link.ErrGrace), errors.Is(err, link.ErrDeadline):
		return wire.ExitFailed
	}
	return wire.CodeOf(err).ExitCode()
}
