// Package resource holds the JSON shapes of the host API: what a host sends
// and what it gets back. The API, the Go SDK and the run manager share them, so
// that there is one definition of each member. It has no behaviour beyond the
// codecs of its types.
//
// Times are RFC 3339 in UTC. Ids are UUIDv7. Members that a host may leave out
// carry omitempty; the schema tags are read by the API for validation and for
// /openapi.json.
package resource

import (
	"encoding/json"
	"time"

	"bowline/wire"
	"bowline/wire/prp"
)

// APIVersion is the value of the Bowline-Api-Version header. The client checks
// it before it decodes anything.
const APIVersion = "1"

// Header names of the host API.
const (
	HeaderAPIVersion     = "Bowline-Api-Version"
	HeaderSchemaHash     = "Bowline-Schema-Hash"
	HeaderRequestID      = "Bowline-Request-Id"
	HeaderIdempotencyKey = "Idempotency-Key"
	HeaderLastEventID    = "Last-Event-ID"
)

// Media types.
const (
	MediaJSON   = "application/json"
	MediaNDJSON = "application/x-ndjson"
	MediaSSE    = "text/event-stream"
)

// ConnectPath is where the runner of a run dials in: ConnectPath + run id.
const ConnectPath = "/api/runner/v1/connect/"

// Placements of a run: who starts its runner.
const (
	PlacementLocal    = "local"    // the control plane's launcher
	PlacementAttached = "attached" // whoever holds a ticket of this run (bowline run)
)

// Limits of a request (ours, counted before anything is written). The prompt's
// is in bytes of its JSON text, see [runs].
const (
	MaxArgv        = 1024 // arguments
	MaxArgBytes    = 128 << 10
	MaxEnvNames    = 256
	MaxLabels      = 32
	MaxLabelBytes  = 240
	MaxPathBytes   = 4096
	MaxNameBytes   = 240
	MaxTurnTimeMs  = 7 * 24 * 3600 * 1000
	MaxScriptBytes = 256 << 10
)

// CreateRun asks for one run. Exactly one of Prompt and Argv is given, except
// for the scripted driver, which needs neither.
type CreateRun struct {
	// Driver is a kind (command, codex, scripted) or a name of the server's
	// config.
	Driver string `json:"driver" minLength:"1" maxLength:"240" doc:"name of a driver: command, codex, scripted or one of the server's config"`
	Prompt string `json:"prompt,omitempty" doc:"what the agent is asked; at most 480 KiB of JSON text"`
	// Argv is the command of the command driver.
	Argv []string `json:"argv,omitempty" minItems:"1" maxItems:"1024" doc:"the command, for driver command"`
	PTY  bool     `json:"pty,omitempty" doc:"run the command on a terminal"`
	// Script of the scripted driver; nil plays the built-in session.
	Script json.RawMessage `json:"script,omitempty" doc:"for driver scripted; none plays the built-in session"`

	// Workspace is an absolute path of an existing directory; none gives the
	// run a fresh folder below the data folder.
	Workspace string `json:"workspace,omitempty" maxLength:"4096" doc:"absolute path of an existing directory; none: a fresh folder per run"`
	// Env names variables handed to the agent. On the server's side they must
	// be listed by --allow-env; an attached launcher hands over its own.
	Env        []string          `json:"env,omitempty" maxItems:"256" doc:"names of environment variables handed to the agent"`
	Permission string            `json:"permission,omitempty" enum:"default,deny,allow,ask,edits" doc:"permission mode"`
	Labels     map[string]string `json:"labels,omitempty"`
	Limits     *Limits           `json:"limits,omitempty"`
	// Session to continue; not available on prp.
	Session string `json:"session,omitempty" maxLength:"240" doc:"session to continue; not available on profile prp"`

	Placement string `json:"placement,omitempty" enum:"local,attached" doc:"who starts the runner: local (the server, default) or attached (the caller, with a ticket)"`
	// Runner is required for placement attached: what the caller will start.
	Runner *RunnerBuild `json:"runner,omitempty" doc:"for placement attached: the build that will join"`
	// Provider overrides the server's driver config, for placement attached
	// only: the caller's own config decides what runs on the caller's machine.
	Provider *ProviderConfig `json:"provider,omitempty" doc:"for placement attached: kind and command of the caller's driver config"`
}

// Limits of one run.
type Limits struct {
	// TurnTimeMs ends the turn; 0 = no limit.
	TurnTimeMs int64 `json:"turnTimeMs,omitempty" minimum:"0" maximum:"604800000" doc:"milliseconds; 0 or none: no limit"`
}

// RunnerBuild pins the runner that may join: a hello with another version or
// digest is refused.
type RunnerBuild struct {
	Version string `json:"version" minLength:"1" maxLength:"160"`
	Digest  string `json:"digest" pattern:"^sha256:[0-9a-f]{64}$" doc:"sha256:<64 hex> of the executable"`
}

// ProviderConfig is the entry of a config file that a run uses, without values
// of variables.
type ProviderConfig struct {
	Kind    string   `json:"kind" enum:"command,codex,scripted"`
	Command []string `json:"command,omitempty" minItems:"1" maxItems:"1024"`
}

// Run is one piece of work with one terminal outcome.
type Run struct {
	ID         string            `json:"id"`
	SessionID  string            `json:"sessionId"`
	Status     string            `json:"status" doc:"queued, assigned, starting, running, waiting, cancelling, completed, failed, cancelled, orphaned"`
	Reason     string            `json:"reason,omitempty" doc:"why it ended as it did"`
	Driver     string            `json:"driver"`
	Placement  string            `json:"placement"`
	Workspace  string            `json:"workspace,omitempty"`
	Permission string            `json:"permission"`
	Labels     map[string]string `json:"labels,omitempty"`
	// Result is what the turn said at its end, with exitCode for a command;
	// none while the run is open.
	Result            json.RawMessage `json:"result,omitempty"`
	CreatedAt         time.Time       `json:"createdAt"`
	StartedAt         *time.Time      `json:"startedAt,omitempty"`
	EndedAt           *time.Time      `json:"endedAt,omitempty"`
	CancelRequestedAt *time.Time      `json:"cancelRequestedAt,omitempty"`
	// Head is the newest event's cursor, "" before the first.
	Head   string     `json:"head,omitempty"`
	Runner *RunRunner `json:"runner,omitempty"`
}

// Ended tells whether the run has its terminal outcome.
func (r *Run) Ended() bool {
	switch r.Status {
	case "completed", "failed", "cancelled", "orphaned":
		return true
	}
	return false
}

// RunRunner is what a launcher needs to start the runner of a run, and what is
// known of its connection.
type RunRunner struct {
	Profile     string       `json:"profile" doc:"prp"`
	Identity    prp.Identity `json:"identity"`
	ConnectPath string       `json:"connectPath" doc:"path of the runner's WebSocket on this server"`
	Version     string       `json:"version"`
	Digest      string       `json:"digest"`
	Connected   bool         `json:"connected"`
	// Connections counts authenticated connections so far: a launcher sees by
	// it that the process it started has joined.
	Connections int64 `json:"connections"`
	// LeaseExpiresAt is when the newest lease ends, none before the first.
	LeaseExpiresAt *time.Time `json:"leaseExpiresAt,omitempty"`
	Fault          string     `json:"fault,omitempty" doc:"latched integrity fault; operator_required"`
}

// RunList is a page of runs, newest first.
type RunList struct {
	Runs []Run  `json:"runs"`
	Next string `json:"next,omitempty" doc:"cursor of the next page; none at the end"`
}

// IssueTicket asks for a one-use ticket for the runner of one run.
type IssueTicket struct {
	RunID string `json:"runId" minLength:"1" maxLength:"240"`
	// TTLMs is 1000 to 60000 milliseconds; 0 = 60000.
	TTLMs int64 `json:"ttlMs,omitempty" minimum:"1000" maximum:"60000" doc:"lifetime in milliseconds; none: 60000"`
}

// Ticket is the answer; its text appears nowhere else.
type Ticket struct {
	Ticket      string    `json:"ticket"`
	RunID       string    `json:"runId"`
	ExpiresAt   time.Time `json:"expiresAt"`
	ConnectPath string    `json:"connectPath"`
}

// Reasons of [RunnerLost].
const (
	LostGaveUp       = "runner_gave_up" // it did not come back after the restarts
	LostLaunchFailed = "launch_failed"  // it could not be started at all
)

// RunnerLost is an attached launcher's report that it gave up on its runner.
type RunnerLost struct {
	Reason string `json:"reason" enum:"runner_gave_up,launch_failed"`
	Detail string `json:"detail,omitempty" maxLength:"1200" doc:"one line for people; never a secret"`
}

// Meta describes the server.
type Meta struct {
	APIVersion  string            `json:"apiVersion"`
	SchemaHash  string            `json:"schemaHash"`
	Build       Build             `json:"build"`
	Profiles    []string          `json:"profiles"`
	Launch      string            `json:"launch" doc:"local or none"`
	Limits      map[string]int64  `json:"limits"`
	Drivers     []Driver          `json:"drivers"`
	Descriptors []wire.Descriptor `json:"descriptors"`
}

// Build of a program.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
}

// Driver is one driver name that a run may use.
type Driver struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}
