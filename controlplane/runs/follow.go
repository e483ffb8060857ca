package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"bowline/controlplane/resource"
	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/canonjson"
)

// One page of a stream (ours): what a reader costs in memory.
const (
	pageEvents = 256
	pageBytes  = 256 << 10
)

// sourceEpoch of runner events on profile prp, which has one.
const sourceEpoch = "1"

// Follower reads a run's events in order. It belongs to one goroutine.
type Follower struct {
	m         *Manager
	runID     string
	sessionID string
	epoch     int64
	after     int64 // last host-log number that was handed out
	greeted   bool
	strict    bool // a cursor was given: the next number must follow it
}

// Follow opens a run's event stream after a cursor, "" = from the beginning.
// Errors: wire.CodeNotFound, CodeBadCursor (malformed, another epoch, beyond
// the head), CodeGone (pruned; details name the earliest cursor).
func (m *Manager) Follow(ctx context.Context, runID, after string) (*Follower, error) {
	row, err := m.run(ctx, runID)
	if err != nil {
		return nil, err
	}
	run, err := m.Get(ctx, runID)
	if err != nil {
		return nil, err
	}
	f := &Follower{m: m, runID: runID, sessionID: row.SessionID, epoch: 1}
	head := resource.Cursor{Epoch: f.epoch}
	if run.Head != "" {
		if head, err = resource.ParseCursor(run.Head); err != nil {
			return nil, fmt.Errorf("runs: own head: %w", err)
		}
		f.epoch = head.Epoch
	}
	if after == "" {
		return f, nil
	}
	cur, err := resource.ParseCursor(after)
	if err != nil {
		return nil, err
	}
	if cur.Epoch != head.Epoch || cur.Seq > head.Seq {
		return nil, wire.Errorf(wire.CodeBadCursor, "cursor is not of this run's log, whose newest is %s", head).With("head", head.String())
	}
	f.after, f.strict = cur.Seq, true
	rows, err := m.cfg.Store.Events(ctx, f.sessionID, f.after, 1, 1)
	if err != nil {
		return nil, err
	}
	if len(rows) == 1 && rows[0].Seq != f.after+1 {
		earliest := resource.Cursor{Epoch: f.epoch, Seq: rows[0].Seq - 1}
		return nil, wire.Errorf(wire.CodeGone, "the events after this cursor were pruned; the earliest cursor is %s", earliest).With("earliest", earliest.String())
	}
	return f, nil
}

// Next waits for the next lines. See api.Follower.
func (f *Follower) Next(ctx context.Context) (lines []resource.Line, end bool, err error) {
	if !f.greeted {
		run, err := f.m.Get(ctx, f.runID)
		if err != nil {
			return nil, false, err
		}
		f.greeted = true
		return []resource.Line{{Type: resource.LineStatus, RunID: f.runID, Status: run.Status, Head: run.Head}}, false, nil
	}
	for {
		// Asked for before looking, so that nothing is missed in between.
		news, over, err := f.watch(ctx)
		if err != nil {
			return nil, false, err
		}
		rows, err := f.m.cfg.Store.Events(ctx, f.sessionID, f.after, pageEvents, pageBytes)
		if err != nil {
			return nil, false, err
		}
		if len(rows) > 0 {
			return f.page(rows)
		}
		if over {
			return nil, true, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// watch gives a channel that is closed when there may be news, and tells
// whether the run has ended: then nothing is waited for.
func (f *Follower) watch(ctx context.Context) (<-chan struct{}, bool, error) {
	if e := f.m.peek(f.runID); e != nil {
		news := e.live.Changed()
		if err := e.live.Err(); err != nil {
			return nil, false, err
		}
		s := e.live.Brief()
		return news, s.Run != nil && store.Terminal(s.Run.Status), nil
	}
	row, err := f.m.run(ctx, f.runID)
	if err != nil {
		return nil, false, err
	}
	if store.Terminal(row.Status) {
		return nil, true, nil
	}
	e, err := f.m.open(ctx, f.runID)
	if err != nil {
		return nil, false, err
	}
	return e.live.Changed(), false, nil
}

// page turns rows into lines, up to the terminal event.
func (f *Follower) page(rows []store.EventRow) (lines []resource.Line, end bool, err error) {
	lines = make([]resource.Line, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		if r.Seq != f.after+1 {
			lines = append(lines, resource.Line{
				Type: resource.LineGap, RunID: f.runID,
				From: resource.Cursor{Epoch: f.epoch, Seq: f.after + 1}.String(),
				To:   resource.Cursor{Epoch: f.epoch, Seq: r.Seq - 1}.String(),
			})
		}
		f.after = r.Seq
		if r.RunID != f.runID {
			continue // of another run of the same session
		}
		ev, err := f.event(r)
		if err != nil {
			return nil, false, err
		}
		lines = append(lines, resource.Line{
			Type: resource.LineEvent, ID: resource.Cursor{Epoch: f.epoch, Seq: r.Seq}.String(), RunID: f.runID, Event: ev,
		})
		if r.Type == resource.EventRunEnded && r.Origin == store.OriginControlPlane {
			return lines, true, nil
		}
	}
	return lines, false, nil
}

// event is the host's view of a log entry.
func (f *Follower) event(r *store.EventRow) (*resource.Event, error) {
	ev := &resource.Event{Type: r.Type, At: r.At.UTC(), Origin: r.Origin, SessionID: f.sessionID, Late: r.Late}
	if r.Origin != store.OriginRunner {
		ev.Payload = r.Body
		return ev, nil
	}
	// The received envelope, read as it was when it was judged: encoding/json
	// would take "Payload" for "payload" and show a host something else.
	text := canonjson.DecodeUTF8(r.Body)
	payload, err := canonjson.Raw(text, "payload", "payload")
	said := make(map[string]canonjson.Value, 4)
	for _, name := range []string{"turnId", "eventType", "sourceEventId", "sourceSeq"} {
		var raw string
		if err == nil {
			raw, err = canonjson.Raw(text, "payload", name)
		}
		if err == nil && raw != "" {
			said[name], err = canonjson.ParseText(raw)
		}
	}
	seq, _ := said["sourceSeq"].SafeInt()
	if err == nil && (payload == "" || said["eventType"].Str() != r.Type || said["sourceEventId"].Str() != r.SourceEventID || seq != r.SourceSeq) {
		err = errors.New("the entry and what was received do not agree")
	}
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeLogDamaged, Message: fmt.Sprintf("event %d of the run's log is not readable", r.Seq), Cause: err}
	}
	ev.TurnID = said["turnId"].Str()
	ev.Payload = json.RawMessage(payload)
	ev.Source = &resource.Source{Epoch: sourceEpoch, Seq: r.SourceSeq, EventID: r.SourceEventID}
	return ev, nil
}
