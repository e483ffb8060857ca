package supervise

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"bowline/driver"
	"bowline/wire"
)

// roleVariable makes this test binary play another program; see roles_test.go.
const roleVariable = "SUPERVISE_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(playRole(role))
	}
	goleak.VerifyTestMain(m)
}

const patience = 20 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newSupervisor(t *testing.T, o Options) *Supervisor {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func testEnv() []string { return []string{"PATH=" + os.Getenv("PATH")} }

func shell(script string) driver.ProcessSpec {
	return driver.ProcessSpec{Argv: []string{"sh", "-c", script}, Env: testEnv(), StdinNull: true}
}

func spawn(t *testing.T, s *Supervisor, spec driver.ProcessSpec) driver.Process {
	t.Helper()
	p, err := s.Spawn(t.Context(), spec)
	if err != nil {
		t.Fatalf("spawn: %v", err)
	}
	return p
}

// readAll reads a stream to its end within the test's patience.
func readAll(t *testing.T, what string, r io.Reader) []byte {
	t.Helper()
	type result struct {
		b   []byte
		err error
	}
	got := make(chan result, 1)
	go func() {
		b, err := io.ReadAll(r)
		got <- result{b, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			t.Fatalf("read %s: %v", what, r.err)
		}
		return r.b
	case <-time.After(patience):
		t.Fatalf("waited %v for the end of %s", patience, what)
		return nil
	}
}

// waitExit waits for a process within the test's patience.
func waitExit(t *testing.T, p driver.Process) driver.Exit {
	t.Helper()
	got := make(chan driver.Exit, 1)
	go func() { got <- p.Wait() }()
	select {
	case e := <-got:
		return e
	case <-time.After(patience):
		t.Fatalf("waited %v for the process to end", patience)
		return driver.Exit{}
	}
}

// readLine reads up to a newline, byte by byte.
func readLine(t *testing.T, what string, r io.Reader) string {
	t.Helper()
	got := make(chan string, 1)
	go func() {
		var line []byte
		b := make([]byte, 1)
		for {
			n, err := r.Read(b)
			if n == 1 && b[0] != '\n' {
				line = append(line, b[0])
			}
			if err != nil || n == 1 && b[0] == '\n' {
				got <- string(line)
				return
			}
		}
	}()
	select {
	case l := <-got:
		return strings.TrimSuffix(l, "\r")
	case <-time.After(patience):
		t.Fatalf("waited %v for a line: %s", patience, what)
		return ""
	}
}

func pidLine(t *testing.T, what string, r io.Reader) int {
	t.Helper()
	line := readLine(t, what, r)
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatalf("%s: %q is no pid", what, line)
	}
	return pid
}

// alive reports whether a process runs (a zombie does not).
func alive(pid int) bool {
	st, ok := readStat(pid, make([]byte, statBuffer))
	return ok && !st.dead
}

func TestStreamsAndExitCode(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell("echo out; echo err >&2; exit 3"))
	if p.Stdin() != nil {
		t.Error("stdin is a pipe although /dev/null was asked for")
	}
	if got := readAll(t, "stdout", p.Stdout()); string(got) != "out\n" {
		t.Errorf("stdout %q", got)
	}
	if got := readAll(t, "stderr", p.Stderr()); string(got) != "err\n" {
		t.Errorf("stderr %q", got)
	}
	if e := waitExit(t, p); e != (driver.Exit{Code: 3}) {
		t.Errorf("exit %+v", e)
	}
	if e := waitExit(t, p); e.Code != 3 {
		t.Errorf("second wait: %+v", e)
	}
	if err := p.Stop(within(t), time.Second); err != nil {
		t.Errorf("stop after the end: %v", err)
	}
}

func TestStdinPipe(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	spec := shell("cat")
	spec.StdinNull = false
	p := spawn(t, s, spec)
	if _, err := io.WriteString(p.Stdin(), "hello"); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, "stdout", p.Stdout()); string(got) != "hello" {
		t.Errorf("stdout %q", got)
	}
	waitExit(t, p)
}

func TestExitBySignal(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell("kill -USR1 $$"))
	if e := waitExit(t, p); e.Signal != "SIGUSR1" || e.Err != nil {
		t.Errorf("exit %+v, want SIGUSR1", e)
	}
}

func TestInterruptReachesTheGroup(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell(`trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done`))
	readLine(t, "ready", p.Stdout())
	if err := p.Interrupt(); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, "stdout", p.Stdout()); string(got) != "caught\n" {
		t.Errorf("stdout %q", got)
	}
	if e := waitExit(t, p); e.Code != 7 {
		t.Errorf("exit %+v", e)
	}
	if err := p.Interrupt(); err != nil {
		t.Errorf("interrupt after the end: %v", err)
	}
}

// The last 60 000 bytes lie in the pipe when the process is long gone.
func TestTailSurvivesTheLeader(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell("head -c 60000 /dev/zero"))
	if e := waitExit(t, p); e.PipesLeftOpen || e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
	if got := readAll(t, "stdout", p.Stdout()); len(got) != 60000 {
		t.Errorf("read %d bytes of 60000", len(got))
	}
}

// Nobody reads, the pipe is full: spawn and stop must not hang.
func TestFullPipeBlocksNobody(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell("head -c 1000000 /dev/zero"))
	if err := p.Stop(within(t), 0); err != nil {
		t.Fatal(err)
	}
	if e := waitExit(t, p); e.Signal != "SIGKILL" && e.Code == 0 {
		t.Errorf("exit %+v", e)
	}
	if got := readAll(t, "stdout", p.Stdout()); len(got) > 64<<10 {
		t.Errorf("read %d bytes out of a pipe of 64 KiB", len(got))
	}
}

func TestDaemonHoldsThePipe(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell(`setsid sleep 1000 & echo $!; exit 0`))
	daemon := pidLine(t, "daemon", p.Stdout())
	e := waitExit(t, p)
	if !e.PipesLeftOpen || e.Code != 0 {
		t.Errorf("exit %+v, want PipesLeftOpen", e)
	}
	if got := readAll(t, "stdout", p.Stdout()); len(got) != 0 {
		t.Errorf("rest %q", got)
	}
	if !alive(daemon) {
		t.Fatal("the daemon died by itself")
	}
	if err := p.Stop(within(t), 0); err != nil {
		t.Fatal(err)
	}
	if alive(daemon) {
		t.Error("the daemon survived")
	}
}

// What lies in a held pipe when it is given up is still delivered, then it ends.
func TestGivenUpPipeKeepsWhatItHolds(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell(`(while :; do echo more; done) & exit 0`))
	e := waitExit(t, p)
	if !e.PipesLeftOpen {
		t.Errorf("exit %+v, want PipesLeftOpen", e)
	}
	got := readAll(t, "stdout", p.Stdout())
	if len(got) == 0 || len(got) > 64<<10 {
		t.Errorf("read %d bytes, want what a full pipe holds", len(got))
	}
}

func TestStopKillsSetsidGrandchildren(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"living leader":                 `setsid sh -c 'echo $$; exec sleep 1000' & wait`,
		"dead leader":                   `setsid sh -c 'echo $$; exec sleep 1000' & exit 0`,
		"double fork":                   `(setsid sh -c '(echo $$; exec sleep 1000) & wait' &) ; exit 0`,
		"same group, no environment":    `env -i /bin/sh -c 'echo $$; exec /bin/sleep 1000' & exit 0`,
		"no environment, living leader": `env -i /bin/sh -c 'echo $$; exec /bin/sleep 1000' & wait`,
		"ignores TERM":                  `trap '' TERM; setsid sh -c 'echo $$; exec sleep 1000' & wait`,
		"stopped":                       `setsid sh -c 'echo $$; kill -STOP $$; exec sleep 1000' & wait`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSupervisor(t, Options{})
			p := spawn(t, s, shell(script))
			pid := pidLine(t, "grandchild", p.Stdout())
			if err := p.Stop(within(t), 50*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if alive(pid) {
				t.Error("the grandchild survived")
			}
			waitExit(t, p)
			if st, ok := readStat(pid, make([]byte, statBuffer)); ok && st.ppid == os.Getpid() {
				t.Errorf("orphan %d was adopted but not reaped", pid)
			}
		})
	}
}

func TestGraceLetsAProcessFinish(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell(`trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done`))
	readLine(t, "ready", p.Stdout())
	if err := p.Stop(within(t), patience); err != nil {
		t.Fatal(err)
	}
	if e := waitExit(t, p); e.Code != 5 {
		t.Errorf("exit %+v", e)
	}
	if got := readAll(t, "stdout", p.Stdout()); string(got) != "bye\n" {
		t.Errorf("stdout %q", got)
	}
}

func TestAThousandProcesses(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	const count = 1000
	p := spawn(t, s, shell(`i=0; while [ $i -lt `+strconv.Itoa(count)+` ]; do sleep 1000 & i=$((i+1)); done; echo ready; wait`))
	readLine(t, "ready", p.Stdout())
	living, err := p.(*process).tree.living()
	if err != nil || living < count {
		t.Fatalf("%d processes live, want %d: %v", living, count, err)
	}
	if err := p.Stop(within(t), 0); err != nil {
		t.Fatal(err)
	}
	if living, err = p.(*process).tree.living(); err != nil || living != 0 {
		t.Errorf("%d processes live after the stop: %v", living, err)
	}
}

// A tree that keeps forking sessions of its own while it is killed.
func TestForkingTree(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell(`echo ready; i=0; while [ $i -lt 2000 ]; do setsid sh -c 'sleep 60 & sleep 60' & i=$((i+1)); done; wait`))
	readLine(t, "ready", p.Stdout())
	for deadline := time.Now().Add(patience); ; {
		n, err := p.(*process).tree.living()
		if err != nil {
			t.Fatal(err)
		}
		if n > 30 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for 30 processes", patience)
		}
	}
	if err := p.Stop(within(t), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := p.(*process).tree.living(); err != nil || n != 0 {
		t.Errorf("%d processes live after the stop: %v", n, err)
	}
}

// A tree that keeps forking daemons without a name: what is forked between the
// look and the kill is only found because its parent was stopped first.
func TestNamelessDaemonsDoNotEscape(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	setsid, err := exec.LookPath("setsid")
	if err != nil {
		t.Fatal(err)
	}
	nap, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	// A length of sleep that nobody else uses.
	length := "100." + strconv.Itoa(os.Getpid())
	for range 3 {
		p := spawn(t, s, shell(`i=0; while [ $i -lt 3000 ]; do env -i `+setsid+" "+nap+" "+length+` >/dev/null & i=$((i+1)); [ $i = 20 ] && echo ready; done; wait`))
		readLine(t, "ready", p.Stdout())
		if err := p.Stop(within(t), 0); err != nil {
			t.Fatal(err)
		}
		if left := sleepers(t, length); len(left) != 0 {
			t.Errorf("%d daemons escaped", len(left))
			for _, pid := range left {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// sleepers finds the living processes that sleep for that length.
func sleepers(t *testing.T, length string) []int {
	t.Helper()
	all, err := newScanner().snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for pid, st := range all {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err == nil && !st.dead && bytes.HasSuffix(line, []byte("sleep\x00"+length+"\x00")) {
			found = append(found, pid)
		}
	}
	return found
}

func TestRecordsComeBeforeAndAfterTheStart(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var records, gone []Record
	s := newSupervisor(t, Options{
		OnSpawn: func(r Record) error {
			mu.Lock()
			defer mu.Unlock()
			records = append(records, r)
			return nil
		},
		OnGone: func(r Record) {
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, r)
		},
	})
	p := spawn(t, s, shell("sleep 1000"))
	mu.Lock()
	if len(records) != 2 {
		t.Fatalf("records %+v", records)
	}
	before, after := records[0], records[1]
	mu.Unlock()
	if before.PID != 0 || before.StartTicks != 0 || len(before.Marker) != 2*markerBytes || before.BootID == "" {
		t.Errorf("first record %+v", before)
	}
	if after.PID != p.PID() || after.Marker != before.Marker || after.StartTicks == 0 || after.BootID != before.BootID {
		t.Errorf("second record %+v", after)
	}
	if ticks, err := StartTicks(p.PID()); err != nil || ticks != after.StartTicks {
		t.Errorf("start ticks %d, record says %d: %v", ticks, after.StartTicks, err)
	}
	if err := p.Stop(within(t), 0); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(gone) != 1 || gone[0] != after {
		t.Errorf("gone %+v, want one of %+v", gone, after)
	}
}

func TestHookErrorsStartNothing(t *testing.T) {
	t.Parallel()
	refused := errors.New("disk full")
	for name, at := range map[string]int{"before": 0, "after": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls, pid, gone := 0, 0, 0
			s := newSupervisor(t, Options{
				OnSpawn: func(r Record) error {
					calls++
					if r.PID != 0 {
						pid = r.PID
					}
					if calls == at+1 {
						return refused
					}
					return nil
				},
				OnGone: func(Record) { gone++ },
			})
			_, err := s.Spawn(t.Context(), shell("sleep 1000"))
			if !errors.Is(err, refused) || wire.CodeOf(err) != wire.CodeSpawnFailed {
				t.Fatalf("error %v", err)
			}
			if calls != at+1 {
				t.Errorf("hook called %d times", calls)
			}
			if at == 0 && pid != 0 || pid != 0 && alive(pid) {
				t.Errorf("process %d lives", pid)
			}
			if at == 1 && gone != 1 {
				t.Errorf("gone called %d times", gone)
			}
		})
	}
}

func TestSpawnErrors(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	folder := t.TempDir()
	plain := filepath.Join(folder, "plain-file")
	if err := os.WriteFile(plain, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spec   driver.ProcessSpec
		reason string
	}{
		"unknown":        {driver.ProcessSpec{Argv: []string{"no-such-program"}, Env: testEnv()}, `"no-such-program": not found`},
		"unknown path":   {driver.ProcessSpec{Argv: []string{folder + "/bin/prog"}, Env: testEnv()}, `start "` + folder + `/bin/prog": not found`},
		"shell line":     {driver.ProcessSpec{Argv: []string{"echo hello; date"}, Env: testEnv()}, `start "echo hello; date": not found; no shell reads it, ask for one: sh -c '…'`},
		"long name":      {driver.ProcessSpec{Argv: []string{strings.Repeat("x", 300)}, Env: testEnv()}, `start "` + strings.Repeat("x", 200) + `…": not found`},
		"not executable": {driver.ProcessSpec{Argv: []string{plain}, Env: testEnv()}, `start "` + plain + `": permission denied`},
		"folder":         {driver.ProcessSpec{Argv: []string{folder}, Env: testEnv()}, "permission denied"},
		"no PATH":        {driver.ProcessSpec{Argv: []string{"sh"}}, "not found"},
		"no folder":      {driver.ProcessSpec{Argv: []string{"sh"}, Dir: folder + "/absent", Env: testEnv()}, `start "sh": its folder "` + folder + `/absent" cannot be entered: no such file or directory`},
		"folder is file": {driver.ProcessSpec{Argv: []string{"sh"}, Dir: plain, Env: testEnv()}, `its folder "` + plain + `" cannot be entered: not a directory`},
		"empty":          {driver.ProcessSpec{}, "no program named"},
		"too long": {driver.ProcessSpec{
			Argv: []string{"true", strings.Repeat("x", 3<<20)}, Env: testEnv(),
		}, "argument list too long"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Spawn(t.Context(), c.spec)
			var typed *wire.Error
			if !errors.As(err, &typed) || typed.Code != wire.CodeSpawnFailed {
				t.Fatalf("error %v", err)
			}
			if !strings.Contains(typed.Message, c.reason) {
				t.Errorf("message %q, want %q", typed.Message, c.reason)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Spawn(ctx, shell("true")); wire.CodeOf(err) != wire.CodeSpawnFailed {
		t.Errorf("cancelled: %v", err)
	}
}

func TestRelativeProgramsStartInTheFolder(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "tool"), []byte("#!/bin/sh\necho here\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for _, spec := range []driver.ProcessSpec{
		{Argv: []string{"./tool"}, Dir: folder, Env: testEnv(), StdinNull: true},
		{Argv: []string{"tool"}, Dir: "/", Env: []string{"PATH=/nonexistent:" + folder + ":" + os.Getenv("PATH")}, StdinNull: true},
	} {
		p := spawn(t, s, spec)
		if got := readAll(t, "stdout", p.Stdout()); string(got) != "here\n" {
			t.Errorf("%q: %q", spec.Argv, got)
		}
		waitExit(t, p)
	}
}

func TestEnvironmentIsExactlyWhatWasGiven(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{OuterTree: "outer-marker-0123456789"})
	env := append(testEnv(), "A=1", TreeVariable+"=forged")
	p := spawn(t, s, driver.ProcessSpec{Argv: []string{"env"}, Env: env, StdinNull: true})
	got := strings.Fields(string(readAll(t, "stdout", p.Stdout())))
	marker := p.(*process).record.Marker
	want := []string{TreeVariable + "=outer-marker-0123456789," + marker, testEnv()[0], "A=1"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("environment %q, want %q", got, want)
	}
	waitExit(t, p)
}

func TestPTY(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	spec := shell(`test -t 0 && test -t 1 && test -t 2 && echo terminal; read line; echo "got $line"; cat >/dev/null; exit 4`)
	spec.PTY, spec.StdinNull = true, false
	p := spawn(t, s, spec)
	if p.Stderr() != nil {
		t.Error("stderr is separate")
	}
	if got := readLine(t, "terminal", p.Stdout()); got != "terminal" {
		t.Fatalf("first line %q", got)
	}
	if _, err := io.WriteString(p.Stdin(), "word\n"); err != nil {
		t.Fatal(err)
	}
	if echo := readLine(t, "echo", p.Stdout()); echo != "word" {
		t.Errorf("echo %q", echo)
	}
	if got := readLine(t, "answer", p.Stdout()); got != "got word" {
		t.Errorf("answer %q", got)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Errorf("close stdin: %v", err)
	}
	readAll(t, "rest", p.Stdout())
	if e := waitExit(t, p); e.Code != 4 || e.PipesLeftOpen {
		t.Errorf("exit %+v", e)
	}
}

func TestPTYWithNullStdin(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	spec := shell(`cat; test -t 0 || echo null; test -t 1 && echo $TERM; : >/dev/tty && echo controlling`)
	spec.PTY = true
	p := spawn(t, s, spec)
	if got := readAll(t, "output", p.Stdout()); string(got) != "null\r\n"+ptyTerm+"\r\ncontrolling\r\n" {
		t.Errorf("output %q", got)
	}
	waitExit(t, p)
}

// Much output and then the end of the session leader: the kernel hangs the
// terminal up, and nothing may be missing.
func TestPTYTail(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	for range 20 {
		spec := shell(`head -c 300000 /dev/zero | tr '\0' x`)
		spec.PTY = true
		p := spawn(t, s, spec)
		if got := readAll(t, "output", p.Stdout()); len(got) != 300000 || bytes.Trim(got, "x") != nil {
			t.Errorf("read %d bytes of 300000", len(got))
		}
		waitExit(t, p)
	}
}

func TestForeignChildrenKeepTheirStatus(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	for range 20 {
		foreign := exec.CommandContext(t.Context(), "sh", "-c", "exit 9")
		if err := foreign.Start(); err != nil {
			t.Fatal(err)
		}
		p := spawn(t, s, shell("(sleep 0.01 &) ; exit 0"))
		waitExit(t, p)
		var failed *exec.ExitError
		if err := foreign.Wait(); !errors.As(err, &failed) || failed.ExitCode() != 9 {
			t.Fatalf("foreign child: %v", err)
		}
	}
}

func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	// The leader lives on; its grandchild is orphaned to us and dies.
	p := spawn(t, s, shell(`(sh -c 'echo $$; exec sleep 0.01' &) ; exec sleep 1000`))
	orphan := pidLine(t, "orphan", p.Stdout())
	for deadline := time.Now().Add(patience); ; {
		st, ok := readStat(orphan, make([]byte, statBuffer))
		if !ok || st.ppid != os.Getpid() && st.dead {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for orphan %d to be reaped: %+v", patience, orphan, st)
		}
		if !sleep(t.Context(), minLook) {
			t.Fatal("test ended")
		}
	}
	if err := p.Stop(within(t), 0); err != nil {
		t.Fatal(err)
	}
}

func TestCloseKillsEverything(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	var pids []int
	for range 3 {
		p := spawn(t, s, shell(`setsid sh -c 'echo $$; exec sleep 1000' & wait`))
		pids = append(pids, p.PID(), pidLine(t, "grandchild", p.Stdout()))
	}
	if err := s.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d lives", pid)
		}
	}
	if _, err := s.Spawn(t.Context(), shell("true")); wire.CodeOf(err) != wire.CodeSpawnFailed {
		t.Errorf("spawn after close: %v", err)
	}
	if err := s.Close(within(t)); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestConcurrentStops(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell("sleep 1000"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := p.Stop(within(t), time.Millisecond); err != nil {
				t.Errorf("stop: %v", err)
			}
			if err := p.Interrupt(); err != nil {
				t.Errorf("interrupt: %v", err)
			}
		})
	}
	all.Wait()
	waitExit(t, p)
}

func TestAReusedPidIsNotSignalled(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, Options{})
	p := spawn(t, s, shell("sleep 1000"))
	real := p.(*process).tree.leader
	hit, err := send(ident{real.pid, real.start + 1}, unix.SIGKILL, make([]byte, statBuffer))
	if hit || err != nil {
		t.Errorf("signal to a reused pid: %v %v", hit, err)
	}
	if n, err := KillTree(within(t), strings.Repeat("f", 32), real.pid, real.start+1); n != 0 || err != nil {
		t.Errorf("killed %d: %v", n, err)
	}
	if !alive(real.pid) {
		t.Error("the stranger died")
	}
	if _, err := KillTree(within(t), "short", 0, 0); err == nil {
		t.Error("a short marker was accepted")
	}
	if n, err := KillRecord(within(t), Record{Marker: p.(*process).record.Marker, PID: real.pid, StartTicks: real.start, BootID: "another"}); n != 0 || err != nil {
		t.Errorf("record of another boot: killed %d, %v", n, err)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	tail := " 10 11 12 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n"
	for name, want := range map[string]procStat{
		"5 (a) S":      {ident: ident{5, 4242}, ppid: 10, pgrp: 11, sid: 12},
		"5 (a ) R) S":  {ident: ident{5, 4242}, ppid: 10, pgrp: 11, sid: 12},
		"5 (\n) (z) Z": {ident: ident{5, 4242}, ppid: 10, pgrp: 11, sid: 12, dead: true, zombie: true},
	} {
		got, ok := parseStat(5, []byte(name+tail))
		if !ok || got != want {
			t.Errorf("%q: %+v %v", name, got, ok)
		}
	}
	threads := strings.Replace(tail, "20 0 1 0", "20 0 2 0", 1)
	if got, ok := parseStat(5, []byte("5 (a) Z"+threads)); !ok || got.dead {
		t.Errorf("a main thread that ended first: %+v %v", got, ok)
	}
	for _, bad := range []string{"", "5 (a", "5 (a) S 1 2", "5 (a) S x" + tail} {
		if _, ok := parseStat(5, []byte(bad)); ok {
			t.Errorf("%q was understood", bad)
		}
	}
}

func TestEnvironCarries(t *testing.T) {
	t.Parallel()
	const marker = "0123456789abcdef"
	for block, want := range map[string]bool{
		"A=1\x00" + TreeVariable + "=" + marker + "\x00B=2\x00": true,
		TreeVariable + "=" + marker:                             true,
		TreeVariable + "=outer," + marker + ",inner\x00":        true,
		TreeVariable + "=" + marker + "0\x00":                   false,
		"X" + TreeVariable + "=" + marker + "\x00":              false,
		"A=" + TreeVariable + "=" + marker + "\x00":             false,
		"": false,
	} {
		if got := environCarries([]byte(block), marker); got != want {
			t.Errorf("%q: %v", block, got)
		}
	}
}

func TestBaseEnv(t *testing.T) {
	t.Parallel()
	environ := []string{
		"PATH=/bin", "HOME=/root", "SECRET_KEY=x", "EXTRA=1", "TZ=UTC", "PATH=/usr/bin", "HTTP_PROXY=http://p",
		TreeVariable + "=abc", "broken", "TMP=/tmp", "PAPERCLIP_RUNNER_BOOTSTRAP_TICKET=t",
	}
	got := strings.Join(BaseEnv(environ, []string{"EXTRA", "ABSENT", TreeVariable}), " ")
	if want := "EXTRA=1 HOME=/root PATH=/usr/bin TMP=/tmp TZ=UTC"; got != want {
		t.Errorf("BaseEnv %q, want %q", got, want)
	}
}
