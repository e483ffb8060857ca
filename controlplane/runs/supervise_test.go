package runs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"bowline/controlplane/launch"
	"bowline/controlplane/resource"
	"bowline/controlplane/store"
)

// notes hands the launcher's log lines to the test: the barriers of these
// tests.
type notes struct{ ch chan string }

func (n notes) Enabled(context.Context, slog.Level) bool { return true }
func (n notes) WithAttrs([]slog.Attr) slog.Handler       { return n }
func (n notes) WithGroup(string) slog.Handler            { return n }
func (n notes) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "runner" {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "event" {
				n.ch <- a.Value.String()
			}
			return true
		})
	}
	return nil
}

func (n notes) wait(t *testing.T, want string) {
	t.Helper()
	for {
		select {
		case got := <-n.ch:
			if got == want {
				return
			}
		case <-within(t).Done():
			t.Fatalf("the launcher did not say %q", want)
		}
	}
}

func (r *rig) process(id string) (launch.ProcessID, *store.LaunchRow) {
	r.t.Helper()
	row, err := r.st.Launch(within(r.t), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return launch.ProcessID{PID: row.PID, StartTicks: row.StartTicks, BootID: row.BootID}, row
}

func (r *rig) kill(p launch.ProcessID) {
	r.t.Helper()
	if !launch.Alive(p) {
		r.t.Fatalf("process %+v is gone", p)
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
}

// A runner outlives its server, is recorded before it can join, is taken over
// by the next server, and is started again when it dies.
func TestLocalRunnerOverARestart(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	said := notes{make(chan string, 64)}
	r := newRig(t, func(c *Config) {
		c.Launch.Path = self
		c.Log = slog.New(said)
		c.Drivers["fake"] = Driver{Kind: KindScripted, Env: map[string]string{"FAKE_RUNNER": "hang"}}
	})
	run := r.create(&resource.CreateRun{Driver: "fake"}, "")
	said.wait(t, launch.NoteStarted)
	first, row := r.process(run.ID)
	if row.Attempt != 1 || row.PID == 0 || row.StartTicks == 0 || row.BootID == "" || !row.ExitedAt.IsZero() {
		t.Errorf("launch record %+v", row)
	}
	if got, err := r.Get(within(t), run.ID); err != nil || got.Status != store.StatusAssigned {
		t.Errorf("status %v, %v", got, err)
	}
	if tickets, err := r.st.Tickets(within(t), run.ID); err != nil || len(tickets) != 1 {
		t.Errorf("%d tickets, %v", len(tickets), err)
	}
	argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", first.PID))
	if err != nil || strings.Contains(string(argv), "bootstrap_") {
		t.Errorf("argv %q, %v: it must not hold the ticket", argv, err)
	}
	r.stop()
	if !launch.Alive(first) {
		t.Fatal("the runner ended with its server")
	}
	r.start()
	said.wait(t, launch.NoteAdopted)
	r.kill(first)
	said.wait(t, launch.NoteExited)
	if _, row = r.process(run.ID); row.Exit != "unknown" || row.Attempt != 1 {
		t.Errorf("end of an adopted runner: %q", row.Exit)
	}
	said.wait(t, launch.NoteStarted)
	second, row := r.process(run.ID)
	if row.Attempt != 2 || second == first {
		t.Errorf("second start: %+v", row)
	}
	if _, err := r.Cancel(within(t), "token:t", run.ID); err != nil {
		t.Fatal(err)
	}
	r.kill(second)
	said.wait(t, launch.NoteExited)
	if got, err := r.Get(within(t), run.ID); err != nil || got.Status != store.StatusCancelled {
		t.Errorf("run %+v, %v", got, err)
	}
}
