// Package store is the durable side of the control plane: one interface, so
// that the state machines above never see SQL. An acknowledgement given to a
// runner or a host means that [Store.Commit] has returned nil, and that means
// fdatasync has returned.
//
// A write is data, not a closure: [Tx] lists rows to add or replace. The
// implementation groups the transactions that wait into one database
// transaction (all sessions together); each Tx is applied wholly or not at
// all. A commit whose outcome is unknown latches the store: every later call
// fails with wire.CodeStoreIndeterminate and the process must drain.
//
// The live session (controlplane/session) is the only writer of its own rows
// and keeps them in memory; Generation in [SessionRow] fences a second writer.
//
// Concurrency: all methods may be called from any goroutine.
package store

import (
	"context"
	"encoding/json"
	"time"

	"bowline/wire/prp"
)

// Store is what the control plane needs to keep.
type Store interface {
	// Commit applies tx atomically and durably. Errors after which nothing was
	// applied: wire.CodeConflict (a unique key exists: idempotency key, run id,
	// session id, token hash; the session's generation has moved; events do not
	// continue the session's log), wire.CodeNotFound (Run or BumpGeneration name
	// none), wire.CodeLogDamaged (of this session), wire.CodeTooLarge,
	// wire.CodeDiskFull, wire.CodeUnavailable (closed), ctx's own error (it
	// ended before the write was taken up; after that Commit waits for the true
	// outcome). wire.CodeStoreIndeterminate: latched, the outcome is unknown.
	// tx and everything in it must not change until Commit returns.
	Commit(ctx context.Context, tx *Tx) error
	// Latched returns the error that latched the store, or nil.
	Latched() error

	// Session loads one session with everything its state machine needs. At
	// most eventWindow events (the newest runner events) are returned,
	// ascending. Unknown id: wire.CodeNotFound. All reads: a damaged log is
	// wire.CodeLogDamaged, of that session alone.
	Session(ctx context.Context, id string, eventWindow int) (*SessionState, error)
	// SessionByRun gives the id of the session that serves a run.
	SessionByRun(ctx context.Context, runID string) (string, error)
	// Events returns host-log entries with Seq > after, ascending, at most
	// limit and at most about maxBytes of bodies (at least one entry).
	Events(ctx context.Context, sessionID string, after int64, limit, maxBytes int) ([]EventRow, error)

	Run(ctx context.Context, id string) (*RunRow, error)
	// Runs lists newest first. Cursor "" starts; next "" ends.
	Runs(ctx context.Context, q RunQuery) (rows []RunRow, next string, err error)
	// OpenRuns lists the runs without a terminal status, oldest first.
	OpenRuns(ctx context.Context) ([]RunRow, error)
	Launch(ctx context.Context, runID string) (*LaunchRow, error) // CodeNotFound if never launched
	Idempotent(ctx context.Context, key string) (*IdempotencyRow, error)
	Token(ctx context.Context, hash [32]byte) (*TokenRow, error)
	Tickets(ctx context.Context, runID string) ([]TicketRow, error)
	Audit(ctx context.Context, after int64, limit int) ([]AuditRow, error)
	Setting(ctx context.Context, name string) (string, error) // CodeNotFound if never set

	Close() error
}

// Tx is one atomic write. Nil and empty members are skipped.
type Tx struct {
	// Session, if set, replaces the session's row; the write is refused with
	// wire.CodeConflict unless the stored generation equals
	// Session.Generation. NewSession inserts instead.
	Session    *SessionRow
	NewSession *SessionRow

	Events      []EventRow   // appended to the host log of Session.ID
	Redelivered []int64      // source seqs whose delivery count grows by one
	Commands    []CommandRow // inserted or replaced by (session, controller seq)

	Tickets        []TicketRow // inserted or replaced by credential id
	Leases         []LeaseRow  // inserted or replaced by credential id
	DropTickets    []string    // credential ids
	DropLeases     []string    // credential ids
	Run            *RunRow     // replaced by id
	NewRun         *RunRow     // inserted; conflict if the id exists
	Launch         *LaunchRow  // replaced by run id
	Idempotency    *IdempotencyRow
	Token          *TokenRow
	Audit          []AuditRow
	Settings       map[string]string
	BumpGeneration string // session id whose generation grows by one (taken over by a new owner)
}

// SessionRow is the head of one session: identity, cursors, counters.
type SessionRow struct {
	ID         string // = Identity.NormalizedSessionID
	Profile    string // "prp"
	Identity   prp.Identity
	Generation int64 // fence of its owner

	RunnerVersion string // expected in the hello
	RunnerDigest  string // sha256:<64 hex>
	LeaseTTL      time.Duration

	Epoch   int64 // of host cursors: 1 until a restore
	HeadSeq int64 // last host-log number given

	AckedSourceSeq int64 // runner events durable here, cumulative

	// Counters of prp.md 8.2.
	ConnectionCount         int64
	ReplayDeliveries        int64
	DuplicateCommandResults int64
	FreshBootstraps         int64
	MalformedFrames         int64
	LastLeaseID             string
	LastLeaseExpiresAtMs    int64 // Unix milliseconds, 0 = none

	FaultReason string // "" or an integrity fault's reason (latched)
	// Pinned are host-log numbers of unsettled host-tool inputs that are older
	// than the newest event window: Session's Events do not hold them, their
	// settledness still counts (prp.md 8.3). Usually nil, ascending.
	Pinned []int64
	// RunAttachTemplate: run.prepare payload without connection data (prp.md 6.5).
	RunAttachTemplate json.RawMessage
}

// Origins of a host-log entry.
const (
	OriginRunner       = "runner"
	OriginControlPlane = "control_plane"
)

// EventRow is one entry of a session's host log.
type EventRow struct {
	Seq    int64 // dense, 1, 2, 3, …
	RunID  string
	Origin string
	Type   string
	At     time.Time // committed at, UTC, ms
	Late   bool      // came after the run's terminal event

	// Of runner events only.
	SourceSeq     int64
	SourceEventID string
	Priority      int
	DeliveryCount int64

	// Body: for a runner event the exact bytes of the received envelope; for a
	// control-plane event its payload.
	Body   []byte
	Digest [32]byte // SHA-256 of Body
}

// CommandRow is one journaled command (prp.md 5.4).
type CommandRow struct {
	ControllerSeq int64
	CommandID     string
	Type          string
	Record        json.RawMessage // wire record, without status and result
	Status        string          // pending | completed | failed | rejected | indeterminate
	Result        json.RawMessage // whole result payload, nil while pending
	DeliveryCount int64
	QueuedAt      time.Time
	DoneAt        time.Time // zero while pending
}

// TicketRow is one bootstrap ticket (prp.md 2.4). AuthKey authenticates: the
// database file is 0600 and counts as a secret until keys are sealed.
type TicketRow struct {
	RecordID      string
	CredentialID  string
	AuthKey       [32]byte
	SessionID     string
	RunID         string
	Identity      prp.Identity
	RunnerVersion string
	RunnerDigest  string
	ExpiresAtMs   int64
	UsedAtMs      int64 // 0 = unused
	CreatedAtMs   int64
}

// LeaseRow is one connection lease (prp.md 2.5).
type LeaseRow struct {
	RecordID        string
	CredentialID    string
	AuthKey         [32]byte
	LeaseID         string
	SessionID       string
	Identity        prp.Identity
	ProtocolVersion int
	ExpiresAtMs     int64
	RevocationEpoch int64
	RevokedAtMs     int64 // 0 = live
}

// Run statuses (host-api.md).
const (
	StatusQueued     = "queued"
	StatusAssigned   = "assigned"
	StatusStarting   = "starting"
	StatusRunning    = "running"
	StatusWaiting    = "waiting"
	StatusCancelling = "cancelling"
	StatusCompleted  = "completed"
	StatusFailed     = "failed"
	StatusCancelled  = "cancelled"
	StatusOrphaned   = "orphaned"
)

// Terminal tells whether a run of this status has ended.
func Terminal(status string) bool {
	switch status {
	case StatusCompleted, StatusFailed, StatusCancelled, StatusOrphaned:
		return true
	}
	return false
}

// Placements: who starts the runner of a run.
const (
	PlacementLocal    = "local"    // the control plane's launcher
	PlacementAttached = "attached" // whoever holds a ticket of this run (bowline run)
)

// RunRow is one run.
type RunRow struct {
	ID         string // UUIDv7
	SessionID  string
	Status     string
	Reason     string // why it is in a terminal status: "", "no_result", "runner_lost", "indeterminate", "launch_failed", …
	Driver     string // name as the host gave it
	Placement  string
	Workspace  string // absolute
	Permission string
	Labels     map[string]string
	Request    json.RawMessage // the validated request of the host
	Result     json.RawMessage // {"exitCode":…} and what the turn end said; nil while open
	CreatedAt  time.Time
	StartedAt  time.Time // turn accepted; zero before
	EndedAt    time.Time
	CancelAt   time.Time // first cancel request; zero if none
	// Conductor is the run state machine's own state between restarts.
	Conductor json.RawMessage
}

// RunQuery filters a list.
type RunQuery struct {
	Status string
	Limit  int
	Cursor string
}

// LaunchRow is the newest process that the launcher started for a run.
type LaunchRow struct {
	RunID      string
	Attempt    int // 1 = first start
	PID        int
	StartTicks uint64 // field 22 of /proc/PID/stat: with BootID it names the process
	BootID     string
	StartedAt  time.Time
	ExitedAt   time.Time // zero while not known to have exited
	Exit       string    // "code 1", "signal SIGKILL"
}

// IdempotencyRow remembers a POST.
type IdempotencyRow struct {
	Key       string // scoped by token and route
	BodyHash  [32]byte
	RunID     string
	CreatedAt time.Time
}

// TokenRow is one host token; only its hash is kept.
type TokenRow struct {
	ID        string
	Hash      [32]byte // SHA-256 of the token text
	Name      string
	Scopes    []string // read run answer operate admin
	CreatedAt time.Time
	ExpiresAt time.Time // zero = never
	RevokedAt time.Time
}

// AuditRow is one line of the audit log.
type AuditRow struct {
	Seq    int64 // given by the store
	At     time.Time
	Actor  string // token id, "runner", "launcher", "system"
	Action string // "run.create", "ticket.issue", "runner.join", "runner.refused", …
	Target string // id
	Detail json.RawMessage
}
