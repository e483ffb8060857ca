package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"bowline/runnerd/supervise"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// stateFileSlack is how much larger than the outbox the file may be, in bytes
// (prp.md 9.3).
const stateFileSlack = 16 << 20

// Imported is the state another runner left as runner-state.json: the stand-in
// continues it when it has no log of its own.
type Imported struct {
	identity  prp.Identity
	maxOutbox int64
	p0Reserve int64
	state     durable
	outbox    []*Entry
}

// Identity is whose state it is.
func (i Imported) Identity() prp.Identity { return i.identity }

// Import reads runner-state.json of a state directory; nil when there is none.
func Import(v *View, maxOutbox int64) (*Imported, error) {
	text, err := v.Read(StateFile, maxOutbox+stateFileSlack)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no file is an answer
	}
	if err != nil {
		return nil, err
	}
	bad := func(what string) error {
		return wire.Errorf(wire.CodeLogDamaged, "%s cannot be read: %s", StateFile, what)
	}
	// Read twice: by types, and by value so that envelopes keep every member.
	var f viewState
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, bad("not the JSON of a runner's state")
	}
	whole, err := canonjson.Parse(text)
	if err != nil {
		return nil, bad("not JSON")
	}
	if f.Schema != stateSchema {
		return nil, bad("unknown schema")
	}
	i := &Imported{identity: f.Identity, maxOutbox: f.MaxOutboxBytes, p0Reserve: f.P0ReserveBytes}
	st := newState()
	st.Meta = Meta{Lifecycle: f.Lifecycle, Reconnects: f.ReconnectCount, PendingTerminal: f.PendingTerminalDelivery}
	st.Meta.PendingCleanup = whole.Get("pendingProviderCleanup").IsObject()
	if f.RecoverableFailure != nil {
		st.Meta.RecoverableFailure = *f.RecoverableFailure
	}
	if f.LastConnectionProtocolVersion != nil {
		st.Meta.ProtocolVersion = *f.LastConnectionProtocolVersion
	}
	st.NextSeq, st.Acked = f.NextSourceSeq, f.AckedSourceSeq
	st.LastCommand, st.Compacted = f.LastControllerCommandSeq, f.CompactedThroughControllerSeq
	st.PeakOutbox = f.PeakOutboxBytes
	st.Diagnostics = f.Diagnostics[:min(len(f.Diagnostics), MaxDiagnostics)]
	if st.NextSeq < 1 || st.Acked < 0 || st.Acked >= st.NextSeq || st.LastCommand < 0 {
		return nil, bad("cursors are out of range")
	}
	for _, c := range f.ProcessedCommands {
		var result []byte
		if c.Status != prp.StatusPending && string(bytes.TrimSpace(c.Result)) != "null" {
			result = whole.Get("processedCommands", c.CommandID, "result").JSON()
		}
		st.Commands = append(st.Commands, Command{
			CommandID: c.CommandID, ControllerSeq: c.ControllerSeq, Type: c.CommandType,
			Fingerprint: f.Fingerprints[c.CommandID], Status: c.Status, Result: result,
		})
	}
	slices.SortFunc(st.Commands, func(a, b Command) int { return int(a.ControllerSeq - b.ControllerSeq) })
	if n := len(st.Commands); n > MaxCommands || n > 0 && st.Commands[n-1].ControllerSeq > st.LastCommand {
		return nil, bad("commands do not fit their cursor")
	}
	st.Processes = map[string]supervise.Record{}
	i.state = st.durable
	seq := st.Acked
	for n, e := range f.Outbox {
		event := whole.Get("outbox").At(n).Get("envelope", "payload")
		if got, ok := event.Get("sourceSeq").SafeInt(); e.SourceSeq != seq+1 || !ok || got != e.SourceSeq {
			return nil, bad("outbox numbers have a gap")
		}
		seq++
		i.outbox = append(i.outbox, &Entry{Seq: e.SourceSeq, Priority: e.Priority, Type: e.EventType, Event: event.JSON(), size: e.ByteSize})
	}
	if seq != st.NextSeq-1 {
		return nil, bad("outbox does not reach the next sequence number")
	}
	return i, nil
}

// changes are the imported state as operations of a new log.
func (i Imported) changes(h header) []change {
	d := i.state
	d.Header = h
	next := d.NextSeq
	d.NextSeq = d.Acked + 1
	d.NextProvider = next // never given before by this runner
	list := []change{&checkpointChange{durable: d}}
	for _, e := range i.outbox {
		list = append(list, &eventChange{eventMeta: eventMeta{Seq: e.Seq, Priority: e.Priority, Type: e.Type, Size: e.size}, event: e.Event})
	}
	return list
}

// Lifecycle of the imported state.
func (i Imported) Lifecycle() string { return i.state.Meta.Lifecycle }

// CodexStateFile is the provider state of a Codex session (prp.md 11.11).
const CodexStateFile = "codex-provider-state.json"

const (
	codexStateSchema = "paperclip.runner.codex-provider-state.v1"
	codexStateLimit  = 2 << 20 // bytes, prp.md 11.11
)

// Lifecycles of a provider state (prp.md 11.11).
const (
	ProviderPrepared    = "prepared"
	ProviderSessionOpen = "session_open"
	ProviderTurnActive  = "turn_active"
	ProviderExited      = "provider_exited"
	ProviderClosed      = "closed"
)

// ProviderState is what a controller looks at before it reuses a session.
type ProviderState struct {
	Schema               string            `json:"schema"`
	Lifecycle            string            `json:"lifecycle"`
	ThreadID             *string           `json:"threadId"`
	ProviderSessionID    *string           `json:"providerSessionId"`
	ActiveProviderTurnID *string           `json:"activeProviderTurnId"`
	PendingEvents        []json.RawMessage `json:"pendingEvents"`
	NextProviderEventSeq int64             `json:"nextProviderEventSeq"`
}

// ReadProviderState reads the file; nil when there is none. The minimal form
// {pendingEvents, activeProviderTurnId} is enough.
func ReadProviderState(v *View) (*ProviderState, error) {
	text, err := v.Read(CodexStateFile, codexStateLimit)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no file is an answer
	}
	if err != nil {
		return nil, err
	}
	var s ProviderState
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s is not the JSON of a provider state", CodexStateFile)
	}
	if s.Schema != "" && s.Schema != codexStateSchema {
		return nil, fmt.Errorf("%s has an unknown schema", CodexStateFile)
	}
	return &s, nil
}

// WriteProviderState writes the Codex provider state of this session. Events
// are committed as they come, so none is ever pending in the file.
func (j *Journal) WriteProviderState(lifecycle string) error {
	if j.par.View == nil {
		return nil
	}
	j.mu.Lock()
	m, next := j.st.Meta.clone(), j.st.NextProvider
	j.mu.Unlock()
	optional := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	s := ProviderState{
		Schema: codexStateSchema, Lifecycle: lifecycle, ThreadID: optional(m.Provider.ThreadID),
		ProviderSessionID: optional(m.Provider.SessionID), PendingEvents: []json.RawMessage{}, NextProviderEventSeq: next,
	}
	if m.Turn != nil {
		s.ActiveProviderTurnID = optional(m.Turn.ProviderTurnID)
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return j.par.View.Write(CodexStateFile, append(text, '\n'))
}
