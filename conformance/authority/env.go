// Package authority is a black-box suite for a PRP authority that is driven by
// JSON lines (one process a case, operations start, ticket, queue, restart,
// state, stop). It checks what sections 1 to 10 of prp.md say of an authority
// of line M, with line A's second look after the commit callback; warm
// transitions, epochs and members of line B are left out.
//
// [Cases] returns the cases as data for package suite. The process under test
// is started with a state directory of its own, ends with the case, and is
// never told to stop by a signal unless the case is over.
package authority

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// Target is the program under test.
type Target struct {
	// Argv starts one authority behind JSON lines.
	Argv []string
	// Dir is where the state directories of the cases are made.
	Dir string
}

// closeWait is how long an authority may take to destroy a connection.
const closeWait = 4 * time.Second

// quiet is how long a wire must stay silent to count as silent.
const quiet = 150 * time.Millisecond

// maxLine bounds one JSON line of the harness, in bytes.
const maxLine = 64 << 20

type env struct {
	*suite.T
	target Target
	dir    string
	state0 string // state directory, when it is a predecessor's
	id     peer.Identity
	digest string
	url    string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lastID int64
	stderr *tail

	mu      sync.Mutex
	answers map[int64]peer.M
	stray   string // a line on stdout that is no JSON object
	ended   chan struct{}
	arrived chan struct{}
}

// tail keeps the end of the program's stderr for failure reports.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 2 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > tailBytes {
		t.text = t.text[len(t.text)-tailBytes:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// newProcess starts the program without any operation.
func newProcess(t *suite.T, target Target) *env {
	dir, err := os.MkdirTemp(target.Dir, "case-")
	t.OK(err, "state directory")
	e := &env{
		T: t, target: target, dir: dir, id: peer.NewIdentity(), digest: "sha256:" + peer.SHA256Hex("some runner"),
		answers: map[int64]peer.M{}, ended: make(chan struct{}), arrived: make(chan struct{}, 1), stderr: &tail{},
	}
	e.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), target.Argv[0], target.Argv[1:]...)
	e.cmd.Dir = dir
	e.cmd.Stderr = e.stderr
	e.stdin, err = e.cmd.StdinPipe()
	t.OK(err, "stdin")
	stdout, err := e.cmd.StdoutPipe()
	t.OK(err, "stdout")
	t.OK(e.cmd.Start(), "start of %s", target.Argv[0])
	go e.read(stdout)
	t.Cleanup(func() {
		err := e.stdin.Close()
		if kill := e.cmd.Process.Kill(); kill != nil && !errors.Is(kill, os.ErrProcessDone) {
			err = errors.Join(err, kill)
		}
		<-e.ended
		if wait := e.cmd.Wait(); wait != nil && e.cmd.ProcessState == nil {
			err = errors.Join(err, wait)
		}
		if err = errors.Join(ignoreClosed(err), os.RemoveAll(dir)); err != nil {
			t.Logf("clean-up: %v", err)
		}
		if s := e.stderr.String(); s != "" {
			t.Logf("stderr: %s", s)
		}
	})
	return e
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func (e *env) read(r io.Reader) {
	defer close(e.ended)
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	for sc.Scan() {
		m, err := peer.ParseObject(sc.Bytes())
		if err != nil {
			e.mu.Lock()
			e.stray = sc.Text()
			e.mu.Unlock()
			continue
		}
		e.mu.Lock()
		e.answers[peer.Int(m, "id")] = m
		e.mu.Unlock()
		select {
		case e.arrived <- struct{}{}:
		default:
		}
	}
}

// post sends an operation and returns its id.
func (e *env) post(op string, args peer.M) int64 {
	e.lastID++
	line := peer.Write(peer.Merge(args, peer.M{"id": e.lastID, "op": op}))
	_, err := e.stdin.Write(append(line, '\n'))
	e.OK(err, "write of %s", op)
	return e.lastID
}

// answer waits for the answer of an id.
func (e *env) answer(id int64, op string) peer.M {
	timer := time.NewTimer(peer.IOTimeout)
	defer timer.Stop()
	for {
		e.mu.Lock()
		m, ok := e.answers[id]
		delete(e.answers, id)
		stray := e.stray
		e.mu.Unlock()
		e.Check(stray == "", "a line on stdout is no JSON object: %.200s", stray)
		if ok {
			return m
		}
		select {
		case <-e.arrived:
		case <-e.ended:
			e.mu.Lock()
			_, late := e.answers[id]
			e.mu.Unlock()
			if !late {
				e.Fatalf("the harness ended without an answer to %s", op)
			}
		case <-timer.C:
			e.Fatalf("no answer to %s", op)
		}
	}
}

// try sends an operation and returns its answer, refusals included.
func (e *env) try(op string, args peer.M) peer.M { return e.answer(e.post(op, args), op) }

// op sends an operation that must succeed.
func (e *env) op(op string, args peer.M) peer.M {
	m := e.try(op, args)
	e.Check(m["ok"] == true, "%s refused: %v", op, m["error"])
	return m
}

// refused sends an operation that must be refused with an error text.
func (e *env) refused(op string, args peer.M) {
	m := e.try(op, args)
	e.Check(m["ok"] == false && peer.Str(m, "error") != "", "%s was not refused: %s", op, peer.Write(m))
}

func (e *env) stateDir() string {
	if e.state0 != "" {
		return e.state0
	}
	return filepath.Join(e.dir, "state")
}

func (e *env) startArgs() peer.M {
	return peer.M{
		"identity": e.id.Members(), "runnerVersion": "0.3.0", "runnerDigest": e.digest,
		"stateDir": e.stateDir(), "leaseTtlMs": 60000, "tool": "ok", "commit": "ok",
	}
}

// start starts a process and its authority.
func start(t *suite.T, target Target, changes ...peer.M) *env {
	e := newProcess(t, target)
	e.begin(changes...)
	return e
}

func (e *env) begin(changes ...peer.M) {
	args := peer.Merge(append([]peer.M{e.startArgs()}, changes...)...)
	e.id = peer.Identity{
		RunnerInstanceID: peer.Str(args, "identity", "runnerInstanceId"), EnvironmentLeaseID: peer.Str(args, "identity", "environmentLeaseId"),
		RunID: peer.Str(args, "identity", "runId"), NormalizedSessionID: peer.Str(args, "identity", "normalizedSessionId"),
		TurnID: peer.Str(args, "identity", "turnId"), ItemID: peer.Str(args, "identity", "itemId"),
	}
	m := e.op("start", args)
	e.url = peer.Str(m, "connectUrl")
	e.Check(strings.HasPrefix(e.url, "ws://127.0.0.1:") && strings.HasSuffix(e.url, "/durableRecovery/connect"),
		"connectUrl is %q", e.url)
}

func (e *env) restart(args peer.M) {
	m := e.op("restart", args)
	if u := peer.Str(m, "connectUrl"); u != "" {
		e.Check(u == e.url, "connect URL changed from %s to %s", e.url, u)
	}
}

func (e *env) ticket() string {
	s := peer.Str(e.op("ticket", peer.M{"ttlMs": 60000}), "ticket")
	e.Check(s != "", "no ticket in the answer")
	return s
}

func (e *env) queue(kind string, payload peer.M, more ...peer.M) string {
	m := e.op("queue", peer.Merge(append([]peer.M{{"type": kind, "payload": payload}}, more...)...))
	id := peer.Str(m, "commandId")
	e.Check(id != "", "queue answered without commandId: %s", peer.Write(m))
	return id
}

func deliver() peer.M { return peer.M{"deliver": true} }

func (e *env) state() peer.M { return e.op("state", peer.M{}) }

// until polls the state until cond holds.
func (e *env) until(what string, cond func(s peer.M) bool) peer.M {
	end := time.Now().Add(closeWait)
	for {
		s := e.state()
		if cond(s) {
			return s
		}
		if time.Now().After(end) {
			e.Fatalf("the state never showed %s: %.600s", what, peer.Write(s))
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-e.Context().Done():
			e.Fatalf("the state never showed %s in time", what)
		}
	}
}

func (e *env) acked(n int64) {
	e.until(fmt.Sprintf("ackedSourceSeq %d", n), func(s peer.M) bool { return peer.Int(s, "ackedSourceSeq") == n })
}

// command returns the state's entry of a command.
func command(s peer.M, id string) peer.M {
	for _, c := range peer.List(s, "commands") {
		if peer.Str(c, "commandId") == id {
			m, ok := c.(peer.M)
			if ok {
				return m
			}
		}
	}
	return peer.M{}
}

func (e *env) config(lo, hi int) peer.RunnerConfig {
	return peer.RunnerConfig{
		URL: e.url, Token: e.ticket(), Identity: e.id, Version: "0.3.0", Digest: e.digest, Min: lo, Max: hi,
	}
}

func (e *env) keep(c io.Closer) {
	e.Cleanup(func() {
		if err := c.Close(); err != nil {
			e.Logf("close: %v", err)
		}
	})
}

// dial opens a socket for a configuration.
func (e *env) dial(cfg peer.RunnerConfig) *peer.Runner {
	r, err := peer.Dial(cfg)
	e.OK(err, "dial")
	e.keep(r)
	return r
}

// joinWith plays a whole handshake.
func (e *env) joinWith(cfg peer.RunnerConfig) *peer.Runner {
	r, err := peer.Join(cfg)
	e.OK(err, "join")
	e.keep(r)
	return r
}

// join joins with a fresh ticket and version 2; joinV1 with version 1.
func (e *env) join() *peer.Runner   { return e.joinWith(e.config(1, 2)) }
func (e *env) joinV1() *peer.Runner { return e.joinWith(e.config(1, 1)) }

// again reconnects with the lease of r.
func (e *env) again(r *peer.Runner) *peer.Runner {
	n := e.joinWith(r.LeaseConfig())
	n.LeaseToken = r.LeaseToken
	if n.LeaseToken == "" {
		n.LeaseToken = r.Config.Token
	}
	return n
}

// next returns the next envelope, which must be of this kind.
func (e *env) next(r *peer.Runner, kind string) peer.M {
	m, err := r.Next(peer.IOTimeout)
	e.OK(err, "waiting for %s", kind)
	e.Check(m["kind"] == kind, "got %s instead of %s", peer.Write(m), kind)
	return m
}

// closed expects the end of a connection without any frame before it.
func (e *env) closed(s *peer.Sock, why string) {
	e.OK(s.ExpectClose(closeWait, nil), "%s must close the connection", why)
}

func (e *env) silent(s *peer.Sock, why string) { e.OK(s.ExpectSilence(quiet), "%s", why) }

func (e *env) send(r *peer.Runner, env any) { e.OK(r.Send(env), "send") }

// event sends a simple valid event and returns its envelope.
func (e *env) event(r *peer.Runner, seq int64) peer.M {
	m := r.EventEnvelope(r.NewEvent(seq, "harness.ready", peer.M{"n": seq}))
	e.send(r, m)
	return m
}

// ack expects a cumulative acknowledgement.
func (e *env) ack(r *peer.Runner, seq int64) {
	m := e.next(r, "ack")
	e.Check(peer.Int(m, "payload", "ackedSourceSeq") == seq, "ack of %v, expected %d", peer.Get(m, "payload", "ackedSourceSeq"), seq)
}

// alive proves that the connection still works, with the event of this number.
func (e *env) alive(r *peer.Runner, seq int64) {
	e.event(r, seq)
	e.ack(r, seq)
}

// commandFrame expects a command frame with this id and delivery count.
func (e *env) commandFrame(r *peer.Runner, id string, delivery int) peer.M {
	m := e.next(r, "command")
	want := fmt.Sprintf("command_%s_%d", id, delivery)
	e.Check(peer.Str(m, "envelopeId") == want, "command envelope %v, expected %s", m["envelopeId"], want)
	return peer.Obj(m, "payload")
}

func (e *env) noFault() {
	s := e.state()
	fault, present := s["fault"]
	e.Check(present && fault == nil, "fault is %s", peer.Write(fault))
	e.Check(peer.Int(s, "faults") == 0, "faults is %v", s["faults"])
}

func (e *env) fault(reason string) {
	s := e.until("fault "+reason, func(s peer.M) bool { return s["fault"] != nil })
	want := peer.M{"code": "native_event_replay_conflict", "reason": reason, "recovery": "operator_required"}
	e.Check(peer.Equal(s["fault"], want), "fault is %s, expected %s", peer.Write(s["fault"]), peer.Write(want))
	e.Check(peer.Int(s, "faults") == 1, "the fault callback ran %v times", s["faults"])
}

// Cases returns all cases for a target.
func Cases(target Target) []suite.Case {
	var out []suite.Case
	for _, list := range [][]suite.Case{
		upgradeCases(target), frameCases(target), helloCases(target), responseCases(target), ticketCases(target),
		leaseCases(target), secureCases(target), harnessCases(target), commandCases(target), resultCases(target),
		eventCases(target), replayCases(target), schemaCases(target), faultCases(target), toolCases(target), restartCases(target), raceCases(target), randomCases(target), garbageCases(target), crashCases(target),
	} {
		out = append(out, list...)
	}
	return out
}

// with makes a case that starts an authority first.
func with(target Target, name, section string, f func(e *env), changes ...peer.M) suite.Case {
	return suite.Case{Name: "authority/" + name, Section: section, Run: suite.Do(func(t *suite.T) { f(start(t, target, changes...)) })}
}

// long gives a case more time.
func long(c suite.Case, d time.Duration) suite.Case {
	c.Timeout = d
	return c
}
