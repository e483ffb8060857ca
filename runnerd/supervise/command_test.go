package supervise_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"bowline/driver"
	"bowline/driver/command"
	"bowline/driver/drivertest"
	"bowline/runnerd/supervise"
)

const patience = 20 * time.Second

func newSupervisor(t *testing.T) *supervise.Supervisor {
	t.Helper()
	s, err := supervise.New(supervise.Options{})
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

// The kit with real supervision. Not parallel: it looks for leaks.
func TestCommandConforms(t *testing.T) {
	s := newSupervisor(t)
	for name, pty := range map[string]string{"pipes": "false", "pty": "true"} {
		t.Run(name, func(t *testing.T) {
			drivertest.Conform(t, command.New(), drivertest.Cases{
				Quick:     json.RawMessage(`{"kind":"command","argv":["sh","-c","echo out"],"pty":` + pty + `}`),
				Hang:      json.RawMessage(`{"kind":"command","argv":["sh","-c","echo ready; setsid sleep 1000 & exec sleep 1000"],"pty":` + pty + `}`),
				HangReady: func(ev driver.Event) bool { return ev.Type == "item.delta" },
				Env:       testEnv(),
				Spawn:     s.Spawn,
			})
		})
	}
}

// countingHost counts the bytes of every delta and forgets the event.
type countingHost struct {
	*drivertest.Host
	t     *testing.T
	bytes map[string]int64
	sums  map[string]string
	end   chan string
}

func (h *countingHost) Emit(ctx context.Context, ev driver.Event) error {
	var p struct {
		Stream, Text string
		Data         []byte
		SHA256       map[string]string
	}
	if err := json.Unmarshal(ev.Payload, &p); err != nil {
		h.t.Error(err)
	}
	switch {
	case ev.Type == "item.delta":
		h.bytes[p.Stream] += int64(len(p.Text) + len(p.Data))
		return ctx.Err()
	case ev.Type == "item.completed":
		h.sums = p.SHA256
	case ev.Terminal:
		h.end <- ev.Type
	}
	return nil
}

func TestLargeOutput(t *testing.T) {
	t.Parallel()
	h := &countingHost{Host: drivertest.NewHost(t, newSupervisor(t).Spawn), t: t, bytes: map[string]int64{}, end: make(chan string, 1)}
	s, err := command.New().Open(t.Context(), h, driver.Config{
		Provider:  json.RawMessage(`{"kind":"command","argv":["sh","-c","yes 0123456 | head -c ` + strconv.Itoa(largeOutput) + `"]}`),
		Workspace: t.TempDir(), Env: testEnv(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1"}); err != nil {
		t.Fatal(err)
	}
	select {
	case end := <-h.end:
		if end != "turn.completed" {
			t.Errorf("ended with %s", end)
		}
	case <-time.After(2 * patience):
		t.Fatal("waited in vain for the end of a large output")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	sum := sha256.Sum256(bytes.Repeat([]byte("0123456\n"), largeOutput/8))
	if h.bytes["stdout"] != largeOutput || h.sums["stdout"] != hex.EncodeToString(sum[:]) {
		t.Errorf("%d bytes, sum %s", h.bytes["stdout"], h.sums["stdout"])
	}
}

func alive(t *testing.T, pid int) bool {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	return !bytes.Contains(stat, []byte(") Z "))
}

// firstPid waits for the pid a program prints.
func firstPid(t *testing.T, h *drivertest.Host) int {
	t.Helper()
	ev, _ := h.AwaitType("item.delta", 0)
	var p struct{ Text string }
	if err := json.Unmarshal(ev.Payload, &p); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(p.Text))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func openCommand(t *testing.T, h driver.Host, script, more string) driver.Session {
	t.Helper()
	quoted, err := json.Marshal(script)
	if err != nil {
		t.Fatal(err)
	}
	s, err := command.New().Open(t.Context(), h, driver.Config{
		Provider:  json.RawMessage(`{"kind":"command","argv":["sh","-c",` + string(quoted) + `]` + more + `}`),
		Workspace: t.TempDir(), Env: testEnv(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartTurn(t.Context(), driver.Turn{ID: "turn_1"}); err != nil {
		t.Fatal(err)
	}
	return s
}

// However a turn is ended, its setsid grandchild is dead when the end is told.
func TestTheWholeTreeDies(t *testing.T) {
	t.Parallel()
	// The leader ends at once; the grandchild holds no pipe and ignores what it
	// can, so nothing but the kill of the tree ends it.
	const script = `trap 'exit 0' INT TERM; setsid sh -c 'trap "" INT TERM; echo $$; exec sleep 1000 >/dev/null 2>&1' & wait`
	for name, c := range map[string]struct {
		more    string
		end     func(context.Context, driver.Session) error
		outcome string
	}{
		"interrupt": {"", func(ctx context.Context, s driver.Session) error { return s.Interrupt(ctx, "turn_1") }, "cancelled"},
		"close":     {"", func(ctx context.Context, s driver.Session) error { return s.Close(ctx) }, "cancelled"},
		"timeout":   {`,"timeoutMs":500`, func(context.Context, driver.Session) error { return nil }, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := drivertest.NewHost(t, newSupervisor(t).Spawn)
			s := openCommand(t, h, script, c.more)
			pid := firstPid(t, h)
			if err := c.end(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			end, _ := h.AwaitTerminal(0)
			if alive(t, pid) {
				t.Error("the grandchild lives although the turn has ended")
			}
			if !strings.Contains(string(end.Payload), `"outcome":"`+c.outcome+`"`) {
				t.Errorf("ended with %s", end.Payload)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A daemon that keeps stdout does not keep the turn, and dies with the session.
func TestADaemonDoesNotKeepTheTurn(t *testing.T) {
	t.Parallel()
	h := drivertest.NewHost(t, newSupervisor(t).Spawn)
	s := openCommand(t, h, `setsid sleep 1000 & echo $!`, "")
	pid := firstPid(t, h)
	end, _ := h.AwaitTerminal(0)
	item, _ := h.AwaitType("item.completed", 0)
	if end.Type != "turn.completed" || !strings.Contains(string(item.Payload), `"pipesLeftOpen":true`) {
		t.Errorf("%s %s", end.Type, item.Payload)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive(t, pid) {
		t.Error("the daemon survived the session")
	}
}

func TestPTYStream(t *testing.T) {
	t.Parallel()
	h := drivertest.NewHost(t, newSupervisor(t).Spawn)
	s := openCommand(t, h, `test -t 1 && echo one; echo two >&2; cat; exit 2`, `,"pty":true`)
	h.AwaitTerminal(0)
	var out string
	for _, ev := range h.Events() {
		var p struct{ Stream, Text string }
		if err := json.Unmarshal(ev.Payload, &p); err != nil {
			t.Fatal(err)
		}
		if p.Stream != "" && p.Stream != "pty" {
			t.Errorf("stream %q", p.Stream)
		}
		out += p.Text
	}
	if out != "one\r\ntwo\r\n" {
		t.Errorf("output %q", out)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
