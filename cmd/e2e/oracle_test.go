package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The oracle shares no code with what it judges: it reads the list that the
// scripted provider wrote and synced by itself, and the host API's raw lines,
// and compares the two.

// ledger is what the provider says it did.
type ledger struct {
	effects map[string]int // turn -> turn_start effects
	events  []string       // by index: sha256 of the payload
	types   []string
	resumes int // a new runner took the session up again
}

func readLedgerFile(t testing.TB, path string) *ledger {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{effects: map[string]int{}}
	lines := 0
	for line := range bytes.Lines(raw) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // the kill came inside a write: the provider had not got to its event
		}
		lines++
		var x struct {
			Effect, Turn, Type, SHA256 string
			Event                      *int
		}
		if err := json.Unmarshal(line, &x); err != nil {
			t.Fatalf("ledger line %d: %v", lines, err)
		}
		switch {
		case x.Effect == "turn_start":
			l.effects[x.Turn]++
		case x.Effect == "session_resume":
			l.resumes++
		case x.Effect != "":
		case x.Event == nil:
			t.Fatalf("ledger line %d is neither an effect nor an event", lines)
		case *x.Event < 0: // of the session, outside the turn
		case *x.Event == len(l.events):
			l.events, l.types = append(l.events, x.SHA256), append(l.types, x.Type)
		case *x.Event > len(l.events):
			t.Fatalf("ledger line %d: event %d after %d: the provider skipped some", lines, *x.Event, len(l.events)-1)
		case l.events[*x.Event] != x.SHA256:
			t.Fatalf("ledger line %d: event %d was produced twice, differently", lines, *x.Event)
		}
	}
	return l
}

// hostEvent is one event line of the host API.
type hostEvent struct {
	Type  string
	ID    string
	RunID string
	Event struct {
		Type, Origin string
		Late         bool
		Source       *struct {
			Seq     int64
			EventID string
		}
		Payload json.RawMessage
	}
}

// hostLog reads the whole log of an ended run.
func (s *server) hostLog(runID string) []hostEvent {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.URL+"/v1/runs/"+runID+"/events", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("events: status %d", resp.StatusCode)
	}
	var out []hostEvent
	r := bufio.NewReader(resp.Body)
	for {
		line, err := r.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e hostEvent
			if err := json.Unmarshal(line, &e); err != nil {
				s.t.Fatalf("event line %d: %v", len(out)+1, err)
			}
			if e.Type == "event" {
				out = append(out, e)
			}
		}
		if err != nil {
			return out
		}
	}
}

// turnEvent tells whether a host event is one that the scripted provider
// produced in its turn.
func turnEvent(e *hostEvent) bool {
	return !runnersOwnEnd(e) && e.Event.Origin == "runner" &&
		(strings.HasPrefix(e.Event.Type, "turn.") || strings.HasPrefix(e.Event.Type, "item."))
}

// runnersOwnEnd tells whether the runner itself ended a turn whose start it
// found pending after a crash: the provider knows nothing of that. judge holds
// it to be the only one, of a run that ended as indeterminate.
func runnersOwnEnd(e *hostEvent) bool {
	var p struct {
		Error struct{ Code string }
	}
	return e.Event.Origin == "runner" && e.Event.Type == "turn.failed" &&
		json.Unmarshal(e.Event.Payload, &p) == nil && p.Error.Code == "execution_indeterminate"
}

// runView is the part of a run that the oracle needs.
type runView struct {
	ID, Status, Reason string
}

func (v *runView) ended() bool {
	switch v.Status {
	case "completed", "failed", "cancelled", "orphaned":
		return true
	}
	return false
}

// judge compares a run's log with the provider's ledger. It reports through
// problem, so that a planted bug can be shown to be seen.
func judge(run *runView, led *ledger, log []hostEvent, problem func(format string, args ...any)) {
	var got []hostEvent
	var sources []int64
	terminals, own := 0, 0
	for i, e := range log {
		if want := "1." + strconv.Itoa(i+1); e.ID != want {
			problem("host cursor %s where %s was expected: the log is not dense", e.ID, want)
		}
		if e.Event.Source != nil {
			sources = append(sources, e.Event.Source.Seq)
		}
		if e.Event.Type == "run.ended" {
			terminals++
			if i != len(log)-1 {
				problem("%d events after the terminal one", len(log)-1-i)
			}
		}
		if runnersOwnEnd(&e) {
			own++
		}
		if turnEvent(&e) {
			got = append(got, e)
		}
	}
	for i, seq := range sources {
		if seq != int64(i+1) {
			problem("runner sequence %d at place %d: a runner event is missing, doubled or out of order", seq, i+1)
			break
		}
	}
	if terminals != 1 {
		problem("%d terminal events", terminals)
	}
	if own > 1 || own == 1 && (run.Status != "failed" || run.Reason != "indeterminate") {
		problem("%d ends of a turn by the runner itself in a run that is %s (%s)", own, run.Status, run.Reason)
	}
	for turn, n := range led.effects {
		if n != 1 {
			problem("turn %s was started %d times", turn, n)
		}
	}
	if len(got) > len(led.events) {
		problem("the control plane has %d events of the turn, the provider produced %d", len(got), len(led.events))
		return
	}
	if run.Status == "completed" && len(got) != len(led.events) {
		problem("the run completed with %d events of %d: %d are lost", len(got), len(led.events), len(led.events)-len(got))
	}
	for i := range got {
		sum := sha256.Sum256(got[i].Event.Payload)
		if hex.EncodeToString(sum[:]) != led.events[i] || got[i].Event.Type != led.types[i] {
			problem("event %d (%s) differs from what the provider produced (%s)", i, got[i].Event.Type, led.types[i])
			return
		}
	}
}
