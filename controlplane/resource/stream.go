package resource

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"bowline/wire"
)

// Types of stream lines. Event lines carry an id (a cursor); status and gap
// lines are control lines and carry none.
const (
	LineEvent  = "event"
	LineStatus = "status"
	LineGap    = "gap"
	LineError  = "error" // the stream ends after it; not sent after a terminal event
)

// EventRunEnded is the type of the one terminal event of a run, written by the
// control plane. A stream ends after it.
const EventRunEnded = "run.ended"

// Line is one line of an event stream: an NDJSON line, or the data of one SSE
// frame.
type Line struct {
	Type  string `json:"type"`
	ID    string `json:"id,omitempty"` // "<epoch>.<seq>", event lines only
	RunID string `json:"runId"`
	Event *Event `json:"event,omitempty"`

	Status string `json:"status,omitempty"` // status lines: the run's status
	Head   string `json:"head,omitempty"`   // status lines: newest cursor

	From string `json:"from,omitempty"` // gap lines: first missing cursor
	To   string `json:"to,omitempty"`   // gap lines: last missing cursor

	Error *ErrorBody `json:"error,omitempty"` // error lines
}

// Event is one entry of a run's log.
type Event struct {
	Type      string          `json:"type"`
	At        time.Time       `json:"at"`     // committed by the control plane
	Origin    string          `json:"origin"` // runner | control_plane
	SessionID string          `json:"sessionId"`
	TurnID    string          `json:"turnId,omitempty"`
	Source    *Source         `json:"source,omitempty"` // runner events only
	Late      bool            `json:"late,omitempty"`   // came after the run's terminal event
	Payload   json.RawMessage `json:"payload"`
}

// Source is the runner's own numbering of an event.
type Source struct {
	Epoch   string `json:"epoch"` // "1" on profile prp
	Seq     int64  `json:"seq"`
	EventID string `json:"eventId"`
}

// ErrorEnvelope is the one error body of the host API.
type ErrorEnvelope struct {
	Error ErrorBody `json:"error"`
}

// ErrorBody says what went wrong. Code is from the table in package wire.
type ErrorBody struct {
	Code      wire.Code      `json:"code"`
	Message   string         `json:"message"`
	RequestID string         `json:"requestId"`
	Details   map[string]any `json:"details,omitempty"`
}

// AsError is the typed error a client returns.
func (b *ErrorBody) AsError() *wire.Error {
	return &wire.Error{Code: b.Code, Message: b.Message, Details: b.Details}
}

// ErrorBodyOf makes the body of err. An error that is not a *wire.Error is our
// own fault: its text stays in the log.
func ErrorBodyOf(err error, requestID string) ErrorBody {
	var e *wire.Error
	if errors.As(err, &e) {
		return ErrorBody{Code: e.Code, Message: e.Message, RequestID: requestID, Details: e.Details}
	}
	return ErrorBody{Code: wire.CodeInternal, Message: "internal error; the server's log has the details under the request id", RequestID: requestID}
}

// Cursor names a place in a run's log: everything up to and including Seq.
// The zero Cursor is the beginning.
type Cursor struct {
	Epoch int64
	Seq   int64
}

func (c Cursor) String() string {
	return strconv.FormatInt(c.Epoch, 10) + "." + strconv.FormatInt(c.Seq, 10)
}

// ParseCursor reads "<epoch>.<seq>" in plain decimal without signs or leading
// zeros; seq may be 0. Anything else: wire.CodeBadCursor.
func ParseCursor(s string) (Cursor, error) {
	e, q, ok := strings.Cut(s, ".")
	epoch, ok1 := plainDecimal(e)
	seq, ok2 := plainDecimal(q)
	if !ok || !ok1 || !ok2 || epoch < 1 {
		return Cursor{}, wire.Errorf(wire.CodeBadCursor, "cursor is not <epoch>.<seq> in decimal (size %d bytes)", len(s))
	}
	return Cursor{Epoch: epoch, Seq: seq}, nil
}

func plainDecimal(s string) (int64, bool) {
	if s == "" || len(s) > 18 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}
