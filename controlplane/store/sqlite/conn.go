package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	sqlite3 "modernc.org/sqlite"
)

// engine is the writer's connection. Tests put a faulty one in its place.
type engine interface {
	begin() error
	// commit returns nil when the transaction is durable.
	commit() error
	rollback() error
	exec(id stmtID, args ...any) (driver.Result, error)
	// lookup runs a query that gives at most one row and fills dest with it;
	// ok is false without one.
	lookup(id stmtID, dest []driver.Value, args ...any) (ok bool, err error)
	// written counts the pages this connection has written so far.
	written() (int, error)
	// checkpoint moves the log into the file as far as readers allow.
	checkpoint() error
	close() error
}

// conn speaks to the driver below database/sql: one goroutine owns it, so
// the pool's locks and conversions would only cost time. No call has a
// deadline, because a write that was begun must be told how it ended.
type conn struct {
	ctx   context.Context // never ends
	dc    driver.Conn
	stmts [stmtCount]driver.Stmt
	args  []driver.NamedValue // reused between calls
}

// newConn prepares what the writer needs and checks that the promises of the
// package hold: SQLite answers a pragma it cannot follow with the old value.
func newConn(ctx context.Context, dc driver.Conn) (*conn, error) {
	c := &conn{ctx: context.WithoutCancel(ctx), dc: dc}
	prep, ok := dc.(driver.ConnPrepareContext)
	if !ok {
		panic("bug: store: the driver cannot prepare statements")
	}
	mode, err := c.pragma("PRAGMA journal_mode")
	if err != nil {
		return nil, fmt.Errorf("store: journal_mode: %w", err)
	}
	sync, err := c.pragma("PRAGMA synchronous")
	if err != nil {
		return nil, fmt.Errorf("store: synchronous: %w", err)
	}
	if mode != "wal" || sync != synchronousLevel {
		return nil, fmt.Errorf("store: journal_mode is %v and synchronous %v, need wal and %d: does the file system have shared memory maps?", mode, sync, synchronousLevel)
	}
	for id, text := range statements {
		st, err := prep.PrepareContext(c.ctx, text)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("store: prepare statement %d: %w", id, err), c.closeStatements())
		}
		c.stmts[id] = st
	}
	return c, nil
}

func (c *conn) pragma(text string) (v driver.Value, err error) {
	q, ok := c.dc.(driver.QueryerContext)
	if !ok {
		panic("bug: store: the driver cannot query")
	}
	rows, err := q.QueryContext(c.ctx, text, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	dest := make([]driver.Value, len(rows.Columns()))
	if err := rows.Next(dest); err != nil {
		return nil, err
	}
	return dest[0], nil
}

func (c *conn) bind(args []any) []driver.NamedValue {
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return c.args
}

// unbind drops the references to the last call's bodies.
func (c *conn) unbind() { clear(c.args) }

func (c *conn) exec(id stmtID, args ...any) (driver.Result, error) {
	defer c.unbind()
	st, ok := c.stmts[id].(driver.StmtExecContext)
	if !ok {
		panic("bug: store: the driver cannot execute with a context")
	}
	return st.ExecContext(c.ctx, c.bind(args))
}

func (c *conn) lookup(id stmtID, dest []driver.Value, args ...any) (ok bool, err error) {
	defer c.unbind()
	st, can := c.stmts[id].(driver.StmtQueryContext)
	if !can {
		panic("bug: store: the driver cannot query with a context")
	}
	rows, err := st.QueryContext(c.ctx, c.bind(args))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	switch err := rows.Next(dest); {
	case errors.Is(err, io.EOF):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

func (c *conn) begin() error {
	_, err := c.exec(stmtBegin)
	return err
}

func (c *conn) commit() error {
	_, err := c.exec(stmtCommit)
	return err
}

func (c *conn) rollback() error {
	_, err := c.exec(stmtRollback)
	return err
}

func (c *conn) written() (int, error) {
	st, ok := c.dc.(sqlite3.DBStatus)
	if !ok {
		panic("bug: store: the driver has no counters")
	}
	n, _, err := st.Status(sqlite3.DBStatusCacheWrite, false)
	return n, err
}

func (c *conn) checkpoint() error {
	_, err := c.pragma("PRAGMA wal_checkpoint(PASSIVE)")
	return err
}

func (c *conn) closeStatements() error {
	var errs []error
	for i, st := range c.stmts {
		if st != nil {
			errs = append(errs, st.Close())
			c.stmts[i] = nil
		}
	}
	return errors.Join(errs...)
}

func (c *conn) close() error {
	return errors.Join(c.closeStatements(), c.dc.Close())
}
