package e2e

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// System calls of the shipped programs are made to fail, and watched, from
// outside with strace.

// strace finds the program. Without it the test is skipped, loudly, or fails
// where BOWLINE_REQUIRE_STRACE=1 says that it must run.
func strace(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("strace")
	if err != nil {
		unprovable(t, "strace is not installed")
	}
	return path
}

func unprovable(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("BOWLINE_REQUIRE_STRACE") == "1" {
		t.Fatalf("%s, and BOWLINE_REQUIRE_STRACE=1", why)
	}
	fmt.Fprintf(os.Stderr, "SKIPPED: %s: %s, that syncs are waited for is not shown\n", t.Name(), why)
	t.Skip(why)
}

// tracer is a strace that is attached to a process.
type tracer struct {
	t      *testing.T
	p      *started
	output string
}

// attach traces a process with all its threads; args say what.
func attach(t *testing.T, pid int, args ...string) *tracer {
	t.Helper()
	tr := &tracer{t: t, output: filepath.Join(t.TempDir(), "strace")}
	tr.p = startProgram(t, os.Environ(), "/", strace(t),
		append([]string{"-f", "-y", "-s", "0", "-o", tr.output, "-p", strconv.Itoa(pid)}, args...)...)
	waitFor(t, "strace to attach", func() bool {
		select {
		case <-tr.p.done:
			unprovable(t, "strace cannot attach: "+tr.p.stderr.String())
		default:
		}
		return strings.Contains(tr.p.stderr.String(), " attached")
	})
	return tr
}

// lines are the whole lines of the trace so far.
func (tr *tracer) lines() []string {
	tr.t.Helper()
	raw, err := os.ReadFile(tr.output)
	if err != nil {
		tr.t.Fatal(err)
	}
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	return slices.Collect(strings.Lines(string(raw)))
}

// detach lets the process go on undisturbed.
func (tr *tracer) detach() {
	tr.t.Helper()
	if err := tr.p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		tr.t.Errorf("stop strace: %v", err)
	}
	tr.p.wait()
}

// injected are the places of calls that were made to fail.
func (tr *tracer) injected() (at []int) {
	for i, line := range tr.lines() {
		if strings.Contains(line, "(INJECTED)") {
			at = append(at, i)
		}
	}
	return at
}

// isSync tells whether a line begins a sync, and ends one.
func isSync(line string) (begins, ends bool) {
	switch {
	case strings.Contains(line, " fdatasync(") || strings.Contains(line, " fsync("):
		return true, !strings.Contains(line, "<unfinished ...>")
	case strings.Contains(line, "<... fdatasync resumed>") || strings.Contains(line, "<... fsync resumed>"):
		return false, true
	}
	return false, false
}

// writesTo tells whether a line writes to a socket.
func writesTo(line, inode string) bool {
	return (strings.Contains(line, " write(") || strings.Contains(line, " writev(")) &&
		strings.Contains(line, "<socket:["+inode+"]>")
}

// serverSocket is the inode of the server's end of a runner's connection.
func serverSocket(t *testing.T, runner int, serverURL string) string {
	t.Helper()
	_, port, ok := strings.Cut(strings.TrimPrefix(serverURL, "http://"), ":")
	serverPort, err := strconv.Atoi(port)
	if !ok || err != nil {
		t.Fatalf("server URL %q has no port", serverURL)
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", runner))
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	for _, fd := range fds {
		// What is closed meanwhile is not the connection.
		if name, err := os.Readlink(fd); err == nil {
			own[name] = true
		}
	}
	rows := tcpTable(t)
	for _, r := range rows {
		if !own["socket:["+r.inode+"]"] || r.remote != serverPort {
			continue
		}
		for _, s := range rows {
			if s.local == serverPort && s.remote == r.local {
				return s.inode
			}
		}
	}
	if os.Getuid() != 0 {
		unprovable(t, "runnerd hides its descriptors from its own user, only root sees its connection")
	}
	t.Fatalf("the connection of process %d to port %d was not found", runner, serverPort)
	return ""
}

type tcpRow struct {
	local, remote int // ports
	inode         string
}

// tcpTable reads the IPv4 sockets of this machine.
func tcpTable(t *testing.T) (rows []tcpRow) {
	t.Helper()
	raw, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	port := func(address string) int {
		_, digits, _ := strings.Cut(address, ":")
		b, err := hex.DecodeString(digits)
		if err != nil || len(b) != 2 {
			return 0 // the table's head
		}
		return int(b[0])<<8 | int(b[1])
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 9 {
			rows = append(rows, tcpRow{port(f[1]), port(f[2]), f[9]})
		}
	}
	return rows
}

// exited waits for a server that ends by itself and gives its exit code.
func (s *server) exited(within time.Duration) (code int, ok bool) {
	s.t.Helper()
	done := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(done) }() // the exit code is read from ProcessState
	select {
	case <-done:
		return s.cmd.ProcessState.ExitCode(), true
	case <-time.After(within):
	}
	// It is killed here: two may not wait for one process.
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Errorf("kill server: %v", err)
	}
	<-done
	return 0, false
}
