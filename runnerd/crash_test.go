package runnerd

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bowline/wire/prp"
)

// TestKilledAtRandomPoints kills the runner with SIGKILL while a scripted turn
// streams events. The oracle is the ledger the provider writes by itself: what
// the authority has must be exactly what the provider produced, every event
// once and in order, with one effect per command.
func TestKilledAtRandomPoints(t *testing.T) {
	t.Parallel()
	const events, kills = 1000, 6
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // G115: bits
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // G404: not a secret
	a := newAuthority(t)
	state, ledger := t.TempDir(), filepath.Join(t.TempDir(), "ledger")
	r := startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	openScripted(a, map[string]any{"events": events, "textBytes": 100, "ledger": ledger})
	a.do(prp.CommandTurnStart, map[string]any{"text": "x", "turnId": "turn-a"})
	done := func() bool {
		for _, e := range a.events {
			if e.Type == "turn.completed" {
				return true
			}
		}
		return false
	}
	for k := range kills {
		a.mu.Lock()
		target := min(len(a.events)+1+rng.IntN(2*events/kills), events-1)
		a.mu.Unlock()
		a.await(fmt.Sprintf("event %d before kill %d", target, k), func() bool { return len(a.events) >= target || done() })
		r.kill()
		r = startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	}
	a.await("the end of the turn", done)
	a.do(prp.CommandRunnerDrain, map[string]any{})
	a.do(prp.CommandRunnerShutdown, map[string]any{})
	r.wantExit(0)

	effects, produced := readLedger(t, ledger)
	if effects["turn_start"] != 1 || effects["session_open"] != 1 {
		t.Fatalf("effects %v: a command was executed twice", effects)
	}
	var got []string
	for i, e := range a.events {
		if e.SourceSeq != int64(i+1) {
			t.Fatalf("event %d has number %d", i, e.SourceSeq)
		}
		if e.Type != "runner.reconciled" && e.Type != "session.started" && e.Type != "session.resumed" {
			got = append(got, e.Type+" "+digestOf(e))
		}
	}
	if len(got) != events+3 || len(produced) != events+3 {
		t.Fatalf("%d events arrived, the provider produced %d, want %d", len(got), len(produced), events+3)
	}
	for i := range got {
		if got[i] != produced[i] {
			t.Fatalf("event %d of the turn: arrived %s, produced %s", i, got[i], produced[i])
		}
	}
}

// readLedger gives the effects and, once each, the events of turns in order. A
// line may stand again where the crash came between it and its event.
func readLedger(t testing.TB, path string) (effects map[string]int, events []string) {
	t.Helper()
	f, err := os.Open(path) //nolint:gosec // G304: test
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	effects = map[string]int{}
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		var line struct {
			Effect string `json:"effect"`
			Event  *int   `json:"event"`
			SHA256 string `json:"sha256"`
			Type   string `json:"type"`
		}
		if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
			t.Fatalf("ledger line %q: %v", scan.Text(), err)
		}
		if line.Effect != "" {
			effects[line.Effect]++
			continue
		}
		if *line.Event < 0 {
			continue
		}
		entry := line.Type + " " + line.SHA256
		switch {
		case *line.Event == len(events):
			events = append(events, entry)
		case *line.Event == len(events)-1 && events[*line.Event] == entry:
		default:
			t.Fatalf("the provider produced event %d after %d: more than one was not durable", *line.Event, len(events)-1)
		}
	}
	if err := scan.Err(); err != nil {
		t.Fatal(err)
	}
	return effects, events
}

// TestRepeatedKillsWhileStarting kills runners before they are connected.
func TestRepeatedKillsWhileStarting(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state := t.TempDir()
	r := startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	openScripted(a, nil)
	for i := range 6 {
		r.kill()
		r = startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
		if i%2 == 1 {
			a.await("a connection", func() bool { return a.conn != nil })
		}
	}
	a.do(prp.CommandTurnStart, map[string]any{"text": "x", "turnId": "turn-a"})
	a.awaitEvent("turn.completed")
	a.do(prp.CommandRunnerDrain, map[string]any{})
	a.do(prp.CommandRunnerShutdown, map[string]any{})
	r.wantExit(0)
	if got := strings.Join(a.eventTypes(), " "); strings.Count(got, "session.started") != 1 || strings.Count(got, "turn.completed") != 1 {
		t.Fatalf("events %s", got)
	}
}
