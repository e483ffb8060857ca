package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"bowline/driver"
	"bowline/runnerd/seglog"
	"bowline/runnerd/supervise"
	"bowline/wire/prp"
)

// Bounds of what is kept (prp.md 9.3).
const (
	// MaxCommands is how many recent commands can be replayed.
	MaxCommands = 128
	// MaxReceipts is how many provider events are remembered by id.
	MaxReceipts = 256
	// MaxDiagnostics is how many diagnostic lines are kept.
	MaxDiagnostics = 32
	// MaxDiagnosticBytes is the longest diagnostic line, in bytes.
	MaxDiagnosticBytes = 4096
)

// Lifecycles (prp.md 9.2).
const (
	LifecycleConnecting         = "connecting"
	LifecycleReady              = "ready"
	LifecycleBackpressure       = "backpressure"
	LifecycleSuspended          = "suspended"
	LifecycleStopped            = "stopped"
	LifecycleRevoked            = "revoked"
	LifecycleRecoverableFailure = "recoverable_failure"
	LifecycleUnrecoverable      = "unrecoverable"
)

// Meta is the small state that is replaced as a whole.
type Meta struct {
	Lifecycle          string `json:"lifecycle"`
	RecoverableFailure string `json:"recoverableFailure,omitempty"`
	// ProtocolVersion of the last connection, 0 before the first.
	ProtocolVersion int   `json:"protocolVersion,omitempty"`
	Reconnects      int64 `json:"reconnects,omitempty"`

	SessionOpen bool            `json:"sessionOpen,omitempty"` // session.open has succeeded
	Turn        *Turn           `json:"turn,omitempty"`        // the running turn
	Provider    driver.Identity `json:"provider"`              // of the provider session

	// PendingTerminal: the result of this suspend or shutdown is durable and
	// not known to be delivered (9.8).
	PendingTerminal *Fence `json:"pendingTerminal,omitempty"`
	// PendingCleanup: the provider's end is not proven (9.8).
	PendingCleanup bool `json:"pendingCleanup,omitempty"`
}

// Turn is a turn the provider was asked for.
type Turn struct {
	TurnID         string `json:"turnId"`
	ProviderTurnID string `json:"providerTurnId,omitempty"` // "" until it accepted
}

// Fence names a terminal command.
type Fence struct {
	CommandID     string `json:"commandId"`
	ControllerSeq int64  `json:"controllerSeq"`
	CommandType   string `json:"commandType"`
	Status        string `json:"status"`
}

// Command is one journaled command.
type Command struct {
	CommandID     string `json:"commandId"`
	ControllerSeq int64  `json:"controllerSeq"`
	Type          string `json:"type"`
	Fingerprint   string `json:"fingerprint"`      // 64 hex digits, prp.md 9.7
	Status        string `json:"status"`           // pending until it has a result
	Result        []byte `json:"result,omitempty"` // JSON, nil while pending
}

// Outcome is the result as it is sent: what is indeterminate travels as failed
// (prp.md 5.5).
func (c Command) Outcome() (status string, result []byte) {
	if c.Status == prp.StatusIndeterminate {
		return prp.StatusFailed, c.Result
	}
	return c.Status, c.Result
}

// Entry is one event of the outbox.
type Entry struct {
	Seq      int64
	Priority int
	Type     string
	Event    []byte // exact bytes of the PRP event
	At       int64  // Unix ms

	size    int64
	pending *seglog.Pending // nil: was read from the log
	segment uint64
}

// Receipt remembers a provider event (prp.md 9.1).
type Receipt struct {
	ExecutorID  string `json:"executorId"`
	Fingerprint string `json:"fingerprint"`
	Seq         int64  `json:"seq"`
}

// V2Event is the last event of a family that only version 2 knows.
type V2Event struct {
	Type     string `json:"type"`
	Priority int    `json:"priority"`
	Payload  []byte `json:"payload"`
}

type header struct {
	Format    int          `json:"format"`
	Identity  prp.Identity `json:"identity"`
	MaxOutbox int64        `json:"maxOutboxBytes"`
	P0Reserve int64        `json:"p0ReserveBytes"`
}

// durable is everything but the outbox: what a checkpoint holds.
type durable struct {
	Header       header                      `json:"header"`
	Meta         Meta                        `json:"meta"`
	NextSeq      int64                       `json:"nextSeq"`
	Acked        int64                       `json:"acked"`
	NextProvider int64                       `json:"nextProvider"`
	LastCommand  int64                       `json:"lastCommand"`
	Compacted    int64                       `json:"compacted"`
	Commands     []Command                   `json:"commands"` // ascending
	Processes    map[string]supervise.Record `json:"processes,omitempty"`
	Receipts     []Receipt                   `json:"receipts,omitempty"`
	V2           map[string]V2Event          `json:"v2,omitempty"`
	Diagnostics  []string                    `json:"diagnostics,omitempty"`
	PeakOutbox   int64                       `json:"peakOutbox"`
}

type state struct {
	durable
	prepare []byte
	resume  []byte

	outbox      []*Entry // ascending, without gaps
	outboxBytes int64
	complete    bool // a header or checkpoint was read
}

func newState() *state {
	return &state{durable: durable{NextSeq: 1, NextProvider: 1}}
}

func (s *state) command(id string) (int, bool) {
	i := slices.IndexFunc(s.Commands, func(c Command) bool { return c.CommandID == id })
	return i, i >= 0
}

func (s *state) begin(c Command) {
	for len(s.Commands) >= MaxCommands && s.Commands[0].Status != prp.StatusPending {
		s.Compacted = s.Commands[0].ControllerSeq
		s.Commands = slices.Delete(s.Commands, 0, 1)
	}
	s.Commands = append(s.Commands, c)
	s.LastCommand = c.ControllerSeq
}

func (s *state) finish(id, status string, result []byte) bool {
	i, ok := s.command(id)
	if !ok {
		return false
	}
	s.Commands[i].Status, s.Commands[i].Result = status, result
	return true
}

func (s *state) event(m eventMeta, event []byte) *Entry {
	e := &Entry{Seq: m.Seq, Priority: m.Priority, Type: m.Type, At: m.At, Event: event, size: m.Size}
	s.outbox = append(s.outbox, e)
	s.outboxBytes += m.Size
	s.PeakOutbox = max(s.PeakOutbox, s.outboxBytes)
	s.NextSeq = m.Seq + 1
	// A checkpoint may already count the event that stands behind it.
	if m.ProviderSeq >= s.NextProvider {
		s.NextProvider = m.ProviderSeq + 1
		sum := sha256.Sum256(event)
		s.Receipts = append(s.Receipts, Receipt{ExecutorID: m.ExecutorID, Fingerprint: hex.EncodeToString(sum[:]), Seq: m.Seq})
		if n := len(s.Receipts) - MaxReceipts; n > 0 {
			s.Receipts = slices.Delete(s.Receipts, 0, n)
		}
	}
	return e
}

func (s *state) ack(seq int64) {
	s.Acked = max(s.Acked, seq)
	n := 0
	for n < len(s.outbox) && s.outbox[n].Seq <= seq {
		s.outboxBytes -= s.outbox[n].size
		s.outbox[n] = nil
		n++
	}
	s.outbox = s.outbox[n:]
}

func (s *state) diagnostic(text string) {
	s.Diagnostics = append(s.Diagnostics, text)
	if n := len(s.Diagnostics) - MaxDiagnostics; n > 0 {
		s.Diagnostics = slices.Delete(s.Diagnostics, 0, n)
	}
}

// restore replaces everything but the outbox.
func (s *state) restore(d durable, prepare, resume []byte) {
	s.durable, s.prepare, s.resume = d, prepare, resume
	s.complete = true
	s.ack(d.Acked)
}
