package supervise

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"bowline/driver"
)

// playRole is this test binary as another program.
func playRole(role string) int {
	var err error
	switch role {
	case "runner":
		err = playRunner()
	case "scrub":
		err = playScrub()
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// playRunner is a runnerd that starts a tree, prints its records and the pids
// of the tree, and waits to be killed.
func playRunner() error {
	out := json.NewEncoder(os.Stdout)
	s, err := New(Options{OnSpawn: func(r Record) error { return out.Encode(r) }})
	if err != nil {
		return err
	}
	p, err := s.Spawn(context.Background(), driver.ProcessSpec{
		Argv: []string{"sh", "-c", os.Getenv("SCRIPT")}, Env: testEnv(), StdinNull: true,
	})
	if err != nil {
		return err
	}
	if _, err := io.Copy(os.Stdout, p.Stdout()); err != nil {
		return err
	}
	select {}
}

func roleCommand(t *testing.T, role string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(testEnv(), append(env, roleVariable+"="+role)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// A runnerd is killed with SIGKILL; the next one knows only the record.
func TestLaterRunnerKillsTheTree(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script   string
		pids     int
		nameless bool // the successor knows only the first record
	}{
		"living leader":      {`setsid sh -c 'echo $$; exec sleep 1000' & echo $$; wait`, 2, false},
		"dead leader":        {`(setsid sh -c 'echo $$; sleep 1000 & echo $!; wait' &) ; exit 0`, 2, false},
		"only the marker":    {`setsid sh -c 'echo $$; exec sleep 1000' & echo $$; wait`, 2, true},
		"nameless orphan":    {`env -i /bin/sh -c 'echo $$; exec /bin/sleep 1000' & sh -c 'echo $$; exec sleep 1000' & exit 0`, 2, false},
		"child without name": {`env -i /bin/sh -c 'echo $$; exec /bin/sleep 1000' & echo $$; wait`, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := roleCommand(t, "runner", "SCRIPT="+c.script)
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(stdout)
			line := func() string {
				s, err := lines.ReadString('\n')
				if err != nil {
					t.Fatalf("runner's output ended: %v", err)
				}
				return strings.TrimSpace(s)
			}
			var records [2]Record
			for i := range records {
				if err := json.Unmarshal([]byte(line()), &records[i]); err != nil {
					t.Fatal(err)
				}
			}
			var pids []int
			for range c.pids {
				pid, err := strconv.Atoi(line())
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Fatal("the killed runner exited with 0")
			}
			for _, pid := range pids {
				if !alive(pid) {
					t.Fatalf("process %d died with its runner: nothing to show", pid)
				}
			}
			record := records[1]
			if c.nameless {
				record = records[0]
			}
			n, err := KillRecord(within(t), record)
			if err != nil || n < c.pids {
				t.Errorf("killed %d, want at least %d: %v", n, c.pids, err)
			}
			for _, pid := range pids {
				if alive(pid) {
					t.Errorf("process %d survived", pid)
				}
			}
			if n, err := KillRecord(within(t), record); n != 0 || err != nil {
				t.Errorf("second time: killed %d, %v", n, err)
			}
		})
	}
}

// playScrub scrubs TICKET, then shows what the kernel says of itself and of a
// child.
func playScrub() error {
	value, present, err := ScrubEnv("TICKET")
	if err != nil {
		return err
	}
	if _, again, err := ScrubEnv("TICKET"); again || err != nil {
		return fmt.Errorf("second scrub: %v %w", again, err)
	}
	own, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getpid()) + "/environ")
	if err != nil {
		return err
	}
	child := exec.CommandContext(context.Background(), "cat", "/proc/self/environ")
	theirs, err := child.Output()
	if err != nil {
		return err
	}
	if err := ClearDumpable(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"value": value, "present": present, "own": own, "child": theirs, "other": os.Getenv("OTHER"), "got": os.Getenv("TICKET"),
	})
}

// runScrub starts the role with exactly env: exec.Cmd would drop duplicates,
// the kernel does not.
func runScrub(t *testing.T, env []string) []byte {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.StartProcess(os.Args[0], os.Args[:1], &os.ProcAttr{
		Env:   append(append(testEnv(), env...), roleVariable+"=scrub"),
		Files: []*os.File{nil, w, os.Stderr},
	})
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	state, err := p.Wait()
	if err != nil || !state.Success() {
		t.Fatalf("scrub: %v %v", state, err)
	}
	return raw
}

func TestScrubEnv(t *testing.T) {
	t.Parallel()
	const secret = "one-use-ticket-0123456789"
	for name, c := range map[string]struct {
		env     []string
		present bool
	}{
		"middle":  {[]string{"FIRST=1", "TICKET=" + secret, "OTHER=kept"}, true},
		"first":   {[]string{"TICKET=" + secret, "OTHER=kept"}, true},
		"twice":   {[]string{"TICKET=" + secret, "OTHER=kept", "TICKET=" + secret}, true},
		"absent":  {[]string{"OTHER=kept", "XTICKET=a"}, false},
		"empty":   {[]string{"OTHER=kept", "TICKET="}, true},
		"similar": {[]string{"OTHER=kept", "TICKETS=a", "TICKET=" + secret}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := runScrub(t, c.env)
			var got struct {
				Value, Other, Got string
				Present           bool
				Own, Child        []byte
			}
			if err := json.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
			if got.Present != c.present || got.Other != "kept" || got.Got != "" {
				t.Errorf("present %v, other %q, got %q", got.Present, got.Other, got.Got)
			}
			for what, block := range map[string][]byte{"own": got.Own, "child": got.Child} {
				if bytes.Contains(block, []byte(secret)) || bytes.Contains(block, []byte("\x00TICKET=")) || bytes.HasPrefix(block, []byte("TICKET=")) {
					t.Errorf("%s environment still shows the ticket: %q", what, block)
				}
				if !bytes.Contains(block, []byte("OTHER=kept")) {
					t.Errorf("%s environment lost another variable: %q", what, block)
				}
			}
		})
	}
}
