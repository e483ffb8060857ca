// Package command runs a plain program as a provider: one turn is one run of
// argv, the turn's text is ignored.
//
// Events of a turn, in order: turn.started, item.started, any number of
// item.delta, item.completed, and exactly one terminal event. A turn whose
// program could not be started has no item.
//
//	item.delta      {itemId, kind, channel:"detail", stream:"stdout"|"stderr"|"pty", text}
//	                the same with encoding:"base64" and data where the bytes are not UTF-8
//	item.completed  {itemId, kind, exitCode|null, signal?, bytes:{stdout,stderr}, sha256:{…}, pipesLeftOpen, durationMs}
//	turn.completed  {providerTurnId, status:"completed", outcome:"exit", exitCode:0}
//	turn.failed     {providerTurnId, status:"failed", outcome:"exit"|"signal"|"timeout"|"spawn_error", exitCode?, signal?, error:{code,message}}
//	turn.cancelled  {providerTurnId, status:"cancelled", outcome:"cancelled"}
//
// What it promises: the bytes of each stream are exact and in order, a rune is
// never cut by the border of a delta, an item.completed never repeats what its
// deltas carried. Output is taken from the process only as fast as Emit takes
// it, so memory is bounded by two chunks. A terminal event of a stopped turn
// comes after the whole process tree is gone; what a program that ended by
// itself left behind is killed by Close.
//
// Concurrency: as package driver asks. One goroutine per turn emits; two read,
// one stops. Close waits for all of them.
package command

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"bowline/driver"
	"bowline/wire"
)

// Name is the provider kind and the driver's name.
const Name = "command"

// Version of this driver.
const Version = "1"

// Driver makes command sessions. The zero value is ready.
type Driver struct {
	// NewID makes ids of threads, sessions and items; nil means UUIDv7.
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
		ProviderVersion: "exec-v1",
		InputSchema:     inputSchema(),
		PermissionModes: permissionModes(),
		Capabilities:    driver.Capabilities{Interrupt: true},
	}
}

// permissionModes are accepted and make no difference: the user named the
// command.
func permissionModes() []driver.Permission {
	return []driver.Permission{driver.PermissionDefault, driver.PermissionDeny, driver.PermissionAllow}
}

// inputSchema is the JSON Schema of a run's input: the provider object without
// its kind.
func inputSchema() json.RawMessage {
	return json.RawMessage(`{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["argv"],
  "properties": {
    "argv": {"type": "array", "minItems": 1, "maxItems": 4096, "items": {"type": "string", "maxLength": 131071}},
    "cwd": {"type": "string", "minLength": 1, "maxLength": 4095, "pattern": "^/"},
    "envNames": {"type": "array", "maxItems": 256, "items": {"type": "string", "maxLength": 256, "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}},
    "pty": {"type": "boolean"},
    "timeoutMs": {"type": "integer", "minimum": 0, "maximum": 31622400000}
  }
}`)
}

// Validate checks a provider object; see [Parse].
func (d *Driver) Validate(provider json.RawMessage) error {
	_, err := Parse(provider)
	return err
}

// Open emits session.started with fresh ids. Nothing runs before a turn does.
func (d *Driver) Open(ctx context.Context, host driver.Host, cfg driver.Config) (driver.Session, error) {
	provider, err := Parse(cfg.Provider)
	if err != nil {
		return nil, err
	}
	switch cfg.Permission {
	case driver.PermissionDefault, driver.PermissionDeny, driver.PermissionAllow, "":
	default:
		return nil, wire.Errorf(wire.CodeNotAvailable, "permission mode %q is not available for driver %q", cfg.Permission, Name)
	}
	if cfg.Resume != nil {
		return nil, driver.ErrUnsupported
	}
	if provider.Cwd == "" {
		provider.Cwd = cfg.Workspace
	}
	thread, err := d.newID()
	if err != nil {
		return nil, err
	}
	id, err := d.newID()
	if err != nil {
		return nil, err
	}
	s := newSession(d, host, provider, cfg.Env, driver.Identity{ThreadID: thread, SessionID: id, Cwd: provider.Cwd})
	payload := map[string]any{"threadId": thread, "sessionId": id, "cwd": provider.Cwd}
	if err := emit(ctx, host, driver.Event{Type: "session.started", Priority: 1}, payload); err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}
