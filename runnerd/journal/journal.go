package journal

import (
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"bowline/runnerd/seglog"
	"bowline/runnerd/supervise"
	"bowline/wire"
	"bowline/wire/prp"
)

const (
	format = 1
	// ackPersistEvery is how many acknowledged events may be forgotten by a
	// crash (prp.md 5.7); they are learnt again from the next welcome.
	ackPersistEvery = 16
	// maxUnsynced is how many bytes may wait to be written before the one who
	// adds more has to wait, in bytes (ours).
	maxUnsynced = 4 << 20
)

// Params of a journal.
type Params struct {
	Identity  prp.Identity
	MaxOutbox int64 // bytes of events kept until they are acknowledged
	P0Reserve int64 // bytes of MaxOutbox only priority 0 may use
	MaxFrame  int   // bytes; an event whose frame would be longer is refused
	// View writes runner-state.json; nil writes none.
	View *View
	// EagerView rewrites the view at every pending mark, before events are given
	// out and after acknowledgements, for a peer that watches the file (PRP use).
	EagerView bool
	Now       func() time.Time
	Log       seglog.Options
	// Import is used when the log is empty: a state another runner left, or nil.
	Import *Imported
}

// Journal is an open journal.
type Journal struct {
	par Params

	mu       sync.Mutex
	log      *seglog.Log
	disk     seglog.Disk
	st       *state
	failure  error
	changed  chan struct{}   // closed and replaced when something a waiter looks at changes
	stalled  bool            // an event waits for room
	ackedOn  int64           // Acked as the log knows it
	fresh    bool            // the log was empty
	rolled   *seglog.Pending // newest checkpoint that may not be durable yet
	floor    uint64          // segment of the newest durable checkpoint
	viewLock sync.Mutex

	// The view's own goroutine, in our own use: nobody waits for the file.
	viewWanted chan struct{}
	viewDone   chan struct{}
	viewErr    error // of that goroutine, after viewDone
}

// Open reads the log on disk, or begins one; it takes disk over and closes it
// if it can be closed. Errors: wire.CodeLogDamaged;
// [ErrIdentity] when the log belongs to another identity; [ErrLimits] when it
// was made with other outbox limits.
func Open(disk seglog.Disk, par Params) (*Journal, error) {
	if par.Now == nil {
		par.Now = time.Now
	}
	j := &Journal{par: par, disk: disk, st: newState(), changed: make(chan struct{})}
	log, err := seglog.Open(plantedDisk(disk), par.Log, j.replay)
	if err != nil {
		if c, ok := disk.(io.Closer); ok {
			err = errors.Join(err, c.Close())
		}
		return nil, err
	}
	j.log = log
	if err := j.adopt(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	if par.View != nil && !par.EagerView {
		j.viewWanted, j.viewDone = make(chan struct{}, 1), make(chan struct{})
		go j.keepView()
	}
	return j, nil
}

// Errors of [Open].
var (
	ErrIdentity = errors.New("journal: the state directory belongs to another run")
	ErrLimits   = errors.New("journal: the outbox limits differ from those the state was made with")
)

func (j *Journal) replay(pos seglog.Position, record []byte) error {
	return decode(record, func(kind byte, sections [][]byte) error {
		c, err := changeOf(kind, sections)
		if err != nil {
			return err
		}
		// Segments before the oldest kept one are gone, and with them what these
		// operations refer to: until the checkpoint only events count.
		if _, isEvent := c.(*eventChange); !isEvent && !j.st.complete && kind != opHeader && kind != opCheckpoint {
			return nil
		}
		if err := c.apply(j.st); err != nil {
			return err
		}
		if kind == opHeader || kind == opCheckpoint {
			j.floor = pos.Segment
		}
		if e, ok := c.(*eventChange); ok {
			e.entry.segment = pos.Segment
		}
		return nil
	})
}

// adopt checks what was read, or makes it.
func (j *Journal) adopt() error {
	want := header{Format: format, Identity: j.par.Identity, MaxOutbox: j.par.MaxOutbox, P0Reserve: j.par.P0Reserve}
	if !j.st.complete {
		if len(j.st.outbox) > 0 {
			return errFormat("events without a checkpoint")
		}
		j.fresh = true
		changes := []change{&headerChange{want}}
		if j.par.Import != nil {
			imported := *j.par.Import
			if imported.Identity() != want.Identity {
				return ErrIdentity
			}
			if imported.maxOutbox != want.MaxOutbox || imported.p0Reserve != want.P0Reserve {
				return ErrLimits
			}
			changes = append(changes, imported.changes(want)...)
			j.fresh = false
		} else {
			changes = append(changes, &metaChange{Meta{Lifecycle: LifecycleConnecting}})
		}
		j.mu.Lock()
		p := j.write(changes...)
		j.floor = p.Segment()
		j.mu.Unlock()
		return j.wait(p)
	}
	switch have := j.st.Header; {
	case have.Identity != want.Identity:
		return ErrIdentity
	case have.MaxOutbox != want.MaxOutbox || have.P0Reserve != want.P0Reserve:
		return ErrLimits
	case have.Format != format:
		return errFormat("another format")
	}
	// An event leaves the outbox only when it is acknowledged; that a crash may
	// have forgotten, the event is gone all the same.
	oldest := j.st.NextSeq
	if len(j.st.outbox) > 0 {
		oldest = j.st.outbox[0].Seq
	}
	j.st.Acked = max(j.st.Acked, oldest-1)
	j.ackedOn = j.st.Acked
	return nil
}

// Fresh tells whether this process began the journal.
func (j *Journal) Fresh() bool { return j.fresh }

// Close ends the log and its disk; what was enqueued before is written, the view
// too. It is called once.
func (j *Journal) Close() error {
	if j.viewWanted != nil {
		close(j.viewWanted)
		<-j.viewDone
	}
	err := errors.Join(j.viewErr, j.log.Close())
	if c, ok := j.disk.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	return err
}

// write applies changes and enqueues them as one record. j.mu is held.
func (j *Journal) write(changes ...change) *seglog.Pending {
	ops := make([]op, 0, len(changes))
	for _, c := range changes {
		if err := c.apply(j.st); err != nil {
			panic("bug: journal: " + err.Error())
		}
		ops = append(ops, c.operation())
	}
	record := encode(ops)
	var p *seglog.Pending
	if j.log.WantsRoll() {
		// The checkpoint has the effect of this record already, except events,
		// which must be behind it.
		cp := encode([]op{(&checkpointChange{j.st.durable, j.st.prepare, j.st.resume}).operation()})
		var events []op
		for i, c := range changes {
			if _, ok := c.(*eventChange); ok {
				events = append(events, ops[i])
			}
		}
		if len(events) > 0 {
			cp = append(cp, encode(events)...)
		}
		j.floorLocked() // the checkpoint before is durable by now
		p = j.log.Roll(cp)
		j.rolled = p
	} else {
		p = j.log.Enqueue(record)
	}
	for _, c := range changes {
		if e, ok := c.(*eventChange); ok {
			e.entry.pending, e.entry.segment = p, p.Segment()
		}
	}
	j.wakeLocked()
	return p
}

func (j *Journal) wakeLocked() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// wait returns when p is durable and remembers a failure for ever.
func (j *Journal) wait(p *seglog.Pending) error {
	err := p.Wait()
	if err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.failure == nil {
			j.failure = err
			j.wakeLocked()
		}
	}
	return err
}

// commit is write and wait.
func (j *Journal) commit(changes ...change) error {
	j.mu.Lock()
	if j.failure != nil {
		defer j.mu.Unlock()
		return j.failure
	}
	p := j.write(changes...)
	j.mu.Unlock()
	return j.wait(p)
}

// Meta gives a copy of the small state.
func (j *Journal) Meta() Meta {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.st.Meta.clone()
}

func (m Meta) clone() Meta {
	if m.Turn != nil {
		t := *m.Turn
		m.Turn = &t
	}
	if m.PendingTerminal != nil {
		f := *m.PendingTerminal
		m.PendingTerminal = &f
	}
	return m
}

// Update changes the small state durably, and the view with it.
func (j *Journal) Update(change func(*Meta)) error {
	if err := j.commitMeta(change); err != nil {
		return err
	}
	return j.Publish()
}

func (j *Journal) commitMeta(change func(*Meta), more ...change) error {
	j.mu.Lock()
	if j.failure != nil {
		defer j.mu.Unlock()
		return j.failure
	}
	m := j.st.Meta.clone()
	change(&m)
	p := j.write(append(more, &metaChange{m})...)
	j.mu.Unlock()
	return j.wait(p)
}

// SetPrepare keeps the payload of run.prepare, to open the driver again.
func (j *Journal) SetPrepare(payload []byte) error { return j.commit(&prepareChange{payload}) }

// Prepare is what SetPrepare kept, nil before; Resume the provider's state.
func (j *Journal) Prepare() (prepare, resume []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.st.prepare, j.st.resume
}

// Spawned records a process durably: for [supervise.Options.OnSpawn].
func (j *Journal) Spawned(r supervise.Record) error { return j.commit(&spawnChange{r}) }

// Gone forgets a process whose tree is proven gone. It does not wait: a record
// too many only makes a successor look for what is not there.
func (j *Journal) Gone(r supervise.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.st.Processes[r.Marker]; ok && j.failure == nil {
		j.write(&goneChange{r})
	}
}

// Processes lists the processes that were not proven gone.
func (j *Journal) Processes() []supervise.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	var list []supervise.Record
	for _, r := range j.st.Processes {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b supervise.Record) int { return a.PID - b.PID })
	return list
}

// Diagnostic keeps a line (already redacted) for the view.
func (j *Journal) Diagnostic(text string) {
	if len(text) > MaxDiagnosticBytes {
		text = text[:MaxDiagnosticBytes] + "…[truncated]"
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failure == nil {
		j.write(&diagnosticChange{diagnosticMeta{text}})
	}
}

// V2Events are the last events of the families only version 2 knows, to be
// sent again after an upgrade (prp.md 5.10).
func (j *Journal) V2Events() []V2Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	var list []V2Event
	for _, family := range []string{"session.capabilities", "session.goal"} {
		if e, ok := j.st.V2[family]; ok {
			list = append(list, e)
		}
	}
	return list
}

// Failure is the error that ended the journal, or nil.
func (j *Journal) Failure() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failure
}

// Stats of the outbox.
type Stats struct {
	Events     int
	Bytes      int64
	OldestAtMs int64 // Unix ms of the oldest event, 0 when empty
	Acked      int64
	NextSeq    int64
	LastCmd    int64
	Lifecycle  string
}

// Stats gives the figures for pong, hello and metrics.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := Stats{
		Events: len(j.st.outbox), Bytes: j.st.outboxBytes, Acked: j.st.Acked, NextSeq: j.st.NextSeq,
		LastCmd: j.st.LastCommand, Lifecycle: j.lifecycleLocked(),
	}
	if len(j.st.outbox) > 0 {
		s.OldestAtMs = j.st.outbox[0].At
	}
	return s
}

func (j *Journal) lifecycleLocked() string {
	if j.stalled && j.st.Meta.Lifecycle == LifecycleReady {
		return LifecycleBackpressure
	}
	return j.st.Meta.Lifecycle
}

// errAckRange: an ack outside what was sent fails the process (prp.md 5.7).
func errAckRange() *wire.Error {
	return wire.Errorf(wire.CodeProtocol, "acknowledgement lies outside the sent events")
}

// Note changes the small state without waiting for the disk: it is durable
// before whatever is written after it.
func (j *Journal) Note(change func(*Meta)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failure != nil {
		return j.failure
	}
	m := j.st.Meta.clone()
	change(&m)
	j.write(&metaChange{m})
	return nil
}
