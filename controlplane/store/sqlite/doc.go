// Package sqlite keeps the control plane in one SQLite file.
//
// Promise: when [Store.Commit] returns nil the transaction is in the
// write-ahead log and fdatasync has returned (journal_mode=WAL,
// synchronous=FULL). When it returns wire.CodeConflict, CodeNotFound,
// CodeTooLarge or CodeDiskFull nothing of it was kept. Every other failure of
// the disk leaves the outcome unknown and latches the store: it answers
// wire.CodeStoreIndeterminate to everything from then on, because a sync that
// failed once cannot be asked again (the kernel may have dropped the pages).
//
// One goroutine writes. It takes whatever transactions wait, of all sessions
// together, applies them inside one database transaction and syncs once. A
// transaction that is refused before it wrote anything costs its neighbours
// nothing; one that is refused half-way makes the writer start the batch
// again with a savepoint around each, which is rare and so the common path
// pays for no savepoint. The writer also moves the log into the database file,
// after it has answered the waiting callers.
//
// Reads go through a small pool of read-only connections and see every
// transaction whose Commit has returned.
//
// Layout: DIR/<name> (0600), with -wal and -shm beside it. Times are stored in
// milliseconds. The file holds keys that authenticate runners and counts as a
// secret. One process per file: its owner sees to that with a lock on the data
// folder.
//
// Concurrency: all methods may be called from any goroutine. [Store.Close]
// waits for the calls that are under way.
package sqlite
