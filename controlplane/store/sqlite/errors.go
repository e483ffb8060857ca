package sqlite

import (
	"context"
	"database/sql"
	"errors"

	sqlite3 "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"bowline/wire"
)

// Result codes have the kind in the low byte and the detail above it.
const kindMask = 0xff

// kindOf gives SQLite's primary result code, SQLITE_OK for another error.
func kindOf(err error) int {
	var e *sqlite3.Error
	if errors.As(err, &e) {
		return e.Code() & kindMask
	}
	return lib.SQLITE_OK
}

// refusal turns an error of a single statement into the answer for its
// transaction alone, or gives nil if the error concerns the whole batch.
func refusal(err error) *wire.Error {
	switch kindOf(err) {
	case lib.SQLITE_CONSTRAINT:
		e := wire.Errorf(wire.CodeConflict, "a row with this key exists")
		e.Cause = err
		return e
	case lib.SQLITE_TOOBIG:
		e := wire.Errorf(wire.CodeTooLarge, "a value is larger than the database takes")
		e.Cause = err
		return e
	}
	return nil
}

func diskFull(cause error) *wire.Error {
	e := wire.Errorf(wire.CodeDiskFull, "the disk of the control plane is full; nothing was written")
	e.Cause = cause
	return e
}

// readError dresses an error of a read; what names the thing that was looked
// for. The end of the caller's context stays what it is.
func readError(what string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, sql.ErrNoRows) {
		return wire.Errorf(wire.CodeNotFound, "no such %s", what)
	}
	var known *wire.Error
	if errors.As(err, &known) {
		return known
	}
	if spoiled(err) {
		return &wire.Error{Code: wire.CodeLogDamaged, Message: "the database file is damaged where it holds the " + what, Cause: err}
	}
	e := wire.Errorf(wire.CodeInternal, "read %s from the store", what)
	e.Cause = err
	return e
}

// spoiled tells whether SQLite found that the file is not what it wrote.
func spoiled(err error) bool {
	kind := kindOf(err)
	return kind == lib.SQLITE_CORRUPT || kind == lib.SQLITE_NOTADB
}

// openError gives a file that is damaged or no database its code.
func openError(path string, err error) error {
	var known *wire.Error
	if !spoiled(err) || errors.As(err, &known) {
		return err
	}
	return &wire.Error{Code: wire.CodeLogDamaged, Message: "the file " + path + " is damaged, or is no database", Cause: err}
}
