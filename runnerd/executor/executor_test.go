package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bowline/driver"
	"bowline/runnerd/journal"
	"bowline/runnerd/sanitize"
	"bowline/runnerd/seglog"
	"bowline/runnerd/supervise"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// fake is a driver whose sessions do what the test says.
type fake struct {
	mu       sync.Mutex
	host     driver.Host
	opened   []json.RawMessage // resume states
	env      []string
	turn     string
	active   string // what a reopened session says of its turn
	startErr error
	closeErr error
	closed   int
	onClose  func()
	snapshot driver.Identity
}

func (f *fake) Descriptor() driver.Descriptor {
	return driver.Descriptor{Name: "fake", PermissionModes: []driver.Permission{driver.PermissionDefault}, Capabilities: driver.Capabilities{Resume: true, Interrupt: true}}
}

func (f *fake) Validate(json.RawMessage) error { return nil }

func (f *fake) Open(ctx context.Context, host driver.Host, cfg driver.Config) (driver.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.host, f.env = host, cfg.Env
	f.opened = append(f.opened, cfg.Resume)
	return f, host.Emit(ctx, driver.Event{Type: "session.started", Priority: 1, Payload: json.RawMessage(`{"threadId":"thread","sessionId":"session"}`), Resume: json.RawMessage(`{"n":1}`)})
}

func (f *fake) StartTurn(_ context.Context, turn driver.Turn) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.startErr != nil {
		return "", f.startErr
	}
	f.turn = "provider-" + turn.ID
	return f.turn, nil
}

func (f *fake) Steer(context.Context, string, string) error { return driver.ErrUnsupported }

func (f *fake) Interrupt(_ context.Context, id string) error {
	if id == "" || id != f.turn {
		return driver.ErrNoTurn
	}
	return nil
}

func (f *fake) Resolve(context.Context, driver.Resolution) error { return driver.ErrUnsupported }

func (f *fake) Identity() driver.Identity {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.snapshot
	id.ThreadID, id.SessionID, id.ActiveProviderTurnID = "thread", "session", f.active
	return id
}

func (f *fake) Close(context.Context) error {
	f.closed++
	if f.onClose != nil {
		f.onClose()
	}
	return f.closeErr
}

func (f *fake) end(t *testing.T) {
	t.Helper()
	if err := f.host.Emit(t.Context(), driver.Event{Type: "turn.completed", Priority: 0, Payload: json.RawMessage(`{}`), Terminal: true}); err != nil {
		t.Fatal(err)
	}
}

// sent collects results.
type sent struct {
	results chan prp.CommandResult
}

func (s *sent) SendResult(payload []byte) {
	v, err := canonjson.Parse(payload)
	if err != nil {
		panic(err)
	}
	r, err := prp.CommandResultOf(v)
	if err != nil {
		panic(err)
	}
	s.results <- r
}

func (s *sent) ConnectionDone() <-chan struct{} { return make(chan struct{}) }

type rig struct {
	t    *testing.T
	dir  string
	f    *fake
	e    *Executor
	jr   *journal.Journal
	out  *sent
	seq  int64
	done chan error
}

func identity() prp.Identity {
	return prp.Identity{RunnerInstanceID: "r", EnvironmentLeaseID: "l", RunID: "u", NormalizedSessionID: "s", TurnID: "t", ItemID: "i"}
}

func newRig(t *testing.T, dir string, kind Kind, env ...string) *rig {
	t.Helper()
	disk, err := seglog.OpenDir(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	jr, err := journal.Open(disk, journal.Params{Identity: identity(), MaxOutbox: 1 << 20, P0Reserve: 1 << 16, MaxFrame: prp.MaxFrameBytes})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, jr: jr, out: &sent{results: make(chan prp.CommandResult, 64)}, done: make(chan error, 1)}
	f, ok := kind.Driver.(*fake)
	if !ok {
		t.Fatal("the rig needs the fake driver")
	}
	r.f = f
	r.e = New(Options{Journal: jr, Kinds: map[string]Kind{"fake": kind}, Environ: env, PassEnv: []string{"SECRET"}, Workspace: dir, Permission: driver.PermissionDefault})
	r.e.SetLink(r.out)
	r.seq = jr.Stats().LastCmd
	return r
}

func (r *rig) run() {
	go func() { r.done <- r.e.Run(context.Background()) }()
	r.t.Cleanup(func() {
		r.e.Stop()
		select {
		case err := <-r.done:
			if err != nil && !errors.Is(err, ErrStopped) {
				r.t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			r.t.Error("Run does not end")
		}
		if err := r.jr.Close(); err != nil {
			r.t.Error(err)
		}
	})
}

func (r *rig) do(kind, payload string) prp.CommandResult {
	r.t.Helper()
	r.seq++
	v, err := canonjson.ParseText(payload)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.e.Deliver(prp.Command{CommandID: prp.CommandIDOf(r.seq), ControllerSeq: r.seq, Type: kind, IssuedAt: "2026-01-01T00:00:00.000Z", Payload: v}); err != nil {
		r.t.Fatal(err)
	}
	select {
	case res := <-r.out.results:
		return res
	case <-time.After(patience):
		r.t.Fatalf("no result of %s", kind)
		return prp.CommandResult{}
	}
}

func (r *rig) open() {
	r.t.Helper()
	for _, c := range [][2]string{{prp.CommandRunPrepare, `{"provider":{"kind":"fake"}}`}, {prp.CommandSessionOpen, `{}`}} {
		if res := r.do(c[0], c[1]); res.Status != prp.StatusCompleted {
			r.t.Fatalf("%s: %s", c[0], res.Whole.JSON())
		}
	}
}

func text(v canonjson.Value) string { return string(v.JSON()) }

func TestTurn(t *testing.T) {
	t.Parallel()
	f := &fake{}
	r := newRig(t, t.TempDir(), Kind{Driver: f}, "PATH=/bin", "SECRET=a-secret-value", "OTHER=x")
	r.run()
	r.open()
	if got := strings.Join(f.env, " "); got != "PATH=/bin SECRET=a-secret-value" {
		t.Fatalf("environment of the provider: %s", got)
	}
	if res := r.do(prp.CommandTurnStart, `{"text":"x","turnId":"a"}`); text(res.Result) != `{"providerTurnId":"provider-a"}` {
		t.Fatalf("turn.start: %s", res.Whole.JSON())
	}
	if res := r.do(prp.CommandSessionSnapshot, `{}`); res.Result.Get("status").Str() != "turn_active" {
		t.Fatalf("snapshot: %s", res.Whole.JSON())
	}
	if res := r.do(prp.CommandTurnInterrupt, `{"turnId":"other"}`); res.Result.Get("status").Str() != "already_terminal" {
		t.Fatalf("interrupt of another turn: %s", res.Whole.JSON())
	}
	if res := r.do(prp.CommandTurnInterrupt, `{"threadId":"thread","turnId":"provider-a"}`); res.Result.Get("status").Str() != "completed" {
		t.Fatalf("interrupt: %s", res.Whole.JSON())
	}
	f.end(t)
	if m := r.jr.Meta(); m.Turn != nil {
		t.Fatalf("the turn is over and still there: %+v", m.Turn)
	}
	if res := r.do(prp.CommandRunCancel, `{}`); res.Result.Get("status").Str() != "already_terminal" {
		t.Fatalf("cancel after the end: %s", res.Whole.JSON())
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	f := &fake{}
	r := newRig(t, t.TempDir(), Kind{Driver: f}, "SECRET=a-secret-value")
	r.run()
	if res := r.do(prp.CommandSessionOpen, `{}`); res.Status != prp.StatusFailed || res.Result.Get("code").Str() != codeExecution || res.Result.Get("errorCode").Str() != "conflict" {
		t.Fatalf("session.open before run.prepare: %s", res.Whole.JSON())
	}
	r.open()
	f.startErr = &driver.ProviderError{Code: "thread_failed", Message: "it said a-secret-value"}
	res := r.do(prp.CommandTurnStart, `{"text":"x","turnId":"a"}`)
	if res.Status != prp.StatusFailed || res.Result.Get("code").Str() != codeExecution || res.Result.Get("providerCode").Str() != "thread_failed" || res.Result.Get("message").Str() != "it said [REDACTED]" {
		t.Fatalf("turn.start: %s", res.Whole.JSON())
	}
	if m := r.jr.Meta(); m.Turn != nil {
		t.Fatal("a turn that was not accepted is running")
	}
	for _, bad := range []string{`{}`, `{"text":7}`, `{"text":"x","turnId":"ä"}`, `{"text":"` + strings.Repeat("x", maxPrompt-1) + `"}`} {
		if res := r.do(prp.CommandTurnStart, bad); res.Status != prp.StatusFailed || res.Result.Get("details", "member").Str() == "" {
			t.Fatalf("%.40s: %.300s", bad, res.Whole.JSON())
		}
	}
	f.startErr = nil
	if res := r.do(prp.CommandTurnStart, `{"text":"`+strings.Repeat("x", maxPrompt-2)+`"}`); res.Status != prp.StatusCompleted {
		t.Fatalf("a prompt at the limit: %.300s", res.Whole.JSON())
	}
}

func TestUnprovenEnd(t *testing.T) {
	t.Parallel()
	f := &fake{}
	r := newRig(t, t.TempDir(), Kind{Driver: f})
	r.run()
	r.open()
	f.closeErr = errors.New("still there")
	if res := r.do(prp.CommandTurnStop, `{}`); res.Status != prp.StatusFailed {
		t.Fatalf("turn.stop: %s", res.Whole.JSON())
	}
	if res := r.do(prp.CommandSessionOpen, `{}`); res.Status != prp.StatusFailed || !r.jr.Meta().PendingCleanup {
		t.Fatalf("session.open behind it: %s", res.Whole.JSON())
	}
	f.closeErr = nil
	if res := r.do(prp.CommandTurnStop, `{}`); text(res.Result) != `{"providerExitConfirmed":true}` || r.jr.Meta().PendingCleanup {
		t.Fatalf("turn.stop again: %s", res.Whole.JSON())
	}
}

func TestLongResult(t *testing.T) {
	t.Parallel()
	at := completed(strings.Repeat("x", prp.MaxCommandResultBytes-2))
	if status, b := at.finish(); status != prp.StatusCompleted || len(b) != prp.MaxCommandResultBytes {
		t.Fatalf("at the limit: %s, %d bytes", status, len(b))
	}
	beyond := completed(strings.Repeat("x", prp.MaxCommandResultBytes-1))
	if status, b := beyond.finish(); status != prp.StatusFailed || !strings.Contains(string(b), "too_large") {
		t.Fatalf("one byte beyond: %s %.100s", status, b)
	}
}

// TestFullOutboxDoesNotKeepAProviderAlive closes a session whose driver is stuck
// in Emit: it gets out, and the turn has its end.
func TestFullOutboxDoesNotKeepAProviderAlive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		r := newRig(t, dir, Kind{Driver: f})
		r.run()
		r.open()
		r.do(prp.CommandTurnStart, `{"text":"x","turnId":"a"}`)
		stuck := make(chan error, 1)
		go func() {
			for {
				if err := f.host.Emit(t.Context(), driver.Event{Type: "item.delta", Priority: 2, Payload: json.RawMessage(`{"text":"` + strings.Repeat("x", 200<<10) + `"}`)}); err != nil {
					stuck <- err
					return
				}
			}
		}()
		var err error
		f.onClose = func() { err = <-stuck }
		synctest.Wait()
		if res := r.do(prp.CommandTurnStop, `{}`); res.Status != prp.StatusCompleted {
			t.Fatalf("turn.stop: %s", res.Whole.JSON())
		}
		if err == nil {
			t.Fatal("Emit went on after the session")
		}
		if err := f.host.Emit(t.Context(), driver.Event{Type: "turn.completed", Payload: json.RawMessage(`{}`), Terminal: true}); err == nil {
			t.Fatal("a closed session got an event in")
		}
		last := r.last()
		if !strings.Contains(last, `"turn.cancelled"`) || r.jr.Meta().Turn != nil {
			t.Fatalf("last event %.300s", last)
		}
	})
}

// last is the newest event.
func (r *rig) last() string {
	r.t.Helper()
	list, err := r.jr.Next(r.t.Context(), r.jr.Stats().NextSeq-2)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(list[len(list)-1].Event)
}

func TestEventThatFitsIntoNoFrame(t *testing.T) {
	t.Parallel()
	f := &fake{}
	r := newRig(t, t.TempDir(), Kind{Driver: f})
	r.run()
	r.open()
	r.do(prp.CommandTurnStart, `{"text":"x","turnId":"a"}`)
	long := json.RawMessage(`{"providerTurnId":"provider-a","text":"` + strings.Repeat("x", prp.MaxFrameBytes/2) + `"}`)
	if err := f.host.Emit(t.Context(), driver.Event{Type: "item.delta", Priority: 2, Payload: long}); err != nil {
		t.Fatal(err)
	}
	if got := r.last(); !strings.Contains(got, `"harness.diagnostic"`) || !strings.Contains(got, `"event_too_large"`) {
		t.Fatalf("in its place: %.300s", got)
	}
	if err := f.host.Emit(t.Context(), driver.Event{Type: "turn.completed", Priority: 0, Payload: long, Terminal: true}); err != nil {
		t.Fatal(err)
	}
	if got := r.last(); !strings.Contains(got, `"turn.completed"`) || !strings.Contains(got, `"provider-a"`) || r.jr.Meta().Turn != nil {
		t.Fatalf("in the place of the end: %.300s", got)
	}
}

// In PRP use what looks like a secret is removed before anything is durable, and
// an event that would lose what identifies it is refused (prp.md 9.6, 14.4).
func TestSanitizedInPRPUse(t *testing.T) {
	t.Parallel()
	f := &fake{}
	r := newRig(t, t.TempDir(), Kind{Driver: f})
	r.e.opt.Sanitizer = sanitize.New()
	r.run()
	r.open()
	r.do(prp.CommandTurnStart, `{"text":"x","turnId":"a"}`)
	emit := func(typ, payload string, terminal bool) string {
		t.Helper()
		if err := f.host.Emit(t.Context(), driver.Event{Type: typ, Priority: 1, Payload: json.RawMessage(payload), Terminal: terminal}); err != nil {
			t.Fatal(err)
		}
		return r.last()
	}
	if got := emit("item.completed", `{"itemId":"i","text":"use token=abcdef"}`, false); !strings.Contains(got, "token=[REDACTED]") || strings.Contains(got, "abcdef") {
		t.Errorf("stored: %s", got)
	}
	if got := emit("item.completed", `{"itemId":"token=abcdef","text":"x"}`, false); !strings.Contains(got, "event_refused") || strings.Contains(got, "abcdef") {
		t.Errorf("stored: %s", got)
	}
	if got := emit("turn.failed", `{"providerTurnId":"a","status":"token=abcdef"}`, true); !strings.Contains(got, `"turn.failed"`) || strings.Contains(got, "abcdef") || r.jr.Meta().Turn != nil {
		t.Errorf("stored: %s", got)
	}
	if _, result := r.e.sanitized(prp.StatusCompleted, []byte(`{"message":"secret=abcdef"}`)); strings.Contains(string(result), "abcdef") {
		t.Errorf("result: %s", result)
	}
	if status, result := r.e.sanitized(prp.StatusCompleted, []byte(`{"threadId":"secret=abcdef"}`)); status != prp.StatusFailed || strings.Contains(string(result), "abcdef") {
		t.Errorf("result: %s %s", status, result)
	}
}

// TestRecovery begins anew with what an earlier process left.
func TestRecovery(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name      string
		continues bool
		active    string // turn of the reopened session
		pending   bool   // turn.start was being executed
		want      []string
		code      string
	}{
		{"lost", false, "", false, []string{"session.started", "runner.reconciled", "turn.failed"}, "runner_lost"},
		{"continued", true, "provider-a", false, []string{"session.started", "runner.reconciled", "session.started"}, ""},
		{"cannot be continued", true, "", false, []string{"session.started", "runner.reconciled", "session.started", "turn.failed"}, "runner_lost"},
		{"indeterminate", false, "", true, []string{"session.started", "runner.reconciled", "turn.failed"}, "execution_indeterminate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			f := &fake{}
			kind := Kind{Driver: f, ContinuesTurns: tc.continues}
			t.Run("before", func(t *testing.T) {
				first := newRig(t, dir, Kind{Driver: f})
				first.run()
				first.open()
				if tc.pending {
					v, err := canonjson.ParseText(`{}`)
					if err != nil {
						t.Fatal(err)
					}
					first.seq++
					if _, _, err := first.jr.Begin(prp.Command{CommandID: prp.CommandIDOf(first.seq), ControllerSeq: first.seq, Type: prp.CommandTurnStart, IssuedAt: "2026-01-01T00:00:00.000Z", Payload: v}); err != nil {
						t.Fatal(err)
					}
					if err := first.jr.Update(func(m *journal.Meta) { m.Turn = &journal.Turn{TurnID: "a"} }); err != nil {
						t.Fatal(err)
					}
					return
				}
				first.do(prp.CommandTurnStart, `{"text":"x","turnId":"a"}`)
			})
			f.active = tc.active
			r := newRig(t, dir, kind)
			if err := r.e.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.run()
			list, err := r.jr.Next(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			for len(list) < len(tc.want) {
				more, err := r.jr.Next(t.Context(), list[len(list)-1].Seq)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, more...)
			}
			var types []string
			for _, e := range list {
				types = append(types, e.Type)
			}
			if fmt.Sprint(types) != fmt.Sprint(tc.want) {
				t.Fatalf("events %v, want %v", types, tc.want)
			}
			if last := string(list[len(list)-1].Event); tc.code != "" && !strings.Contains(last, `"`+tc.code+`"`) {
				t.Fatalf("last event %s", last)
			}
			if (r.jr.Meta().Turn != nil) != (tc.code == "") {
				t.Fatalf("turn %+v", r.jr.Meta().Turn)
			}
			if tc.code == "" {
				return
			}
			// The session goes on: a new turn opens the provider again.
			if res := r.do(prp.CommandTurnStart, `{"text":"x","turnId":"b"}`); res.Status != prp.StatusCompleted {
				t.Fatalf("next turn: %s", res.Whole.JSON())
			}
			if got := string(f.opened[len(f.opened)-1]); got != `{"n":1}` {
				t.Fatalf("opened with %q", got)
			}
		})
	}
}

func TestLeftoversAreKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, t.TempDir(), Kind{Driver: &fake{}})
	boot, err := supervise.BootID()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.jr.Spawned(supervise.Record{Marker: strings.Repeat("0", 32), PID: 1 << 30, StartTicks: 1, BootID: boot}); err != nil {
		t.Fatal(err)
	}
	if err := r.e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(r.jr.Processes()); n != 0 || r.jr.Meta().PendingCleanup {
		t.Fatalf("%d records left", n)
	}
	r.run()
}

func TestCheckTools(t *testing.T) {
	t.Parallel()
	tool := func(id string) string {
		return `{"operationId":"` + id + `","version":1,"description":"d","inputSchema":{},"responseSchema":{}}`
	}
	catalogue := func(digestOf string, ops ...string) canonjson.Value {
		v, err := canonjson.ParseText(`{"schema":"` + toolsSchema + `","schemaVersion":1,"operations":[` + strings.Join(ops, ",") + `]}`)
		if err != nil {
			t.Fatal(err)
		}
		d, err := canonjson.ParseText(digestOf)
		if err != nil {
			t.Fatal(err)
		}
		b, err := canonjson.CanonicalUnlimited(d)
		if err != nil {
			t.Fatal(err)
		}
		v.Set("catalogDigest", canonjson.StringValue(digest(b)))
		return v
	}
	sorted := "[" + tool("a") + "," + tool("b") + "]"
	many := func(n int) (list []string) {
		for i := range n {
			list = append(list, tool(fmt.Sprintf("t%03d", i)))
		}
		return list
	}
	all := func(list []string) string { return "[" + strings.Join(list, ",") + "]" }
	for _, tc := range []struct {
		name string
		v    canonjson.Value
		ok   bool
	}{
		{"absent", canonjson.Value{}, true},
		{"sorted digest", catalogue(sorted, tool("b"), tool("a")), true},
		{"digest in the given order", catalogue("["+tool("b")+","+tool("a")+"]", tool("b"), tool("a")), true},
		{"another digest", catalogue("[]", tool("a")), false},
		{"twice", catalogue("["+tool("a")+","+tool("a")+"]", tool("a"), tool("a")), false},
		{"256 tools", catalogue(all(many(256)), many(256)...), true},
		{"257 tools", catalogue(all(many(257)), many(257)...), false},
		{"null", canonjson.NullValue(), false},
	} {
		if err := checkTools(tc.v); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		} else if err != nil && wire.CodeOf(err) != wire.CodeInputInvalid {
			t.Errorf("%s: code %s", tc.name, wire.CodeOf(err))
		}
	}
}

func TestCheckContract(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`{"revision":"1","criterionIds":["a"]}`:                                true,
		`{"revision":"` + strings.Repeat("r", 120) + `","criterionIds":["a"]}`: true,
		`{"revision":"` + strings.Repeat("r", 121) + `","criterionIds":["a"]}`: false,
		`{"revision":"1","criterionIds":[]}`:                                   false,
		`{"revision":"1","criterionIds":["` + strings.Repeat("c", 241) + `"]}`: false,
		`{"criterionIds":["a"]}`:                                               false,
		`null`:                                                                 true,
	} {
		v, err := canonjson.ParseText(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkContract(v); (err == nil) != ok {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}
