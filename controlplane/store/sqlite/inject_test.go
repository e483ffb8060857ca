package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bowline/controlplane/store"
	"bowline/wire"
)

const injectEnv = "BOWLINE_STORE_INJECT_CHILD"

// injectChild commits one event after another and says how each ended. It stops
// when the store is latched, or some commits after the last failure: strace
// counts calls per thread, so nobody knows which commit will fail.
func injectChild(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{})
	if err != nil {
		return err
	}
	r := row("s")
	if err := s.Commit(ctx, &store.Tx{NewSession: r}); err != nil {
		return err
	}
	failed := false
	for good := 0; good < 60 || !failed && good < 5000; {
		next := *r
		next.HeadSeq++
		e := holding(entry(next.HeadSeq), bytes.Repeat([]byte{'x'}, 3000))
		err := s.Commit(ctx, &store.Tx{Session: &next, Events: []store.EventRow{e}})
		code := wire.CodeOf(err)
		switch {
		case err == nil:
			*r = next
			good++
			fmt.Println("ok", r.HeadSeq)
		case code == wire.CodeDiskFull:
			good, failed = 0, true
			fmt.Println("full", next.HeadSeq)
		case code == wire.CodeStoreIndeterminate:
			fmt.Println("latched", next.HeadSeq)
			return errors.Join(expectLatched(ctx, s, &next), s.Close())
		default:
			return err
		}
	}
	return s.Close()
}

func expectLatched(ctx context.Context, s *Store, r *store.SessionRow) error {
	if s.Latched() == nil {
		return errors.New("the store does not say it is latched")
	}
	if err := s.Commit(ctx, &store.Tx{Session: r}); wire.CodeOf(err) != wire.CodeStoreIndeterminate {
		return fmt.Errorf("a commit after the latch: %w", err)
	}
	return nil
}

// unprovable skips the test, loudly, or fails it where BOWLINE_REQUIRE_STRACE=1
// says that it must run.
func unprovable(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("BOWLINE_REQUIRE_STRACE") == "1" {
		t.Fatal(why)
	}
	fmt.Fprintf(os.Stderr, "SKIPPED: %s: %s\n", t.Name(), why)
	t.Skip(why)
}

// TestInjected has the kernel fail the system calls of a real process, from
// outside, and judges what is in the file afterwards.
func TestInjected(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		unprovable(t, "strace is not installed: failures of system calls are not injected")
	}
	for name, c := range map[string]struct {
		inject string
		want   string // the failure the caller must be told
	}{
		"sync fails":              {"fdatasync:error=EIO:when=40", "latched"},
		"sync fails once, full":   {"fdatasync:error=ENOSPC:when=41", "latched"},
		"write fails":             {"pwrite64:error=EIO:when=250", "latched"},
		"disk full for a while":   {"pwrite64:error=ENOSPC:when=250..260", "full"},
		"disk full for one write": {"pwrite64:error=ENOSPC:when=255", "full"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "db")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			trace := filepath.Join(t.TempDir(), "trace")
			//nolint:gosec // this very binary
			cmd := exec.CommandContext(ctx, strace, "-f", "-qq", "-e", "trace=fdatasync,pwrite64", "-e", "inject="+c.inject, "-o", trace, os.Args[0], "-test.run=^$")
			cmd.Env = append(os.Environ(), injectEnv+"="+path)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				if strings.Contains(stderr.String(), "ptrace") {
					unprovable(t, "this machine does not let us trace: "+stderr.String())
				}
				t.Fatalf("child: %v; %s", err, stderr.String())
			}
			promised, told := int64(0), false
			for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
				word, number, _ := strings.Cut(sc.Text(), " ")
				switch word {
				case "ok":
					var n int64
					if _, err := fmt.Sscan(number, &n); err != nil || n != promised+1 {
						t.Fatalf("after %d came %q", promised, sc.Text())
					}
					promised = n
				case c.want:
					told = true
				default:
					t.Fatalf("the child was told %q, want %s", sc.Text(), c.want)
				}
			}
			if !told {
				t.Fatalf("no commit of %d failed although the system call did", promised)
			}
			integrity(t, path)
			s := openTest(t, path, Options{})
			st, err := s.Session(t.Context(), "s", 1)
			if err != nil {
				t.Fatalf("session: %v", err)
			}
			es, err := s.Events(t.Context(), "s", 0, 1000, 1<<30)
			if err != nil {
				t.Fatalf("events: %v", err)
			}
			// Of the commit with the unknown outcome both are right.
			unknown := int64(0)
			if c.want == "latched" {
				unknown = 1
			}
			if head := st.Session.HeadSeq; head < promised || head > promised+unknown || int64(len(es)) != head {
				t.Fatalf("promised %d, found head %d and %d events", promised, head, len(es))
			}
		})
	}
}
