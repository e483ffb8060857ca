package prp

import (
	"time"

	"bowline/wire"
)

// Protocol is the name in every envelope.
const Protocol = "paperclip.runner"

// Versions we negotiate (prp.md 3.3).
const (
	VersionMin = 1
	VersionMax = 2
)

// Limits of the profile. Sizes are bytes of JSON text.
const (
	// MaxFrameBytes is the largest WebSocket message either side takes
	// (prp.md 1.5, lines B and M) and what the welcome advertises.
	MaxFrameBytes = 1 << 20
	// MaxFrameBytesLargest is the most a frame limit may be configured to.
	MaxFrameBytesLargest = 16 << 20
	// MaxFrameBytesSmallest is the least a frame limit may be configured to.
	MaxFrameBytesSmallest = 1 << 10
	// MaxQueuedCommandBytes bounds the JSON of a stored command record: hex
	// doubles the plaintext, and 4 KiB each are left for frame and envelope.
	MaxQueuedCommandBytes = (MaxFrameBytes-4096)/2 - 4096
	// MaxBatchEvents is advertised in the welcome; there is no batch frame.
	MaxBatchEvents = 100
	// MaxJournalCommands is how many commands one authority's journal holds (5.4).
	MaxJournalCommands = 500
	// MaxRetainedEvents is the window of replay recognition (5.6, 8.3).
	MaxRetainedEvents = 4096
	// MaxCommandResultBytes bounds what a runner stores and sends as result (9.3).
	MaxCommandResultBytes = 64 << 10
)

// Lengths of identifiers, in code points (which are bytes where the stable id
// pattern applies).
const (
	MaxIdentityLen = 240 // authority, prp.md 3.1
	MaxShortIDLen  = 160 // event and command ids, run and session id of a runner
)

// Times of the profile.
const (
	// HeartbeatInterval is advertised; nothing times out on it (5.2).
	HeartbeatInterval = 250 * time.Millisecond
	// ChallengeLifetime: the response must arrive within it (3.4, 3.8).
	ChallengeLifetime = 5 * time.Second
	// RunnerHandshakeTimeout is how long a runner waits for each handshake
	// message and for the welcome (3.8).
	RunnerHandshakeTimeout = 2 * time.Second
	// TicketLifetimeDefault and its bounds (2.2).
	TicketLifetimeDefault = 5 * time.Second
	TicketLifetimeMin     = 1 * time.Second
	TicketLifetimeMax     = 60 * time.Second
	// LeaseLifetimeDefault and its bounds (2.7).
	LeaseLifetimeDefault = 60 * time.Second
	LeaseLifetimeMin     = 60 * time.Second
	LeaseLifetimeMax     = 24 * time.Hour
)

// LeaseRenewalVersion is advertised in the welcome (2.8).
const LeaseRenewalVersion = 1

// WarmTransitionVersion is the only one there is (3.1).
const WarmTransitionVersion = 1

// Paths an authority listens on (1.3).
const (
	PathStandalone = "/durableRecovery/connect"
	PathEmbedded   = "/api/runner/v1/connect" // a run id may follow as one more segment
)

// Kinds of envelopes (3, 5.2).
const (
	KindAuthHello                  = "auth_hello"
	KindAuthChallenge              = "auth_challenge"
	KindAuthResponse               = "auth_response"
	KindWelcome                    = "welcome"
	KindCommand                    = "command"
	KindCommandResult              = "command_result"
	KindCommandResultAck           = "command_result_ack"
	KindEvent                      = "event"
	KindAck                        = "ack"
	KindLeaseRenew                 = "lease_renew"
	KindLeaseRenewed               = "lease_renewed"
	KindWarmTransitionActivated    = "warm_transition_activated"
	KindWarmTransitionActivatedAck = "warm_transition_activated_ack"
	KindPing                       = "ping"
	KindPong                       = "pong"
	KindRevoke                     = "revoke"
)

// Kinds of credentials (3.4).
const (
	CredentialBootstrap = "bootstrap"
	CredentialLease     = "lease"
)

// Prefixes of the tokens and records of section 2, before a lower-case UUID v4.
const (
	TicketPrefix       = "bootstrap_"
	TicketRecordPrefix = "bootstrap_ticket_"
	LeaseTokenPrefix   = "lease_"
	LeaseIDPrefix      = "connection_lease_"
	LeaseRecordPrefix  = "connection_lease_record_"
)

// violation is a peer that broke the profile. The wire shows nothing of it
// (the socket is closed); the text is for our log, names a member or a step and
// never holds what the peer sent.
func violation(format string, args ...any) error {
	return wire.Errorf(wire.CodeProtocol, format, args...)
}

// FormatTime gives t as JavaScript's toISOString does: UTC with milliseconds.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// FormatUnixMs is [FormatTime] of a time in milliseconds since 1970.
func FormatUnixMs(ms int64) string { return FormatTime(time.UnixMilli(ms)) }
