package command

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"bowline/driver"
	"bowline/driver/drivertest"
	"bowline/wire"
)

func testEnv() []string { return []string{"PATH=" + os.Getenv("PATH")} }

func provider(t *testing.T, members map[string]any, argv ...string) json.RawMessage {
	t.Helper()
	object := map[string]any{"kind": "command", "argv": argv}
	for k, v := range members {
		object[k] = v
	}
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestConform(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	drivertest.Conform(t, New(), drivertest.Cases{
		Quick:     raw(`{"kind":"command","argv":["sh","-c","echo out"]}`),
		Hang:      raw(`{"kind":"command","argv":["sh","-c","echo ready; exec sleep 1000"]}`),
		HangReady: func(ev driver.Event) bool { return ev.Type == "item.delta" },
		Env:       testEnv(),
		Invalid: []drivertest.Invalid{
			{Provider: raw(`{"kind":"command"}`), Member: "argv"},
			{Provider: raw(`{"kind":"command","argv":[]}`), Member: "argv"},
			{Provider: raw(`{"kind":"command","argv":[""]}`), Member: "argv"},
			{Provider: raw(`{"kind":"command","argv":"ls"}`), Member: "argv"},
			{Provider: raw(`{"kind":"command","argv":["a",null]}`), Member: "argv"},
			{Provider: raw(`{"kind":"command","argv":["a","b\u0000c"]}`), Member: "argv"},
			{Provider: raw(`{"kind":"command","argv":["a"],"Argv":["b"]}`), Member: "Argv"},
			{Provider: raw(`{"kind":"command","argv":["a"],"argv":["b"]}`), Member: "argv"},
			{Provider: raw(`{"kind":"command","argv":["a"],"shell":true}`), Member: "shell"},
			{Provider: raw(`{"kind":"command","argv":["a"],"cwd":"rel"}`), Member: "cwd"},
			{Provider: raw(`{"kind":"command","argv":["a"],"cwd":""}`), Member: "cwd"},
			{Provider: raw(`{"kind":"command","argv":["a"],"cwd":"/a\u0000"}`), Member: "cwd"},
			{Provider: raw(`{"kind":"command","argv":["a"],"envNames":["A=B"]}`), Member: "envNames"},
			{Provider: raw(`{"kind":"command","argv":["a"],"envNames":["1A"]}`), Member: "envNames"},
			{Provider: raw(`{"kind":"command","argv":["a"],"envNames":null}`), Member: "envNames"},
			{Provider: raw(`{"kind":"command","argv":["a"],"pty":"yes"}`), Member: "pty"},
			{Provider: raw(`{"kind":"command","argv":["a"],"timeoutMs":-1}`), Member: "timeoutMs"},
			{Provider: raw(`{"kind":"command","argv":["a"],"timeoutMs":1.5}`), Member: "timeoutMs"},
			{Provider: raw(`{"kind":"command","argv":["a"],"timeoutMs":31622400001}`), Member: "timeoutMs"},
			{Provider: raw(`{"kind":"command","argv":["a"]} {}`), Member: "more data"},
		},
	})
}

// result is a turn played to its end.
type result struct {
	events  []driver.Event
	streams map[string][]byte
	item    completed
	end     driver.Event
	ended   ended
}

type completed struct {
	ExitCode      *int
	Signal        string
	Bytes         map[string]int
	SHA256        map[string]string
	PipesLeftOpen bool
	Text, Data    *string
}

type ended struct {
	ProviderTurnID, Status, Outcome, Signal string
	ExitCode                                *int
	Error                                   failure
}

func open(t *testing.T, h *drivertest.Host, raw json.RawMessage) driver.Session {
	t.Helper()
	s, err := New().Open(t.Context(), h, driver.Config{Provider: raw, Workspace: t.TempDir(), Env: testEnv()})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func play(t *testing.T, raw json.RawMessage) result {
	t.Helper()
	h := drivertest.NewHost(t, nil)
	s := open(t, h, raw)
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1", Text: "ignored"}); err != nil {
		t.Fatal(err)
	}
	h.AwaitTerminal(0)
	return collect(t, h)
}

func collect(t *testing.T, h *drivertest.Host) result {
	t.Helper()
	r := result{events: h.Events(), streams: map[string][]byte{}}
	for _, ev := range r.events {
		switch {
		case ev.Type == "item.delta":
			var p struct {
				Stream, Channel, Encoding string
				Text, Data                *string
			}
			unmarshal(t, ev.Payload, &p)
			switch {
			case p.Text != nil && p.Data == nil && p.Encoding == "":
				r.streams[p.Stream] = append(r.streams[p.Stream], *p.Text...)
			case p.Data != nil && p.Text == nil && p.Encoding == "base64":
				b, err := base64.StdEncoding.DecodeString(*p.Data)
				if err != nil {
					t.Fatal(err)
				}
				if utf8.Valid(b) {
					t.Errorf("UTF-8 came as base64: %q", b)
				}
				r.streams[p.Stream] = append(r.streams[p.Stream], b...)
			default:
				t.Errorf("delta %s", ev.Payload)
			}
		case ev.Type == "item.completed":
			unmarshal(t, ev.Payload, &r.item)
			if r.item.Text != nil || r.item.Data != nil {
				t.Error("the completed item repeats its output")
			}
		case ev.Terminal:
			r.end = ev
			unmarshal(t, ev.Payload, &r.ended)
		}
	}
	for name, b := range r.streams {
		sum := sha256.Sum256(b)
		if r.item.Bytes[name] != len(b) || r.item.SHA256[name] != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: %d bytes carried, item says %d", name, len(b), r.item.Bytes[name])
		}
	}
	return r
}

func unmarshal(t *testing.T, raw json.RawMessage, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

func TestFiveOutcomes(t *testing.T) {
	t.Parallel()
	three := 3
	zero := 0
	for name, c := range map[string]struct {
		raw       json.RawMessage
		eventType string
		want      ended
	}{
		"exit 0":  {provider(t, nil, "true"), "turn.completed", ended{Status: "completed", Outcome: "exit", ExitCode: &zero}},
		"exit 3":  {provider(t, nil, "sh", "-c", "exit 3"), "turn.failed", ended{Status: "failed", Outcome: "exit", ExitCode: &three, Error: failure{"exit", "the command exited with code 3"}}},
		"signal":  {provider(t, nil, "sh", "-c", "kill -KILL $$"), "turn.failed", ended{Status: "failed", Outcome: "signal", Signal: "SIGKILL", Error: failure{"signal", "the command was ended by SIGKILL"}}},
		"timeout": {provider(t, map[string]any{"timeoutMs": 50}, "sleep", "1000"), "turn.failed", ended{Status: "failed", Outcome: "timeout", Signal: "SIGTERM", Error: failure{"timeout", "the command ran longer than 50ms and was killed"}}},
		"spawn":   {provider(t, nil, "/no/such/program"), "turn.failed", ended{Status: "failed", Outcome: "spawn_error", Error: failure{"spawn_failed", "could not start the program"}}},
		"folder":  {provider(t, map[string]any{"cwd": "/no/such/folder"}, "true"), "turn.failed", ended{Status: "failed", Outcome: "spawn_error", Error: failure{"spawn_failed", "could not start the program"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := play(t, c.raw)
			c.want.ProviderTurnID = "turn_1"
			got, _ := json.Marshal(r.ended) //nolint:errchkjson // plain struct
			want, _ := json.Marshal(c.want) //nolint:errchkjson // plain struct
			if r.end.Type != c.eventType || string(got) != string(want) {
				t.Errorf("%s %s, want %s %s", r.end.Type, got, c.eventType, want)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		h := drivertest.NewHost(t, nil)
		s := open(t, h, provider(t, nil, "sh", "-c", "echo ready; exec sleep 1000"))
		id, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1"})
		if err != nil {
			t.Fatal(err)
		}
		h.AwaitType("item.delta", 0)
		if s.Identity().ProcessID == 0 {
			t.Error("no process in the identity")
		}
		if err := s.Interrupt(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		h.AwaitTerminal(0)
		r := collect(t, h)
		if r.end.Type != "turn.cancelled" || r.ended.Outcome != "cancelled" || r.ended.Status != "cancelled" {
			t.Errorf("%s %s", r.end.Type, r.end.Payload)
		}
		if r.item.Signal != "SIGINT" || r.item.ExitCode != nil {
			t.Errorf("item %+v", r.item)
		}
	})
}

// A program that exits 0 on SIGINT was cancelled all the same, and what it said
// on its way out is kept.
func TestCancelledProgramMayFinishItsOutput(t *testing.T) {
	t.Parallel()
	h := drivertest.NewHost(t, nil)
	s := open(t, h, provider(t, nil, "sh", "-c", `trap 'echo bye; exit 0' INT; echo ready; while :; do sleep 0.02; done`))
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1"}); err != nil {
		t.Fatal(err)
	}
	h.AwaitType("item.delta", 0)
	if err := s.Interrupt(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	h.AwaitTerminal(0)
	r := collect(t, h)
	if r.ended.Outcome != "cancelled" || string(r.streams["stdout"]) != "ready\nbye\n" || *r.item.ExitCode != 0 {
		t.Errorf("%s, %q", r.end.Payload, r.streams["stdout"])
	}
}

func TestStreamsAreExact(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script         string
		stdout, stderr string
	}{
		"both":      {`printf out; printf err >&2; exit 3`, "out", "err"},
		"nothing":   {`:`, "", ""},
		"markup":    {`printf '<a>&\001'`, "<a>&\x01", ""},
		"invalid":   {`printf 'a\377b'`, "a\xffb", ""},
		"cut rune":  {`printf 'ok\342\202'`, "ok\xe2\x82", ""},
		"slow rune": {`printf 'x\342'; sleep 0.05; printf '\202'; sleep 0.05; printf '\254y'`, "x€y", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := play(t, provider(t, nil, "sh", "-c", c.script))
			if string(r.streams["stdout"]) != c.stdout || string(r.streams["stderr"]) != c.stderr {
				t.Errorf("streams %q", r.streams)
			}
			if name == "slow rune" {
				for _, ev := range r.events {
					if strings.Contains(string(ev.Payload), "base64") {
						t.Errorf("a rune was cut: %s", ev.Payload)
					}
				}
			}
		})
	}
}

func TestRandomBytesKeepTheirSum(t *testing.T) {
	t.Parallel()
	// openssl is not everywhere; the sum of the file is.
	path := t.TempDir() + "/random"
	random := make([]byte, 1<<20)
	state := sha256.Sum256([]byte("seed"))
	for at := 0; at < len(random); at += len(state) {
		state = sha256.Sum256(state[:])
		copy(random[at:], state[:])
	}
	if err := os.WriteFile(path, random, 0o600); err != nil {
		t.Fatal(err)
	}
	r := play(t, provider(t, nil, "sh", "-c", "cat "+path+"; cat "+path+" >&2"))
	want := sha256.Sum256(random)
	for _, name := range []string{"stdout", "stderr"} {
		if sha256.Sum256(r.streams[name]) != want {
			t.Errorf("%s: %d bytes with another sum", name, len(r.streams[name]))
		}
	}
}

// A rune at every offset of the chunk border.
func TestRunesAreNotCutAtChunkBorders(t *testing.T) {
	t.Parallel()
	for _, shift := range []int{0, 1, 2, 3} {
		script := fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; i=0; while [ $i -lt 200 ]; do printf '😀😀😀😀😀😀😀😀'; i=$((i+1)); done`, chunkSize-100+shift)
		r := play(t, provider(t, nil, "sh", "-c", script))
		want := strings.Repeat("x", chunkSize-100+shift) + strings.Repeat("😀", 1600)
		if string(r.streams["stdout"]) != want {
			t.Errorf("shift %d: other bytes", shift)
		}
		for _, ev := range r.events {
			if strings.Contains(string(ev.Payload), `"base64"`) {
				t.Errorf("shift %d: a rune was cut", shift)
			}
		}
	}
}

func TestBeginsRune(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": 0, "a": 0, "é": 0, "a\xc3": 1, "\xe2\x82": 2, "\xe2\x82\xac": 0, "\xf0\x9f\x98": 3, "\xf0": 1,
		"\x82": 0, "\x82\x82\x82\x82": 0, "\xff": 0, "\xe2\x28": 0, "\xc0": 0,
	} {
		if got := beginsRune([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// boundHost checks at every event how much output the driver has taken from the
// process and not yet handed over.
type boundHost struct {
	*drivertest.Host
	t     *testing.T
	taken atomic.Int64
	given int64
	most  int64
}

func (h *boundHost) Spawn(ctx context.Context, spec driver.ProcessSpec) (driver.Process, error) {
	p, err := h.Host.Spawn(ctx, spec)
	return countedProcess{p, &h.taken}, err
}

func (h *boundHost) Emit(ctx context.Context, ev driver.Event) error {
	if ev.Type == "item.delta" {
		var p struct{ Text string }
		if err := json.Unmarshal(ev.Payload, &p); err != nil {
			h.t.Error(err)
		}
		h.given += int64(len(p.Text))
		h.most = max(h.most, h.taken.Load()-h.given)
	}
	return h.Host.Emit(ctx, ev)
}

type countedProcess struct {
	driver.Process
	taken *atomic.Int64
}

func (p countedProcess) Stdout() io.Reader { return countedReader{p.Process.Stdout(), p.taken} }

func (p countedProcess) Stderr() io.Reader { return countedReader{p.Process.Stderr(), p.taken} }

type countedReader struct {
	io.Reader
	taken *atomic.Int64
}

func (r countedReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.taken.Add(int64(n))
	return n, err
}

// However fast the program writes, what the driver holds is one chunk of each
// stream: a host that takes slowly slows the program.
func TestBackPressureReachesTheProgram(t *testing.T) {
	t.Parallel()
	h := &boundHost{Host: drivertest.NewHost(t, nil), t: t}
	s, err := New().Open(t.Context(), h, driver.Config{
		Provider:  provider(t, nil, "sh", "-c", `yes | head -c 2000000 & yes | head -c 2000000 >&2; wait`),
		Workspace: t.TempDir(), Env: testEnv(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1"}); err != nil {
		t.Fatal(err)
	}
	h.AwaitTerminal(0)
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	r := collect(t, h.Host)
	if len(r.streams["stdout"]) != 2000000 || len(r.streams["stderr"]) != 2000000 {
		t.Errorf("%d and %d bytes", len(r.streams["stdout"]), len(r.streams["stderr"]))
	}
	if h.most > 2*chunkSize {
		t.Errorf("%d bytes were held, limit %d", h.most, 2*chunkSize)
	}
}

func TestItemStartedShowsTheCommand(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 9000)
	r := play(t, provider(t, nil, "true", "a", long))
	var p struct {
		Argv          []string
		ArgvTruncated bool
		Cwd           string
		ProcessID     int
	}
	for _, ev := range r.events {
		if ev.Type == "item.started" {
			unmarshal(t, ev.Payload, &p)
		}
	}
	if len(p.Argv) != 2 || !p.ArgvTruncated || p.Cwd == "" || p.ProcessID == 0 {
		t.Errorf("item.started %+v", p)
	}
}

func TestWorkingFolder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	r := play(t, provider(t, map[string]any{"cwd": folder}, "pwd"))
	if string(r.streams["stdout"]) != folder+"\n" {
		t.Errorf("folder %q", r.streams["stdout"])
	}
}

func TestOpenRefusesResume(t *testing.T) {
	t.Parallel()
	h := drivertest.NewHost(t, nil)
	_, err := New().Open(t.Context(), h, driver.Config{Provider: provider(t, nil, "true"), Resume: json.RawMessage(`{}`)})
	if err != driver.ErrUnsupported { //nolint:errorlint // the value itself
		t.Errorf("error %v", err)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	many := func(n int, s string) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = s
		}
		return list
	}
	for name, c := range map[string]struct {
		raw json.RawMessage
		ok  bool
	}{
		"argv at the limit":     {provider(t, nil, many(MaxArgs, "a")...), true},
		"argv past it":          {provider(t, nil, many(MaxArgs+1, "a")...), false},
		"argument at the limit": {provider(t, nil, "a", strings.Repeat("x", MaxArgBytes-1)), true},
		"argument past it":      {provider(t, nil, "a", strings.Repeat("x", MaxArgBytes)), false},
		"names at the limit":    {provider(t, map[string]any{"envNames": many(MaxEnvNames, "A")}, "a"), true},
		"names past it":         {provider(t, map[string]any{"envNames": many(MaxEnvNames+1, "A")}, "a"), false},
		"name at the limit":     {provider(t, map[string]any{"envNames": []string{strings.Repeat("A", MaxEnvName)}}, "a"), true},
		"name past it":          {provider(t, map[string]any{"envNames": []string{strings.Repeat("A", MaxEnvName+1)}}, "a"), false},
		"path at the limit":     {provider(t, map[string]any{"cwd": "/" + strings.Repeat("a", MaxPath-2)}, "a"), true},
		"path past it":          {provider(t, map[string]any{"cwd": "/" + strings.Repeat("a", MaxPath-1)}, "a"), false},
		"timeout at the limit":  {provider(t, map[string]any{"timeoutMs": MaxTimeout.Milliseconds()}, "a"), true},
		"timeout past it":       {provider(t, map[string]any{"timeoutMs": MaxTimeout.Milliseconds() + 1}, "a"), false},
	} {
		err := New().Validate(c.raw)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && wire.CodeOf(err) != wire.CodeInputInvalid {
			t.Errorf("%s: code %s", name, wire.CodeOf(err))
		}
	}
	// The schema and the parser state the same limits.
	schema := string(inputSchema())
	for _, n := range []int64{MaxArgs, MaxArgBytes - 1, MaxEnvNames, MaxEnvName, MaxPath - 1, MaxTimeout.Milliseconds()} {
		if !strings.Contains(schema, ": "+strconv.FormatInt(n, 10)) {
			t.Errorf("the input schema does not state %d", n)
		}
	}
}
