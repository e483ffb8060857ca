// Package scripted is a deterministic provider without a process: the same
// provider object and prompt give the same payloads, byte for byte. It shows
// that nothing is lost or doubled across crashes.
//
// Without a script a turn is turn.started, item.completed (an agent message on
// channel final) and turn.completed. With one, N deltas stand between and the
// turn ends as the script says; see [Script].
//
// What it promises: every event carries the resume state after it. Opened with
// such a state, a session emits session.resumed and goes on at exactly the next
// event of the turn that was running. Payloads are canonical: members sorted,
// no white space, ASCII only.
//
// The ledger is the oracle of crash tests. A line is written and synced before
// what it tells of happens, so after a crash it may be one line ahead, and then
// the same line appears again:
//
//	{"effect":"session_open"|"session_resume"|"turn_start"|"turn_interrupt"|"session_close","turn":"…"}
//	{"event":0,"sha256":"<hex of the payload>","turn":"…","type":"turn.started"}
//
// event counts from 0 in each turn. session.started and session.resumed have
// event -1 and no turn.
//
// Concurrency: as package driver asks. One goroutine plays a turn; Close waits
// for it.
package scripted

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"bowline/driver"
	"bowline/wire"
)

// Name is the provider kind and the driver's name.
const Name = "scripted"

// Version of this driver.
const Version = "1"

// Driver makes scripted sessions. The zero value is ready.
type Driver struct {
	// NewID makes ids of threads, sessions and unnamed turns; nil means UUIDv7.
	NewID func() (string, error)
}

var _ driver.Driver = (*Driver)(nil)

// New is a Driver with random ids.
func New() *Driver { return &Driver{} }

func (d *Driver) newID() (string, error) {
	if d.NewID != nil {
		return d.NewID()
	}
	id, err := uuid.NewV7()
	return id.String(), err
}

// Descriptor says what this driver can do.
func (d *Driver) Descriptor() driver.Descriptor {
	return driver.Descriptor{
		Name:            Name,
		Version:         Version,
		ProviderVersion: "scripted-v1",
		InputSchema: json.RawMessage(`{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "prompt": {"type": "string"},
    "script": {
      "type": "object",
      "additionalProperties": false,
      "properties": {
        "events": {"type": "integer", "minimum": 0, "maximum": 1000000},
        "textBytes": {"type": "integer", "minimum": 0, "maximum": 409600},
        "seed": {"type": "integer"},
        "ledger": {"type": "string", "pattern": "^/"},
        "gate": {"type": "string", "pattern": "^/"},
        "gateAt": {"type": "integer", "minimum": 0, "maximum": 1000000},
        "end": {"enum": ["completed", "failed", "hang", "session_failed"]}
      }
    }
  }
}`),
		PermissionModes: []driver.Permission{driver.PermissionDefault, driver.PermissionDeny, driver.PermissionAllow},
		Capabilities:    driver.Capabilities{Resume: true, Interrupt: true},
	}
}

// Validate checks a provider object; see [Parse].
func (d *Driver) Validate(provider json.RawMessage) error {
	_, err := Parse(provider)
	return err
}

// state is the resume state.
type state struct {
	Version   int        `json:"version"` // stateVersion
	ThreadID  string     `json:"threadId"`
	SessionID string     `json:"sessionId"`
	Turn      *turnState `json:"turn,omitempty"` // nil: no turn is running
}

const stateVersion = 1

// turnState is the position in a running turn.
type turnState struct {
	ID    string `json:"id"`
	Next  int    `json:"next"`  // index of the next event
	Reply string `json:"reply"` // what the final message answers
}

// Open starts a session, or resumes one and goes on with its turn.
func (d *Driver) Open(ctx context.Context, host driver.Host, cfg driver.Config) (driver.Session, error) {
	script, err := Parse(cfg.Provider)
	if err != nil {
		return nil, err
	}
	switch cfg.Permission {
	case driver.PermissionDefault, driver.PermissionDeny, driver.PermissionAllow, "":
	default:
		return nil, wire.Errorf(wire.CodeNotAvailable, "permission mode %q is not available for driver %q", cfg.Permission, Name)
	}
	st, eventType, effect := state{}, "session.started", "session_open"
	if cfg.Resume != nil {
		if err := json.Unmarshal(cfg.Resume, &st); err != nil || st.Version != stateVersion || st.ThreadID == "" {
			return nil, &driver.ProviderError{Code: "resume_state_invalid", Message: "the resume state is not one of this driver"}
		}
		eventType, effect = "session.resumed", "session_resume"
	} else if st, err = d.newState(); err != nil {
		return nil, err
	}
	book, err := openLedger(script)
	if err != nil {
		return nil, err
	}
	s := newSession(d, host, script, book, cfg.Workspace, st)
	if err := s.begin(ctx, eventType, effect); err != nil {
		return nil, s.abandon(err)
	}
	return s, nil
}

func (d *Driver) newState() (state, error) {
	thread, err := d.newID()
	if err != nil {
		return state{}, err
	}
	id, err := d.newID()
	return state{Version: stateVersion, ThreadID: thread, SessionID: id}, err
}
