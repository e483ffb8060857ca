package runnerd

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bowline/wire/prp"
)

func TestTicketByFile(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	path := filepath.Join(t.TempDir(), "ticket")
	write := func(mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(a.ticket()+"\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { //nolint:gosec // G302: the case
			t.Fatal(err)
		}
	}
	write(0o640)
	r := startRunner(t, a, startOptions{state: t.TempDir(), args: []string{"--ticket-file", path}})
	r.wantExit(2)
	if got := r.stderr.String(); !strings.Contains(got, "accessible to others") {
		t.Fatalf("stderr %s", got)
	}
	write(0o600)
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	startRunner(t, a, startOptions{state: t.TempDir(), args: []string{"--ticket-file", link}}).wantExit(2)
	startRunner(t, a, startOptions{state: t.TempDir(), args: []string{"--ticket-file", path}})
	a.await("a connection", func() bool { return a.conn != nil })
}

func TestTicketByDescriptor(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state := t.TempDir()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--connect-url", a.url, "--state-dir", state, "--ticket-fd", "3"}, identityFlags(a.identity)...)
	cmd := exec.Command(os.Args[0], args...) //nolint:gosec,noctx // G204: this test binary; ended below
	cmd.Env = []string{"RUNNERD_TEST_CHILD=1"}
	cmd.ExtraFiles = []*os.File{read}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("the killed runner ended by itself")
		}
	})
	if err := read.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(write, a.ticket()); err != nil {
		t.Fatal(err)
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	a.await("a connection", func() bool { return a.conn != nil })
}

func TestOneRunnerPerStateDirectory(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state := t.TempDir()
	startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	a.await("a connection", func() bool { return a.conn != nil })
	second := startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	second.wantExit(3)
	if got := second.stderr.String(); !strings.Contains(got, "data_dir_busy") {
		t.Fatalf("stderr %s", got)
	}
}

// TestDamagedLogIsAFault flips a bit in the log of a killed runner.
func TestDamagedLogIsAFault(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state := t.TempDir()
	r := startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	openScripted(a, nil)
	r.kill()
	names, err := filepath.Glob(filepath.Join(state, "log", "*.seg"))
	if err != nil || len(names) != 1 {
		t.Fatalf("segments %v: %v", names, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	b[200] ^= 1
	if err := os.WriteFile(names[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	r = startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	r.wantExit(5)
	if got := r.stderr.String(); !strings.Contains(got, `"code":"log_damaged"`) || !strings.Contains(got, "segment 1") {
		t.Fatalf("stderr %s", got)
	}
	startRunner(t, a, startOptions{state: state, prpUse: true, ticket: a.ticket()}).wantExit(1)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	startRunner(t, a, startOptions{state: state, ticket: a.ticket(), args: []string{"--metrics", addr}})
	openScripted(a, nil)
	a.do(prp.CommandTurnStart, map[string]any{"text": "x", "turnId": "turn-a"})
	a.awaitEvent("turn.completed")
	a.do(prp.CommandRunnerDrain, map[string]any{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req) //nolint:gosec // G704: loopback
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if cerr := resp.Body.Close(); err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
	for _, want := range []string{
		`runnerd_build_info\{.*version=`, `runnerd_connected 1`, `runnerd_handshakes_total\{code="",result="ok"\} 1`,
		`runnerd_handshake_duration_seconds_count 1`, `runnerd_frames_total\{direction="sent",kind="event"\} 4`,
		`runnerd_frame_bytes_total\{direction="sent",layer="wire"\} \d`, `runnerd_decrypt_failures_total 0`,
		`runnerd_outbox_events 0`, `runnerd_outbox_bytes 0`, `runnerd_outbox_oldest_seconds 0`, `runnerd_ack_lag_events 0`,
		`runnerd_commands_total\{kind="turn.start",outcome="completed"\} 1`, `runnerd_command_duration_seconds_count\{kind="turn.start"\} 1`,
		`runnerd_lease_remaining_seconds\{clock="wall"\} \d`, `runnerd_provider_up\{provider="scripted"\} 1`,
		`runnerd_fsync_duration_seconds_count \d`, `runnerd_children 0`,
	} {
		if !regexp.MustCompile(`(?m)^` + want).Match(body) {
			t.Errorf("no line %s in\n%s", want, body)
		}
	}
	elsewhere := startRunner(t, a, startOptions{state: t.TempDir(), ticket: a.ticket(), args: []string{"--metrics", "0.0.0.0:0"}})
	elsewhere.wantExit(2)
}

// TestOwnersBeginAnotherRun archives runner-state.json as the existing
// controller does, and begins another run in the same directory.
func TestOwnersBeginAnotherRun(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state := t.TempDir()
	r := startRunner(t, a, startOptions{state: state, prpUse: true, ticket: a.ticket()})
	openScripted(a, nil)
	a.do(prp.CommandRunnerSuspend, map[string]any{})
	r.wantExit(0)
	next := newAuthority(t)
	next.identity.RunID = "run-2"
	r = startRunner(t, next, startOptions{state: state, prpUse: true, ticket: next.ticket()})
	r.wantExit(1)
	if err := os.Rename(filepath.Join(state, "runner-state.json"), filepath.Join(t.TempDir(), "archived")); err != nil {
		t.Fatal(err)
	}
	r = startRunner(t, next, startOptions{state: state, prpUse: true, ticket: next.ticket()})
	openScripted(next, nil)
	if v := stateFile(t, state); v["runId"] != "run-2" {
		t.Fatalf("runId %v", v["runId"])
	}
	next.do(prp.CommandRunnerShutdown, map[string]any{})
	r.wantExit(0)
	if got := next.eventTypes(); got[0] != "session.started" {
		t.Fatalf("events %v", got)
	}
}
