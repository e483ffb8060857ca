package seglog

import (
	"errors"
	"syscall"

	"bowline/wire"
)

// write is the log's goroutine: it takes whatever waits, writes it, syncs once.
func (l *Log) write() {
	defer close(l.stopped)
	for {
		batch := l.take()
		if batch == nil {
			if err := l.release(); err != nil {
				l.fail(typed(err))
			}
			return
		}
		err := l.commitBatch(batch)
		if err != nil {
			err = undecided(typed(err))
			l.fail(err)
		}
		for _, p := range batch {
			p.err = err
			close(p.done)
		}
	}
}

// release gives the reserved space behind the last record back and closes the
// segment. After a failure the file is left as it is.
func (l *Log) release() error {
	var err error
	if l.Failure() == nil {
		err = l.active.Truncate(l.offset)
	}
	return errors.Join(err, l.active.Close())
}

// take waits for entries that can share a sync: a roll begins a new batch. Nil
// means that the log is closed and empty.
func (l *Log) take() []*Pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 {
		if l.closed {
			return nil
		}
		l.wake.Wait()
	}
	n, bytes := 1, l.queue[0].bytes
	for n < len(l.queue) && !l.queue[n].roll && bytes+l.queue[n].bytes <= maxCommitBytes {
		bytes += l.queue[n].bytes
		n++
	}
	batch := l.queue[:n:n]
	l.queue = l.queue[n:]
	if len(l.queue) == 0 {
		l.queue = nil
	}
	l.queued -= bytes
	return batch
}

func (l *Log) commitBatch(batch []*Pending) error {
	// After a failure the outcome of earlier writes is unknown: nothing may be
	// reported durable behind them.
	if err := l.Failure(); err != nil {
		return err
	}
	if batch[0].roll {
		if err := l.create(l.number + 1); err != nil {
			return err
		}
	}
	l.buf = l.buf[:0]
	var records uint64
	for _, p := range batch {
		for _, r := range p.records {
			l.buf = appendRecord(l.buf, l.commit+1, r)
			records++
		}
	}
	if records == 0 {
		return nil
	}
	if err := l.reserve(l.offset + int64(len(l.buf))); err != nil {
		return err
	}
	if _, err := l.active.WriteAt(l.buf, l.offset); err != nil {
		return err
	}
	start := l.opt.Now()
	if err := l.active.Datasync(); err != nil {
		return err
	}
	if l.opt.OnSync != nil {
		l.opt.OnSync(l.opt.Now().Sub(start))
	}
	l.offset += int64(len(l.buf))
	l.commit++
	l.nextRecord += records
	if cap(l.buf) > 2*maxCommitBytes {
		l.buf = nil
	}
	return nil
}

func (l *Log) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		l.failure = err
	}
}

// undecided gives a failed write or sync without a code of its own the one of an
// unknown outcome: the records may be in the log at the next [Open], or not.
func undecided(err error) error {
	var e *wire.Error
	if errors.As(err, &e) {
		return err
	}
	e = wire.Errorf(wire.CodeStoreIndeterminate, "the outcome of a write to the session log is unknown; it takes no more until it is opened again")
	e.Cause = err
	return e
}

// typed gives errors of the disk a code.
func typed(err error) error {
	var e *wire.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		full := wire.Errorf(wire.CodeDiskFull, "no space left for the session log")
		full.Cause = err
		return full
	}
	return err
}
