// Package launch starts the runner of a run as a process of this machine and
// keeps it running until the run has ended.
//
// A runner gets its own session (setsid), so that it outlives whoever started
// it; its output goes straight to a file, for the same reason. Our own runnerd
// gets its one-use ticket through a pipe and only after the caller has made
// the process durable ([Owner.Started]): if the caller dies in between, the
// pipe closes and the runner exits without ever having joined. Another program
// (StandIn) is started as the spawner of "paperclip.runner" starts it (prp.md
// 11.4, 11.6), with the ticket in its environment. A ticket is never in argv.
//
// Concurrency: one goroutine calls [Supervisor.Run]; it starts no goroutine
// that outlives the call.
package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"bowline/wire"
	"bowline/wire/prp"
)

// SelfExe is the executable of this process, also after the file was replaced.
const SelfExe = "/proc/self/exe"

// RunnerArgv0 makes the bowline binary act as runnerd.
const RunnerArgv0 = "runnerd"

// StandInVersion is the version a stand-in runner is expected to have (prp.md
// 11.1).
const StandInVersion = "0.3.0"

// OwnVersion is the version our own runnerd says in its hello. It is the same
// as [StandInVersion], because an authority of "paperclip.runner" pins it; the
// build itself is told apart by its digest.
const OwnVersion = StandInVersion

// StandInTicketVar carries the ticket of a stand-in (prp.md 2.10); TicketVar
// is our own name. Both are removed from an environment that is handed on.
const (
	StandInTicketVar = "PAPERCLIP_RUNNER_BOOTSTRAP_TICKET"
	TicketVar        = "BOWLINE_TICKET"
)

// Values a spawner of "paperclip.runner" passes (prp.md 11.4).
const (
	standInOutboxBytes  = 16 << 20
	standInReserveBytes = 1 << 20
	standInReconnectMs  = 250
)

// DefaultMaxFrameBytes is the frame limit a runner is started with (prp.md
// 1.5).
const DefaultMaxFrameBytes = 1 << 20

// ticketFD is where the child finds the read end of the ticket's pipe: the
// first descriptor after stdio.
const ticketFD = 3

// Spec says which runner to start and how.
type Spec struct {
	// Path of the executable; "" = [SelfExe] with argv[0] [RunnerArgv0].
	Path string
	// StandIn starts Path as a "paperclip.runner" runnerd: exactly the flags
	// of prp.md 11.4, ticket in the environment.
	StandIn bool

	Identity   prp.Identity
	ConnectURL string
	StateDir   string // of the runner, 0700, made if missing
	LogFile    string // stdout and stderr, 0600; "" = StateDir/../runnerd.log
	Version    string // as pinned for the run
	Digest     string // sha256:<64 hex>, as pinned for the run

	// Env is the runner's whole environment, "NAME=value". Ticket variables in
	// it are dropped.
	Env []string
	// PassEnv names the variables of Env that the provider gets besides the
	// usual ones. Our own runnerd only.
	PassEnv []string
	// Permission mode of the run ("" = default). Our own runnerd only.
	Permission string
	// Workspace of the provider, for drivers whose input names none. Our own
	// runnerd only.
	Workspace string
	// Dir is the working directory; "" = the caller's.
	Dir string
	// MaxFrameBytes; 0 = [DefaultMaxFrameBytes].
	MaxFrameBytes int
	// CABundle is a PEM file for wss (prp.md 1.4); "" = none.
	CABundle string
	// ExtraArgs are appended as they are. Our own runnerd only.
	ExtraArgs []string
}

// executable and argv[0].
func (s *Spec) program() (path, argv0 string) {
	if s.Path == "" {
		return SelfExe, RunnerArgv0
	}
	return s.Path, s.Path
}

// Args are the arguments after argv[0]. They hold no secret.
func (s *Spec) Args() []string {
	maxFrame := s.MaxFrameBytes
	if maxFrame == 0 {
		maxFrame = DefaultMaxFrameBytes
	}
	id := s.Identity
	args := []string{
		"--connect-url", s.ConnectURL,
		"--state-dir", s.StateDir,
		"--runner-id", id.RunnerInstanceID,
		"--environment-lease-id", id.EnvironmentLeaseID,
		"--run-id", id.RunID,
		"--session-id", id.NormalizedSessionID,
		"--turn-id", id.TurnID,
		"--item-id", id.ItemID,
		"--runner-version", s.Version,
		"--runner-digest", s.Digest,
		"--max-frame-bytes", strconv.Itoa(maxFrame),
	}
	if s.CABundle != "" {
		args = append(args, "--ca-bundle-path", s.CABundle)
	}
	if s.StandIn {
		return append(args,
			"--max-outbox-bytes", strconv.Itoa(standInOutboxBytes),
			"--p0-reserve-bytes", strconv.Itoa(standInReserveBytes),
			"--reconnect-delay-ms", strconv.Itoa(standInReconnectMs),
		)
	}
	args = append(args, "--ticket-fd", strconv.Itoa(ticketFD))
	if s.Permission != "" {
		args = append(args, "--permission", s.Permission)
	}
	if s.Workspace != "" {
		args = append(args, "--workspace", s.Workspace)
	}
	if len(s.PassEnv) > 0 {
		args = append(args, "--pass-env", strings.Join(s.PassEnv, ","))
	}
	return append(args, s.ExtraArgs...)
}

// environ is the child's environment.
func (s *Spec) environ(ticket string) []string {
	env := slices.DeleteFunc(slices.Clone(s.Env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == StandInTicketVar || name == TicketVar
	})
	if s.StandIn {
		env = append(env, StandInTicketVar+"="+ticket)
	}
	return env
}

// logFile is where the output goes.
func (s *Spec) logFile() string {
	if s.LogFile != "" {
		return s.LogFile
	}
	return filepath.Join(filepath.Dir(s.StateDir), "runnerd.log")
}

// check refuses what would fail later and less clearly.
func (s *Spec) check() error {
	if err := s.Identity.ValidateRunner(); err != nil {
		return err
	}
	switch {
	case s.ConnectURL == "", s.StateDir == "", s.Version == "", s.Digest == "":
		return wire.Errorf(wire.CodeUsage, "launch: connect URL, state folder, version and digest are required")
	case s.StandIn && s.Path == "":
		return wire.Errorf(wire.CodeUsage, "launch: a stand-in runner needs a path")
	case !filepath.IsAbs(s.StateDir):
		return wire.Errorf(wire.CodeUsage, "launch: the state folder is not an absolute path")
	}
	return nil
}

// standInEnv is the platform allow-list of prp.md 11.6, as far as Linux has it.
func standInEnv() []string {
	return []string{
		"PATH", "HOME", "CODEX_HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "RUST_BACKTRACE",
	}
}

// StandInEnv picks from environ ("NAME=value") what a spawner of
// "paperclip.runner" hands on (prp.md 11.6) and the variables named in extra.
func StandInEnv(environ, extra []string) []string {
	return pickEnv(environ, append(standInEnv(), extra...))
}

// PlatformEnv picks from environ what our own runner needs and the variables
// named in extra: what a stand-in gets, and what programs on Linux expect
// besides.
func PlatformEnv(environ, extra []string) []string {
	names := append(standInEnv(), "http_proxy", "https_proxy", "no_proxy", "all_proxy",
		"USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "XDG_RUNTIME_DIR")
	return pickEnv(environ, append(names, extra...))
}

func pickEnv(environ, names []string) []string {
	var out []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(names, name) {
			out = append(out, kv)
		}
	}
	return out
}

// Digest is "sha256:" and the hex SHA-256 of the file's bytes: what a runner
// is pinned by. "" means [SelfExe]. A file that cannot be read, or is no
// regular file, is wire.CodeSpawnFailed.
func Digest(path string) (digest string, err error) {
	if path == "" {
		path = SelfExe
	}
	f, err := os.Open(path)
	if err != nil {
		return "", &wire.Error{Code: wire.CodeSpawnFailed, Message: "the runner's executable cannot be read: " + path, Cause: err}
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", wire.Errorf(wire.CodeSpawnFailed, "the runner's executable is not a regular file: %s", path)
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
