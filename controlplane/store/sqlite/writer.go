package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"

	lib "modernc.org/sqlite/lib"

	"bowline/controlplane/store"
	"bowline/wire"
)

// request is one transaction on its way through the writer.
type request struct {
	tx   *store.Tx
	size int // bytes of its bodies
	err  error
	done chan struct{}
}

// Commit applies tx. A ctx that ends while the transaction still waits for a
// place in the queue takes it back (the ctx's error, nothing written); once it
// has a place, Commit waits for the true outcome.
func (s *Store) Commit(ctx context.Context, tx *store.Tx) error {
	check(tx)
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	r := &request{tx: tx, size: size(tx), done: make(chan struct{})}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	<-r.done
	return r.err
}

// writer owns the writing connection. All of it runs on one goroutine.
type writer struct {
	eng     engine
	opts    Options
	latch   func(cause error) *wire.Error
	latched *wire.Error

	sessions map[string]*known // what the file says of sessions seen lately
	batch    []*request
	pages    int // eng.written() at the last checkpoint

	nextEvent int64 // number of the next event; numbers of undone events are not used again
}

func newWriter(eng engine, opts Options, latch func(error) *wire.Error) (*writer, error) {
	var row [1]driver.Value
	if _, err := eng.lookup(stmtNextEvent, row[:]); err != nil {
		return nil, fmt.Errorf("store: find the last event: %w", err)
	}
	next, ok := row[0].(int64)
	if !ok {
		return nil, fmt.Errorf("store: the number of the last event is a %T", row[0])
	}
	return &writer{eng: eng, opts: opts, latch: latch, sessions: make(map[string]*known), nextEvent: next}, nil
}

// gatherYields is how often the writer lets other goroutines run before it
// closes a batch: the callers answered by the last commit are just then on
// their way back with their next transaction, and a sync costs far more than
// letting them arrive.
const gatherYields = 3

// run serves the queue until it is closed and empty.
func (w *writer) run(queue <-chan *request) {
	for first := range queue {
		w.gather(first, queue)
		w.serve()
		clear(w.batch)
		w.checkpoint()
	}
}

// gather fills w.batch with first and what waits behind it.
func (w *writer) gather(first *request, queue <-chan *request) {
	w.batch = append(w.batch[:0], first)
	total := first.size
	for yields := 0; len(w.batch) < queueLen && total < batchBytes; {
		select {
		case r, ok := <-queue:
			if !ok {
				return
			}
			w.batch = append(w.batch, r)
			total += r.size
			continue
		default:
		}
		if yields == gatherYields {
			return
		}
		yields++
		runtime.Gosched()
	}
}

// serve commits w.batch and answers each of its callers.
func (w *writer) serve() {
	err := error(w.latched)
	if w.latched == nil {
		err = w.commit()
	}
	for _, r := range w.batch {
		if err != nil {
			// A refusal may rest on what a neighbour wrote, so it falls with it.
			r.err = err
		}
		close(r.done)
	}
}

// errRestart tells commit to start the batch again with savepoints.
var errRestart = errors.New("store: a transaction was refused after it had written")

// commit runs one database transaction. A nil result means that each
// request's err is its answer.
func (w *writer) commit() error {
	start := w.opts.Now()
	err := w.attempt(false)
	if errors.Is(err, errRestart) {
		err = w.attempt(true)
	}
	if err != nil {
		return err
	}
	if w.opts.OnCommit != nil {
		events := 0
		for _, r := range w.batch {
			if r.err == nil {
				events += len(r.tx.Events)
			}
		}
		w.opts.OnCommit(w.opts.Now().Sub(start), len(w.batch), events)
	}
	return nil
}

// attempt applies and commits the batch, with or without a savepoint around
// each transaction. After an error nothing of the batch is in the file, or the
// store is latched.
func (w *writer) attempt(savepoints bool) error {
	if err := w.eng.begin(); err != nil {
		if kindOf(err) == lib.SQLITE_BUSY {
			e := wire.Errorf(wire.CodeUnavailable, "another process holds the database for longer than %d ms", busyTimeoutMs)
			e.Cause = err
			return e
		}
		return w.fail(err)
	}
	for _, r := range w.batch {
		if err := w.applyOne(r, savepoints); err != nil {
			return w.abort(err)
		}
	}
	if err := w.eng.commit(); err != nil {
		return w.abort(err)
	}
	return nil
}

func (w *writer) applyOne(r *request, savepoint bool) error {
	r.err = nil
	if !savepoint {
		wrote, err := w.apply(r.tx)
		refused := asRefusal(err)
		switch {
		case refused == nil:
			return err
		case wrote:
			return errRestart
		}
		r.err = refused
		return nil
	}
	if _, err := w.eng.exec(stmtSavepoint); err != nil {
		return err
	}
	if _, err := w.apply(r.tx); err != nil {
		refused := asRefusal(err)
		if refused == nil {
			return err
		}
		r.err = refused
		w.forget()
		if _, err := w.eng.exec(stmtRollbackTo); err != nil {
			return err
		}
	}
	_, err := w.eng.exec(stmtRelease)
	return err
}

// asRefusal finds the answer that concerns one transaction alone.
func asRefusal(err error) *wire.Error {
	var e *wire.Error
	if err == nil || errors.As(err, &e) {
		return e
	}
	return refusal(err)
}

// abort undoes the batch. A full disk is an answer, if the rollback is certain:
// SQLite reports it when a write fell short, before the record that would have
// made the transaction count was whole. Everything else latches.
func (w *writer) abort(cause error) error {
	w.forget()
	rollback := w.eng.rollback()
	switch {
	case rollback != nil && !rolledBack(cause, rollback):
		return w.fail(errors.Join(cause, rollback))
	case errors.Is(cause, errRestart):
		return cause
	case kindOf(cause) == lib.SQLITE_FULL:
		return diskFull(cause)
	}
	return w.fail(cause)
}

// rolledBack tells whether SQLite had already rolled back by itself, as it
// does on some failures; ROLLBACK then says SQLITE_ERROR, no transaction is
// active.
func rolledBack(cause, rollback error) bool {
	return kindOf(cause) == lib.SQLITE_FULL && kindOf(rollback) == lib.SQLITE_ERROR
}

func (w *writer) fail(cause error) error {
	w.latched = w.latch(cause)
	return w.latched
}

// moveLog moves the log into the file. A full disk or a reader only put it off;
// the transactions are safe in the log.
func (w *writer) moveLog() error {
	err := w.eng.checkpoint()
	switch kindOf(err) {
	case lib.SQLITE_FULL, lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		return nil
	}
	return err
}

// checkpoint moves the log once enough was written.
func (w *writer) checkpoint() {
	if w.latched != nil {
		return
	}
	n, err := w.eng.written()
	if err != nil {
		w.latched = w.latch(err)
		return
	}
	if n-w.pages < checkpointPages {
		return
	}
	w.pages = n
	start := w.opts.Now()
	if err := w.moveLog(); err != nil {
		w.latched = w.latch(err)
		return
	}
	if w.opts.OnCheckpoint != nil {
		w.opts.OnCheckpoint(w.opts.Now().Sub(start))
	}
}

// close ends the connection. The log of a latched store stays for the next
// start to judge.
func (w *writer) close(latched bool) error {
	var err error
	if !latched {
		err = w.moveLog()
	}
	return errors.Join(err, w.eng.close())
}
