package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
	sqlite3 "modernc.org/sqlite"

	"bowline/controlplane/store"
	"bowline/wire"
)

// Sizes of the store, all ours.
const (
	// readConns is the number of read connections: enough that a long replay
	// does not hold up the API, few because each has its own page cache.
	readConns = 4
	// queueLen is how many transactions may wait for the writer before Commit
	// blocks. It is also the largest batch in transactions.
	queueLen = 512
	// batchBytes ends a batch once its bodies reach this size, so that one
	// burst of large events does not make everybody wait for megabytes.
	batchBytes = 4 << 20
	// checkpointPages is how many pages (4 KiB each) are written to the log
	// before the writer moves them into the database file.
	checkpointPages = 4096
	// writerCacheKiB and readerCacheKiB are page caches per connection.
	writerCacheKiB = 32 << 10
	readerCacheKiB = 4 << 10
	// busyTimeoutMs is how long the writer waits for another process that
	// holds the file (a backup, sqlite3 on the command line).
	busyTimeoutMs = 5000
)

//go:embed migrations/*.sql
var migrations embed.FS

// Options of a store. The zero value is good.
type Options struct {
	// OnCommit, if set, is told of every database transaction that was
	// committed: how long it took from begin to the end of the sync, how many
	// store transactions shared it and how many events were in it. It is
	// called on the writer's goroutine and must not block.
	OnCommit func(took time.Duration, transactions, events int)
	// OnCheckpoint is told how long moving the log into the file took.
	OnCheckpoint func(took time.Duration)
	// Now is the clock of the two durations; nil means time.Now.
	Now func() time.Time
}

// Store is a [store.Store] on one SQLite file.
type Store struct {
	path  string
	read  *sql.DB
	log   *logReader
	w     *writer
	queue chan *request

	latched atomic.Pointer[wire.Error]

	mu     sync.Mutex // guards closed, and calls.Add against calls.Wait
	closed bool
	calls  sync.WaitGroup // calls under way

	writerDone chan struct{}
	closeOnce  sync.Once
	closeErr   error
}

var _ store.Store = (*Store)(nil)

// Open opens the file at path, makes it (0600, and its folder 0700) if it is
// missing, brings its schema up to date and starts the writer. A file with a
// newer schema than this program knows is refused with wire.CodeUnavailable,
// one that is damaged or no database with wire.CodeLogDamaged.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	s, err := open(ctx, path, opts, nil)
	if err != nil {
		return nil, openError(path, err)
	}
	return s, nil
}

// open is Open with a seam: wrap, if set, stands between the writer and its
// connection, where tests make a commit fail.
func open(ctx context.Context, path string, opts Options, wrap func(engine) engine) (*Store, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("store: path: %w", err)
	}
	if err := createFile(path); err != nil {
		return nil, err
	}
	// A process-wide switch of the library, off by default: fdatasync instead
	// of fsync, the same promise without the journal commit for timestamps.
	// Where the platform has none SQLite goes on with fsync.
	if _, err := sqlite3.Fdatasync(true); err != nil && !errors.Is(err, sqlite3.ErrFdatasyncUnavailable) {
		return nil, fmt.Errorf("store: fdatasync: %w", err)
	}
	if err := migrate(ctx, path); err != nil {
		return nil, err
	}

	conn, err := dialWriter(ctx, path)
	if err != nil {
		return nil, err
	}
	connector, err := sqlite3.NewConnector(dsn(path, "ro", "query_only(1)", fmt.Sprintf("cache_size(-%d)", readerCacheKiB)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store: read connections: %w", err), conn.close())
	}
	read := sql.OpenDB(connector)
	read.SetMaxOpenConns(readConns)
	read.SetMaxIdleConns(readConns)
	if err := read.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("store: read connections: %w", err), read.Close(), conn.close())
	}

	var eng engine = conn
	if wrap != nil {
		eng = wrap(conn)
	}
	s := &Store{
		path:       path,
		read:       read,
		queue:      make(chan *request, queueLen),
		writerDone: make(chan struct{}),
	}
	if s.log, err = newLogReader(ctx, read); err != nil {
		return nil, errors.Join(err, read.Close(), eng.close())
	}
	if s.w, err = newWriter(eng, opts, s.latch); err != nil {
		return nil, errors.Join(err, s.log.close(), read.Close(), eng.close())
	}
	go func() {
		defer close(s.writerDone)
		s.w.run(s.queue)
	}()
	return s, nil
}

// createFile makes the database file and its folder with narrow modes and
// makes both names durable; SQLite would use the umask, and gives -wal and
// -shm the mode of the file.
func createFile(path string) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:gosec // the operator names the folder
		return fmt.Errorf("store: folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the operator names the file
	if errors.Is(err, fs.ErrExist) {
		if err := os.Chmod(path, 0o600); err != nil { //nolint:gosec // the operator names the file
			return fmt.Errorf("store: mode of the file: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("store: make the file: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("store: make the file: %w", err)
	}
	d, err := os.Open(dir) //nolint:gosec // the operator names the folder
	if err != nil {
		return fmt.Errorf("store: folder: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("store: sync of the folder: %w", err)
	}
	return nil
}

// dsn names the file for the driver; pragmas are run on each new connection.
func dsn(path, mode string, pragmas ...string) string {
	q := url.Values{"mode": {mode}}
	for _, p := range append(pragmas, fmt.Sprintf("busy_timeout(%d)", busyTimeoutMs)) {
		q.Add("_pragma", p)
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	return u.String()
}

// migrate brings the schema up to date.
func migrate(ctx context.Context, path string) (err error) {
	connector, err := sqlite3.NewConnector(dsn(path, "rw", "journal_mode(WAL)", synchronousPragma))
	if err != nil {
		return fmt.Errorf("store: open: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	defer func() { err = errors.Join(err, db.Close()) }()

	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("store: migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("store: migrations: %w", err)
	}
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("store: read the schema version of %s: %w", path, err)
	}
	if have > want {
		return wire.Errorf(wire.CodeUnavailable, "the database has schema %d, this program knows %d: use a newer program", have, want)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("store: migrate from schema %d to %d: %w", have, want, err)
	}
	return nil
}

func dialWriter(ctx context.Context, path string) (*conn, error) {
	connector, err := sqlite3.NewConnector(dsn(path, "rw",
		"journal_mode(WAL)", synchronousPragma, "wal_autocheckpoint(0)", "temp_store(MEMORY)",
		fmt.Sprintf("cache_size(-%d)", writerCacheKiB)))
	if err != nil {
		return nil, fmt.Errorf("store: open: %w", err)
	}
	dc, err := connector.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("store: open: %w", err)
	}
	c, err := newConn(ctx, dc)
	if err != nil {
		return nil, errors.Join(err, dc.Close())
	}
	return c, nil
}

// enter counts a call in; leave must be called if it returns nil.
func (s *Store) enter() error {
	if e := s.latched.Load(); e != nil {
		return e
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return wire.Errorf(wire.CodeUnavailable, "the store is closed")
	}
	s.calls.Add(1)
	return nil
}

func (s *Store) leave() { s.calls.Done() }

// latch records the first failure of unknown outcome.
func (s *Store) latch(cause error) *wire.Error {
	e := wire.Errorf(wire.CodeStoreIndeterminate, "the outcome of a write is unknown; the store takes no more until the process is started again")
	e.Cause = cause
	s.latched.CompareAndSwap(nil, e)
	return s.latched.Load()
}

// Latched returns the error that latched the store, or nil.
func (s *Store) Latched() error {
	if e := s.latched.Load(); e != nil {
		return e
	}
	return nil
}

// Close refuses new calls, waits for those under way, moves the log into the
// file and closes it. It is safe to call more than once.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.calls.Wait()
		close(s.queue)
		<-s.writerDone
		// Readers go first: the last connection to close removes the log.
		s.closeErr = errors.Join(s.log.close(), s.read.Close(), s.w.close(s.latched.Load() != nil))
	})
	return s.closeErr
}
