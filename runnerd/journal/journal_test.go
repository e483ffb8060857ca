package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bowline/driver"
	"bowline/runnerd/seglog"
	"bowline/runnerd/supervise"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

func identity() prp.Identity {
	return prp.Identity{RunnerInstanceID: "runner-1", EnvironmentLeaseID: "lease-1", RunID: "run-1", NormalizedSessionID: "session-1", TurnID: "turn-1", ItemID: "item-1"}
}

func params(dir string) Params {
	return Params{
		Identity: identity(), MaxOutbox: 1 << 20, P0Reserve: 1 << 18, MaxFrame: prp.MaxFrameBytes,
		View: &View{Dir: dir, PID: 1}, EagerView: true, Now: func() time.Time { return time.UnixMilli(1_800_000_000_000) },
	}
}

func openIn(t testing.TB, dir string, par Params) *Journal {
	t.Helper()
	j, err := tryOpen(dir, par)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return j
}

func tryOpen(dir string, par Params) (*Journal, error) {
	d, err := seglog.OpenDir(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	return Open(d, par)
}

func mustClose(t testing.TB, j *Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func cmdOf(seq int64, payload string) prp.Command {
	v, err := canonjson.ParseText(payload)
	if err != nil {
		panic(err)
	}
	return prp.Command{CommandID: prp.CommandIDOf(seq), ControllerSeq: seq, Type: prp.CommandSessionSnapshot, IssuedAt: "2026-01-01T00:00:00.000Z", Payload: v}
}

func emit(t testing.TB, j *Journal, eventType string, priority int, text string) {
	t.Helper()
	must(t, j.Emit(t.Context(), Event{Type: eventType, Priority: priority, Provider: "x_provider", Payload: []byte(`{"text":"` + text + `"}`)}))
}

// fingerprint is everything a journal remembers, as text.
func fingerprint(t testing.TB, j *Journal) string {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	type entry struct {
		Seq, Size int64
		Priority  int
		Type      string
		Event     string
	}
	var out []entry
	for _, e := range j.st.outbox {
		out = append(out, entry{e.Seq, e.size, e.Priority, e.Type, string(e.Event)})
	}
	b, err := json.MarshalIndent(map[string]any{
		"durable": j.st.durable, "prepare": string(j.st.prepare), "resume": string(j.st.resume), "outbox": out, "bytes": j.st.outboxBytes,
	}, "", " ")
	must(t, err)
	return string(b)
}

// TestReplayRebuildsTheState does everything a journal can do, at random and
// over several segments, and opens it again and again: the state is the same.
func TestReplayRebuildsTheState(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // G404: not a secret
			dir := t.TempDir()
			par := params(dir)
			par.EagerView = false
			par.Log = seglog.Options{SegmentSize: 4096}
			j := openIn(t, dir, par)
			var seq int64
			var pending []string
			for step := range 250 {
				switch rng.IntN(10) {
				case 0:
					seq++
					d, c, err := j.Begin(cmdOf(seq, `{"n":1}`))
					must(t, err)
					if d != Execute {
						t.Fatalf("decision %d", d)
					}
					pending = append(pending, c.CommandID)
				case 1:
					if len(pending) > 0 {
						_, err := j.Finish(pending[0], prp.StatusCompleted, []byte(`{"ok":"<&>"}`), func(m *Meta) { m.SessionOpen = !m.SessionOpen })
						must(t, err)
						pending = pending[1:]
					}
				case 2:
					must(t, j.Emit(t.Context(), Event{Type: "item.delta", Priority: 2, Provider: "x_provider", Payload: []byte(`{"a":1}`), Resume: []byte(fmt.Sprintf(`{"at":%d}`, step))}))
				case 3:
					s := j.Stats()
					if s.Events > 0 {
						_, err := j.Ack(s.Acked + 1 + rng.Int64N(int64(s.Events)))
						must(t, err)
					}
				case 4:
					must(t, j.Update(func(m *Meta) { m.Lifecycle, m.Turn = LifecycleReady, &Turn{TurnID: fmt.Sprint(step)} }))
				case 5:
					r := supervise.Record{Marker: fmt.Sprint(step), PID: step, BootID: "b"}
					must(t, j.Spawned(r))
					if step%2 == 0 {
						j.Gone(r)
					}
				case 6:
					j.Diagnostic("line")
				case 7:
					must(t, j.SetPrepare([]byte(strings.Repeat("p", 1+rng.IntN(300)))))
				default:
					emit(t, j, "item.completed", 1, strings.Repeat("x", rng.IntN(200)))
				}
				if rng.IntN(60) == 0 {
					// What a crash may forget are the last few acknowledgements only.
					must(t, j.Update(func(m *Meta) { m.Provider = driver.Identity{ThreadID: "t"} }))
					acked := j.Stats().Acked
					want := fingerprint(t, j)
					mustClose(t, j)
					j = openIn(t, dir, par)
					if back := acked - j.Stats().Acked; back < 0 || back >= ackPersistEvery {
						t.Fatalf("%d acknowledgements forgotten", back)
					}
					if acked > j.Stats().Acked {
						_, err := j.Ack(acked)
						must(t, err)
					}
					if got := fingerprint(t, j); !equalButPeak(t, got, want) {
						t.Fatalf("step %d: state changed: %s", step, firstDifference(got, want))
					}
				}
			}
			mustClose(t, j)
			names, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
			must(t, err)
			if len(names) == 0 || strings.HasSuffix(names[0], "0000000000000001.seg") && seed == 0 && len(names) > 20 {
				t.Fatalf("segments are never dropped: %d", len(names))
			}
		})
	}
}

func equalButPeak(t testing.TB, a, b string) bool {
	t.Helper()
	strip := func(s string) string {
		var m map[string]any
		must(t, json.Unmarshal([]byte(s), &m))
		delete(m["durable"].(map[string]any), "peakOutbox") //nolint:errcheck // always an object
		out, err := json.Marshal(m)
		must(t, err)
		return string(out)
	}
	return strip(a) == strip(b)
}

func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d of %d/%d: %s, want %s", i, len(a), len(b), a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}

func TestSegmentsGoWhenAcknowledged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	par := params(dir)
	par.EagerView = false
	par.Log = seglog.Options{SegmentSize: 4096}
	j := openIn(t, dir, par)
	count := func() int {
		names, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
		must(t, err)
		return len(names)
	}
	for range 200 {
		emit(t, j, "item.delta", 2, strings.Repeat("x", 100))
	}
	must(t, j.Update(func(*Meta) {}))
	if n := count(); n < 10 {
		t.Fatalf("%d segments hold 200 unacknowledged events", n)
	}
	_, err := j.Ack(200)
	must(t, err)
	if n := count(); n > 3 {
		t.Fatalf("%d segments are left of acknowledged events", n)
	}
	emit(t, j, "item.delta", 2, "more")
	mustClose(t, j)
	j = openIn(t, dir, par)
	if s := j.Stats(); s.Acked != 200 || s.NextSeq != 202 || s.Events != 1 {
		t.Fatalf("after reopening: %+v", s)
	}
	mustClose(t, j)
}

func TestCommandRules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openIn(t, dir, params(dir))
	d, c, err := j.Begin(cmdOf(1, `{"a":1}`))
	must(t, err)
	if d != Execute {
		t.Fatalf("first: %d", d)
	}
	if d, _, err := j.Begin(cmdOf(1, `{"a":1}`)); err != nil || d != InFlight {
		t.Fatalf("again while executed: %d %v", d, err)
	}
	if _, _, err := j.Begin(cmdOf(1, `{"a":2}`)); wire.CodeOf(err) != wire.CodeCommandConflict {
		t.Fatalf("changed: %v", err)
	}
	if _, _, err := j.Begin(cmdOf(3, `{}`)); wire.CodeOf(err) != wire.CodeProtocol {
		t.Fatalf("gap: %v", err)
	}
	_, err = j.Finish(c.CommandID, prp.StatusCompleted, []byte(`{"r":1}`), nil)
	must(t, err)
	d, c, err = j.Begin(cmdOf(1, `{"a":1.0}`)) // the same number
	must(t, err)
	if d != Answered || string(c.Result) != `{"r":1}` {
		t.Fatalf("again: %d %s", d, c.Result)
	}
	for seq := int64(2); seq <= MaxCommands+1; seq++ {
		_, c, err := j.Begin(cmdOf(seq, `{}`))
		must(t, err)
		_, err = j.Finish(c.CommandID, prp.StatusCompleted, []byte(`{}`), nil)
		must(t, err)
	}
	d, c, err = j.Begin(cmdOf(1, `{"a":1}`))
	must(t, err)
	if d != Answered || c.Status != prp.StatusRejected || !strings.Contains(string(c.Result), "command_history_compacted") {
		t.Fatalf("forgotten command: %d %+v", d, c)
	}
	if d, _, err := j.Begin(cmdOf(2, `{}`)); err != nil || d != Answered {
		t.Fatalf("the oldest kept: %d %v", d, err)
	}
	mustClose(t, j)
}

func TestPendingIsIndeterminateAfterwards(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openIn(t, dir, params(dir))
	_, _, err := j.Begin(cmdOf(1, `{}`))
	must(t, err)
	mustClose(t, j)
	j = openIn(t, dir, params(dir))
	list, err := j.Interrupted()
	must(t, err)
	if len(list) != 1 {
		t.Fatalf("%d interrupted commands", len(list))
	}
	_, c, err := j.Begin(cmdOf(1, `{}`))
	must(t, err)
	if status, result := c.Outcome(); c.Status != prp.StatusIndeterminate || status != prp.StatusFailed || !strings.Contains(string(result), "execution_indeterminate") {
		t.Fatalf("%s sent as %s %s", c.Status, status, result)
	}
	mustClose(t, j)
}

func TestAckRange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openIn(t, dir, params(dir))
	for range 3 {
		emit(t, j, "item.delta", 2, "x")
	}
	_, err := j.Ack(2)
	must(t, err)
	for _, seq := range []int64{1, 4} {
		if _, err := j.Ack(seq); wire.CodeOf(err) != wire.CodeProtocol {
			t.Errorf("ack %d: %v", seq, err)
		}
	}
	drained, err := j.Ack(3)
	if err != nil || !drained {
		t.Fatalf("ack 3: %v %v", drained, err)
	}
	mustClose(t, j)
}

func TestBackpressure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		par := params(dir)
		par.MaxOutbox, par.P0Reserve = 8000, 4000
		j := openIn(t, dir, par)
		must(t, j.Update(func(m *Meta) { m.Lifecycle = LifecycleReady }))
		n := 0
		blocked := make(chan error, 1)
		for {
			go func() {
				blocked <- j.Emit(t.Context(), Event{Type: "item.delta", Priority: 2, Payload: []byte(`{"text":"` + strings.Repeat("x", 500) + `"}`)})
			}()
			synctest.Wait()
			select {
			case err := <-blocked:
				must(t, err)
				n++
				continue
			default:
			}
			break
		}
		if n < 2 || j.Stats().Bytes > 4000 || j.Stats().Lifecycle != LifecycleBackpressure {
			t.Fatalf("%d events, %+v", n, j.Stats())
		}
		// What ends a turn still fits.
		must(t, j.Emit(t.Context(), Event{Type: "turn.completed", Priority: 0, Payload: []byte(`{}`)}))
		_, err := j.Ack(1)
		must(t, err)
		_, err = j.Ack(2)
		must(t, err)
		must(t, <-blocked)
		if got := j.Stats().Lifecycle; got != LifecycleReady {
			t.Fatalf("lifecycle %s after the acks", got)
		}
		// Beyond everything: unrecoverable.
		for err = nil; err == nil; {
			err = j.Emit(t.Context(), Event{Type: "turn.completed", Priority: 0, Payload: []byte(`{"text":"` + strings.Repeat("x", 500) + `"}`)})
		}
		if wire.CodeOf(err) != wire.CodeTooLarge || j.Meta().Lifecycle != LifecycleUnrecoverable {
			t.Fatalf("%v, lifecycle %s", err, j.Meta().Lifecycle)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestEventLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openIn(t, dir, params(dir))
	body := func(n int) Event {
		return Event{Type: "item.delta", Priority: 2, Payload: []byte(`{"text":"` + strings.Repeat("x", n) + `"}`)}
	}
	size := func(n int) int {
		j.mu.Lock()
		defer j.mu.Unlock()
		c, err := j.eventLocked(body(n))
		if err != nil {
			return 1 << 30
		}
		return prp.FrameSize(int(c.Size))
	}
	n := sort.Search(prp.MaxFrameBytes, func(n int) bool { return size(n+1) > prp.MaxFrameBytes })
	must(t, j.Emit(t.Context(), body(n)))
	if err := j.Emit(t.Context(), body(n+1)); wire.CodeOf(err) != wire.CodeTooLarge {
		t.Fatalf("one byte more: %v", err)
	}
	mustClose(t, j)
}

func TestNextGivesDurableEventsInOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openIn(t, dir, params(dir))
	for i := range 150 {
		emit(t, j, "item.delta", 2, fmt.Sprint(i))
	}
	var got []int64
	for seq := int64(0); seq < 150; {
		list, err := j.Next(t.Context(), seq)
		must(t, err)
		for _, e := range list {
			got = append(got, e.Seq)
			if !strings.Contains(string(e.Event), fmt.Sprintf(`"text":"%d"`, e.Seq-1)) {
				t.Fatalf("event %d is %s", e.Seq, e.Event)
			}
		}
		seq = list[len(list)-1].Seq
	}
	if len(got) != 150 || !slices.IsSorted(got) {
		t.Fatalf("events %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := j.Next(ctx, 150); !errors.Is(err, context.Canceled) {
		t.Fatalf("nothing left: %v", err)
	}
	mustClose(t, j)
}

func TestOtherIdentityOrLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustClose(t, openIn(t, dir, params(dir)))
	par := params(dir)
	par.Identity.RunID = "run-2"
	if _, err := tryOpen(dir, par); !errors.Is(err, ErrIdentity) {
		t.Fatalf("other run: %v", err)
	}
	par = params(dir)
	par.MaxOutbox++
	if _, err := tryOpen(dir, par); !errors.Is(err, ErrLimits) {
		t.Fatalf("other limits: %v", err)
	}
}

// TestImportedViewIsTheSameState writes a view, takes the log away and begins
// with the view: the new view is the old one.
func TestImportedViewIsTheSameState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	par := params(dir)
	j := openIn(t, dir, par)
	for seq := int64(1); seq <= 3; seq++ {
		_, c, err := j.Begin(cmdOf(seq, `{}`))
		must(t, err)
		if seq < 3 {
			_, err = j.Finish(c.CommandID, prp.StatusCompleted, []byte(`{"text":"<ü>"}`), nil)
			must(t, err)
		}
	}
	for i := range 4 {
		must(t, j.Emit(t.Context(), Event{Type: "item.delta", Priority: 2, Payload: []byte(fmt.Sprintf(`{"n":%d,"text":"<&> "}`, i))}))
	}
	_, err := j.Ack(2)
	must(t, err)
	must(t, j.Update(func(m *Meta) {
		m.Lifecycle, m.ProtocolVersion, m.Reconnects = LifecycleSuspended, 2, 5
		m.PendingTerminal = &Fence{CommandID: "c", ControllerSeq: 9, CommandType: prp.CommandRunnerSuspend, Status: prp.StatusCompleted}
	}))
	mustClose(t, j)
	want, err := os.ReadFile(filepath.Join(dir, StateFile)) //nolint:gosec // G304: test
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(dir, "log")))
	par.Import, err = Import(par.View, par.MaxOutbox)
	must(t, err)
	j = openIn(t, dir, par)
	must(t, j.Publish())
	mustClose(t, j)
	got, err := os.ReadFile(filepath.Join(dir, StateFile)) //nolint:gosec // G304: test
	must(t, err)
	if string(got) != string(want) {
		t.Fatalf("imported:\n%s\n--- want\n%s", got, want)
	}
	par.Import = nil
	j = openIn(t, dir, par)
	if s := j.Stats(); s.Acked != 2 || s.NextSeq != 5 || s.LastCmd != 3 {
		t.Fatalf("after the import: %+v", s)
	}
	mustClose(t, j)
}

func TestImportRefusesGarbage(t *testing.T) {
	t.Parallel()
	for _, text := range []string{``, `[]`, `{"schema":"x"}`, `{"schema":"` + stateSchema + `","nextSourceSeq":0}`, `{"schema":"` + stateSchema + `","nextSourceSeq":3,"ackedSourceSeq":1}`} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, StateFile), []byte(text), 0o600))
		if _, err := Import(&View{Dir: dir}, 1<<20); wire.CodeOf(err) != wire.CodeLogDamaged {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestProviderState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openIn(t, dir, params(dir))
	must(t, j.Update(func(m *Meta) { m.Provider.ThreadID, m.Turn = "thread", &Turn{TurnID: "a", ProviderTurnID: "b"} }))
	must(t, j.WriteProviderState(ProviderTurnActive))
	s, err := ReadProviderState(j.par.View)
	must(t, err)
	if s.Lifecycle != ProviderTurnActive || *s.ThreadID != "thread" || *s.ActiveProviderTurnID != "b" || s.PendingEvents == nil || s.NextProviderEventSeq != 1 {
		t.Fatalf("%+v", s)
	}
	mustClose(t, j)
	must(t, os.WriteFile(filepath.Join(dir, CodexStateFile), []byte(`{"pendingEvents":[],"activeProviderTurnId":null}`), 0o600))
	if s, err := ReadProviderState(&View{Dir: dir}); err != nil || s.ActiveProviderTurnID != nil {
		t.Fatalf("minimal form: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, CodexStateFile), []byte(`{"schema":"other"}`), 0o600))
	if _, err := ReadProviderState(&View{Dir: dir}); err == nil {
		t.Fatal("another schema was accepted")
	}
}

func TestV2Events(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openIn(t, dir, params(dir))
	for i := range 3 {
		must(t, j.Emit(t.Context(), Event{Type: "session.goal.updated", Priority: 1, Payload: []byte(fmt.Sprintf(`{"n":%d}`, i))}))
	}
	must(t, j.Update(func(*Meta) {}))
	mustClose(t, j)
	j = openIn(t, dir, params(dir))
	list := j.V2Events()
	if len(list) != 1 || string(list[0].Payload) != `{"n":2}` {
		t.Fatalf("%+v", list)
	}
	mustClose(t, j)
}

func TestCommandWithoutAFingerprint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openIn(t, dir, params(dir))
	defer mustClose(t, j)
	if _, _, err := j.Begin(cmdOf(1, `{"n":1e999}`)); wire.CodeOf(err) != wire.CodeProtocol {
		t.Errorf("a number that is not finite: %v, want protocol_violation", err)
	}
}
