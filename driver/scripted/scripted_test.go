package scripted

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bowline/driver"
	"bowline/driver/drivertest"
	"bowline/wire"
)

func TestConform(t *testing.T) {
	drivertest.Conform(t, New(), drivertest.Cases{
		Quick:  json.RawMessage(`{"kind":"scripted"}`),
		Hang:   json.RawMessage(`{"kind":"scripted","script":{"events":2,"textBytes":8,"end":"hang"}}`),
		Prompt: "hello",
		Invalid: []drivertest.Invalid{
			{Provider: json.RawMessage(`{"kind":"scripted","x":1}`), Member: "x"},
			{Provider: json.RawMessage(`{"kind":"scripted","Script":{}}`), Member: "Script"},
			{Provider: json.RawMessage(`{"kind":"scripted","kind":"scripted"}`), Member: "kind"},
			{Provider: json.RawMessage(`{"kind":"scripted","script":[]}`), Member: ""},
			{Provider: json.RawMessage(`{"kind":"scripted","script":{"events":-1}}`), Member: "script.events"},
			{Provider: json.RawMessage(`{"kind":"scripted","script":{"events":1000001}}`), Member: "script.events"},
			{Provider: json.RawMessage(`{"kind":"scripted","script":{"textBytes":409601}}`), Member: "script.textBytes"},
			{Provider: json.RawMessage(`{"kind":"scripted","script":{"seed":"a"}}`), Member: "script.seed"},
			{Provider: json.RawMessage(`{"kind":"scripted","script":{"ledger":"rel"}}`), Member: "script.ledger"},
			{Provider: json.RawMessage(`{"kind":"scripted","script":{"gate":"rel"}}`), Member: "script.gate"},
			{Provider: json.RawMessage(`{"kind":"scripted","script":{"end":"other"}}`), Member: "script.end"},
			{Provider: json.RawMessage(`{"kind":"scripted","script":{"end":null}}`), Member: "script.end"},
		},
	})
}

func open(t *testing.T, provider string, resume json.RawMessage) (*drivertest.Host, driver.Session) {
	t.Helper()
	h := drivertest.NewHost(t, nil)
	s, err := New().Open(t.Context(), h, driver.Config{Provider: json.RawMessage(provider), Workspace: t.TempDir(), Resume: resume})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Errorf("close: %v", err)
		}
	})
	return h, s
}

func list(events []driver.Event) string {
	var b strings.Builder
	for _, ev := range events {
		fmt.Fprintf(&b, "%s %s\n", ev.Type, ev.Payload)
	}
	return b.String()
}

func TestBuiltInTurn(t *testing.T) {
	t.Parallel()
	h, s := open(t, `{"kind":"scripted"}`, nil)
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1", Text: "say ü"}); err != nil {
		t.Fatal(err)
	}
	h.AwaitTerminal(0)
	want := `turn.started {"providerTurnId":"turn_1"}
item.completed {"channel":"final","itemId":"item_turn_1","kind":"agentMessage","providerPhase":"final_answer","text":"scripted: say ?"}
turn.completed {"providerTurnId":"turn_1","status":"completed"}
`
	if got := list(h.Events()[1:]); got != want {
		t.Errorf("events:\n%s", got)
	}
}

const scriptedTurn = `{"kind":"scripted","script":{"events":20,"textBytes":40,"seed":7%s}}`

// A session is cut off after every event and resumed: all together are the
// events of an undisturbed one.
func TestResumeAtEveryEvent(t *testing.T) {
	t.Parallel()
	provider := fmt.Sprintf(scriptedTurn, "")
	whole, s := open(t, provider, nil)
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1", Text: "p"}); err != nil {
		t.Fatal(err)
	}
	whole.AwaitTerminal(0)
	all := whole.Events()
	want := list(all[1:])
	if n := len(all); n != 1+1+20+1+1 {
		t.Fatalf("%d events", n)
	}
	for cut := 1; cut <= len(all); cut++ {
		h, resumed := open(t, provider, all[cut-1].Resume)
		first := h.Events()[0]
		if first.Type != "session.resumed" {
			t.Fatalf("first event %s", first.Type)
		}
		if id := resumed.Identity(); id.ThreadID != s.Identity().ThreadID || id.SessionID != s.Identity().SessionID {
			t.Errorf("identity changed: %+v", id)
		}
		if cut > 1 && cut < len(all) {
			h.AwaitTerminal(0)
		}
		got := list(all[1:cut]) + list(h.Events()[1:])
		if cut == 1 {
			got = list(h.Events()[1:])
			if got != "" {
				t.Errorf("an idle session played: %s", got)
			}
			continue
		}
		if got != want {
			t.Fatalf("cut after %d events:\n%s\nwant\n%s", cut, got, want)
		}
	}
}

func TestLedgerIsAheadOfEvents(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	h, s := open(t, fmt.Sprintf(scriptedTurn, fmt.Sprintf(`,"ledger":%q,"end":"failed"`, path)), nil)
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1"}); err != nil {
		t.Fatal(err)
	}
	end, _ := h.AwaitTerminal(0)
	if end.Type != "turn.failed" {
		t.Errorf("ended with %s", end.Type)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	type line struct {
		Effect, Turn, Type, SHA256 string
		Event                      int
	}
	var effects []string
	var events []line
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var l line
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		if l.Effect != "" {
			effects = append(effects, l.Effect+":"+l.Turn)
		} else {
			events = append(events, l)
		}
	}
	if got := strings.Join(effects, " "); got != "session_open: turn_start:turn_1 session_close:" {
		t.Errorf("effects %q", got)
	}
	emitted := h.Events()
	if len(events) != len(emitted) {
		t.Fatalf("%d lines, %d events", len(events), len(emitted))
	}
	for i, ev := range emitted {
		sum := sha256.Sum256(ev.Payload)
		if l := events[i]; l.Type != ev.Type || l.SHA256 != hex.EncodeToString(sum[:]) || l.Event != i-1 {
			t.Errorf("event %d: %s, ledger %+v", i, ev.Type, l)
		}
	}
}

func TestLedgerThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	h := drivertest.NewHost(t, nil)
	_, err := New().Open(t.Context(), h, driver.Config{
		Provider: json.RawMessage(`{"kind":"scripted","script":{"ledger":"/no/such/folder/ledger"}}`),
	})
	if err == nil || len(h.Events()) != 0 {
		t.Errorf("opened: %v", err)
	}
}

func TestGate(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	h, s := open(t, fmt.Sprintf(scriptedTurn, fmt.Sprintf(`,"gate":%q,"gateAt":5`, gate)), nil)
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1"}); err != nil {
		t.Fatal(err)
	}
	count := 0
	h.Await("five events of the turn", 1, func(driver.Event) bool { count++; return count == 5 })
	if n := len(h.Events()); n != 6 {
		t.Fatalf("%d events at the gate", n)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.AwaitTerminal(0)
}

func TestInterruptAtTheGate(t *testing.T) {
	t.Parallel()
	for at := range 3 {
		h, s := open(t, fmt.Sprintf(scriptedTurn, fmt.Sprintf(`,"gate":"/no/such/gate","gateAt":%d`, at)), nil)
		if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1"}); err != nil {
			t.Fatal(err)
		}
		if at > 0 {
			h.AwaitType("turn.started", 0)
		}
		if err := s.Interrupt(t.Context(), "turn_1"); err != nil {
			t.Fatal(err)
		}
		if end, _ := h.AwaitTerminal(0); end.Type != "turn.cancelled" {
			t.Errorf("gate at %d: %s", at, end.Type)
		}
	}
}

func TestSessionFailed(t *testing.T) {
	t.Parallel()
	h, s := open(t, `{"kind":"scripted","script":{"end":"session_failed"}}`, nil)
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1"}); err != nil {
		t.Fatal(err)
	}
	_, at := h.AwaitTerminal(0)
	h.AwaitType("session.failed", at)
	deadline := time.Now().Add(10 * time.Second)
	for s.Identity().ActiveProviderTurnID != "" && time.Now().Before(deadline) {
		continue
	}
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_2"}); err != driver.ErrClosed { //nolint:errorlint // the value itself
		t.Errorf("turn after the session failed: %v", err)
	}
}

func TestForeignResumeState(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{`{}`, `[]`, `{"version":2,"threadId":"t"}`, `{"version":1}`} {
		h := drivertest.NewHost(t, nil)
		_, err := New().Open(t.Context(), h, driver.Config{Provider: json.RawMessage(`{"kind":"scripted"}`), Resume: json.RawMessage(raw)})
		if err == nil || wire.CodeOf(err) == "" {
			t.Errorf("%s was accepted", raw)
		}
	}
}

func TestTextIsExact(t *testing.T) {
	t.Parallel()
	s := Script{TextBytes: 30, Seed: 1}
	if a, b := s.Text(0), s.Text(1); len(a) != 30 || a == b || a != s.Text(0) {
		t.Errorf("%q %q", a, b)
	}
	// Pinned: another process, another day, the same bytes.
	if got := s.Text(0); got != pinnedText {
		t.Errorf("text changed: %q", got)
	}
}

const pinnedText = "us1nwxom11zw5790e32exl6w9cezjk"
