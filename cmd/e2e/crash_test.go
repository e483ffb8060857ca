package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Crash tests: real processes, killed from outside at random points, judged by
// the oracle. The seed is printed, so a failure can be looked at again.

const (
	crashEvents = 5000
	crashKills  = 20
	// settledAfter is a number of ledger lines behind which turn.start was
	// answered long ago: from there on no command is pending, so the run must
	// complete whatever is killed.
	settledAfter = 500
)

func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("BOWLINE_CRASH_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("BOWLINE_CRASH_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// scriptedRun creates a run whose provider keeps a ledger.
func (s *server) scriptedRun(events int) (id, ledgerPath string) {
	s.t.Helper()
	ledgerPath = filepath.Join(s.t.TempDir(), "ledger.jsonl")
	var run runView
	status := s.do("POST", "/v1/runs", map[string]any{
		"driver": "scripted", "prompt": "crash",
		"script": map[string]any{"events": events, "textBytes": 48, "seed": 7, "ledger": ledgerPath},
	}, &run)
	if status != 201 {
		s.t.Fatalf("POST /v1/runs: status %d", status)
	}
	return run.ID, ledgerPath
}

func (s *server) getRun(id string) (runView, bool) {
	var v runView
	return v, s.do("GET", "/v1/runs/"+id, nil, &v) == 200
}

// runnerPID finds the living runnerd of a run by its arguments, 0 if there is
// none.
func runnerPID(runID string) int {
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0
	}
	want := []byte("--run-id\x00" + runID + "\x00")
	for _, p := range procs {
		raw, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(raw, want) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err == nil && pid != os.Getpid() {
			return pid
		}
	}
	return 0
}

func countLines(path string) int {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return bytes.Count(raw, []byte("\n"))
}

// killPoints are ascending random numbers of ledger lines.
func killPoints(rnd *rand.Rand, n, from, to int) []int {
	points := make([]int, n)
	for i := range points {
		points[i] = from + rnd.IntN(to-from)
	}
	slices.Sort(points)
	return points
}

func TestKillRunnerd(t *testing.T) {
	s := startServer(t, program(t, "bowline"))
	rnd := newRand(t)
	id, ledgerPath := s.scriptedRun(crashEvents)
	kills := 0
	killed := 0
	for _, at := range killPoints(rnd, crashKills, settledAfter, crashEvents) {
		var pid int
		over := false
		waitFor(t, fmt.Sprintf("%d ledger lines and a living runner", at), func() bool {
			// The cheap look first: the test shares two cores with the run.
			if countLines(ledgerPath) < at {
				return false
			}
			if pid = runnerPID(id); pid != 0 && pid != killed {
				return true
			}
			run, ok := s.getRun(id)
			over = ok && run.ended()
			return over
		})
		if over {
			break
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatalf("kill runnerd: %v", err)
		}
		killed = pid
		kills++
	}
	run := s.waitEnded(id)
	t.Logf("%d kills; run %s %s", kills, run.Status, run.Reason)
	// Re-produced events make the ledger longer than the events, so the points
	// may come faster than the work; most of them must have been reached.
	if kills < crashKills/2 {
		t.Errorf("only %d kills took place", kills)
	}
	if run.Status != "completed" {
		t.Errorf("no command was pending at any kill, but the run is %s (%s)", run.Status, run.Reason)
	}
	judge(&run, readLedgerFile(t, ledgerPath), s.hostLog(id), t.Errorf)
	waitFor(t, "the runner to leave", func() bool { return runnerPID(id) == 0 })
}

// TestKillRunnerdEarly kills around the first commands, where one is likely to
// be pending.
func TestKillRunnerdEarly(t *testing.T) {
	s := startServer(t, program(t, "bowline"))
	rnd := newRand(t)
	outcomes := map[string]int{}
	for range crashKills {
		id, ledgerPath := s.scriptedRun(50)
		spins := rnd.IntN(60) // looks at /proc: some microseconds to some tens of milliseconds
		seen := false
		waitFor(t, "the runner to start", func() bool {
			if runnerPID(id) == 0 {
				run, ok := s.getRun(id)
				return seen || ok && run.ended() // it may be done already, even before the first look
			}
			seen = true
			spins--
			return spins < 0
		})
		if pid := runnerPID(id); pid != 0 {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Fatalf("kill runnerd: %v", err)
			}
		}
		run := s.waitEnded(id)
		outcomes[strings.TrimSpace(run.Status+" "+run.Reason)]++
		switch {
		case run.Status == "completed":
		case run.Status == "failed" && run.Reason == "indeterminate":
		default:
			t.Errorf("run %s ended %s (%s)", id, run.Status, run.Reason)
		}
		led := &ledger{effects: map[string]int{}}
		if _, err := os.Stat(ledgerPath); err == nil {
			led = readLedgerFile(t, ledgerPath)
		}
		judge(&run, led, s.hostLog(id), t.Errorf)
		waitFor(t, "the runner to leave", func() bool { return runnerPID(id) == 0 })
	}
	t.Logf("outcomes: %v", outcomes)
}

func TestKillServe(t *testing.T) {
	s := startServer(t, program(t, "bowline"))
	rnd := newRand(t)
	id, ledgerPath := s.scriptedRun(crashEvents)
	waitFor(t, "the runner to start", func() bool { return runnerPID(id) != 0 })
	pid := runnerPID(id)
	kills := 0
	for _, at := range killPoints(rnd, crashKills, settledAfter, crashEvents) {
		waitFor(t, fmt.Sprintf("%d ledger lines", at), func() bool { return countLines(ledgerPath) >= at })
		if run, ok := s.getRun(id); ok && run.ended() {
			break
		}
		s.kill(syscall.SIGKILL)
		kills++
		if got := runnerPID(id); got != pid {
			t.Fatalf("the runner was %d and is %d after the server's kill %d", pid, got, kills)
		}
		s.start()
	}
	run := s.waitEnded(id)
	t.Logf("%d kills; run %s %s", kills, run.Status, run.Reason)
	if kills < crashKills/2 {
		t.Errorf("only %d kills took place", kills)
	}
	if run.Status != "completed" {
		t.Errorf("the run is %s (%s)", run.Status, run.Reason)
	}
	led := readLedgerFile(t, ledgerPath)
	if led.resumes != 0 {
		t.Errorf("the provider's session was resumed %d times: the runner was not the same all the time", led.resumes)
	}
	judge(&run, led, s.hostLog(id), t.Errorf)
	waitFor(t, "the runner to leave", func() bool { return runnerPID(id) == 0 })
}

// waitEnded waits for the run's terminal status, across server restarts.
func (s *server) waitEnded(id string) runView {
	s.t.Helper()
	var run runView
	waitFor(s.t, "run "+id+" to end", func() bool {
		var ok bool
		run, ok = s.getRun(id)
		return ok && run.ended()
	})
	return run
}

// TestKillRunnerdOfCommand: what cannot be resumed is ended, tree and all.
func TestKillRunnerdOfCommand(t *testing.T) {
	s := startServer(t, program(t, "bowline"))
	dir := t.TempDir()
	script := `echo $$ > leader.tmp; mv leader.tmp leader
setsid sh -c 'echo $$ > away.tmp; mv away.tmp away; sleep 3600' &
(sleep 3600 & echo $! > child.tmp; mv child.tmp child; wait) &
wait`
	var run runView
	status := s.do("POST", "/v1/runs", map[string]any{"driver": "command", "argv": []string{"sh", "-c", script}, "workspace": dir}, &run)
	if status != 201 {
		t.Fatalf("POST /v1/runs: status %d", status)
	}
	var pids []int
	for _, name := range []string{"leader", "away", "child"} {
		waitFor(t, "the command's "+name, func() bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		})
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if err := syscall.Kill(runnerPID(run.ID), syscall.SIGKILL); err != nil {
		t.Fatalf("kill runnerd: %v", err)
	}
	ended := s.waitEnded(run.ID)
	if ended.Status != "failed" || ended.Reason != "runner_lost" {
		t.Errorf("the run ended %s (%s), want failed (runner_lost)", ended.Status, ended.Reason)
	}
	for _, pid := range pids {
		waitFor(t, fmt.Sprintf("process %d of the command to be gone", pid), func() bool { return !living(pid) })
	}
	terminals := 0
	for _, e := range s.hostLog(run.ID) {
		if e.Event.Type == "run.ended" {
			terminals++
		}
	}
	if terminals != 1 {
		t.Errorf("%d terminal events", terminals)
	}
	waitFor(t, "the runner to leave", func() bool { return runnerPID(run.ID) == 0 })
}

// living tells whether a process exists and is no zombie.
func living(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(raw, []byte(") "))
	return ok && len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

// TestPendingCommandIsIndeterminate: a command that was pending at the kill is
// never executed again, and the run says so.
func TestPendingCommandIsIndeterminate(t *testing.T) {
	t.Parallel()
	bin := program(t, "bowline")
	env, dir, data := cleanEnv(t), t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	config := filepath.Join(t.TempDir(), "config.yaml")
	// A provider that never answers: session.open stays pending.
	yaml := "drivers:\n  codex:\n    command: [sh, -c, 'echo $$ >> pids.tmp; cp pids.tmp pids.new; mv pids.new pids; exec sleep 3600']\n"
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, env, dir, bin, "run", "--json", "--data", data, "--config", config, "--prompt", "x")
	waitFor(t, "the provider to start", func() bool {
		_, err := os.Stat(filepath.Join(dir, "pids"))
		return err == nil
	})
	pid := readPID(t, filepath.Join(dir, "pids"))
	if err := syscall.Kill(runnerPID(p.runID()), syscall.SIGKILL); err != nil {
		t.Fatalf("kill runnerd: %v", err)
	}
	r := p.wait()
	last := lastLine(t, r.stdout)
	run, _ := last["run"].(map[string]any)
	if r.code != 1 || run["status"] != "failed" || run["reason"] != "indeterminate" {
		t.Errorf("exit code %d, run %v, stderr %q", r.code, run, r.stderr)
	}
	if n := countLines(filepath.Join(dir, "pids")); n != 1 {
		t.Errorf("the provider was started %d times", n)
	}
	waitFor(t, "the provider to be gone", func() bool { return !living(pid) })
	id, _ := run["id"].(string)
	waitFor(t, "the runner to leave", func() bool { return runnerPID(id) == 0 })
}
