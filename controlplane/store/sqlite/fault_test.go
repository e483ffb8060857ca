package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
)

const patience = 60 * time.Second

// faulty stands between the writer and its connection.
type faulty struct {
	engine

	mu            sync.Mutex
	commitErr     error         // returned by commit
	commitFirst   bool          // the commit took place all the same
	rollbackErr   error         // returned by rollback, which takes place
	execErr       error         // returned by the next event insert
	checkpointErr error         // returned by checkpoint
	held          chan struct{} // commit announces itself here, if set,
	release       chan struct{} // and waits here
	onBegin       func()        // runs once, on the writer's goroutine
	commits       int
	restarts      int // savepoints that were undone
	transactions  int // begins
}

func (f *faulty) begin() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.transactions++
	if f.onBegin != nil {
		f.onBegin()
		f.onBegin = nil
	}
	return f.engine.begin()
}

func (f *faulty) commit() error {
	f.mu.Lock()
	held, release := f.held, f.release
	f.mu.Unlock()
	if held != nil {
		held <- struct{}{}
		<-release
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commits++
	if f.commitErr == nil {
		return f.engine.commit()
	}
	if f.commitFirst {
		if err := f.engine.commit(); err != nil {
			return err
		}
	}
	return f.commitErr
}

func (f *faulty) rollback() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.commitErr != nil && f.commitFirst {
		return f.engine.rollback() // fails by itself: there is no transaction
	}
	return errors.Join(f.engine.rollback(), f.rollbackErr)
}

func (f *faulty) exec(id stmtID, args ...any) (driver.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id == stmtRollbackTo {
		f.restarts++
	}
	if err := f.execErr; err != nil && id == stmtEventInsert {
		f.execErr = nil
		return nil, err
	}
	return f.engine.exec(id, args...)
}

func (f *faulty) checkpoint() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.checkpointErr != nil {
		return f.checkpointErr
	}
	return f.engine.checkpoint()
}

func openFaulty(t *testing.T, path string, opts Options) (*Store, *faulty) {
	t.Helper()
	f := &faulty{}
	s, err := open(t.Context(), path, opts, func(e engine) engine { f.engine = e; return f })
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s, f
}

func row(id string) *store.SessionRow { return &store.SessionRow{ID: id, Generation: 1, Epoch: 1} }

func entry(seq int64) store.EventRow {
	return holding(store.EventRow{Seq: seq, Origin: store.OriginRunner, Type: "t", At: time.UnixMilli(1), SourceSeq: seq, DeliveryCount: 1}, nil)
}

// holding is an event with a body and the digest that goes with it.
func holding(e store.EventRow, body []byte) store.EventRow {
	e.Body, e.Digest = body, sha256.Sum256(body)
	return e
}

func mustCommit(t *testing.T, s *Store, tx *store.Tx) {
	t.Helper()
	if err := s.Commit(t.Context(), tx); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

func wantCode(t *testing.T, err error, code wire.Code) {
	t.Helper()
	if err == nil || wire.CodeOf(err) != code {
		t.Fatalf("got %v, want an error of code %s", err, code)
	}
}

// TestLatch lets the commit fail in each way whose outcome nobody can know.
func TestLatch(t *testing.T) {
	t.Parallel()
	broken := errors.New("input/output error")
	for name, plant := range map[string]func(f *faulty){
		"commit not done":   func(f *faulty) { f.commitErr = broken },
		"commit done":       func(f *faulty) { f.commitErr, f.commitFirst = broken, true },
		"statement":         func(f *faulty) { f.execErr = broken },
		"rollback also bad": func(f *faulty) { f.execErr, f.rollbackErr = broken, errors.New("cannot roll back") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "db")
			s, f := openFaulty(t, path, Options{})
			r := row("s")
			mustCommit(t, s, &store.Tx{NewSession: r})
			if err := s.Latched(); err != nil {
				t.Fatalf("latched before any failure: %v", err)
			}
			f.mu.Lock()
			plant(f)
			f.mu.Unlock()
			r.HeadSeq = 1
			err := s.Commit(t.Context(), &store.Tx{Session: r, Events: []store.EventRow{entry(1)}})
			wantCode(t, err, wire.CodeStoreIndeterminate)
			if !errors.Is(err, broken) {
				t.Fatalf("the cause is lost: %v", err)
			}
			wantCode(t, s.Latched(), wire.CodeStoreIndeterminate)

			// The disk is well again, the store must not be.
			f.mu.Lock()
			f.commitErr, f.execErr, f.rollbackErr = nil, nil, nil
			commits := f.commits
			f.mu.Unlock()
			wantCode(t, s.Commit(t.Context(), &store.Tx{Settings: map[string]string{"a": "b"}}), wire.CodeStoreIndeterminate)
			_, err = s.Session(t.Context(), "s", 1)
			wantCode(t, err, wire.CodeStoreIndeterminate)
			_, err = s.Setting(t.Context(), "a")
			wantCode(t, err, wire.CodeStoreIndeterminate)
			f.mu.Lock()
			if f.commits != commits {
				t.Errorf("a latched store committed")
			}
			f.mu.Unlock()
			if err := s.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}

			again := openTest(t, path, Options{})
			st, err := again.Session(t.Context(), "s", 10)
			if err != nil {
				t.Fatalf("session after the next start: %v", err)
			}
			if int64(len(st.Events)) != st.Session.HeadSeq {
				t.Fatalf("after the next start: head %d, %d events", st.Session.HeadSeq, len(st.Events))
			}
			if done := name == "commit done"; done != (st.Session.HeadSeq == 1) {
				t.Fatalf("after the next start the head is %d", st.Session.HeadSeq)
			}
		})
	}
}

// TestLatchReachesTheQueue latches while others wait behind the failing batch.
func TestLatchReachesTheQueue(t *testing.T) {
	t.Parallel()
	const waiters = 20
	s, f := openFaulty(t, filepath.Join(t.TempDir(), "db"), Options{})
	f.mu.Lock()
	f.held, f.release = make(chan struct{}), make(chan struct{})
	f.commitErr = errors.New("input/output error")
	f.mu.Unlock()
	results := make(chan error, waiters+1)
	write := func(name string) {
		results <- s.Commit(t.Context(), &store.Tx{Settings: map[string]string{name: "1"}})
	}
	go write("first")
	await(t, f.held, "the first commit")
	for i := range waiters {
		go write(fmt.Sprint(i))
	}
	close(f.release)
	f.mu.Lock()
	f.held = nil
	f.mu.Unlock()
	for range waiters + 1 {
		wantCode(t, await(t, results, "an answer"), wire.CodeStoreIndeterminate)
	}
}

func await[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come within %s", what, patience)
		panic("bug: unreachable")
	}
}

// TestCancelledAfterTakeUp ends the caller's context while the commit is under
// way: the answer is still the true one.
func TestCancelledAfterTakeUp(t *testing.T) {
	t.Parallel()
	s, f := openFaulty(t, filepath.Join(t.TempDir(), "db"), Options{})
	f.mu.Lock()
	f.held, f.release = make(chan struct{}), make(chan struct{})
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Commit(ctx, &store.Tx{Settings: map[string]string{"a": "b"}}) }()
	await(t, f.held, "the commit")
	cancel()
	select {
	case err := <-result:
		t.Fatalf("commit answered %v before the disk did", err)
	default:
	}
	close(f.release)
	if err := await(t, result, "the answer"); err != nil {
		t.Fatalf("commit: %v", err)
	}
	if v, err := s.Setting(t.Context(), "a"); err != nil || v != "b" {
		t.Fatalf("setting: %q, %v", v, err)
	}
}

// TestCloseWaits closes the store while a commit is under way: the commit
// succeeds, and Close returns after it.
func TestCloseWaits(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	s, f := openFaulty(t, path, Options{})
	f.mu.Lock()
	f.held, f.release = make(chan struct{}), make(chan struct{})
	f.mu.Unlock()
	committed, closed := make(chan error, 1), make(chan error, 1)
	go func() { committed <- s.Commit(t.Context(), &store.Tx{Settings: map[string]string{"a": "b"}}) }()
	await(t, f.held, "the commit")
	go func() { closed <- s.Close() }()
	for deadline := time.After(patience); ; {
		_, err := s.Setting(t.Context(), "a")
		if wire.CodeOf(err) == wire.CodeUnavailable {
			break
		}
		wantCode(t, err, wire.CodeNotFound)
		select {
		case <-deadline:
			t.Fatal("Close did not begin")
		default:
		}
	}
	s.mu.Lock()
	queueOpen := true
	select {
	case _, queueOpen = <-s.queue:
	default:
	}
	s.mu.Unlock()
	if !queueOpen {
		t.Fatal("Close took the queue from under a commit")
	}
	close(f.release)
	if err := await(t, committed, "the commit's answer"); err != nil {
		t.Fatalf("commit: %v", err)
	}
	if err := await(t, closed, "the end of Close"); err != nil {
		t.Fatalf("close: %v", err)
	}
	s = openTest(t, path, Options{})
	if v, err := s.Setting(t.Context(), "a"); err != nil || v != "b" {
		t.Fatalf("setting: %q, %v", v, err)
	}
}

// TestGroupCommit holds one commit and shows that all who wait share the next.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	const waiters = 50
	var mu sync.Mutex
	var groups [][2]int
	s, f := openFaulty(t, filepath.Join(t.TempDir(), "db"), Options{OnCommit: func(took time.Duration, txs, events int) {
		mu.Lock()
		defer mu.Unlock()
		if took <= 0 {
			t.Errorf("a commit took %s", took)
		}
		groups = append(groups, [2]int{txs, events})
	}})
	f.mu.Lock()
	f.held, f.release = make(chan struct{}), make(chan struct{})
	f.mu.Unlock()
	results := make(chan error, waiters+1)
	write := func(i int) {
		r := row(fmt.Sprint(i))
		results <- s.Commit(t.Context(), &store.Tx{NewSession: r, Events: []store.EventRow{entry(1), entry(2)}})
	}
	go write(waiters)
	await(t, f.held, "the first commit")
	f.mu.Lock()
	f.held = nil
	f.mu.Unlock()
	for i := range waiters {
		go write(i)
	}
	for deadline := time.After(patience); len(s.queue) < waiters; {
		select {
		case <-deadline:
			t.Fatalf("%d of %d transactions reached the queue", len(s.queue), waiters)
		default:
		}
	}
	close(f.release)
	for range waiters + 1 {
		if err := await(t, results, "an answer"); err != nil {
			t.Fatalf("commit: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(groups) != 2 || groups[0] != [2]int{1, 2} || groups[1] != [2]int{waiters, 2 * waiters} {
		t.Fatalf("transactions and events of each commit: %v, want [1 2] and [%d %d]", groups, waiters, 2*waiters)
	}
}

// TestBackPressure fills the queue behind a held commit: the next caller
// waits, and leaves with its context's error when that ends.
func TestBackPressure(t *testing.T) {
	t.Parallel()
	s, f := openFaulty(t, filepath.Join(t.TempDir(), "db"), Options{})
	f.mu.Lock()
	f.held, f.release = make(chan struct{}), make(chan struct{})
	f.mu.Unlock()
	results := make(chan error, queueLen+1)
	write := func(ctx context.Context, name string) error {
		return s.Commit(ctx, &store.Tx{Settings: map[string]string{name: "1"}})
	}
	go func() { results <- write(t.Context(), "first") }()
	await(t, f.held, "the first commit")
	f.mu.Lock()
	f.held = nil
	f.mu.Unlock()
	for i := range queueLen {
		go func() { results <- write(t.Context(), fmt.Sprint(i)) }()
	}
	for deadline := time.After(patience); len(s.queue) < queueLen; {
		select {
		case <-deadline:
			t.Fatalf("%d of %d transactions reached the queue", len(s.queue), queueLen)
		default:
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := write(ctx, "too many"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the caller behind a full queue got %v", err)
	}
	close(f.release)
	for range queueLen + 1 {
		if err := await(t, results, "an answer"); err != nil {
			t.Fatalf("commit: %v", err)
		}
	}
	_, err := s.Setting(t.Context(), "too many")
	wantCode(t, err, wire.CodeNotFound)
}

// TestRestart shows that a refusal after the first write of its transaction
// costs one restart with savepoints, and a refusal before costs none.
func TestRestart(t *testing.T) {
	t.Parallel()
	s, f := openFaulty(t, filepath.Join(t.TempDir(), "db"), Options{})
	r := row("s")
	mustCommit(t, s, &store.Tx{NewSession: r, Events: []store.EventRow{entry(1)}, Token: &store.TokenRow{ID: "token"}})
	f.mu.Lock()
	f.transactions = 0
	f.mu.Unlock()
	stale := *r
	stale.Generation = 9
	wantCode(t, s.Commit(t.Context(), &store.Tx{Session: &stale, Events: []store.EventRow{entry(2)}}), wire.CodeConflict)
	f.mu.Lock()
	if f.transactions != 1 || f.restarts != 0 {
		t.Errorf("a refusal at the fence took %d transactions and %d savepoints", f.transactions, f.restarts)
	}
	f.mu.Unlock()
	wantCode(t, s.Commit(t.Context(), &store.Tx{
		Session: r, Events: []store.EventRow{entry(2)}, Token: &store.TokenRow{ID: "twin"},
	}), wire.CodeConflict)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.transactions != 3 || f.restarts != 1 {
		t.Errorf("a refusal after a write: %d transactions and %d savepoints in all, want 3 and 1", f.transactions, f.restarts)
	}
}

// TestDiskFull makes SQLite itself run out of pages.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	s, f := openFaulty(t, path, Options{})
	limit := func(pages int) {
		c, ok := f.engine.(*conn)
		if !ok {
			panic("bug: the engine is not a connection")
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.onBegin = func() {
			if _, err := c.pragma(fmt.Sprintf("PRAGMA max_page_count = %d", pages)); err != nil {
				t.Errorf("limit the pages: %v", err)
			}
		}
	}
	r := row("s")
	limit(120)
	mustCommit(t, s, &store.Tx{NewSession: r})
	full := false
	for range 200 {
		next := *r
		next.HeadSeq++
		e := holding(entry(next.HeadSeq), make([]byte, 16<<10))
		err := s.Commit(t.Context(), &store.Tx{Session: &next, Events: []store.EventRow{e}})
		if err != nil {
			wantCode(t, err, wire.CodeDiskFull)
			full = true
			break
		}
		*r = next
	}
	if !full {
		t.Fatal("200 events of 16 KiB fit into 120 pages")
	}
	if err := s.Latched(); err != nil {
		t.Fatalf("a full disk latched the store: %v", err)
	}
	st, err := s.Session(t.Context(), "s", 1000)
	if err != nil || st.Session.HeadSeq != r.HeadSeq || int64(len(st.Events)) != r.HeadSeq {
		t.Fatalf("after the full disk: head %d, %d events, %v; want %d", st.Session.HeadSeq, len(st.Events), err, r.HeadSeq)
	}
	limit(1_000_000)
	r.HeadSeq++
	mustCommit(t, s, &store.Tx{Session: r, Events: []store.EventRow{entry(r.HeadSeq)}})
	integrity(t, path)
}

// TestModes looks at what other users of the machine could read.
func TestModes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(dir, "file ?#%20.db")
	s := openTest(t, path, Options{})
	mustCommit(t, s, &store.Tx{Settings: map[string]string{"a": "b"}})
	for name, want := range map[string]os.FileMode{
		dir: 0o700 | os.ModeDir, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600,
	} {
		fi, err := os.Stat(name)
		if err != nil {
			t.Fatalf("stat: %v", err)
		}
		if fi.Mode() != want {
			t.Errorf("%s has mode %v, want %v", filepath.Base(name), fi.Mode(), want)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log is still there after Close: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // what is to be narrowed
		t.Fatal(err)
	}
	s = openTest(t, path, Options{})
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
		t.Errorf("a wide file was left at %v, %v", fi.Mode(), err)
	}
	if v, err := s.Setting(t.Context(), "a"); err != nil || v != "b" {
		t.Fatalf("setting: %q, %v", v, err)
	}
}

// TestRefusedFiles are files that must not be taken for a database of ours.
func TestRefusedFiles(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, path string){
		"newer schema": func(t *testing.T, path string) {
			t.Helper()
			query(t, path, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)`)
		},
		"garbage": func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, []byte("this is not a database, whatever it is called......................."), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "db")
			s := openTest(t, path, Options{})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			spoil(t, path)
			before, err := os.ReadFile(path) //nolint:gosec // the test's own file
			if err != nil {
				t.Fatal(err)
			}
			s, err = Open(t.Context(), path, Options{})
			if err == nil {
				t.Fatalf("opened; close says %v", s.Close())
			}
			if name == "newer schema" {
				wantCode(t, err, wire.CodeUnavailable)
				return
			}
			wantCode(t, err, wire.CodeLogDamaged)
			after, err := os.ReadFile(path) //nolint:gosec // the test's own file
			if err != nil || string(after) != string(before) {
				t.Fatalf("a refused file was changed (%v)", err)
			}
		})
	}
}

func query(t *testing.T, path, text string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// integrity has SQLite check the whole file.
func integrity(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	var verdict string
	if err := db.QueryRowContext(t.Context(), `PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("integrity check: %q, %v", verdict, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDiskFullAtClose: what cannot be moved out of the log any more stays there,
// and the next start finds it.
func TestDiskFullAtClose(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, full := db.Exec("PRAGMA max_page_count = 1; CREATE TABLE t (x)")
	if kindOf(full) == 0 {
		t.Fatalf("this was to be SQLite's own error for a full disk: %v", full)
	}
	path := filepath.Join(t.TempDir(), "db")
	s, f := openFaulty(t, path, Options{})
	if err := s.Commit(t.Context(), &store.Tx{Settings: map[string]string{"a": "b"}}); err != nil {
		t.Fatalf("commit: %v", err)
	}
	f.mu.Lock()
	f.checkpointErr = full
	f.mu.Unlock()
	if err := s.Close(); err != nil {
		t.Errorf("close on a full disk: %v", err)
	}
	again := openTest(t, path, Options{})
	if v, err := again.Setting(t.Context(), "a"); err != nil || v != "b" {
		t.Errorf("after it: %q, %v", v, err)
	}
}

// TestCheckpoint writes past the checkpoint's size several times over: the log
// must not grow without bound and nothing may be lost.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	checkpoints := make(chan time.Duration, 100)
	s := openTest(t, path, Options{OnCheckpoint: func(took time.Duration) { checkpoints <- took }})
	r := row("s")
	mustCommit(t, s, &store.Tx{NewSession: r})
	const bodies, each = 40, 1 << 20
	for range bodies {
		r.HeadSeq++
		e := holding(entry(r.HeadSeq), make([]byte, each))
		mustCommit(t, s, &store.Tx{Session: r, Events: []store.EventRow{e}})
	}
	if n := len(checkpoints); n < 2 {
		t.Fatalf("%d checkpoints for %d MiB", n, bodies)
	}
	fi, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	if limit := int64(2 * checkpointPages * 4096); fi.Size() > limit {
		t.Fatalf("the log has %d bytes after %d MiB, limit %d", fi.Size(), bodies, limit)
	}
	es, err := s.Events(t.Context(), "s", 0, 1000, 1<<30)
	if err != nil || len(es) != bodies {
		t.Fatalf("%d events, %v", len(es), err)
	}
}
