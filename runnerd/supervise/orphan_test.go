package supervise

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that dropped its environment, took a session of its own and lost
// its parent before anybody looked is still of the tree, where the program says
// that it starts no other children.
func TestOrphanWithoutTrace(t *testing.T) {
	const alone = "SUPERVISE_TEST_ALONE"
	if os.Getenv(alone) == "" {
		t.Parallel()
		// The other tests of this process have children too: it needs its own.
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOrphanWithoutTrace$", "-test.v") //nolint:gosec // this very binary
		cmd.Env = append(os.Environ(), alone+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestOrphanWithoutTrace") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	for _, end := range []string{"stop", "close"} {
		s := newSupervisor(t, Options{OwnsChildren: true})
		p := spawn(t, s, shell(`setsid -f env -i sh -c 'echo $$; exec sleep 1000'; exec sleep 1000`))
		line, err := bufio.NewReader(p.Stdout()).ReadString('\n')
		if err != nil {
			t.Fatalf("pid of the orphan: %v", err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		if end == "stop" {
			err = p.Stop(within(t), 0)
		} else {
			err = s.Close(within(t))
		}
		if err != nil {
			t.Fatalf("%s: %v", end, err)
		}
		if alive(pid) {
			t.Errorf("%s: the orphan %d lives", end, pid)
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
}

// What a caller forgot to close stays with us.
func TestCloseOnExec(t *testing.T) {
	t.Parallel()
	fds := make([]int, 2)
	if err := unix.Pipe(fds); err != nil { // without O_CLOEXEC, as a shell leaves them
		t.Fatal(err)
	}
	defer func() {
		for _, fd := range fds {
			if err := unix.Close(fd); err != nil {
				t.Error(err)
			}
		}
	}()
	if err := CloseOnExec(); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d is inherited: flags %d, %v", fd, flags, err)
		}
	}
}
