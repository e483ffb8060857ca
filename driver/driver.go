// Package driver turns one agent provider (Codex app-server, an ACP agent,
// Claude Code, a plain command) into Bowline's vocabulary.
//
// A driver never talks to the control plane and never starts a process by
// itself: everything it does goes through the [Host] it is opened with, which
// runnerd implements. So the same driver runs under a test kit
// (driver/drivertest) and in a sandbox.
//
// Concurrency: the methods of a [Session] may be called from several
// goroutines; a driver serialises what its provider cannot take at once. Emit
// is called from one goroutine at a time per session: order of calls is order
// of events.
package driver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"
)

// Permission is what happens when the agent asks to do something
// (architecture, "permission mode"). Each driver maps it to its provider's
// modes in a table.
type Permission string

// The permission modes. Ask and Edits are named and refused for now.
const (
	PermissionDefault Permission = "default" // the provider's policy and sandbox stand, what it asks is declined
	PermissionDeny    Permission = "deny"    // decline everything
	PermissionAllow   Permission = "allow"   // everything the sandbox lets through
	PermissionAsk     Permission = "ask"     // a person answers
	PermissionEdits   Permission = "edits"   // files in the workspace yes, commands ask
)

// Descriptor is what a driver says of itself. It is data: the control plane
// validates a run's input with it without linking the driver.
type Descriptor struct {
	Name            string          `json:"name"`            // "codex", "command", "scripted"
	Version         string          `json:"version"`         // of the driver
	ProviderVersion string          `json:"providerVersion"` // what it was built against, e.g. "codex-app-server-v1"
	InputSchema     json.RawMessage `json:"inputSchema"`     // JSON Schema of a run's input
	PermissionModes []Permission    `json:"permissionModes"`
	Capabilities    Capabilities    `json:"capabilities"`
}

// Capabilities are the optional operations of a session. Calling one that is
// not listed returns [ErrUnsupported].
type Capabilities struct {
	Resume          bool `json:"resume"`          // Open with Config.Resume continues the same provider session
	Steer           bool `json:"steer"`           //
	Interrupt       bool `json:"interrupt"`       //
	RuntimeRequests bool `json:"runtimeRequests"` // asks a person through [RequestOpened]
	HostTools       bool `json:"hostTools"`       //
	Goals           bool `json:"goals"`           //
}

// Config opens a session.
type Config struct {
	// Provider is the provider object of run.prepare, already known to be of
	// this driver's kind; the driver validates its members strictly.
	Provider json.RawMessage
	// Workspace is an existing absolute directory.
	Workspace string
	// Env is the whole environment of the provider process, "NAME=value". The
	// driver may add to it, never read os.Environ.
	Env []string
	// Permission mode of the session.
	Permission Permission
	// Resume is the state of the last Emit that carried one, nil for a new
	// session. A driver without Capabilities.Resume is never given one.
	Resume json.RawMessage
}

// Driver makes sessions of one provider.
type Driver interface {
	Descriptor() Descriptor
	// Validate checks the provider object of run.prepare before anything is
	// started. It returns a *wire.Error naming the member.
	Validate(provider json.RawMessage) error
	// Open starts or resumes the provider. On success the driver has emitted
	// session.started (or session.resumed) with the session's identity.
	Open(ctx context.Context, host Host, cfg Config) (Session, error)
}

// Turn is one prompt-to-terminal cycle.
type Turn struct {
	ID   string // requested turn id; a provider may answer with its own
	Text string // prompt; empty for a command
}

// Session is one conversation with one provider.
type Session interface {
	// StartTurn begins a turn and returns the provider's id of it as soon as
	// the provider accepted; the turn's events follow through Host.Emit and
	// end with exactly one turn.completed, turn.failed, turn.interrupted or
	// turn.cancelled, whatever the provider does.
	StartTurn(ctx context.Context, turn Turn) (providerTurnID string, err error)
	// Steer adds input to the running turn.
	Steer(ctx context.Context, providerTurnID, text string) error
	// Interrupt asks the running turn to stop, and escalates by itself
	// (interrupt, grace, TERM, KILL of the tree) if the provider does not; the
	// terminal turn event follows. Without a running turn: [ErrNoTurn].
	Interrupt(ctx context.Context, providerTurnID string) error
	// Resolve answers a runtime request; first answer wins.
	Resolve(ctx context.Context, answer Resolution) error
	// Identity of the provider session: what session.snapshot answers.
	Identity() Identity
	// Close stops the provider and its whole process tree and returns when
	// both are proven gone. A running turn ends with turn.cancelled. Close is
	// idempotent.
	Close(ctx context.Context) error
}

// Identity of a provider session.
type Identity struct {
	ThreadID             string `json:"threadId"`
	SessionID            string `json:"sessionId"`
	ProcessID            int    `json:"processId,omitempty"`
	ActiveProviderTurnID string `json:"activeProviderTurnId,omitempty"`
	Cwd                  string `json:"cwd,omitempty"`
}

// Resolution answers a runtime request.
type Resolution struct {
	RequestID string
	Response  json.RawMessage
}

// Event is one event before it gets a sequence number. Type is a PRP v1 event
// type (prp.md 7.2); Payload its JSON object. Priority: 0 terminal facts, 1
// completed items, 2 deltas (prp.md 7.5).
type Event struct {
	Type     string
	Priority int
	Payload  json.RawMessage
	// Resume, when not nil, replaces the session's resume state in the same
	// durable write as this event.
	Resume json.RawMessage
	// Terminal marks the one event that ends a turn.
	Terminal bool
}

// Host is what runnerd offers a session.
type Host interface {
	// Emit hands an event over: redacted, numbered, appended to the session
	// log. It blocks while the log's budget is exhausted (back-pressure to the
	// provider instead of loss) and returns an error only when the session is
	// over: then the driver stops.
	Emit(ctx context.Context, ev Event) error
	// Spawn starts a supervised process. The record of the process is durable
	// before it runs, so a successor of this runnerd can kill its tree.
	Spawn(ctx context.Context, spec ProcessSpec) (Process, error)
	// Diagnostic writes one line for operators (redacted, bounded): what was
	// declined, skipped or odd. Never provider output.
	Diagnostic(format string, args ...any)
	// Now is the clock.
	Now() time.Time
}

// ProcessSpec describes a process.
type ProcessSpec struct {
	Argv []string
	Dir  string
	Env  []string
	PTY  bool // stdin, stdout and stderr are one terminal
	// StdinNull makes stdin /dev/null instead of a pipe.
	StdinNull bool
}

// Process is a supervised process and its whole tree.
type Process interface {
	PID() int
	Stdin() io.WriteCloser // nil with StdinNull
	Stdout() io.Reader     // with PTY: everything
	Stderr() io.Reader     // nil with PTY
	// Interrupt sends SIGINT to the process group.
	Interrupt() error
	// Stop ends the tree: SIGTERM, grace, SIGKILL of every descendant. It
	// returns when all are gone.
	Stop(ctx context.Context, grace time.Duration) error
	// Wait returns when the leader has exited and its output was read to the
	// end or given up (a descendant may hold the pipes open). It is safe to
	// call more than once.
	Wait() Exit
}

// Exit is how a process leader ended.
type Exit struct {
	Code          int    // valid when Signal is empty
	Signal        string // "SIGKILL", …
	PipesLeftOpen bool   // a descendant held stdout or stderr after the leader exited
	Err           error  // could not be waited for
}

// Errors of sessions.
var (
	ErrUnsupported = errors.New("driver: operation not supported by this provider")
	ErrNoTurn      = errors.New("driver: no turn is running")
	ErrTurnRunning = errors.New("driver: a turn is already running")
	ErrClosed      = errors.New("driver: session is closed")
)

// ProviderError is a provider's own failure: its message is shown (redacted).
type ProviderError struct {
	Code    string // ours, stable: "provider_exited", "initialize_failed", …
	Message string
}

func (e *ProviderError) Error() string { return e.Code + ": " + e.Message }
