package journal

import (
	"context"
	"fmt"

	"bowline/runnerd/seglog"
	"bowline/wire"
	"bowline/wire/prp"
)

// Event is one to be appended.
type Event struct {
	Type     string
	Priority int
	Payload  []byte // JSON object
	// Provider is the name executor event ids begin with ("codex_provider"), or
	// "" for a fact of the runner itself (prp.md 9.6).
	Provider string
	// Resume, when not nil, becomes the provider's resume state in the same write.
	Resume []byte
	// Update, when not nil, changes the small state in the same write.
	Update func(*Meta)
}

// Emit numbers an event and appends it to the outbox. With a resume state it
// waits until both are durable, so that a provider is at most one event ahead of
// what a successor knows. Else it does not wait for the disk, except when much
// waits already: nothing is sent before it is durable.
// While there is no room (prp.md 9.4) an event of another priority than 0
// waits; one of priority 0 beyond the whole budget ends the journal's life as
// unrecoverable. An event too long for a frame is wire.CodeTooLarge.
func (j *Journal) Emit(ctx context.Context, ev Event) error {
	j.mu.Lock()
	for {
		if j.failure != nil {
			defer j.mu.Unlock()
			return j.failure
		}
		c, err := j.eventLocked(ev)
		if err != nil {
			j.mu.Unlock()
			return err
		}
		total := j.st.outboxBytes + c.Size
		if ev.Priority == 0 && total > j.par.MaxOutbox {
			j.mu.Unlock()
			return j.overflow()
		}
		if ev.Priority == 0 || total <= j.par.MaxOutbox-j.par.P0Reserve {
			changes := []change{c}
			if ev.Resume != nil {
				changes = append(changes, &resumeChange{ev.Resume})
			}
			if ev.Update != nil {
				m := j.st.Meta.clone()
				ev.Update(&m)
				changes = append(changes, &metaChange{m})
			}
			p := j.write(changes...)
			j.stalled = j.stalled && ev.Priority == 0
			j.mu.Unlock()
			if ev.Resume != nil {
				return j.wait(p)
			}
			return j.settle(p)
		}
		if c.Size > j.par.MaxOutbox-j.par.P0Reserve {
			j.mu.Unlock()
			return wire.Errorf(wire.CodeTooLarge, "event of %d bytes exceeds the outbox of %d bytes", c.Size, j.par.MaxOutbox-j.par.P0Reserve)
		}
		j.stalled = true
		changed := j.changed
		j.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		j.mu.Lock()
	}
}

// settle bounds how far the callers may run ahead of the disk.
func (j *Journal) settle(p *seglog.Pending) error {
	if j.log.Queued() < maxUnsynced {
		return nil
	}
	return j.wait(p)
}

func (j *Journal) overflow() error {
	err := wire.Errorf(wire.CodeTooLarge, "outbox of %d bytes is exhausted: a terminal fact does not fit", j.par.MaxOutbox)
	uerr := j.Update(func(m *Meta) { m.Lifecycle = LifecycleUnrecoverable })
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failure == nil {
		j.failure = err
		if uerr != nil {
			j.failure = uerr
		}
		j.wakeLocked()
	}
	return j.failure
}

func (j *Journal) eventLocked(ev Event) (*eventChange, error) {
	id := j.par.Identity
	now := j.par.Now()
	c := &eventChange{eventMeta: eventMeta{Seq: j.st.NextSeq, Priority: ev.Priority, Type: ev.Type, At: now.UnixMilli()}}
	eventID := prp.RunnerEventID(id.RunnerInstanceID, c.Seq)
	if ev.Provider != "" {
		c.ProviderSeq = j.st.NextProvider
		c.ExecutorID = fmt.Sprintf("%s_%016d", ev.Provider, j.st.NextProvider)
		eventID = prp.ExecutorEventID(id.RunnerInstanceID, c.ExecutorID)
	}
	if prp.IsV2Event(ev.Type) {
		c.V2 = ev.Payload
	}
	c.event = prp.AppendEvent(nil, prp.EventFields{
		SourceEventID: eventID, SourceSeq: c.Seq, Identity: id, Type: ev.Type, Priority: ev.Priority,
		EmittedAt: prp.FormatTime(now), Payload: ev.Payload,
	})
	c.Size = int64(len(prp.AppendRunnerMessage(nil, prp.VersionMin, prp.KindEvent, id, c.event)))
	if frame := prp.FrameSize(int(c.Size)); frame > j.par.MaxFrame {
		return nil, wire.Errorf(wire.CodeTooLarge, "event %s needs a frame of %d bytes, the limit is %d bytes", ev.Type, frame, j.par.MaxFrame)
	}
	return c, nil
}

// nextBatch is how many events Next gives at most.
const nextBatch = 64

// Next waits for events behind seq and gives a few of them, in order; every one
// given is durable.
func (j *Journal) Next(ctx context.Context, seq int64) ([]*Entry, error) {
	j.mu.Lock()
	for {
		if j.failure != nil {
			defer j.mu.Unlock()
			return nil, j.failure
		}
		if n := len(j.st.outbox); n > 0 && j.st.outbox[n-1].Seq > seq {
			break
		}
		changed := j.changed
		j.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		j.mu.Lock()
	}
	from := max(0, int(seq+1-j.st.outbox[0].Seq))
	list := j.st.outbox[from:min(len(j.st.outbox), from+nextBatch)]
	list = append([]*Entry(nil), list...)
	j.mu.Unlock()
	for i, e := range list {
		if e.pending == nil || plantSend {
			continue
		}
		select {
		case <-e.pending.Done():
		default:
			if i > 0 {
				list = list[:i]
			}
		}
		if i == len(list) {
			break
		}
		if err := j.wait(e.pending); err != nil {
			return nil, err
		}
	}
	if j.par.EagerView {
		if err := j.writeView(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Ack takes a cumulative acknowledgement (prp.md 5.7). It fails when it lies
// outside the events that exist; that must end the process. drained tells
// whether the outbox is empty now.
func (j *Journal) Ack(seq int64) (drained bool, err error) {
	j.mu.Lock()
	if j.failure != nil {
		defer j.mu.Unlock()
		return false, j.failure
	}
	if seq < j.st.Acked || seq >= j.st.NextSeq {
		defer j.mu.Unlock()
		return false, errAckRange()
	}
	if seq == j.st.Acked {
		defer j.mu.Unlock()
		return len(j.st.outbox) == 0, nil
	}
	j.st.ack(seq)
	drained = len(j.st.outbox) == 0
	var drop uint64
	if drained || seq-j.ackedOn >= ackPersistEvery {
		j.ackedOn = seq
		j.write(&ackChange{ackMeta{seq}})
		drop = j.floorLocked()
		if len(j.st.outbox) > 0 {
			drop = min(drop, j.st.outbox[0].segment)
		}
	} else {
		j.wakeLocked()
	}
	if j.stalled && j.st.outboxBytes <= j.par.MaxOutbox-j.par.P0Reserve {
		j.stalled = false
	}
	j.mu.Unlock()
	if drop == 0 {
		return drained, nil
	}
	if j.par.EagerView {
		if err := j.writeView(); err != nil {
			return drained, err
		}
	}
	return drained, j.log.DropBefore(drop)
}

// floorLocked is the segment of the newest checkpoint that is surely durable.
func (j *Journal) floorLocked() uint64 {
	if j.rolled != nil {
		select {
		case <-j.rolled.Done():
			if j.rolled.Wait() == nil {
				j.floor = j.rolled.Segment()
			}
			j.rolled = nil
		default:
		}
	}
	return j.floor
}

// Drained waits until the outbox is empty; false when ctx ended first.
func (j *Journal) Drained(ctx context.Context) bool {
	for {
		j.mu.Lock()
		empty, changed, failed := len(j.st.outbox) == 0, j.changed, j.failure != nil
		j.mu.Unlock()
		if empty || failed {
			return empty
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
