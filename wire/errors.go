// Package wire holds what both ends of the wire and the host API agree on:
// the error table, identifiers, limits. The codecs live below it: wire/prp
// (JSON and hex, byte-compatible with "paperclip.runner"), wire/canonjson
// (the canonical JSON both sign and compare), wire/carrier (the WebSocket).
package wire

import (
	"errors"
	"fmt"
	"slices"
)

// Code names one kind of failure. Codes are stable: hosts, SDKs and scripts
// switch on them, so a code is added, never renamed or given another meaning.
type Code string

// The codes. HTTP status, exit code and meaning of each are in [Table]; a test
// holds the table equal to this list and docs/errors.md equal to the table.
const (
	CodeBadRequest         Code = "bad_request"         // malformed JSON, unknown member, wrong type
	CodeBadCursor          Code = "bad_cursor"          // cursor is not epoch.seq, or lies beyond the head
	CodeUnauthorized       Code = "unauthorized"        // no or unknown token
	CodeForbidden          Code = "forbidden"           // token lacks the scope
	CodeNotFound           Code = "not_found"           // no such resource or route
	CodeMethodNotAllowed   Code = "method_not_allowed"  // the route exists, not with this method
	CodeConflict           Code = "conflict"            // idempotency key with another body, state forbids it
	CodeGone               Code = "gone"                // late or pruned
	CodeTooLarge           Code = "too_large"           // a limit in bytes or count was exceeded
	CodeUnsupportedMedia   Code = "unsupported_media"   // the body is not JSON
	CodeDriverUnknown      Code = "driver_unknown"      // nobody described this driver
	CodeInputInvalid       Code = "input_invalid"       // input fails the driver's schema
	CodeWorkspaceInvalid   Code = "workspace_invalid"   // missing, or not a directory
	CodeEnvNotAllowed      Code = "env_not_allowed"     // env names outside --allow-env
	CodeUnavailable        Code = "unavailable"         // not yet, or not any more, able to serve
	CodeTooManyRequests    Code = "too_many_requests"   // a limit on how many at once; try again
	CodeInternal           Code = "internal"            // our fault; details are in the server's log under the request id
	CodeStoreIndeterminate Code = "store_indeterminate" // outcome of a write is unknown: the store is latched
	CodeTicketUsed         Code = "ticket_used"         // a ticket works once
	CodeTicketInvalid      Code = "ticket_invalid"      // lifetime out of range, malformed
	CodeCommandTooLarge    Code = "command_too_large"   // a queued command beyond prp's limit
	CodeCommandConflict    Code = "command_conflict"    // same command id, other content
	CodeIntegrityFault     Code = "integrity_fault"     // latched; operator_required
	CodeDataDirBusy        Code = "data_dir_busy"       // another server owns the data folder
	CodePortTaken          Code = "port_taken"          // the kept port belongs to somebody else now
	CodeListenRefused      Code = "listen_refused"      // not loopback and no TLS
	CodeServerStart        Code = "server_start_failed" // the background server did not come up
	CodeConfigInvalid      Code = "config_invalid"      // config file: line and column in the message
	CodeUsage              Code = "usage"               // command line
	CodeNotAvailable       Code = "not_available"       // named in the design, not built yet
	CodeRefused            Code = "refused"             // the peer refused us
	CodeSpawnFailed        Code = "spawn_failed"        // a process could not be started
	CodeLogDamaged         Code = "log_damaged"         // session log: a record fails its checksum
	CodeDiskFull           Code = "disk_full"           // no room left where it must be written
	CodeProtocol           Code = "protocol_violation"  // a peer said something the profile does not allow
)

// Exit codes of every Bowline program except runnerd in PRP use (architecture,
// "Operators expect"): 0 ok, 1 failed, 2 usage, 3 not ready, 4 refused by
// peer, 5 integrity fault, 130 ended by a signal.
const (
	ExitOK        = 0
	ExitFailed    = 1
	ExitUsage     = 2
	ExitNotReady  = 3
	ExitRefused   = 4
	ExitIntegrity = 5
	ExitSignal    = 130
)

// Entry is one line of the error table.
type Entry struct {
	Code       Code
	HTTPStatus int    // what the host API answers
	ExitCode   int    // what a Bowline program exits with when this ends it
	Meaning    string // for docs/errors.md
}

// Table is the whole error table, in the order of docs/errors.md.
func Table() []Entry { return slices.Clone(table[:]) }

var table = [...]Entry{
	{CodeBadRequest, 400, ExitUsage, "malformed JSON, unknown member, wrong type"},
	{CodeBadCursor, 400, ExitUsage, "cursor is not epoch.seq, or lies beyond the head"},
	{CodeUnauthorized, 401, ExitRefused, "no or unknown token"},
	{CodeForbidden, 403, ExitRefused, "token lacks the scope"},
	{CodeNotFound, 404, ExitFailed, "no such resource or route"},
	{CodeMethodNotAllowed, 405, ExitUsage, "the route exists, not with this method"},
	{CodeConflict, 409, ExitFailed, "idempotency key with another body, state forbids it"},
	{CodeGone, 410, ExitFailed, "late or pruned"},
	{CodeTooLarge, 413, ExitUsage, "a limit in bytes or count was exceeded"},
	{CodeUnsupportedMedia, 415, ExitUsage, "the body is not JSON"},
	{CodeDriverUnknown, 422, ExitUsage, "nobody described this driver"},
	{CodeInputInvalid, 422, ExitUsage, "input fails the driver's schema"},
	{CodeWorkspaceInvalid, 422, ExitUsage, "missing, or not a directory"},
	{CodeEnvNotAllowed, 422, ExitUsage, "env names outside --allow-env"},
	{CodeUnavailable, 503, ExitNotReady, "not yet, or not any more, able to serve"},
	{CodeTooManyRequests, 429, ExitNotReady, "a limit on how many at once; try again"},
	{CodeInternal, 500, ExitFailed, "our fault; details are in the server's log under the request id"},
	{CodeStoreIndeterminate, 503, ExitNotReady, "outcome of a write is unknown: the store is latched"},
	{CodeTicketUsed, 410, ExitFailed, "a ticket works once"},
	{CodeTicketInvalid, 400, ExitUsage, "lifetime out of range, malformed"},
	{CodeCommandTooLarge, 413, ExitUsage, "a queued command beyond prp's limit"},
	{CodeCommandConflict, 409, ExitFailed, "same command id, other content"},
	{CodeIntegrityFault, 500, ExitIntegrity, "latched; operator_required"},
	{CodeDataDirBusy, 503, ExitNotReady, "another server owns the data folder"},
	{CodePortTaken, 503, ExitNotReady, "the kept port belongs to somebody else now"},
	{CodeListenRefused, 400, ExitUsage, "not loopback and no TLS"},
	{CodeServerStart, 503, ExitNotReady, "the background server did not come up"},
	{CodeConfigInvalid, 400, ExitUsage, "config file: line and column in the message"},
	{CodeUsage, 400, ExitUsage, "command line"},
	{CodeNotAvailable, 422, ExitUsage, "named in the design, not built yet"},
	{CodeRefused, 502, ExitRefused, "the peer refused us"},
	{CodeSpawnFailed, 500, ExitFailed, "a process could not be started"},
	{CodeLogDamaged, 500, ExitIntegrity, "session log: a record fails its checksum"},
	{CodeDiskFull, 500, ExitFailed, "no room left where it must be written"},
	{CodeProtocol, 502, ExitRefused, "a peer said something the profile does not allow"},
}

// entry is the line of a code. A code that is not ours counts as
// [CodeInternal].
func (c Code) entry() Entry {
	for i := range table {
		if table[i].Code == c {
			return table[i]
		}
	}
	return Entry{Code: c, HTTPStatus: 500, ExitCode: ExitFailed}
}

// HTTPStatus is the status the host API answers this code with.
func (c Code) HTTPStatus() int { return c.entry().HTTPStatus }

// ExitCode is what a Bowline program exits with when this code ends it.
func (c Code) ExitCode() int { return c.entry().ExitCode }

// Error is a failure with a stable code. Message names the field or id and the
// limit, never a value that could be a secret. Details carry machine-readable
// facts (field, limit, size); they are shown to hosts, so the same rule holds.
type Error struct {
	Code    Code
	Message string
	Details map[string]any
	// Cause is for the log only: it is never sent to a peer.
	Cause error
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf makes an error without details.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// With returns a copy of e that carries one more detail.
func (e *Error) With(key string, value any) *Error {
	c := *e
	c.Details = make(map[string]any, len(e.Details)+1)
	for k, v := range e.Details {
		c.Details[k] = v
	}
	c.Details[key] = value
	return &c
}

// CodeOf finds the code of err; an error without one is our own fault
// ([CodeInternal]).
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}
