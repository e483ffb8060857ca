package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A test that has never been red proves nothing. Each bug planted here, behind
// a build tag that no shipped program has, must be reported by the very oracle
// that finds nothing in the program without it, in the same scenario.

const (
	// plantedTries bounds how often a scenario is played until the kill falls
	// where the bug shows.
	plantedTries = 10
	// soundTries is how often the scenario must find nothing without the bug.
	soundTries = 2
	// plantedPatience is how long a run may take to end: one that never ends is
	// a problem, not a reason to wait on.
	plantedPatience = 20 * time.Second
)

// problems collects what an oracle reports.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

// mustSee plays a scenario with the planted bug until the oracle reports it,
// and without it, where the oracle must report nothing.
func mustSee(t *testing.T, tag string, play func(t *testing.T, tag string) problems) {
	t.Helper()
	for n := range soundTries {
		t.Run(fmt.Sprintf("sound_%d", n+1), func(t *testing.T) {
			for _, p := range play(t, "") {
				t.Error(p)
			}
		})
	}
	for n := 1; !t.Failed(); n++ {
		var found problems
		if !t.Run(fmt.Sprintf("planted_%d", n), func(t *testing.T) { found = play(t, tag) }) {
			return
		}
		if len(found) > 0 {
			t.Logf("%s was seen in try %d:\n%s", tag, n, strings.Join(found, "\n"))
			return
		}
		if n == plantedTries {
			t.Fatalf("%s was not seen in %d tries: the crash tests are blind to it", tag, n)
		}
	}
}

// tagged builds a program with the planted bug of a tag, or without one.
func tagged(t *testing.T, name, tag string) string {
	t.Helper()
	if tag == "" {
		return program(t, name)
	}
	return program(t, name, tag)
}

// gatedRun is a scripted run that waits before an event of its turn.
type gatedRun struct {
	id, ledger, gate string
	identity         map[string]string // of its runner, for an attached one
}

// gatedScript is the script of a run with its gate before event gateAt.
func gatedScript(t *testing.T, events, gateAt int) (script map[string]any, r gatedRun) {
	t.Helper()
	dir := t.TempDir()
	r.ledger, r.gate = filepath.Join(dir, "ledger.jsonl"), filepath.Join(dir, "gate")
	return map[string]any{
		"events": events, "textBytes": 48, "seed": 11, "ledger": r.ledger, "gate": r.gate, "gateAt": gateAt,
	}, r
}

func (r *gatedRun) open(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(r.gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// gated creates a run that the server's launcher starts. Whatever becomes of
// it, its runner is gone at the end of the test.
func (s *server) gated(t *testing.T, events, gateAt int) gatedRun {
	t.Helper()
	script, r := gatedScript(t, events, gateAt)
	var run runView
	if status := s.do("POST", "/v1/runs", map[string]any{"driver": "scripted", "prompt": "planted", "script": script}, &run); status != 201 {
		t.Fatalf("POST /v1/runs: status %d", status)
	}
	r.id = run.ID
	t.Cleanup(func() {
		s.kill(syscall.SIGTERM) // first, so that nobody starts another one
		if pid := runnerPID(r.id); pid != 0 {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Errorf("kill runnerd: %v", err)
			}
			waitFor(t, "the runner to be gone", func() bool { return runnerPID(r.id) == 0 })
		}
	})
	return r
}

// awaitRunning waits until the turn was accepted: no command is pending then.
func (s *server) awaitRunning(id string) {
	s.t.Helper()
	waitFor(s.t, "the turn to be accepted", func() bool {
		run, ok := s.getRun(id)
		return ok && run.Status == "running"
	})
}

// verdict waits for the end of a run and judges it.
func (s *server) verdict(r gatedRun, patience time.Duration, want runView) (found problems) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var run runView
	for {
		if v, ok := s.getRun(r.id); ok {
			if run = v; run.ended() {
				break
			}
		}
		if time.Now().After(deadline) {
			found.add("the run has not ended after %v, it is %q", patience, run.Status)
			return found
		}
		<-tick.C
	}
	if run.Status != want.Status || run.Reason != want.Reason {
		found.add("the run ended %s (%s), want %s (%s)", run.Status, run.Reason, want.Status, want.Reason)
	}
	judge(&run, readLedgerFile(s.t, r.ledger), s.hostLog(r.id), found.add)
	return found
}

// TestPlantedAckBeforeCommit: an acknowledgement goes out before its commit,
// and the server is killed between the two.
func TestPlantedAckBeforeCommit(t *testing.T) {
	mustSee(t, "bowline_plant_ack", func(t *testing.T, tag string) problems {
		s := startServer(t, tagged(t, "bowline", tag))
		r := s.gated(t, 100, 1)
		s.awaitRunning(r.id)
		r.open(t)
		waitFor(t, "30 ledger lines", func() bool { return countLines(r.ledger) >= 30 })
		s.kill(syscall.SIGKILL)
		s.start()
		return s.verdict(r, plantedPatience, runView{Status: "completed"})
	})
}

// TestPlantedMarkAfterEffect: a command is executed before its pending mark is
// durable, and the runner is killed between the two.
func TestPlantedMarkAfterEffect(t *testing.T) {
	mustSee(t, "bowline_plant_mark", func(t *testing.T, tag string) problems {
		s := startServer(t, tagged(t, "bowline", tag))
		r := s.gated(t, 5, 0) // turn.start stays pending while turn.started waits
		waitFor(t, "the effect of turn.start", func() bool {
			raw, err := os.ReadFile(r.ledger)
			return err == nil && strings.Contains(string(raw), `"turn_start"`)
		})
		if err := syscall.Kill(runnerPID(r.id), syscall.SIGKILL); err != nil {
			t.Fatalf("kill runnerd: %v", err)
		}
		r.open(t)
		return s.verdict(r, plantedPatience, runView{Status: "failed", Reason: "indeterminate"})
	})
}

// TestPlantedSendBeforeDurable: the runner sends what its log does not hold yet,
// and is killed between the two.
func TestPlantedSendBeforeDurable(t *testing.T) {
	mustSee(t, "bowline_plant_send", func(t *testing.T, tag string) problems {
		s := startServer(t, tagged(t, "bowline", tag))
		r := s.gated(t, 100, 1)
		s.awaitRunning(r.id)
		w := s.follow(t, r.id)
		r.open(t)
		// With the bug the log does not hold what the host has just seen.
		waitFor(t, "30 events of the turn", func() bool { return w.turns() >= 30 })
		if err := syscall.Kill(runnerPID(r.id), syscall.SIGKILL); err != nil {
			t.Fatalf("kill runnerd: %v", err)
		}
		return s.verdict(r, plantedPatience, runView{Status: "completed"})
	})
}

// TestPlantsStayOut: a planted bug is built with its own tag only, and nothing
// that builds what is shipped names one.
func TestPlantsStayOut(t *testing.T) {
	t.Parallel()
	plants := 0
	goFiles(t, func(rel, path string) {
		want := map[string]string{"plant_on.go": "//go:build bowline_plant_", "plant_off.go": "//go:build !bowline_plant_"}[filepath.Base(rel)]
		if want == "" {
			return
		}
		plants++
		raw, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(raw), want) {
			t.Errorf("%s does not begin with %s (%v)", rel, want, err)
		}
	})
	if plants < 10 {
		t.Errorf("%d files of planted bugs: the walk is broken", plants)
	}
	for _, name := range []string{"Makefile", ".ci/run", "deploy"} {
		err := filepath.WalkDir(filepath.Join(repoRoot(t), name), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			raw, err := os.ReadFile(path)
			if strings.Contains(string(raw), "bowline_plant") {
				t.Errorf("%s names a planted bug", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
