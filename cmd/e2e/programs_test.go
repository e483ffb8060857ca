package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// programs builds the shipped binaries once for all tests of the package, into
// a folder that TestMain removes.
type programs struct {
	dir  string
	once map[string]*sync.Once
	err  map[string]error
	mu   sync.Mutex
}

var shipped = &programs{once: map[string]*sync.Once{}, err: map[string]error{}}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "bowline-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shipped.dir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// program builds cmd/NAME, with build tags for planted bugs, and returns its
// path.
func program(t testing.TB, name string, tags ...string) string {
	t.Helper()
	key := strings.Join(append([]string{name}, tags...), "-")
	shipped.mu.Lock()
	once := shipped.once[key]
	if once == nil {
		once = new(sync.Once)
		shipped.once[key] = once
	}
	shipped.mu.Unlock()
	path := filepath.Join(shipped.dir, key)
	once.Do(func() {
		cmd := exec.Command("go", "build", "-tags", strings.Join(tags, ","), "-o", path, "../"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			shipped.err[key] = fmt.Errorf("go build %s: %w\n%s", name, err, out)
		}
	})
	if err := shipped.err[key]; err != nil {
		t.Fatal(err)
	}
	return path
}

// result of a finished program.
type result struct {
	stdout, stderr string
	code           int
}

// runProgram runs a program to its end. A program that does not end within two
// minutes fails the test.
func runProgram(t testing.TB, env []string, dir, path string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = env, dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s %v did not end in time\nstdout: %s\nstderr: %s", filepath.Base(path), args, &stdout, &stderr)
	}
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		t.Fatalf("%s %v: %v", filepath.Base(path), args, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// cleanEnv is the environment of a user with an empty home.
func cleanEnv(t testing.TB, extra ...string) []string {
	t.Helper()
	home := t.TempDir()
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8", "TMPDIR=" + t.TempDir()}, extra...)
}

// server is a `bowline serve` that a test started.
type server struct {
	t    testing.TB
	bin  string
	data string
	args []string
	env  []string
	cmd  *exec.Cmd
	log  *os.File

	URL   string
	Token string
}

func startServer(t testing.TB, bin string, args ...string) *server {
	t.Helper()
	s := &server{t: t, bin: bin, data: filepath.Join(t.TempDir(), "data"), args: args, env: cleanEnv(t)}
	log, err := os.Create(filepath.Join(t.TempDir(), "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	s.log = log
	s.start()
	t.Cleanup(func() {
		s.kill(syscall.SIGTERM)
		if t.Failed() {
			if _, err := log.Seek(0, io.SeekStart); err == nil {
				b, _ := io.ReadAll(io.LimitReader(log, 1<<20))
				if len(b) > 6000 {
					b = b[len(b)-6000:]
				}
				t.Logf("server's log:\n%s", b)
			}
		}
		log.Close()
	})
	return s
}

// start starts the server and waits for its ready file.
func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.bin, append([]string{"serve", "--data", s.data}, s.args...)...)
	s.cmd.Env, s.cmd.Dir = s.env, "/"
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	waitFor(s.t, "the server's ready file", func() bool {
		raw, err := os.ReadFile(filepath.Join(s.data, "ready.json"))
		if err != nil {
			return false
		}
		var r struct {
			URL            string `json:"url"`
			AdminTokenFile string `json:"adminTokenFile"`
			PID            int    `json:"pid"`
		}
		if json.Unmarshal(raw, &r) != nil || r.PID != s.cmd.Process.Pid {
			return false
		}
		token, err := os.ReadFile(r.AdminTokenFile)
		if err != nil {
			s.t.Fatal(err)
		}
		s.URL, s.Token = r.URL, strings.TrimSpace(string(token))
		return true
	})
}

// kill ends the server with a signal and reaps it.
func (s *server) kill(sig syscall.Signal) {
	if s.cmd.ProcessState != nil {
		return
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Errorf("signal server: %v", err)
		return
	}
	done := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(done) }() // its exit status is the signal's
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		s.t.Errorf("the server did not end within 30 s of %v", sig)
		_ = s.cmd.Process.Kill() // the test has failed already
		<-done
	}
}

// do calls the host API and decodes the answer.
func (s *server) do(method, path string, body, into any) int {
	s.t.Helper()
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, r)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0
	}
	if into != nil {
		if err := json.Unmarshal(raw, into); err != nil {
			s.t.Fatalf("%s %s: %v in %q", method, path, err, raw)
		}
	}
	return resp.StatusCode
}

// waitFor polls a condition of other processes: there is nothing to wait on.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited 60 s for %s", what)
		case <-tick.C:
		}
	}
}
