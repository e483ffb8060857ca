package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A kill loses no page cache, so it cannot show that anything is synced. Here
// the syncs of the shipped programs fail, or take long, by injection from
// outside: nothing may be acknowledged that was not synced.

const (
	syncCalls = "fdatasync,fsync"
	// stall is how long a stalled sync takes. What is acknowledged before is a
	// lie; only this lower bound is judged.
	stall = 3 * time.Second
	// syncPatience bounds what the programs have to do by themselves.
	syncPatience = 30 * time.Second
	// gateAt is how many events of the turn come before the gate.
	gateAt = 10
)

// tail follows a run's log, as a host does.
type tail struct {
	mu     sync.Mutex
	events []hostEvent
}

// follow reads the log of a run until the stream or the test ends.
func (s *server) follow(t *testing.T, id string) *tail {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/v1/runs/"+id+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	w, done := &tail{}, make(chan struct{})
	go func() {
		defer close(done)
		defer resp.Body.Close()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			var e hostEvent
			if json.Unmarshal(lines.Bytes(), &e) == nil && e.Type == "event" {
				w.mu.Lock()
				w.events = append(w.events, e)
				w.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// turns is how many events of the turn have been seen.
func (w *tail) turns() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.events {
		if turnEvent(&w.events[i]) {
			n++
		}
	}
	return n
}

// within waits for something that need not happen.
func within(limit time.Duration, ok func() bool) bool {
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			return false
		}
		<-tick.C
	}
	return true
}

// plantSync is the tag of programs that sync nothing.
const plantSync = "bowline_plant_sync"

const anyDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// attachedBody asks for a run whose runner the test starts.
func attachedBody(script map[string]any) map[string]any {
	return map[string]any{
		"driver": "scripted", "prompt": "sync", "script": script, "placement": "attached", "workspace": "/",
		"runner": map[string]string{"version": "0.3.0", "digest": anyDigest},
	}
}

// syncRig is a server and a runner that the test started by itself, so that
// nobody starts another one; the run waits at its gate.
type syncRig struct {
	*server
	t        *testing.T
	bin      string // of runnerd
	stateDir string
	run      gatedRun
	runner   *started
	tail     *tail
}

func newSyncRig(t *testing.T, tag string) *syncRig {
	t.Helper()
	strace(t)
	g := &syncRig{t: t, bin: tagged(t, "runnerd", tag), stateDir: filepath.Join(t.TempDir(), "state")}
	g.server = startServer(t, tagged(t, "bowline", tag), "--launch", "none")
	script, run := gatedScript(t, 20, gateAt)
	var made struct {
		ID     string
		Runner struct{ Identity map[string]string }
	}
	if status := g.do("POST", "/v1/runs", attachedBody(script), &made); status != 201 {
		t.Fatalf("POST /v1/runs: status %d", status)
	}
	run.id, run.identity = made.ID, made.Runner.Identity
	g.run = run
	g.startRunner()
	g.awaitRunning(run.id)
	g.tail = g.follow(t, run.id)
	waitFor(t, "the events before the gate", func() bool { return g.tail.turns() == gateAt })
	return g
}

// startRunner starts the slim runnerd with a fresh ticket.
func (g *syncRig) startRunner() {
	g.t.Helper()
	var ticket struct{ Ticket, ConnectPath string }
	if status := g.do("POST", "/v1/tickets", map[string]any{"runId": g.run.id}, &ticket); status != 201 {
		g.t.Fatalf("POST /v1/tickets: status %d", status)
	}
	id := g.run.identity
	g.runner = startProgram(g.t, append(cleanEnv(g.t), "BOWLINE_TICKET="+ticket.Ticket), g.t.TempDir(), g.bin,
		"--connect-url", strings.Replace(g.URL, "http://", "ws://", 1)+ticket.ConnectPath, "--state-dir", g.stateDir,
		"--runner-id", id["runnerInstanceId"], "--environment-lease-id", id["environmentLeaseId"], "--run-id", id["runId"],
		"--session-id", id["normalizedSessionId"], "--turn-id", id["turnId"], "--item-id", id["itemId"],
		"--runner-version", "0.3.0", "--runner-digest", anyDigest)
}

// segment is the file of the session log.
func (g *syncRig) segment() string { return filepath.Join(g.stateDir, "log", "0000000000000001.seg") }

// finish lets the run end and judges it. The runner goes by itself.
func (g *syncRig) finish(found *problems) {
	g.t.Helper()
	*found = append(*found, g.verdict(g.run, syncPatience, runView{Status: "completed"})...)
	if len(*found) == 0 {
		g.runner.wait()
	}
}

// mustSeeOnce is [mustSee] for what needs no luck.
func mustSeeOnce(t *testing.T, play func(t *testing.T, tag string) problems, tags ...string) {
	t.Helper()
	t.Run("sound", func(t *testing.T) {
		t.Parallel()
		for _, p := range play(t, "") {
			t.Error(p)
		}
	})
	for _, tag := range tags {
		t.Run(tag, func(t *testing.T) {
			t.Parallel()
			found := play(t, tag)
			if len(found) == 0 {
				t.Fatal("the test does not see the planted bug")
			}
			t.Logf("seen:\n%s", strings.Join(found, "\n"))
		})
	}
}

// TestSyncFailsInServe: once a sync has failed, the server acknowledges nothing
// any more, to the runner or to hosts, and ends.
func TestSyncFailsInServe(t *testing.T) {
	t.Parallel()
	mustSeeOnce(t, func(t *testing.T, tag string) (found problems) {
		g := newSyncRig(t, tag)
		socket := serverSocket(t, g.runner.cmd.Process.Pid, g.URL)
		tr := attach(t, g.cmd.Process.Pid, "-e", "trace="+syncCalls+",write,writev", "-e", "inject="+syncCalls+":error=EIO")
		g.run.open(t)
		if !within(syncPatience, func() bool { return len(tr.injected()) > 0 || g.tail.turns() > gateAt }) {
			found.add("neither a sync nor an event came")
		}
		script, _ := gatedScript(t, 0, 1)
		var refused struct{ Error struct{ Code string } }
		switch status := g.do("POST", "/v1/runs", attachedBody(script), &refused); {
		case status == 0: // it is gone already
		case status != 503 || refused.Error.Code != "store_indeterminate":
			found.add("POST /v1/runs was answered %d %s while syncs fail", status, refused.Error.Code)
		}
		if n := g.tail.turns(); n != gateAt {
			found.add("%d events that were not synced are in the host's log", n-gateAt)
		}
		if len(found) > 0 {
			return found // it would not end by itself
		}
		code, ok := g.exited(syncPatience)
		switch {
		case !ok:
			found.add("the server goes on after a failed sync")
		case code <= 0:
			found.add("the server ended with %d after a failed sync", code)
		}
		lines := tr.lines()
		for _, line := range lines[tr.injected()[0]:] {
			if writesTo(line, socket) {
				found.add("the runner was told something after a failed sync: %s", strings.TrimSpace(line))
			}
		}
		g.start()
		g.finish(&found)
		return found
	}, plantSync)
}

// TestSyncFailsAtPost: a run whose commit was not synced is not promised; asked
// for again under the same key, it exists once.
func TestSyncFailsAtPost(t *testing.T) {
	t.Parallel()
	mustSeeOnce(t, func(t *testing.T, tag string) (found problems) {
		strace(t)
		s := startServer(t, tagged(t, "bowline", tag), "--launch", "none")
		script, _ := gatedScript(t, 0, 1)
		first, _, firstID := s.post(t, "key-1", attachedBody(script))
		if first != 201 {
			t.Fatalf("POST /v1/runs: status %d", first)
		}
		tr := attach(t, s.cmd.Process.Pid, "-e", "trace="+syncCalls, "-e", "inject="+syncCalls+":error=EIO")
		status, code, _ := s.post(t, "key-2", attachedBody(script))
		if status != 503 || code != "store_indeterminate" {
			found.add("POST /v1/runs was answered %d %s while syncs fail", status, code)
		}
		if len(tr.injected()) == 0 {
			found.add("no sync was tried before the answer")
		}
		// Latched: it takes nothing more, not even what would need no sync.
		if status, code, _ = s.post(t, "key-3", attachedBody(script)); status == 201 {
			found.add("POST /v1/runs was answered %d %s after a failed sync", status, code)
		}
		if len(found) > 0 {
			return found
		}
		if code, ok := s.exited(syncPatience); !ok || code <= 0 {
			found.add("after a failed sync the server ended %v with exit code %d", ok, code)
		}
		s.start()
		var runs struct{ Runs []runView }
		again, _, secondID := s.post(t, "key-2", attachedBody(script))
		if status := s.do("GET", "/v1/runs", nil, &runs); status != 200 {
			t.Fatalf("GET /v1/runs: status %d", status)
		}
		count := map[string]int{}
		for _, r := range runs.Runs {
			count[r.ID]++
		}
		if again/100 != 2 || len(count) != 2 || count[firstID] != 1 || count[secondID] != 1 {
			found.add("after the restart: POST with the key of the lost one %d, runs %v, want %s and %s", again, runs.Runs, firstID, secondID)
		}
		return found
	}, plantSync)
}

// post creates a run under an idempotency key.
func (s *server) post(t *testing.T, key string, body any) (status int, code, id string) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/runs", strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", "" // nobody answers any more
	}
	defer resp.Body.Close()
	var out struct {
		ID    string
		Error struct{ Code string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatalf("POST /v1/runs: %v", err)
	}
	return resp.StatusCode, out.Error.Code, out.ID
}

// TestSyncFailsInRunner: once a sync of its session log has failed, the runner
// sends no event any more and ends with a typed error; the next one goes on.
func TestSyncFailsInRunner(t *testing.T) {
	t.Parallel()
	mustSeeOnce(t, func(t *testing.T, tag string) (found problems) {
		g := newSyncRig(t, tag)
		before := g.head()
		// Only the log: the provider's own ledger lives in the same process.
		tr := attach(t, g.runner.cmd.Process.Pid, "-P", g.segment(), "-e", "trace="+syncCalls, "-e", "inject="+syncCalls+":error=EIO")
		g.run.open(t)
		over := within(syncPatience, func() bool {
			select {
			case <-g.runner.done:
				return true
			default:
				return g.tail.turns() > gateAt
			}
		})
		if len(tr.injected()) == 0 {
			found.add("no sync of the session log was tried")
		}
		if !over {
			found.add("the runner goes on after a failed sync")
		}
		if n := g.tail.turns(); n != gateAt {
			found.add("%d events that were not synced reached the control plane", n-gateAt)
		}
		if len(found) > 0 {
			return found
		}
		r := g.runner.wait()
		last := lastLine(t, r.stderr)
		if code, _ := last["code"].(string); r.code <= 0 || code == "" || code == "internal" {
			found.add("the runner ended with exit code %d and %v", r.code, last)
		}
		// Everything it sent has been handled once it counts as gone.
		waitFor(t, "the connection to end", func() bool { return !g.connected() })
		if after := g.head(); after != before {
			found.add("the host's log went from %s to %s after a failed sync", before, after)
		}
		g.startRunner()
		g.finish(&found)
		return found
	}, plantSync)
}

type runnerView struct {
	Head   string
	Runner struct{ Connected bool }
}

func (g *syncRig) view() (v runnerView) {
	g.t.Helper()
	if status := g.do("GET", "/v1/runs/"+g.run.id, nil, &v); status != 200 {
		g.t.Fatalf("GET run: status %d", status)
	}
	return v
}

func (g *syncRig) head() string    { return g.view().Head }
func (g *syncRig) connected() bool { return g.view().Runner.Connected }

// TestSyncStallsInServe: while a sync takes long, nothing is acknowledged.
func TestSyncStallsInServe(t *testing.T) {
	t.Parallel()
	mustSeeOnce(t, func(t *testing.T, tag string) (found problems) {
		g := newSyncRig(t, tag)
		socket := serverSocket(t, g.runner.cmd.Process.Pid, g.URL)
		tr := attach(t, g.cmd.Process.Pid, "-e", "trace="+syncCalls+",write,writev", "-e", "inject="+syncCalls+":delay_enter=3000000")
		opened := time.Now()
		g.run.open(t)
		waitFor(t, "an event behind the gate", func() bool { return g.tail.turns() > gateAt })
		if took := time.Since(opened); took < stall {
			found.add("an event was in the host's log after %v, its sync takes %v", took, stall)
		}
		waitFor(t, "the runner to be told", func() bool {
			for _, line := range tr.lines() {
				if writesTo(line, socket) {
					return true
				}
			}
			return false
		})
		syncs, done := 0, 0
		for _, line := range tr.lines() {
			begins, ends := isSync(line)
			if begins {
				syncs++
			}
			if ends {
				done++
			}
			if writesTo(line, socket) && done == 0 {
				found.add("the runner was told something before the first of %d syncs was done: %s", syncs, strings.TrimSpace(line))
			}
		}
		posted := time.Now()
		script, _ := gatedScript(t, 0, 1)
		var made runView
		status := g.do("POST", "/v1/runs", attachedBody(script), &made)
		if took := time.Since(posted); status != 201 || took < stall {
			found.add("POST /v1/runs was answered %d after %v, its sync takes %v", status, took, stall)
		}
		tr.detach()
		g.finish(&found)
		return found
	}, plantSync, "bowline_plant_ack")
}

// TestSyncStallsInRunner: while a sync of the session log takes long, its event
// does not leave the runner.
func TestSyncStallsInRunner(t *testing.T) {
	t.Parallel()
	mustSeeOnce(t, func(t *testing.T, tag string) (found problems) {
		g := newSyncRig(t, tag)
		tr := attach(t, g.runner.cmd.Process.Pid, "-P", g.segment(), "-e", "trace="+syncCalls, "-e", "inject="+syncCalls+":delay_enter=3000000")
		opened := time.Now()
		g.run.open(t)
		waitFor(t, "an event behind the gate", func() bool { return g.tail.turns() > gateAt })
		if took := time.Since(opened); took < stall {
			found.add("an event reached the control plane after %v, its sync takes %v", took, stall)
		}
		tr.detach()
		g.finish(&found)
		return found
	}, plantSync)
}
