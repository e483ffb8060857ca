package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// started is a program that runs beside the test.
type started struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout lockedBuffer
	stderr lockedBuffer
	done   chan struct{}
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func startProgram(t *testing.T, env []string, dir, path string, args ...string) *started {
	t.Helper()
	p := &started{t: t, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = env, dir
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = 10 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }() // the exit code is read from ProcessState
	t.Cleanup(func() {
		select {
		case <-p.done:
		default:
			_ = p.cmd.Process.Kill() // it is ours, and may end this very moment
			<-p.done
		}
	})
	return p
}

func (p *started) wait() result {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(90 * time.Second):
		p.t.Fatalf("the program did not end within 90 s\nstdout: %s\nstderr: %s", p.stdout.String(), p.stderr.String())
	}
	return result{p.stdout.String(), p.stderr.String(), p.cmd.ProcessState.ExitCode()}
}

// runID waits for the first event line of --json and takes the run's id.
func (p *started) runID() string {
	p.t.Helper()
	var id string
	waitFor(p.t, "the first event line", func() bool {
		line, _, ok := strings.Cut(p.stdout.String(), "\n")
		if !ok {
			return false
		}
		var x struct{ RunID string }
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			p.t.Fatalf("first line %q: %v", line, err)
		}
		id = x.RunID
		return true
	})
	return id
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// slowCommand starts `bowline run --json` of a command that writes its pid and
// then waits.
func slowCommand(t *testing.T, trap string) (p *started, bin string, env []string, dir, data string) {
	t.Helper()
	bin = program(t, "bowline")
	env, dir, data = cleanEnv(t), t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	p = startProgram(t, env, dir, bin, "run", "--json", "--data", data, "--",
		"sh", "-c", trap+"echo $$ > pid.tmp; mv pid.tmp pid; while :; do sleep 3600; done")
	waitFor(t, "the command to run", func() bool {
		_, err := os.Stat(filepath.Join(dir, "pid"))
		return err == nil
	})
	return p, bin, env, dir, data
}

func TestInterruptCancels(t *testing.T) {
	t.Parallel()
	p, _, _, dir, _ := slowCommand(t, "")
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	r := p.wait()
	last := lastLine(t, r.stdout)
	run, _ := last["run"].(map[string]any)
	if r.code != 130 || last["type"] != "result" || run["status"] != "cancelled" {
		t.Errorf("exit code %d, last line %v, stderr %q", r.code, last, r.stderr)
	}
	pid := readPID(t, filepath.Join(dir, "pid"))
	waitFor(t, "the command to be gone", func() bool { return !living(pid) })
}

// TestSecondInterruptLeaves: the command does not wait for the end of the run
// that it has cancelled.
func TestSecondInterruptLeaves(t *testing.T) {
	t.Parallel()
	// It ignores SIGINT, so that there is time for the second Ctrl-C.
	p, bin, env, dir, data := slowCommand(t, "trap '' INT; ")
	interrupt := func() {
		if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
	}
	interrupt()
	waitFor(t, "an answer to Ctrl-C", func() bool { return strings.Contains(p.stderr.String(), "press Ctrl-C again") })
	waitFor(t, "the program to leave", func() bool { // one right behind the first does not count
		select {
		case <-p.done:
			return true
		default:
			interrupt()
			return false
		}
	})
	r := p.wait()
	if want := "is being cancelled; follow it with: bowline runs events "; !strings.Contains(r.stderr, want) {
		t.Errorf("stderr %q, want %q in it", r.stderr, want)
	}
	last := lastLine(t, r.stdout)
	run, _ := last["run"].(map[string]any)
	if r.code != 130 || last["type"] != "result" {
		t.Fatalf("exit code %d, last line %v, stderr %q", r.code, last, r.stderr)
	}
	id, _ := run["id"].(string)
	pid := readPID(t, filepath.Join(dir, "pid"))
	waitFor(t, "the run to end by its cancel", func() bool {
		show := runProgram(t, env, dir, bin, "runs", "show", "--json", "--data", data, id)
		var v runView
		return json.Unmarshal([]byte(show.stdout), &v) == nil && v.Status == "cancelled"
	})
	waitFor(t, "the command to be gone", func() bool { return !living(pid) })
	waitFor(t, "the runner to be gone", func() bool { return runnerPID(id) == 0 })
}

// TestTimeout is one of the five outcomes.
func TestTimeout(t *testing.T) {
	t.Parallel()
	bin := program(t, "bowline")
	env, dir, data := cleanEnv(t), t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	r := runProgram(t, env, dir, bin, "run", "--json", "--data", data, "--timeout", "200ms", "--", "sleep", "3600")
	last := lastLine(t, r.stdout)
	res, _ := last["result"].(map[string]any)
	if r.code != 1 || res["outcome"] != "timeout" || res["exitCode"] != nil {
		t.Errorf("exit code %d, result %v", r.code, res)
	}
}
