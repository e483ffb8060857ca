package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bowline/controlplane/store"
)

const killEnv = "BOWLINE_STORE_KILL_CHILD"

// killWriters sessions write at once in the child.
const killWriters = 4

func TestMain(m *testing.M) {
	if path := os.Getenv(killEnv); path != "" {
		if err := killChild(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv(injectEnv); path != "" {
		if err := injectChild(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// killChild goes on with each session's log where it stands and prints
// "<session> <seq>" after Commit has returned, until it is killed.
func killChild(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{})
	if err != nil {
		return err
	}
	out := make(chan string)
	errs := make(chan error, killWriters)
	var wg sync.WaitGroup
	for i := range killWriters {
		wg.Go(func() { errs <- killWriter(ctx, s, fmt.Sprint("s", i), out) })
	}
	for {
		select {
		case line := <-out:
			if _, err := os.Stdout.WriteString(line); err != nil {
				return err
			}
		case err := <-errs:
			return err
		}
	}
}

func killWriter(ctx context.Context, s *Store, id string, out chan<- string) error {
	r := row(id)
	if err := s.Commit(ctx, &store.Tx{NewSession: r}); err != nil {
		st, err := s.Session(ctx, id, 0)
		if err != nil {
			return err
		}
		r = &st.Session
	}
	for {
		var es []store.EventRow
		for range 1 + r.HeadSeq%3 {
			r.HeadSeq++
			e := holding(entry(r.HeadSeq), fmt.Appendf(make([]byte, 0, 4000), "%s/%d", id, r.HeadSeq))
			es = append(es, e)
		}
		r.AckedSourceSeq = r.HeadSeq
		if err := s.Commit(ctx, &store.Tx{Session: r, Events: es}); err != nil {
			return err
		}
		out <- fmt.Sprintf("%s %d\n", id, r.HeadSeq)
	}
}

// TestKill kills a writing process at ten random moments. What it was told to
// be durable must be there, each log dense, its head the head of the row
// written in the same transaction, and the file sound.
func TestKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	promised := make(map[string]int64)
	for round := range 10 {
		// The moment is a number of lines seen and a short delay after it, so
		// that it falls anywhere within a commit.
		lines, delay := rand.IntN(60)+1, time.Duration(rand.IntN(2000))*time.Microsecond //nolint:gosec // no secret
		killRound(t, path, lines, delay, promised)
		integrity(t, path)
		s, err := Open(t.Context(), path, Options{})
		if err != nil {
			t.Fatalf("round %d: open after the kill: %v", round, err)
		}
		for id, seq := range promised {
			killJudge(t, s, id, seq)
		}
		if err := s.Close(); err != nil {
			t.Fatalf("round %d: close: %v", round, err)
		}
	}
	if len(promised) != killWriters {
		t.Fatalf("%d of %d writers wrote", len(promised), killWriters)
	}
}

func killRound(t *testing.T, path string, lines int, delay time.Duration, promised map[string]int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$") //nolint:gosec // this very binary
	cmd.Env = append(os.Environ(), killEnv+"="+path)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := 0
	note := func(line string) {
		id, seq, ok := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(seq, 10, 64)
		if !ok || err != nil {
			t.Errorf("the child wrote %q", line)
			return
		}
		promised[id] = max(promised[id], n)
		seen++
	}
	in := bufio.NewReader(stdout)
	for seen < lines {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("the child ended by itself: %v; %s", err, stderr.String())
		}
		note(line)
	}
	timer := time.NewTimer(delay)
	<-timer.C
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatalf("kill: %v", err)
	}
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break // a torn last line promises nothing
		}
		if err != nil {
			t.Fatalf("read the child's last lines: %v", err)
		}
		note(line)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Fatalf("the child was not killed: %v", err)
	}
}

func killJudge(t *testing.T, s *Store, id string, promised int64) {
	t.Helper()
	st, err := s.Session(t.Context(), id, 0)
	if err != nil {
		t.Fatalf("session %s: %v", id, err)
	}
	if st.Session.HeadSeq < promised {
		t.Fatalf("session %s: head %d, but %d was promised", id, st.Session.HeadSeq, promised)
	}
	if st.Session.AckedSourceSeq != st.Session.HeadSeq {
		t.Fatalf("session %s: a row of two transactions: head %d, acked %d", id, st.Session.HeadSeq, st.Session.AckedSourceSeq)
	}
	es, err := s.Events(t.Context(), id, 0, 1<<20, 1<<30)
	if err != nil {
		t.Fatalf("events of %s: %v", id, err)
	}
	if int64(len(es)) != st.Session.HeadSeq {
		t.Fatalf("session %s: %d events, head %d", id, len(es), st.Session.HeadSeq)
	}
	for k, e := range es {
		if want := fmt.Sprintf("%s/%d", id, k+1); e.Seq != int64(k+1) || string(e.Body) != want {
			t.Fatalf("session %s: entry %d has seq %d and body %q", id, k, e.Seq, e.Body)
		}
	}
}
