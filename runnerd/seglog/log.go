package seglog

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

const (
	// DefaultSegmentSize is what a segment is preallocated to, in bytes (ours).
	DefaultSegmentSize = 8 << 20
	// maxCommitBytes is how much one commit writes at most unless a single
	// entry is longer, in bytes: it bounds how long the first waiter waits.
	maxCommitBytes = 4 << 20
)

// ErrClosed is given for what is enqueued after [Log.Close].
var ErrClosed = errors.New("seglog: log is closed")

// Position names a record.
type Position struct {
	Segment uint64
	Offset  int64 // of the record's header, in bytes
}

// Options of a log. The zero value is good.
type Options struct {
	SegmentSize int64                              // bytes preallocated; 0: DefaultSegmentSize
	OnSync      func(d time.Duration)              // told how long each fdatasync took; may be nil
	Now         func() time.Time                   // clock for OnSync; nil: time.Now
	OnTorn      func(segment uint64, offset int64) // told where a torn write was cut away; may be nil
}

// Log is an open log.
type Log struct {
	disk Disk
	opt  Options

	mu       sync.Mutex
	wake     *sync.Cond
	queue    []*Pending
	queued   int64 // bytes of the queue
	closed   bool
	failure  error
	segments []uint64 // that exist, ascending
	filled   int64    // bytes of the newest segment behind its checkpoint, queue included
	planned  uint64   // number of the newest segment, queue included

	dropping sync.Mutex // one DropBefore at a time: segments go in order

	stopped chan struct{}

	// Of the writer goroutine alone.
	active     File
	number     uint64
	offset     int64
	allocated  int64
	commit     uint64
	nextRecord uint64
	buf        []byte
}

// Pending is something enqueued.
type Pending struct {
	records [][]byte
	bytes   int64
	roll    bool
	segment uint64
	done    chan struct{}
	err     error
}

// Wait returns when the records are durable, or why they may not be:
// wire.CodeDiskFull, wire.CodeStoreIndeterminate, [ErrClosed].
func (p *Pending) Wait() error {
	<-p.done
	return p.err
}

// Segment is the number of the segment the records are, or will be, in.
func (p *Pending) Segment() uint64 { return p.segment }

// Done is closed when Wait would not block.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Open reads a log from its oldest record to its newest, cuts a torn tail away
// and makes the log ready for writing. An empty directory becomes an empty log.
// The bytes given to replay may be kept. Errors: wire.CodeLogDamaged,
// wire.CodeDiskFull, those of disk and replay.
func Open(disk Disk, opt Options, replay func(Position, []byte) error) (*Log, error) {
	if opt.SegmentSize == 0 {
		opt.SegmentSize = DefaultSegmentSize
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	l := &Log{disk: disk, opt: opt, stopped: make(chan struct{}), nextRecord: 1}
	l.wake = sync.NewCond(&l.mu)
	if err := l.load(replay); err != nil {
		if l.active != nil {
			err = errors.Join(err, l.active.Close())
		}
		return nil, typed(err)
	}
	l.filled, l.planned = l.offset, l.number
	go l.write()
	return l, nil
}

func (l *Log) load(replay func(Position, []byte) error) error {
	names, err := l.disk.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if n, ok := parseSegmentName(name); ok {
			l.segments = append(l.segments, n)
		}
	}
	slices.Sort(l.segments)
	if len(l.segments) == 0 {
		return l.create(1)
	}
	for i, n := range l.segments {
		if i > 0 && n != l.segments[i-1]+1 {
			return damaged(l.segments[i-1]+1, 0, "segment is missing")
		}
		if err := l.loadSegment(n, i == 0, i == len(l.segments)-1, replay); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) loadSegment(number uint64, oldest, newest bool, replay func(Position, []byte) error) (err error) {
	f, err := l.disk.Open(segmentName(number))
	if err != nil {
		return err
	}
	if newest {
		l.active = f // closed by Open when anything fails
	} else {
		defer func() { err = errors.Join(err, f.Close()) }()
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	head := make([]byte, headerSize)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	s := scanner{file: f, size: size, number: number, newest: newest, commit: l.commit, end: headerSize}
	num, first, ok := parseHeader(head)
	switch {
	case ok && num != number:
		return damaged(number, 0, "header names another segment")
	case ok && oldest:
		l.nextRecord = first
		if first == 1 {
			break
		}
		// What came before was dropped: the first commit number is taken as it is.
		if h, good := peekCommit(f); good {
			s.commit = h - 1
		}
	case ok && first != l.nextRecord:
		return damaged(number, 0, "records before it are missing")
	case ok:
	case newest && (n < headerSize || allZero(head)) && (!oldest || number == 1):
		// The crash came between creating the file and its header: no record
		// can be in it.
		later, err := s.laterCommit(headerSize, 0)
		if err != nil {
			return err
		}
		if later {
			return damaged(number, 0, "header is missing")
		}
		return l.begin(number)
	default:
		return damaged(number, 0, "header fails its checksum")
	}
	if err := s.scan(replay); err != nil {
		return err
	}
	l.commit, l.nextRecord = s.commit, l.nextRecord+s.records
	if !newest {
		return nil
	}
	l.number, l.offset, l.allocated = number, s.end, size
	if s.cut {
		if err := l.cut(); err != nil {
			return err
		}
		if l.opt.OnTorn != nil {
			l.opt.OnTorn(number, s.end)
		}
	}
	return l.reserve(l.opt.SegmentSize)
}

func peekCommit(f File) (uint64, bool) {
	var b [recordHead]byte
	if _, err := f.ReadAt(b[:], headerSize); err != nil {
		return 0, false
	}
	h, ok := parseRecordHead(b[:])
	return h.commit, ok && h.commit > 0
}

// cut makes everything behind the last good record zeros again, durably, so
// that no bit of a torn write can ever be read as a record.
func (l *Log) cut() error {
	if err := l.active.Truncate(l.offset); err != nil {
		return err
	}
	l.allocated = l.offset
	if err := l.reserve(l.opt.SegmentSize); err != nil {
		return err
	}
	return l.active.Datasync()
}

// reserve grows the active segment to at least size.
func (l *Log) reserve(size int64) error {
	if l.allocated >= size {
		return nil
	}
	if err := l.active.Allocate(size); err != nil {
		return err
	}
	l.allocated = size
	return nil
}

// create makes a new segment the active one.
func (l *Log) create(number uint64) error {
	f, err := l.disk.Create(segmentName(number))
	if err != nil {
		return err
	}
	if l.active != nil {
		if err := l.active.Close(); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	l.active = f
	if err := l.begin(number); err != nil {
		return err
	}
	if err := l.disk.Sync(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.segments, number) {
		l.segments = append(l.segments, number)
	}
	return nil
}

// begin writes the header of the active, empty segment.
func (l *Log) begin(number uint64) error {
	l.number, l.offset, l.allocated = number, headerSize, 0
	if err := l.active.Truncate(0); err != nil {
		return err
	}
	if err := l.reserve(l.opt.SegmentSize); err != nil {
		return err
	}
	if _, err := l.active.WriteAt(putHeader(number, l.nextRecord), 0); err != nil {
		return err
	}
	return l.active.Datasync()
}

// Enqueue hands records over without waiting: they are written in the order of
// the calls. The bytes must not be changed afterwards. Records of one call are
// part of one commit, yet after a crash only the first of them may be there.
func (l *Log) Enqueue(records ...[]byte) *Pending { return l.enqueue(false, records) }

// Roll starts a new segment with these records: a checkpoint that makes what
// came before obsolete.
func (l *Log) Roll(records ...[]byte) *Pending { return l.enqueue(true, records) }

// Append is Enqueue and Wait.
func (l *Log) Append(records ...[]byte) error { return l.Enqueue(records...).Wait() }

func (l *Log) enqueue(roll bool, records [][]byte) *Pending {
	p := &Pending{records: records, roll: roll, done: make(chan struct{})}
	for _, r := range records {
		if len(r) > MaxRecord {
			panic(fmt.Sprintf("bug: a record of %d bytes, at most %d are possible", len(r), MaxRecord))
		}
		p.bytes += int64(span(len(r)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.failure != nil:
		p.err = l.failure
	case l.closed:
		p.err = ErrClosed
	}
	if p.err != nil {
		close(p.done)
		return p
	}
	if roll {
		// The checkpoint itself does not count: it may be longer than a segment.
		l.filled = headerSize
		l.planned++
	} else {
		l.filled += p.bytes
	}
	p.segment = l.planned
	l.queued += p.bytes
	l.queue = append(l.queue, p)
	l.wake.Signal()
	return p
}

// WantsRoll tells whether the newest segment is full: a good time for [Log.Roll].
func (l *Log) WantsRoll() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.filled >= l.opt.SegmentSize
}

// Queued is how many bytes wait to be written.
func (l *Log) Queued() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queued
}

// Newest is the number of the newest segment that exists.
func (l *Log) Newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.segments[len(l.segments)-1]
}

// DropBefore deletes the segments before segment, oldest first; the newest one
// always stays. The caller knows that nothing in them is needed any more.
func (l *Log) DropBefore(segment uint64) error {
	l.dropping.Lock()
	defer l.dropping.Unlock()
	l.mu.Lock()
	var drop []uint64
	for len(l.segments) > 1 && l.segments[0] < segment {
		drop = append(drop, l.segments[0])
		l.segments = l.segments[1:]
	}
	l.mu.Unlock()
	for _, n := range drop {
		if err := l.disk.Remove(segmentName(n)); err != nil {
			return typed(err)
		}
		// In order: a hole would read as damage.
		if err := l.disk.Sync(); err != nil {
			return typed(err)
		}
	}
	return nil
}

// Failure is the error that ended writing, or nil.
func (l *Log) Failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// Close writes what was enqueued, waits for it and closes the files. What went
// wrong is also in [Pending.Wait] of what was enqueued.
func (l *Log) Close() error {
	l.mu.Lock()
	l.closed = true
	l.wake.Signal()
	l.mu.Unlock()
	<-l.stopped
	return l.Failure()
}
