package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bowline/controlplane/client"
	"bowline/controlplane/resource"
	"bowline/wire"
)

// plane is a control plane with one run, as far as a watch sees it.
type plane struct {
	t *testing.T

	mu      sync.Mutex
	news    chan struct{} // closed and replaced when something changes
	lines   []resource.Line
	run     resource.Run
	down    bool      // every connection is cut
	ticket  wire.Code // what POST /v1/tickets is refused with
	cancels int
	lost    []resource.RunnerLost
	// onCancel and onGet run under mu.
	onCancel, onGet func(*plane)
}

func newPlane(t *testing.T) *plane {
	return &plane{
		t: t, news: make(chan struct{}), ticket: wire.CodeConflict,
		run:      resource.Run{ID: "r", Status: "running", Runner: &resource.RunRunner{ConnectPath: "/connect/r"}},
		onCancel: func(p *plane) { p.end("cancelled", "", `{}`) },
	}
}

// emit appends an event; the caller holds mu or nothing runs yet.
func (p *plane) emit(typ, payload string) {
	p.lines = append(p.lines, resource.Line{
		Type: resource.LineEvent, ID: fmt.Sprintf("1.%d", len(p.lines)+1), RunID: "r",
		Event: &resource.Event{Type: typ, Payload: json.RawMessage(payload)},
	})
	p.changed()
}

func (p *plane) end(status, reason, result string) {
	p.run.Status, p.run.Reason, p.run.Result = status, reason, json.RawMessage(result)
	p.emit(resource.EventRunEnded, `{"status":"`+status+`"}`)
}

func (p *plane) changed() {
	close(p.news)
	p.news = make(chan struct{})
}

func (p *plane) do(fn func(*plane)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn(p)
}

func (p *plane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set(resource.HeaderAPIVersion, resource.APIVersion)
	answer := func(status int, v any) {
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(v); err != nil {
			p.t.Error(err)
		}
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/runs/r":
		if p.onGet != nil {
			p.onGet(p)
		}
		answer(200, p.run)
	case "POST /v1/runs/r/cancel":
		p.cancels++
		if p.cancels == 1 {
			p.onCancel(p)
		}
		answer(202, p.run)
	case "POST /v1/runs/r/runner-lost":
		var l resource.RunnerLost
		if err := json.NewDecoder(r.Body).Decode(&l); err != nil {
			p.t.Error(err)
		}
		p.lost = append(p.lost, l)
		p.end("failed", l.Reason, `{}`)
		answer(202, p.run)
	case "POST /v1/tickets":
		answer(p.ticket.HTTPStatus(), resource.ErrorEnvelope{Error: resource.ErrorBody{Code: p.ticket, Message: "no ticket"}})
	case "GET /v1/runs/r/events":
		p.stream(w, r)
	case "GET /readyz":
	default:
		p.t.Errorf("unexpected request %s %s", r.Method, r.URL.Path)
	}
}

// stream is called with mu held.
func (p *plane) stream(w http.ResponseWriter, r *http.Request) {
	at := 0
	if after := r.URL.Query().Get("after"); after != "" {
		if _, err := fmt.Sscanf(after, "1.%d", &at); err != nil {
			p.t.Error(err)
		}
	}
	for {
		for ; at < len(p.lines); at++ {
			l := p.lines[at]
			if err := json.NewEncoder(w).Encode(l); err != nil {
				return
			}
			if l.Event.Type == resource.EventRunEnded {
				return
			}
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		news := p.news
		p.mu.Unlock()
		select {
		case <-news:
		case <-r.Context().Done():
		}
		p.mu.Lock()
		if p.down {
			panic(http.ErrAbortHandler)
		}
		if r.Context().Err() != nil {
			return
		}
	}
}

// locked is a buffer for several goroutines; seen is closed once it holds want.
type locked struct {
	mu   sync.Mutex
	buf  strings.Builder
	want string
	seen chan struct{}
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(b)
	if l.seen != nil && strings.Contains(l.buf.String(), l.want) {
		close(l.seen)
		l.seen = nil
	}
	return len(b), nil
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// await waits until the buffer holds text.
func (l *locked) await(t *testing.T, text string) {
	t.Helper()
	l.mu.Lock()
	if strings.Contains(l.buf.String(), text) {
		l.mu.Unlock()
		return
	}
	seen := make(chan struct{})
	l.want, l.seen = text, seen
	l.mu.Unlock()
	select {
	case <-seen:
	case <-time.After(20 * time.Second):
		t.Fatalf("waited 20 s for %q, got %q", text, l.String())
	}
}

type watching struct {
	*watch
	out, talk *locked
	signals   chan os.Signal
	done      chan error
}

func newWatch(t *testing.T, p *plane) *watching {
	t.Helper()
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, client.Options{Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	out, talk, signals := new(locked), new(locked), make(chan os.Signal, 2)
	a := newApp(Process{Stdout: out, Stderr: talk, Dir: t.TempDir(), Signals: signals})
	return &watching{
		watch: &watch{app: a, client: c, run: &p.run, folder: a.Dir + "/run"},
		out:   out, talk: talk, signals: signals, done: make(chan error, 1),
	}
}

// stopClock gives the watch a clock of nanoseconds that the test moves.
func (w *watching) stopClock() *atomic.Int64 {
	at := new(atomic.Int64)
	w.now = func() time.Time { return time.Unix(0, at.Load()) }
	return at
}

func (w *watching) start(t *testing.T) {
	run := *w.run
	w.run = &run // the plane goes on changing its own
	go func() { w.done <- w.follow(t.Context()) }()
}

func (w *watching) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-w.done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("the watch did not end within 20 s; stderr %q", w.talk.String())
		return nil
	}
}

func wantExit(t *testing.T, err error, code int) {
	t.Helper()
	var ee *exitError
	if code == 0 && err != nil || code != 0 && (!errors.As(err, &ee) || ee.code != code) {
		t.Errorf("ended with %v, want exit code %d", err, code)
	}
}

const outDelta = `{"kind":"command_execution","stream":"stdout","text":"out\n"}`

func TestFollow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, status, reason string
		code                 int
		talk                 string
	}{
		{"completed", "completed", "", 0, ""},
		{"failed", "failed", "exit", 1, "bowline: run r failed (exit): exit code 3\n"},
		{"cancelled elsewhere", "cancelled", "", 1, "bowline: run r cancelled: exit code 3\n"},
		{"runner lost", "failed", "runner_lost", 1, "bowline: run r failed (runner_lost): exit code 3\nbowline: the runner's log is LOG\n"},
		{"orphaned", "orphaned", "lease_expired", 1, "bowline: run r orphaned (lease_expired): exit code 3\nbowline: the runner's log is LOG\n"},
		{"fault", "failed", "integrity_fault", 5, "bowline: run r: integrity fault; an operator has to look at it\nbowline: the runner's log is LOG\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			w := newWatch(t, p)
			w.start(t)
			p.do(func(p *plane) {
				p.emit("item.delta", outDelta)
				p.end(tt.status, tt.reason, `{"message":"exit code 3"}`)
			})
			wantExit(t, w.wait(t), tt.code)
			if w.out.String() != "out\n" {
				t.Errorf("stdout %q", w.out.String())
			}
			if want := strings.ReplaceAll(tt.talk, "LOG", w.runnerLog()); w.talk.String() != want {
				t.Errorf("stderr %q, want %q", w.talk.String(), want)
			}
		})
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		p := newPlane(t)
		w := newWatch(t, p)
		w.json = true
		w.start(t)
		w.signals <- sig
		wantExit(t, w.wait(t), wire.ExitSignal)
		if p.cancels != 1 || !w.told || !strings.Contains(w.out.String(), `"type":"result"`) {
			t.Errorf("%v: %d cancels, stdout %q", sig, p.cancels, w.out.String())
		}
	}
}

func TestSecondSignalLeaves(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.onCancel = func(p *plane) { p.run.Status = "cancelling" } // and does not end
	w := newWatch(t, p)
	w.json = true
	clock := w.stopClock()
	w.start(t)
	w.signals <- os.Interrupt
	w.talk.await(t, "cancelling; press Ctrl-C again to leave without waiting")
	clock.Add(int64(sameSignal))
	w.signals <- os.Interrupt
	wantExit(t, w.wait(t), wire.ExitSignal)
	if p.cancels != 1 { // however quick the second was
		t.Errorf("%d cancels", p.cancels)
	}
	if !strings.Contains(w.talk.String(), "bowline: run r is being cancelled; follow it with: bowline runs events r\n") {
		t.Errorf("stderr %q", w.talk.String())
	}
	if !w.told || !strings.Contains(w.out.String(), `"type":"result"`) {
		t.Errorf("stdout %q", w.out.String())
	}
}

// TestSignalTwice: timeout(1) signals its child and then the child's group; that
// is one request.
func TestSignalTwice(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.onCancel = func(p *plane) { p.run.Status = "cancelling" }
	w := newWatch(t, p)
	signals := make(chan os.Signal) // a send is a receipt
	w.app.Signals = signals
	clock := w.stopClock()
	w.start(t)
	send := func() {
		t.Helper()
		select {
		case signals <- syscall.SIGTERM:
		case <-time.After(20 * time.Second):
			t.Fatal("nobody took the signal within 20 s")
		}
	}
	send()
	w.talk.await(t, "press Ctrl-C again") // the first was judged
	clock.Add(int64(sameSignal) - 1)
	send()
	send() // taken only if the one before did not end the watch
	clock.Add(1)
	select {
	case signals <- syscall.SIGTERM:
	case err := <-w.done: // the one before was judged by the new time
		w.done <- err
	case <-time.After(20 * time.Second):
		t.Fatal("nobody took the last signal within 20 s")
	}
	wantExit(t, w.wait(t), wire.ExitSignal)
	if p.cancels != 1 {
		t.Errorf("%d cancels", p.cancels)
	}
}

// TestSecondSignalWithoutServer: leaving needs nobody.
func TestSecondSignalWithoutServer(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.down = true
	w := newWatch(t, p)
	w.json = true
	tried := make(chan struct{}, 1)
	w.rejoin = func(context.Context) error {
		select {
		case tried <- struct{}{}:
		default:
		}
		return nil
	}
	w.start(t)
	select {
	case <-tried:
	case <-time.After(20 * time.Second):
		t.Fatal("waited 20 s for the server to be started again")
	}
	clock := w.stopClock()
	w.signals <- os.Interrupt
	w.talk.await(t, "press Ctrl-C again")
	clock.Add(int64(sameSignal))
	w.signals <- os.Interrupt
	wantExit(t, w.wait(t), wire.ExitSignal)
	if !w.told || !strings.Contains(w.out.String(), `"status":"running"`) {
		t.Errorf("stdout %q", w.out.String())
	}
	if !strings.Contains(w.talk.String(), "bowline: run r goes on; follow it with: bowline runs events r\n") {
		t.Errorf("stderr %q", w.talk.String())
	}
}

// TestClosedStdout: a reader that has gone cancels the run.
func TestClosedStdout(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"stdout", "stderr"} {
		p := newPlane(t)
		w := newWatch(t, p)
		if name == "stdout" {
			w.app.Stdout = brokenWriter{}
		} else {
			w.app.Stderr = brokenWriter{}
		}
		w.start(t)
		p.do(func(p *plane) {
			p.emit("item.delta", `{"kind":"command_execution","stream":"`+name+`","text":"x"}`)
		})
		wantExit(t, w.wait(t), wire.ExitFailed)
		if p.cancels != 1 || w.talk.String() != "bowline: "+name+" was closed; cancelling run r\n" {
			t.Errorf("%s: %d cancels, stderr %q", name, p.cancels, w.talk.String())
		}
	}
}

// TestServerDies: the data folder's server is started again and the run goes
// on where it was.
func TestServerDies(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	w := newWatch(t, p)
	w.rejoin = func(context.Context) error {
		p.do(func(p *plane) {
			p.down = false
			p.emit("item.delta", outDelta)
			p.end("completed", "", `{}`)
		})
		return nil
	}
	w.start(t)
	p.do(func(p *plane) { p.emit("item.delta", outDelta) })
	w.out.await(t, "out\n")
	p.do(func(p *plane) {
		p.down = true
		p.changed()
	})
	wantExit(t, w.wait(t), 0)
	if w.out.String() != "out\nout\n" {
		t.Errorf("stdout %q", w.out.String())
	}
}

// TestServerDiesAtTheEnd: the result is asked for again.
func TestServerDiesAtTheEnd(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	w := newWatch(t, p)
	gets := 0
	p.onGet = func(p *plane) {
		if gets++; gets == 1 {
			p.down = true
			panic(http.ErrAbortHandler)
		}
	}
	rejoined := false
	w.rejoin = func(context.Context) error {
		p.do(func(p *plane) { p.down = false })
		rejoined = true
		return nil
	}
	p.end("completed", "", `{}`)
	w.start(t)
	wantExit(t, w.wait(t), 0)
	if !rejoined || gets < 2 {
		t.Errorf("rejoined %v, %d looks at the run", rejoined, gets)
	}
}

// TestServerCannotStart: the reason ends the command, the run goes on.
func TestServerCannotStart(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.down = true
	w := newWatch(t, p)
	w.rejoin = func(context.Context) error { return wire.Errorf(wire.CodeServerStart, "no port") }
	w.start(t)
	err := w.wait(t)
	if wire.CodeOf(err) != wire.CodeServerStart || w.app.exit(err) != wire.ExitNotReady {
		t.Errorf("ended with %v", err)
	}
	if !strings.Contains(w.talk.String(), "run r goes on without this command") || !strings.Contains(w.talk.String(), w.runnerLog()) {
		t.Errorf("stderr %q", w.talk.String())
	}
}

// TestRemoteServerGone: a server named by --server is not started, and waited
// for only so long.
func TestRemoteServerGone(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.down = true
	w := newWatch(t, p)
	w.start(t)
	err := w.wait(t)
	wantCode(t, err, wire.CodeUnavailable, "run r goes on")
}

// TestLauncherFails: the run is ended, because nobody else will start its
// runner.
func TestLauncherFails(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.ticket = wire.CodeForbidden
	w := newWatch(t, p)
	w.start(t)
	wantExit(t, w.wait(t), wire.ExitFailed)
	if len(p.lost) != 1 || p.lost[0].Reason != resource.LostLaunchFailed {
		t.Errorf("reported %+v", p.lost)
	}
	if !strings.Contains(w.talk.String(), "the runner cannot be kept running") || !strings.Contains(w.talk.String(), "the runner's log is "+w.runnerLog()) {
		t.Errorf("stderr %q", w.talk.String())
	}
}

// TestInterruptedReader: Ctrl-C ends a verb that follows a run, and cancels
// nothing.
func TestInterruptedReader(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.emit("item.delta", `{"text":"a\u001b[2Jb"}`)
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	out, talk, signals, done := new(locked), new(locked), make(chan os.Signal, 1), make(chan int, 1)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/token", []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		done <- Main(t.Context(), Process{
			Args:   []string{"runs", "events", "r", "--server", s.URL, "--token-file", "token"},
			Stdout: out, Stderr: talk, Dir: dir, Signals: signals,
		})
	}()
	out.await(t, "1.1\t0001-01-01T00:00:00Z\titem.delta\t")
	signals <- os.Interrupt
	select {
	case code := <-done:
		if code != wire.ExitSignal || talk.String() != "" || p.cancels != 0 {
			t.Errorf("exit code %d, stderr %q, %d cancels", code, talk.String(), p.cancels)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the command did not end within 20 s of Ctrl-C")
	}
}
