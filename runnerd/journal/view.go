package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"bowline/wire/prp"
)

// StateFile is the name of the view in the state directory (prp.md 9.1).
const StateFile = "runner-state.json"

const stateSchema = "paperclip.runner.durable.state.v1"

// View writes private files of a state directory atomically.
type View struct {
	Dir string
	PID int

	mu      sync.Mutex
	attempt int
}

// Write replaces the file name: temporary file of mode 0600, fsync, rename,
// fsync of the directory (prp.md 9.5).
func (v *View) Write(name string, content []byte) (err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.attempt++
	tmp := filepath.Join(v.Dir, fmt.Sprintf(".%s.%d.%d.tmp", name, v.PID, v.attempt))
	//nolint:gosec // G304: a name of ours in the state directory
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, filepath.Join(v.Dir, name)); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	dir, err := os.Open(v.Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Read gives a file of the state directory: a private regular file of at most
// limit bytes. A missing file is os.ErrNotExist.
func (v *View) Read(name string, limit int64) (content []byte, err error) {
	path := filepath.Join(v.Dir, name)
	//nolint:gosec // G304: a name of ours in the state directory
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", name, limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

type (
	viewCommand struct {
		CommandID     string          `json:"commandId"`
		ControllerSeq int64           `json:"controllerSeq"`
		CommandType   string          `json:"commandType"`
		Status        string          `json:"status"`
		Result        json.RawMessage `json:"result"`
	}
	viewEvent struct {
		SourceSeq int64           `json:"sourceSeq"`
		Priority  int             `json:"priority"`
		EventType string          `json:"eventType"`
		Envelope  json.RawMessage `json:"envelope"`
		ByteSize  int64           `json:"byteSize"`
	}
	viewReceipt struct {
		Fingerprint string `json:"fingerprint"`
		SourceSeq   int64  `json:"sourceSeq"`
	}
	viewV2 struct {
		EventType string          `json:"eventType"`
		Priority  int             `json:"priority"`
		Payload   json.RawMessage `json:"payload"`
	}
	viewCleanup struct {
		Required bool `json:"required"`
	}
	viewState struct {
		Schema string `json:"schema"`
		prp.Identity
		Lifecycle                     string                 `json:"lifecycle"`
		NextSourceSeq                 int64                  `json:"nextSourceSeq"`
		AckedSourceSeq                int64                  `json:"ackedSourceSeq"`
		LastControllerCommandSeq      int64                  `json:"lastControllerCommandSeq"`
		CompactedThroughControllerSeq int64                  `json:"compactedThroughControllerSeq"`
		ReconnectCount                int64                  `json:"reconnectCount"`
		MaxOutboxBytes                int64                  `json:"maxOutboxBytes"`
		P0ReserveBytes                int64                  `json:"p0ReserveBytes"`
		PeakOutboxBytes               int64                  `json:"peakOutboxBytes"`
		Outbox                        []viewEvent            `json:"outbox"`
		ProcessedCommands             map[string]viewCommand `json:"processedCommands"`
		Fingerprints                  map[string]string      `json:"processedCommandFingerprints"`
		PendingTerminalDelivery       *Fence                 `json:"pendingTerminalDelivery"`
		PendingProviderCleanup        *viewCleanup           `json:"pendingProviderCleanup,omitempty"`
		ExecutorEventReceipts         map[string]viewReceipt `json:"executorEventReceipts"`
		V2ReplayEvents                []viewV2               `json:"v2ReplayEvents"`
		LastConnectionProtocolVersion *int                   `json:"lastConnectionProtocolVersion"`
		Diagnostics                   []string               `json:"diagnostics"`
		Backpressure                  bool                   `json:"backpressure"`
		RecoverableFailure            *string                `json:"recoverableFailure"`
	}
)

// writeView renews runner-state.json from what is in memory. The caller has
// made durable what depends on it.
func (j *Journal) writeView() error {
	if j.par.View == nil {
		return nil
	}
	j.viewLock.Lock() // a later state is never replaced by an earlier one
	defer j.viewLock.Unlock()
	j.mu.Lock()
	v := j.viewLocked()
	j.mu.Unlock()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("%s: %w", StateFile, err)
	}
	return j.par.View.Write(StateFile, b.Bytes())
}

// Publish renews the view: at once, or soon when nobody waits for it.
func (j *Journal) Publish() error {
	if j.viewWanted == nil {
		return j.writeView()
	}
	select {
	case j.viewWanted <- struct{}{}:
	default: // a renewal is due already
	}
	return nil
}

// keepView renews the view until Close.
func (j *Journal) keepView() {
	defer close(j.viewDone)
	for range j.viewWanted {
		if err := j.writeView(); err != nil {
			j.viewErr = err
		}
	}
}

func (j *Journal) viewLocked() viewState {
	st := j.st
	v := viewState{
		Schema: stateSchema, Identity: st.Header.Identity, Lifecycle: j.lifecycleLocked(),
		NextSourceSeq: st.NextSeq, AckedSourceSeq: st.Acked,
		LastControllerCommandSeq: st.LastCommand, CompactedThroughControllerSeq: st.Compacted,
		ReconnectCount: st.Meta.Reconnects,
		MaxOutboxBytes: st.Header.MaxOutbox, P0ReserveBytes: st.Header.P0Reserve, PeakOutboxBytes: st.PeakOutbox,
		Outbox:                  make([]viewEvent, 0, len(st.outbox)),
		ProcessedCommands:       make(map[string]viewCommand, len(st.Commands)),
		Fingerprints:            make(map[string]string, len(st.Commands)),
		PendingTerminalDelivery: st.Meta.clone().PendingTerminal,
		ExecutorEventReceipts:   make(map[string]viewReceipt, len(st.Receipts)),
		V2ReplayEvents:          []viewV2{},
		Diagnostics:             append([]string{}, st.Diagnostics...),
		Backpressure:            j.stalled,
	}
	version := max(st.Meta.ProtocolVersion, prp.VersionMin)
	for _, e := range st.outbox {
		v.Outbox = append(v.Outbox, viewEvent{
			SourceSeq: e.Seq, Priority: e.Priority, EventType: e.Type, ByteSize: e.size,
			Envelope: prp.AppendRunnerMessage(nil, version, prp.KindEvent, st.Header.Identity, e.Event),
		})
	}
	for _, c := range st.Commands {
		result := json.RawMessage(c.Result)
		if result == nil {
			result = json.RawMessage("null")
		}
		v.ProcessedCommands[c.CommandID] = viewCommand{c.CommandID, c.ControllerSeq, c.Type, c.Status, result}
		v.Fingerprints[c.CommandID] = c.Fingerprint
	}
	for _, r := range st.Receipts {
		v.ExecutorEventReceipts[r.ExecutorID] = viewReceipt{r.Fingerprint, r.Seq}
	}
	for _, family := range []string{"session.capabilities", "session.goal"} {
		if e, ok := st.V2[family]; ok {
			v.V2ReplayEvents = append(v.V2ReplayEvents, viewV2{e.Type, e.Priority, e.Payload})
		}
	}
	if st.Meta.PendingCleanup {
		v.PendingProviderCleanup = &viewCleanup{Required: true}
	}
	if n := st.Meta.ProtocolVersion; n > 0 {
		v.LastConnectionProtocolVersion = &n
	}
	if r := st.Meta.RecoverableFailure; r != "" {
		v.RecoverableFailure = &r
	}
	return v
}
