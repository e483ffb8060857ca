// Package runner is a black-box suite for a runner binary that speaks PRP: the
// flags of prp.md 11.4, the ticket in PAPERCLIP_RUNNER_BOOTSTRAP_TICKET, exit
// codes 0 and 1. It plays the authority with conformance/peer and uses the
// provider kinds "scripted" and "command" of the project's runner.
//
// [Cases] returns the cases as data for package suite. Each case has its own
// authority, state directory and processes; whatever it started is killed when
// it ends.
package runner

import (
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
	// Argv starts the runner; the flags of 11.4 are appended.
	Argv []string
	// Dir is where the directories of the cases are made.
	Dir string
}

// ticketVariable is the variable that hands over the ticket (2.10).
const ticketVariable = "PAPERCLIP_RUNNER_BOOTSTRAP_TICKET"

const (
	// acceptWait is how long a runner may take to dial.
	acceptWait = 8 * time.Second
	// exitWait is how long a runner may take to exit once it has to.
	exitWait = 8 * time.Second
	// quiet is how long the wire must be silent to count as silent.
	quiet = 200 * time.Millisecond
)

type env struct {
	*suite.T
	target Target
	dir    string
	state  string
	a      *peer.Authority
	nextC  int64
}

type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text.Len() < 64<<10 {
		o.text.Write(p)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

type proc struct {
	e              *env
	cmd            *exec.Cmd
	stdout, stderr output
	done           chan struct{}
}

func newEnv(t *suite.T, target Target) *env {
	dir, err := os.MkdirTemp(target.Dir, "case-")
	t.OK(err, "directory")
	e := &env{T: t, target: target, dir: dir, state: filepath.Join(dir, "runner")}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("clean-up: %v", err)
		}
	})
	e.a, err = peer.Listen(peer.NewIdentity())
	t.OK(err, "listen")
	e.keep(e.a)
	return e
}

func (e *env) keep(c io.Closer) {
	e.Cleanup(func() {
		if err := c.Close(); err != nil {
			e.Logf("close: %v", err)
		}
	})
}

// flags returns the flags of 11.4 as the existing spawner passes them.
func (e *env) flags(url string) []string {
	id := e.a.Identity
	return []string{
		"--connect-url", url, "--state-dir", e.state, "--runner-id", id.RunnerInstanceID,
		"--environment-lease-id", id.EnvironmentLeaseID, "--run-id", id.RunID, "--session-id", id.NormalizedSessionID,
		"--turn-id", id.TurnID, "--item-id", id.ItemID, "--runner-version", e.a.Version, "--runner-digest", e.a.Digest,
		"--max-outbox-bytes", "16777216", "--p0-reserve-bytes", "1048576", "--reconnect-delay-ms", "20",
	}
}

// set replaces or appends a flag; an empty value removes it.
func set(flags []string, name, value string) []string {
	var out []string
	found := false
	for i := 0; i+1 < len(flags); i += 2 {
		v := flags[i+1]
		if flags[i] == name {
			found = true
			if value == "" {
				continue
			}
			v = value
		}
		out = append(out, flags[i], v)
	}
	if !found && value != "" {
		out = append(out, name, value)
	}
	return out
}

// spawn starts the runner with exactly these flags and ticket.
func (e *env) spawn(flags []string, ticket string, environ ...string) *proc {
	p := e.prepare(flags)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir, "LANG=C.UTF-8"}, environ...)
	if ticket != "" {
		p.cmd.Env = append(p.cmd.Env, ticketVariable+"="+ticket)
	}
	return e.run(p)
}

// prepare makes a process that is not started yet.
func (e *env) prepare(flags []string) *proc {
	p := &proc{e: e, done: make(chan struct{})}
	argv := append(append([]string{}, e.target.Argv...), flags...)
	p.cmd = exec.CommandContext(context.WithoutCancel(e.Context()), argv[0], argv[1:]...)
	p.cmd.Dir = e.dir
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	return p
}

// run starts a prepared process.
func (e *env) run(p *proc) *proc {
	e.OK(p.cmd.Start(), "start of %s", p.cmd.Path)
	go func() {
		defer close(p.done)
		if err := p.cmd.Wait(); err != nil && p.cmd.ProcessState == nil {
			e.Logf("wait: %v", err)
		}
	}()
	e.Cleanup(func() {
		p.kill()
		if s := p.stderr.String(); s != "" {
			e.Logf("stderr: %.1500s", s)
		}
	})
	return p
}

// start spawns the runner for the authority with a fresh ticket.
func (e *env) start(changes ...[2]string) *proc {
	flags := e.flags(e.a.URL())
	for _, c := range changes {
		flags = set(flags, c[0], c[1])
	}
	return e.spawn(flags, e.a.NewTicket())
}

func (p *proc) kill() {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.e.Logf("kill: %v", err)
	}
	<-p.done
}

// exit waits for the end of the process and checks its code.
func (p *proc) exit(code int, why string) {
	timer := time.NewTimer(exitWait)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.e.Fatalf("%s: the runner did not exit; stderr %.600s", why, p.stderr.String())
	}
	got := p.cmd.ProcessState.ExitCode()
	p.e.Check(got == code, "%s: exit code %d, expected %d; stderr %.600s", why, got, code, p.stderr.String())
	if code == 1 {
		p.e.Check(strings.Contains(p.stderr.String(), "paperclip-runnerd: "), "%s: stderr has no message \"paperclip-runnerd: …\": %.600s", why, p.stderr.String())
	}
}

// running checks that the process lives.
func (p *proc) running(why string) {
	select {
	case <-p.done:
		p.e.Fatalf("%s: the runner exited with %d; stderr %.600s", why, p.cmd.ProcessState.ExitCode(), p.stderr.String())
	default:
	}
}

// accept waits for a connection and its request.
func (e *env) accept() *peer.Link {
	l, err := e.a.Accept(acceptWait)
	e.OK(err, "the runner did not dial")
	e.keep(l)
	return l
}

// hello accepts a connection up to its auth_hello.
func (e *env) hello() *peer.Link {
	l := e.accept()
	e.OK(l.CheckRequest(), "opening request")
	e.OK(l.Switch(), "101")
	e.OK(l.ReadHello(), "auth_hello")
	return l
}

// answered accepts a connection up to its auth_response.
func (e *env) answered() *peer.Link {
	l := e.hello()
	e.OK(l.SendChallenge(nil, nil), "auth_challenge")
	e.OK(l.ReadResponse(), "auth_response")
	return l
}

// admit accepts a connection and plays the whole handshake.
func (e *env) admit() *peer.Link {
	l := e.answered()
	e.OK(l.SendWelcome(nil), "welcome")
	return l
}

// noDial checks that an exited runner has left no connection behind.
func (e *env) noDial(why string) {
	l, err := e.a.Accept(time.Millisecond)
	if err == nil {
		e.keep(l)
		e.Fatalf("%s: the runner dialled again", why)
	}
	e.Check(errors.Is(err, peer.ErrTimeout), "%s: %v", why, err)
}

// command makes the next wire command.
func (e *env) command(kind string, payload peer.M) peer.M {
	e.nextC++
	return e.commandAt(e.nextC, fmt.Sprintf("command_prp_%08d", e.nextC), kind, payload)
}

func (e *env) commandAt(seq int64, id, kind string, payload peer.M) peer.M {
	schema := "paperclip.prp.command.v1"
	if strings.HasPrefix(kind, "session.goal.") {
		schema = "paperclip.prp.command.v2"
	}
	return peer.M{
		"schema": schema, "commandId": id, "controllerSeq": seq, "type": kind, "issuedAt": peer.FormatISO(time.Now()), "payload": payload,
	}
}

// session follows a link: it counts and keeps events and acknowledges them
// unless told not to.
type session struct {
	*env
	l       *peer.Link
	quietly bool // do not acknowledge
	high    int64
	events  []peer.M
	raw     map[int64]string // event envelopes as received
	others  []peer.M
}

func (e *env) session(l *peer.Link) *session {
	return &session{env: e, l: l, raw: map[int64]string{}, high: e.a.Acked}
}

// step reads one envelope.
func (s *session) step(wait time.Duration) (peer.M, error) {
	m, err := s.l.Next(wait)
	if err != nil {
		return nil, err
	}
	if m["kind"] != "event" {
		return m, nil
	}
	ev := peer.Obj(m, "payload")
	seq := peer.Int(ev, "sourceSeq")
	if seq != s.high+1 {
		return nil, fmt.Errorf("event %d after %d", seq, s.high)
	}
	s.high = seq
	s.events = append(s.events, ev)
	s.raw[seq] = s.l.Envelopes[len(s.l.Envelopes)-1]
	if !s.quietly {
		if err := s.l.Ack(seq); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// until reads until found says so.
func (s *session) until(what string, found func(m peer.M) bool) peer.M {
	end := time.Now().Add(peer.IOTimeout)
	for {
		m, err := s.step(time.Until(end))
		s.OK(err, "waiting for %s (events so far %v)", what, s.types())
		if found(m) {
			return m
		}
		if m["kind"] != "event" {
			s.others = append(s.others, m)
		}
	}
}

// when reads until cond holds, which may be already.
func (s *session) when(what string, cond func() bool) {
	if !cond() {
		s.until(what, func(peer.M) bool { return cond() })
	}
}

func (s *session) types() []string {
	var out []string
	for _, ev := range s.events {
		out = append(out, peer.Str(ev, "eventType"))
	}
	return out
}

// result waits for the result of a command.
func (s *session) result(c peer.M) peer.M {
	m := s.until("the result of "+peer.Str(c, "type"), func(m peer.M) bool {
		return m["kind"] == "command_result" && peer.Get(m, "payload", "commandId") == c["commandId"]
	})
	p := peer.Obj(m, "payload")
	s.Check(peer.Int(p, "controllerSeq") == peer.Int(c, "controllerSeq") && p["commandType"] == c["type"], "result %s of command %s", peer.Write(p), peer.Write(c))
	return p
}

// do sends the next command and returns its result.
func (s *session) do(kind string, payload peer.M) peer.M {
	c := s.command(kind, payload)
	s.OK(s.l.SendCommand(c, 1), "command %s", kind)
	return s.result(c)
}

// done is do for commands that must complete.
func (s *session) done(kind string, payload peer.M) peer.M {
	p := s.do(kind, payload)
	s.Check(p["status"] == "completed", "%s ended %s", kind, peer.Write(p))
	return peer.Obj(p, "result")
}

// event waits for an event of a type, unless one came already.
func (s *session) event(kind string) peer.M {
	for _, ev := range s.events {
		if peer.Str(ev, "eventType") == kind {
			return ev
		}
	}
	m := s.until(kind, func(m peer.M) bool { return peer.Str(m, "payload", "eventType") == kind })
	return peer.Obj(m, "payload")
}

// silence checks that nothing comes.
func (s *session) silence(why string) { s.OK(s.l.ExpectSilence(quiet), "%s", why) }

func scripted() peer.M { return peer.M{"provider": peer.M{"kind": "scripted"}} }

// argv is a run.prepare payload of kind command.
func (e *env) argv(argv ...string) peer.M {
	return peer.M{"provider": peer.M{
		"kind": "command", "argv": argv, "cwd": e.dir, "envNames": peer.A{}, "pty": false, "timeoutMs": 60_000,
	}}
}

// open prepares and opens a provider session.
func (s *session) open(prepare peer.M) {
	s.done("run.prepare", prepare)
	s.done("session.open", peer.M{"reuse": "same_session"})
}

// turn starts a turn and returns the provider's turn id.
func (s *session) turn(text string) string {
	r := s.done("turn.start", peer.M{"text": text, "turnId": "turn-" + peer.RandomHex(4)})
	id := peer.Str(r, "providerTurnId")
	s.Check(id != "", "turn.start without providerTurnId: %s", peer.Write(r))
	return id
}

// begin starts a runner, admits it and returns the session.
func (e *env) begin(changes ...[2]string) (*proc, *session) {
	p := e.start(changes...)
	return p, e.session(e.admit())
}

// readState reads runner-state.json.
func (e *env) readState() peer.M {
	text, err := os.ReadFile(filepath.Join(e.state, "runner-state.json"))
	e.OK(err, "runner-state.json")
	m, err := peer.ParseObject(text)
	e.OK(err, "runner-state.json")
	return m
}

// stateUntil polls runner-state.json.
func (e *env) stateUntil(what string, cond func(m peer.M) bool) peer.M {
	end := time.Now().Add(4 * time.Second)
	for {
		text, err := os.ReadFile(filepath.Join(e.state, "runner-state.json"))
		if err == nil {
			m, err := peer.ParseObject(text)
			e.OK(err, "runner-state.json")
			if cond(m) {
				return m
			}
		}
		if time.Now().After(end) {
			e.Fatalf("runner-state.json never showed %s: %.900s %v", what, text, err)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-e.Context().Done():
			e.Fatalf("runner-state.json never showed %s in time", what)
		}
	}
}

// Cases returns all cases for a target.
func Cases(target Target) []suite.Case {
	var out []suite.Case
	for _, list := range [][]suite.Case{
		flagCases(target), handshakeCases(target), wireCases(target), commandCases(target), providerCases(target), driverCases(target), pendingCases(target), importCases(target), garbageCases(target), crashCases(target),
		eventCases(target), leaseCases(target), lifecycleCases(target), stateCases(target),
	} {
		out = append(out, list...)
	}
	return out
}

// caseTimeout bounds the cases of this suite: a runner may need several
// bounded waits in one case.
const caseTimeout = 25 * time.Second

func with(target Target, name, section string, f func(e *env)) suite.Case {
	return suite.Case{
		Name: "runner/" + name, Section: section, Timeout: caseTimeout,
		Run: suite.Do(func(t *suite.T) { f(newEnv(t, target)) }),
	}
}
