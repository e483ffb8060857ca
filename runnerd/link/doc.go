// Package link keeps a runner connected to its authority: dial, handshake,
// encrypted frames, lease, reconnect (prp.md sections 1 to 5, runner side).
//
// # What it promises
//
//   - Addresses are looked up once. Plaintext is never accepted after the
//     handshake; anything the profile does not allow closes the connection and
//     leads to a new one.
//   - A ticket is used for one auth_response. When that was begun and no welcome
//     came, the ticket may be consumed and [Link.Run] ends with [ErrTicketSpent].
//   - The lease token lives in memory only. It is renewed at half of its life.
//     When it has expired, Run ends with [ErrLeaseExpired].
//   - Events go out in order, up to Window of them unacknowledged, each time with
//     the bytes the journal gives; control messages go first.
//
// # Concurrency
//
// [Link.Run] is called once; the other methods from any goroutine. Each
// connection has a reader (Run's goroutine), a feeder and a writer; Run waits
// for them before it dials again.
package link

import (
	"context"
	"errors"
	"time"

	"bowline/runnerd/journal"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// Limits of a link.
const (
	// Window is how many events may be sent and not acknowledged (ours).
	Window = 1024
	// controlQueue is how many control messages wait for the writer (ours).
	controlQueue = 64
	// controlBurst is how many control messages go out in a row while an event
	// waits (architecture, "Limits").
	controlBurst = 8
	// attemptLimit is how long one connection attempt may take (prp.md 1.7).
	attemptLimit = 30 * time.Second
	// frameLimit is after how many frames of a direction a new handshake is due
	// (prp.md 4.7).
	frameLimit = 1 << 20
	// ticketPatience is how long a ticket is tried: longer than any ticket lives
	// (prp.md 2.2).
	ticketPatience = prp.TicketLifetimeMax + 15*time.Second
	// steady is how long a connection must have lasted for the pauses to begin
	// anew (ours): one that is closed right after each welcome must not be
	// dialled without pause.
	steady = 2 * time.Second
	// maxBackoff is the longest pause between attempts (prp.md 1.7).
	maxBackoff = 5 * time.Second
)

// Reasons Run ends, beside its context and errors of the core.
var (
	ErrTicketSpent   = errors.New("the ticket may have been used: a fresh one-use ticket is needed")
	ErrTicketRefused = errors.New("no connection could be authenticated within the life of a ticket: a fresh one-use ticket is needed")
	ErrLeaseExpired  = errors.New("lease_expired_requires_bootstrap")
	ErrGrace         = errors.New("transport_reconnect_grace_exceeded")
	ErrDeadline      = errors.New("transport_reconnect_deadline_exceeded")
)

// Core is the runner behind the link. An error of one of its methods ends Run
// with that error.
type Core interface {
	// Resume gives the cursors for the hello.
	Resume() prp.Resume
	// Welcome is called before anything else of a connection.
	Welcome(w prp.Welcome) error
	// Deliver takes a command; it does not wait for its execution.
	Deliver(cmd prp.Command) error
	Ack(seq int64) error
	ResultAck(payload canonjson.Value) error
	// Renewed is told of a lease_renewed before it is looked at; an error ends Run.
	Renewed() error
	// Revoked takes a verified revoke.
	Revoked() error
	// Next waits for events behind seq.
	Next(ctx context.Context, seq int64) ([]*journal.Entry, error)
	Pong() prp.Pong
}

// Hooks are told what happens; nil ones are skipped.
type Hooks struct {
	Handshake      func(ok bool, code string, took time.Duration)
	Connected      func(connected bool)
	Frame          func(sent bool, kind string, plain, wire int)
	Reconnect      func(reason string)
	DecryptFailure func()
	Lease          func(expiresAt time.Time)
}
