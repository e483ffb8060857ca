package harness_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bowline/controlplane/harness"
	"bowline/controlplane/session/sessiontest"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func identity() prp.Identity {
	return prp.Identity{
		RunnerInstanceID: "runner-1", EnvironmentLeaseID: "lease-1", RunID: "run-1",
		NormalizedSessionID: "session-1", TurnID: "turn-1", ItemID: "item-1",
	}
}

// lines drives one harness.
type lines struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error
	id   int
	url  string
	dir  string
}

func newLines(t *testing.T) *lines {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	l := &lines{t: t, in: inW, out: bufio.NewReader(outR), done: make(chan error, 1), dir: filepath.Join(t.TempDir(), "state")}
	go func() {
		err := harness.Run(context.Background(), inR, outW, harness.Options{})
		_ = outW.Close()
		l.done <- err
	}()
	t.Cleanup(func() {
		_ = inW.Close()
		_ = outR.Close()
		select {
		case err := <-l.done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(sessiontest.Patience):
			t.Error("the harness did not end with its input")
		}
	})
	return l
}

func object(text string) canonjson.Value {
	v, err := canonjson.Parse([]byte(text))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return v
}

// ask sends one request and gives its answer; members is JSON without braces.
func (l *lines) ask(op, members string) canonjson.Value {
	l.t.Helper()
	l.id++
	if members != "" {
		members = "," + members
	}
	if _, err := fmt.Fprintf(l.in, `{"id":%d,"op":%q%s}`+"\n", l.id, op, members); err != nil {
		l.t.Fatal(err)
	}
	return l.answer()
}

func (l *lines) answer() canonjson.Value {
	l.t.Helper()
	line, err := l.out.ReadString('\n')
	if err != nil {
		l.t.Fatalf("answer: %v", err)
	}
	return object(line)
}

func (l *lines) must(op, members string) canonjson.Value {
	l.t.Helper()
	a := l.ask(op, members)
	if ok, _ := a.Get("ok").AsBool(); !ok {
		l.t.Fatalf("%s: %s", op, a.JSON())
	}
	return a
}

func (l *lines) start(more string) {
	l.t.Helper()
	if more != "" {
		more = "," + more
	}
	l.url = l.must("start", fmt.Sprintf(`"identity":%s,"runnerVersion":"0.3.0","runnerDigest":%q,"stateDir":%q%s`,
		identity().Value().JSON(), digest, l.dir, more)).Get("connectUrl").Str()
}

func (l *lines) join() *sessiontest.Runner {
	l.t.Helper()
	return sessiontest.Join(l.t, sessiontest.Config{
		URL: l.url, Ticket: l.must("ticket", `"ttlMs":60000`).Get("ticket").Str(), Identity: identity(),
		RunnerVersion: "0.3.0", RunnerDigest: digest,
	})
}

func TestLife(t *testing.T) {
	t.Parallel()
	l := newLines(t)
	l.start("")
	if !strings.HasPrefix(l.url, "ws://127.0.0.1:") || !strings.HasSuffix(l.url, prp.PathStandalone) {
		t.Fatalf("url is %s", l.url)
	}
	id := l.must("queue", `"type":"run.prepare","payload":{"a":1}`).Get("commandId").Str()
	r := l.join()
	command := r.Welcome.Get("pendingCommands").At(0)
	if command.Get("commandId").Str() != id {
		t.Fatalf("welcome delivers %s", command.JSON())
	}
	r.Answer(command, `{"x":true}`)
	r.Event(1, "harness.ready", `{}`)
	r.Ack(1)
	if info, err := os.Stat(l.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("state folder: %v %v", info.Mode(), err)
	}
	state := l.must("state", "")
	for name, want := range map[string]string{
		"ackedSourceSeq": "1", "connections": "1", "malformedFrames": "0", "fault": "null", "faults": "0", "settled": "true", "tools": "0",
		"commands": `[{"commandId":"command_prp_00000001","controllerSeq":1,"type":"run.prepare","status":"completed","result":` +
			`{"commandId":"command_prp_00000001","controllerSeq":1,"commandType":"run.prepare","status":"completed","result":{"x":true}}}]`,
		"events": `[{"sourceSeq":1,"sourceEventId":"event_runner-1_0000000000000001","eventType":"harness.ready","deliveryCount":1}]`,
	} {
		if got := string(state.Get(name).JSON()); got != want {
			t.Errorf("%s is %s, must be %s", name, got, want)
		}
	}
	l.must("restart", "")
	r.Closed("a restart")
	r = l.join() // the same port
	r.Event(1, "harness.ready", `{}`)
	r.Ack(1)
	if got := string(l.must("state", "").Get("events").At(0).Get("deliveryCount").JSON()); got != "2" {
		t.Errorf("deliveries after a restart: %s", got)
	}
	l.must("stop", "")
	if err := <-l.done; err != nil {
		t.Errorf("stop: %v", err)
	}
	l.done <- nil
	r.Closed("a stop")
}

func TestCommitFailsOnce(t *testing.T) {
	t.Parallel()
	l := newLines(t)
	l.start(`"commit":"fail-once"`)
	r := l.join()
	r.Event(1, "harness.ready", `{}`)
	r.Closed("a failed commit callback")
	r = l.join()
	r.Event(1, "harness.ready", `{}`)
	r.Ack(1)
	r.Event(2, "harness.ready", `{}`)
	r.Ack(2)
}

func TestFaultsAreCounted(t *testing.T) {
	t.Parallel()
	l := newLines(t)
	l.start("")
	r := l.join()
	r.Event(1, "harness.ready", `{}`)
	r.Ack(1)
	r.Event(1, "harness.ready", `{"changed":1}`)
	r.Closed("a fault")
	state := l.must("state", "")
	want := `{"code":"native_event_replay_conflict","reason":"source_event_replay_conflict","recovery":"operator_required"}`
	if got := string(state.Get("fault").JSON()); got != want {
		t.Errorf("fault is %s", got)
	}
	l.must("restart", "")
	state = l.must("state", "")
	if got := string(state.Get("fault").JSON()); got != "null" {
		t.Errorf("fault after a restart is %s", got)
	}
	if got := string(state.Get("faults").JSON()); got != "1" {
		t.Errorf("faults so far: %s", got)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	l := newLines(t)
	refused := func(a canonjson.Value, what string) {
		t.Helper()
		if ok, there := a.Get("ok").AsBool(); ok || !there || a.Get("error").Str() == "" {
			t.Errorf("%s: %s", what, a.JSON())
		}
	}
	refused(l.ask("state", ""), "state before start")
	refused(l.ask("what", ""), "unknown op")
	id := string(identity().Value().JSON())
	for _, members := range []string{
		``, `"identity":{}`,
		`"identity":` + id + `,"runnerVersion":"0.3.0","runnerDigest":"sha256:00","stateDir":"/x"`,
		`"identity":` + id + `,"runnerVersion":"0.3.0","runnerDigest":"` + digest + `"`,
		`"identity":` + id + `,"runnerVersion":"0.3.0","runnerDigest":"` + digest + `","stateDir":"` + l.dir + `","leaseTtlMs":59999`,
		`"identity":` + id + `,"runnerVersion":"0.3.0","runnerDigest":"` + digest + `","stateDir":"` + l.dir + `","leaseTtlMs":86400001`,
		`"identity":` + id + `,"runnerVersion":"0.3.0","runnerDigest":"` + digest + `","stateDir":"` + l.dir + `","leaseTtlMs":60000.5`,
		`"identity":` + id + `,"runnerVersion":"0.3.0","runnerDigest":"` + digest + `","stateDir":"` + l.dir + `","tool":"x"`,
		`"identity":` + id + `,"runnerVersion":"0.3.0","runnerDigest":"` + digest + `","stateDir":"` + l.dir + `","commit":"x"`,
	} {
		refused(l.ask("start", members), "start "+members)
	}
	if _, err := io.WriteString(l.in, "nonsense\n"); err != nil {
		t.Fatal(err)
	}
	refused(l.answer(), "nonsense")
	l.start("")
	refused(l.ask("start", ""), "second start")
	for _, ttl := range []string{"999", "60001", "1000.5", `"x"`, "-1"} {
		refused(l.ask("ticket", `"ttlMs":`+ttl), "ticket "+ttl)
	}
	for _, q := range []string{``, `"type":"x","payload":{}`, `"type":"run.prepare"`, `"type":"run.prepare","payload":{},"commandId":""`} {
		refused(l.ask("queue", q), "queue "+q)
	}
	l.must("ticket", "")
	// The folder belongs to another identity.
	other := newLines(t)
	l.must("stop", "")
	refused(other.ask("start", `"identity":`+strings.Replace(id, "item-1", "item-2", 1)+
		`,"runnerVersion":"0.3.0","runnerDigest":"`+digest+`","stateDir":"`+l.dir+`"`), "foreign folder")
}

func TestToolModes(t *testing.T) {
	t.Parallel()
	input := fmt.Sprintf(`{"semantic_tool":{"schema":"paperclip.prp.semantic_tool.v1","schemaVersion":1,`+
		`"phase":"input","operationId":"op","callId":"c","correlation":{"runId":"run-1","normalizedSessionId":"session-1","turnId":"turn-1","itemId":"item-1"},`+
		`"idempotencyKey":null,"content":{"digest":%q,"redactionDisposition":"digest_only","references":[]},"input":{}}}`,
		prp.SemanticDigest(object(`{}`)))
	l := newLines(t)
	l.start(`"tool":"hold"`)
	r := l.join()
	r.Event(1, "semantic_tool.input", input)
	r.Ack(1)
	state := l.must("state", "")
	if got := string(state.Get("tools").JSON()) + string(state.Get("settled").JSON()); got != "1false" {
		t.Errorf("while the tool holds: %s", got)
	}
	l.must("restart", `"tool":"ok"`)
	r = l.join()
	if got := string(l.must("state", "").Get("tools").JSON()); got != "0" {
		t.Errorf("tools after a restart: %s", got)
	}
	// Not dispatched again by itself, but when it is redelivered (8.7).
	r.Event(1, "semantic_tool.input", input)
	r.Ack(1)
	command := r.Expect(prp.KindCommand).Payload
	if got := string(command.Get("payload", "result").JSON()); got != `{"ok":true}` {
		t.Errorf("result is %s", got)
	}
	r.Answer(command, `{}`)
	r.Event(2, "harness.ready", `{}`)
	r.Ack(2)
	if settled, _ := l.must("state", "").Get("settled").AsBool(); !settled {
		t.Error("not settled")
	}
}
