package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bowline/controlplane/resource"
	"bowline/wire"
	"bowline/wire/prp"
)

// The test binary is the fake runner: FAKE_RUNNER says what it does.
func TestMain(m *testing.M) {
	if mode := os.Getenv("FAKE_RUNNER"); mode != "" {
		os.Exit(fakeRunner(mode))
	}
	goleak.VerifyTestMain(m)
}

// fakeRunner writes what it was given to FAKE_OUT (one file per start) and
// then behaves as mode says.
func fakeRunner(mode string) int {
	ticket := os.Getenv(StandInTicketVar)
	if i := slices.Index(os.Args, "--ticket-fd"); i > 0 {
		raw, err := io.ReadAll(os.NewFile(3, "ticket"))
		if err != nil {
			return 90
		}
		ticket = string(raw)
	}
	if ticket == "" {
		return 91 // the owner went away before it gave one
	}
	out, err := os.CreateTemp(os.Getenv("FAKE_OUT"), "start-*")
	if err != nil {
		return 92
	}
	fmt.Fprintln(out, ticket)
	fmt.Fprintln(out, strings.Join(os.Args, "\x00"))
	if err := out.Close(); err != nil {
		return 93
	}
	// Renamed when complete: readers wait for the final name.
	if err := os.Rename(out.Name(), out.Name()+".done"); err != nil {
		return 94
	}
	fmt.Println("fake runner says hello")
	switch mode {
	case "exit0":
		return 0
	case "exit7":
		return 7
	case "hang":
		for { // until killed
			if err := syscall.Pause(); err != nil && !errors.Is(err, syscall.EINTR) {
				return 96
			}
		}
	}
	return 95
}

func spec(t *testing.T, mode string) Spec {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	if err := os.Mkdir(out, 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Spec{
		Path: self,
		Identity: prp.Identity{
			RunnerInstanceID: "r1", EnvironmentLeaseID: "e1", RunID: "run1", NormalizedSessionID: "s1", TurnID: "t1", ItemID: "i1",
		},
		ConnectURL: "ws://127.0.0.1:1/api/runner/v1/connect/run1",
		StateDir:   filepath.Join(dir, "run", "state"),
		Version:    OwnVersion, Digest: "sha256:" + strings.Repeat("0", 64),
		Env: []string{"FAKE_RUNNER=" + mode, "FAKE_OUT=" + out, TicketVar + "=leak", StandInTicketVar + "=leak", "KEEP=1"},
	}
}

func (s *Spec) outDir() string {
	for _, kv := range s.Env {
		if d, ok := strings.CutPrefix(kv, "FAKE_OUT="); ok {
			return d
		}
	}
	panic("no FAKE_OUT")
}

// starts reads what the fakes wrote.
func (s *Spec) starts(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.outDir(), "*.done"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(raw))
	}
	return out
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), 60*time.Second, errors.New("test took longer than 60 s"))
	t.Cleanup(cancel)
	return ctx
}

func TestArgsHoldNoTicket(t *testing.T) {
	t.Parallel()
	s := spec(t, "exit0")
	s.PassEnv, s.Permission, s.Workspace = []string{"A", "B"}, "deny", "/w"
	own := s.Args()
	for _, want := range []string{"--ticket-fd", "--permission", "--pass-env", "A,B", "--workspace", "--connect-url", "--item-id"} {
		if !slices.Contains(own, want) {
			t.Errorf("own runner: %s is missing in %v", want, own)
		}
	}
	s.StandIn = true
	got := s.Args()
	want := []string{
		"--connect-url", s.ConnectURL, "--state-dir", s.StateDir, "--runner-id", "r1", "--environment-lease-id", "e1",
		"--run-id", "run1", "--session-id", "s1", "--turn-id", "t1", "--item-id", "i1",
		"--runner-version", "0.3.0", "--runner-digest", s.Digest, "--max-frame-bytes", "1048576",
		"--max-outbox-bytes", "16777216", "--p0-reserve-bytes", "1048576", "--reconnect-delay-ms", "250",
	}
	if !slices.Equal(got, want) {
		t.Errorf("stand-in: got  %v\nwant %v", got, want)
	}
}

func TestOwnRunnerGetsTicketByPipeAfterItWasRecorded(t *testing.T) {
	t.Parallel()
	s := spec(t, "exit0")
	p, err := Start(&s, "the-ticket")
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, p)
	if got := s.starts(t); len(got) != 0 {
		t.Fatalf("it went on without its ticket: %q", got)
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.ID.PID))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(environ), "leak") || !strings.Contains(string(environ), "KEEP=1") {
		t.Errorf("environment of the runner: %q", environ)
	}
	if sid, err := syscall.Getpgid(p.ID.PID); err != nil || sid != p.ID.PID {
		t.Errorf("process group %d (%v), want a session of its own", sid, err)
	}
	if err := p.Give("the-ticket"); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(within(t))
	if err != nil || exit.String() != "code 0" {
		t.Fatalf("exit %v, %v", exit, err)
	}
	got := s.starts(t)
	if len(got) != 1 || !strings.HasPrefix(got[0], "the-ticket\n") {
		t.Fatalf("what it was given: %q", got)
	}
	if _, argv, _ := strings.Cut(got[0], "\n"); strings.Contains(argv, "the-ticket") {
		t.Error("the ticket is in argv")
	}
	log, err := os.ReadFile(filepath.Join(filepath.Dir(s.StateDir), "runnerd.log"))
	if err != nil || !strings.Contains(string(log), "fake runner says hello") {
		t.Errorf("log %q, %v", log, err)
	}
	if st, err := os.Stat(filepath.Join(filepath.Dir(s.StateDir), "runnerd.log")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("log file mode: %v, %v", st, err)
	}
}

func TestRunnerWithoutTicketEnds(t *testing.T) {
	t.Parallel()
	s := spec(t, "hang")
	p, err := Start(&s, "never given")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.ticket.Close(); err != nil { // as when the owner dies
		t.Fatal(err)
	}
	p.ticket = nil
	defer release(t, p)
	exit, err := p.Wait(within(t))
	if err != nil || exit.Code != 91 {
		t.Fatalf("exit %v, %v; want 91: no ticket", exit, err)
	}
}

func TestStandInHasTicketInEnvironmentOnly(t *testing.T) {
	t.Parallel()
	s := spec(t, "exit0")
	s.StandIn = true
	p, err := Start(&s, "stand-in-ticket")
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, p)
	if err := p.Give("stand-in-ticket"); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(within(t)); err != nil || exit.Code != 0 {
		t.Fatalf("exit %v, %v", exit, err)
	}
	got := s.starts(t)
	if len(got) != 1 || !strings.HasPrefix(got[0], "stand-in-ticket\n") || strings.Contains(got[0], "--ticket-fd") {
		t.Fatalf("what it was given: %q", got)
	}
}

func TestWaitEndsWithContextAndProcessGoesOn(t *testing.T) {
	t.Parallel()
	s := spec(t, "hang")
	p, err := Start(&s, "x")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Wait: %v, want the context's error", err)
	}
	if !Alive(p.ID) {
		t.Fatal("the process ended with the wait")
	}
	// A second owner takes it over and sees its end.
	again, err := Adopt(p.ID)
	if err != nil || again == nil {
		t.Fatalf("Adopt: %v, %v", again, err)
	}
	if err := p.Signal(syscall.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(within(t))
	if err != nil || exit.String() != "signal SIGKILL" {
		t.Fatalf("exit %v, %v", exit, err)
	}
	if exit, err := again.Wait(within(t)); err != nil || exit.Known {
		t.Fatalf("adopted: exit %v, %v", exit, err)
	}
	release(t, p)
	release(t, again)
	if gone, err := Adopt(p.ID); gone != nil || err != nil {
		t.Fatalf("Adopt of a process that is gone: %v, %v", gone, err)
	}
}

func TestAdoptRefusesAnotherProcessWithThatPID(t *testing.T) {
	t.Parallel()
	id, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []ProcessID{
		{id.PID, id.StartTicks + 1, id.BootID}, {id.PID, id.StartTicks, "another boot"}, {},
	} {
		if p, err := Adopt(other); p != nil || err != nil {
			t.Errorf("Adopt(%v) = %v, %v", other, p, err)
		}
		if Alive(other) {
			t.Errorf("Alive(%v)", other)
		}
	}
	if !Alive(id) {
		t.Error("this process is not alive")
	}
}

func TestStartRefusesWhatIsNoProgram(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"missing": "/nonexistent/runner", "directory": "/tmp"} {
		s := spec(t, "exit0")
		s.Path = path
		if _, err := Start(&s, "x"); wire.CodeOf(err) != wire.CodeSpawnFailed {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Digest(path); wire.CodeOf(err) != wire.CodeSpawnFailed {
			t.Errorf("%s: digest: %v", name, err)
		}
	}
	if d, err := Digest(""); err != nil || len(d) != len("sha256:")+64 {
		t.Errorf("own digest %q, %v", d, err)
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "runnerd.log")
	l, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.file.Truncate(MaxLogBytes + 1); err != nil {
		t.Fatal(err)
	}
	if err := l.bound(); err != nil {
		t.Fatal(err)
	}
	if st, err := l.file.Stat(); err != nil || st.Size() != 0 {
		t.Fatalf("size %v, %v", st.Size(), err)
	}
	if _, err := l.file.WriteString("next"); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "next" {
		t.Fatalf("%q, %v: writing must go on at the new end", raw, err)
	}
	if err := l.file.Truncate(MaxLogBytes/2 + 1); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if l, err = openLog(path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + ".1"); err != nil {
		t.Errorf("the old log was not moved away: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPlatformEnv(t *testing.T) {
	t.Parallel()
	got := PlatformEnv([]string{"PATH=/bin", "SECRET=s", "WANTED=w", "PATHX=1", "NOVALUE"}, []string{"WANTED"})
	if !slices.Equal(got, []string{"PATH=/bin", "WANTED=w"}) {
		t.Errorf("got %v", got)
	}
	got = StandInEnv([]string{"PATH=/bin", "TERM=x", "USER=u", "WANTED=w", "TZ=UTC"}, []string{"WANTED"})
	if !slices.Equal(got, []string{"PATH=/bin", "WANTED=w", "TZ=UTC"}) {
		t.Errorf("stand-in: got %v", got)
	}
}

func release(t *testing.T, p *Process) {
	t.Helper()
	if Alive(p.ID) {
		if err := p.Signal(syscall.SIGKILL, true); err != nil {
			t.Error(err)
		}
		if _, err := p.Wait(within(t)); err != nil {
			t.Error(err)
		}
	}
	if err := p.Release(); err != nil {
		t.Error(err)
	}
}

// testOwner is an owner whose run ends or joins as the test says.
type testOwner struct {
	mu          sync.Mutex
	tickets     int
	started     []ProcessID
	exits       []string
	lost        string
	detail      string
	ended       chan struct{}
	connections int64
	// onStart is called by Started with the number of the start.
	onStart func(o *testOwner, n int)
	state   func() State
	ticket  func(n int) error
}

func (o *testOwner) Ticket(context.Context) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tickets++
	if o.ticket != nil {
		if err := o.ticket(o.tickets); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("ticket-%d", o.tickets), nil
}

func (o *testOwner) Started(_ context.Context, attempt int, id ProcessID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.started = append(o.started, id)
	if attempt != len(o.started) {
		return fmt.Errorf("attempt %d is start %d", attempt, len(o.started))
	}
	if o.onStart != nil {
		o.onStart(o, attempt)
	}
	return nil
}

func (o *testOwner) Exited(_ context.Context, _ int, e Exit) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.exits = append(o.exits, e.String())
	return nil
}

func (o *testOwner) State(context.Context) (State, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != nil {
		return o.state(), nil
	}
	return State{Connections: o.connections}, nil
}

func (o *testOwner) Lost(_ context.Context, reason, detail string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost, o.detail = reason, detail
	return nil
}

func supervisor(s Spec, o *testOwner, delays *[]time.Duration) *Supervisor {
	o.ended = make(chan struct{})
	var mu sync.Mutex
	return &Supervisor{
		Spec: s, Owner: o, Ended: o.ended,
		Jitter: func(d time.Duration) time.Duration { return d },
		Sleep: func(ctx context.Context, d time.Duration) error {
			if d != settle {
				mu.Lock()
				*delays = append(*delays, d)
				mu.Unlock()
			}
			return ctx.Err()
		},
	}
}

func TestSuperviseGivesUpAfterFiveFailedRestarts(t *testing.T) {
	t.Parallel()
	s, o := spec(t, "exit7"), &testOwner{}
	var delays []time.Duration
	if err := supervisor(s, o, &delays).Run(within(t)); err != nil {
		t.Fatal(err)
	}
	want := []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second}
	if !slices.Equal(delays, want) {
		t.Errorf("delays %v, want %v", delays, want)
	}
	if o.lost != resource.LostGaveUp || len(o.started) != 6 || o.tickets != 6 {
		t.Errorf("lost %q after %d starts with %d tickets", o.lost, len(o.started), o.tickets)
	}
	seen := map[string]bool{}
	for _, start := range s.starts(t) {
		ticket, _, _ := strings.Cut(start, "\n")
		seen[ticket] = true
	}
	if len(seen) != 6 {
		t.Errorf("tickets handed over: %v, want six different ones", seen)
	}
	if !slices.Equal(o.exits, slices.Repeat([]string{"code 7"}, 6)) {
		t.Errorf("exits %v", o.exits)
	}
}

func TestSuperviseJoiningResetsTheCount(t *testing.T) {
	t.Parallel()
	s := spec(t, "exit7")
	o := &testOwner{}
	var delays []time.Duration
	// The fourth start joins: five more restarts are allowed after it.
	sup := supervisor(s, o, &delays)
	o.onStart = func(o *testOwner, n int) {
		if n == 4 {
			o.connections++
		}
	}
	if err := sup.Run(within(t)); err != nil {
		t.Fatal(err)
	}
	if len(o.started) != 9 || o.lost != resource.LostGaveUp {
		t.Errorf("%d starts, lost %q", len(o.started), o.lost)
	}
}

func TestSuperviseEndsWithItsRun(t *testing.T) {
	t.Parallel()
	s, o := spec(t, "exit0"), &testOwner{}
	var delays []time.Duration
	sup := supervisor(s, o, &delays)
	o.onStart = func(o *testOwner, _ int) { close(o.ended) }
	if err := sup.Run(within(t)); err != nil {
		t.Fatal(err)
	}
	if o.lost != "" || len(o.started) != 1 || len(delays) != 0 || len(o.exits) != 1 {
		t.Errorf("lost %q, %d starts, delays %v, exits %v", o.lost, len(o.started), delays, o.exits)
	}
}

func TestSuperviseStopsARunnerThatOutlivesItsRun(t *testing.T) {
	t.Parallel()
	s, o := spec(t, "hang"), &testOwner{}
	var delays []time.Duration
	sup := supervisor(s, o, &delays)
	closed := make(chan struct{})
	sup.Closed = closed
	var mu sync.Mutex
	now := time.Unix(1000, 0)
	sup.Now = func() time.Time { // every look at the clock is a second later
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(time.Second)
		return now
	}
	o.onStart = func(o *testOwner, _ int) { close(o.ended); close(closed) }
	if err := sup.Run(within(t)); err != nil {
		t.Fatal(err)
	}
	if len(o.exits) != 1 || o.exits[0] != "signal SIGTERM" {
		t.Errorf("exits %v", o.exits)
	}
	if Alive(o.started[0]) {
		t.Error("the runner lives")
	}
}

func TestSuperviseLaunchFailedAtOnce(t *testing.T) {
	t.Parallel()
	s, o := spec(t, "exit0"), &testOwner{}
	s.Path = "/nonexistent/runner"
	var delays []time.Duration
	if err := supervisor(s, o, &delays).Run(within(t)); err != nil {
		t.Fatal(err)
	}
	if o.lost != resource.LostLaunchFailed || len(delays) != 0 {
		t.Errorf("lost %q, delays %v", o.lost, delays)
	}
}

func TestSuperviseWaitsForTickets(t *testing.T) {
	t.Parallel()
	s, o := spec(t, "exit0"), &testOwner{}
	var delays []time.Duration
	sup := supervisor(s, o, &delays)
	o.ticket = func(n int) error {
		if n < 4 {
			return wire.Errorf(wire.CodeUnavailable, "the server restarts")
		}
		return wire.Errorf(wire.CodeConflict, "the run has ended")
	}
	if err := sup.Run(within(t)); err != nil {
		t.Fatal(err)
	}
	if len(delays) != 3 || len(o.started) != 0 || o.lost != "" {
		t.Errorf("delays %v, %d starts, lost %q", delays, len(o.started), o.lost)
	}
}

func TestSuperviseLeavesTheRunnerWhenItsOwnerStops(t *testing.T) {
	t.Parallel()
	s, o := spec(t, "hang"), &testOwner{}
	var delays []time.Duration
	sup := supervisor(s, o, &delays)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	sup.Note = func(n Note) {
		if n.Kind == NoteStarted {
			cancel()
		}
	}
	if err := sup.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	id := o.started[0]
	if !Alive(id) {
		t.Fatal("the runner was ended with its owner")
	}
	// The next owner waits for it while its lease lives.
	var adopted []string
	st := State{Connections: 1, Connected: false, LeaseEnds: time.Now().Add(time.Hour)}
	next := &testOwner{started: make([]ProcessID, 1), state: func() State { return st }}
	sup2 := supervisor(s, next, &delays)
	sup2.Previous, sup2.Attempt = id, 1
	sup2.Note = func(n Note) {
		adopted = append(adopted, n.Kind)
		switch n.Kind {
		case NoteAdopted:
			if err := syscall.Kill(id.PID, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		case NoteStarted:
			close(next.ended)
			if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	// The adopted process is our child here: as its real owner would be gone,
	// somebody has to reap it for it to count as dead.
	go func() {
		var ws syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(id.PID, &ws, 0, nil); !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	}()
	if err := sup2.Run(within(t)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(adopted[:2], []string{NoteAdopted, NoteExited}) || next.exits[0] != "unknown" {
		t.Errorf("notes %v, exits %v", adopted, next.exits)
	}
}

func TestSuperviseEndsAnAdoptedRunnerWhoseLeaseEnded(t *testing.T) {
	t.Parallel()
	s := spec(t, "hang")
	p, err := Start(&s, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Give("x"); err != nil {
		t.Fatal(err)
	}
	reaped := make(chan Exit, 1)
	ctx := within(t)
	go func() {
		e, werr := p.Wait(ctx)
		if werr != nil {
			t.Error(werr)
		}
		reaped <- e
	}()
	now := time.Now()
	o := &testOwner{state: func() State { return State{Ended: false, Connections: 1, LeaseEnds: now.Add(-time.Second)} }}
	var delays []time.Duration
	sup := supervisor(s, o, &delays)
	sup.Previous, sup.Attempt = p.ID, 1
	o.onStart = nil
	o.ticket = func(int) error { return wire.Errorf(wire.CodeConflict, "enough for this test") }
	if err := sup.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if e := <-reaped; e.String() != "signal SIGTERM" {
		t.Errorf("the old runner ended with %v", e)
	}
	if err := p.Release(); err != nil {
		t.Error(err)
	}
}

func TestDelaysAreJittered(t *testing.T) {
	t.Parallel()
	s := &Supervisor{}
	s.defaults()
	for range 1000 {
		if d := s.Jitter(time.Second); d < 750*time.Millisecond || d > 1250*time.Millisecond {
			t.Fatalf("jitter gives %s for 1 s, want 0.75 to 1.25 of it (prp.md 11.9)", d)
		}
	}
}
