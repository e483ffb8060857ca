package runnerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bowline/wire/prp"
)

func TestMain(m *testing.M) {
	if os.Getenv("RUNNERD_TEST_CHILD") == "1" {
		os.Exit(Main(context.Background(), os.Args[1:], os.Environ(), Stdio{Out: os.Stdout, Err: os.Stderr}))
	}
	goleak.VerifyTestMain(m)
}

// runner is a real runnerd process.
type runner struct {
	t      testing.TB
	cmd    *exec.Cmd
	stderr bytes.Buffer
	stdout bytes.Buffer
	done   chan struct{}
	code   int
}

type startOptions struct {
	deadStderr bool // a pipe whose reader is gone, as behind a killed spawner
	state      string
	env        []string // beside the base ones
	prpUse     bool
	ticket     string
	args       []string
}

func identityFlags(id prp.Identity) []string {
	return []string{
		"--runner-id", id.RunnerInstanceID, "--environment-lease-id", id.EnvironmentLeaseID, "--run-id", id.RunID,
		"--session-id", id.NormalizedSessionID, "--turn-id", id.TurnID, "--item-id", id.ItemID,
		"--runner-version", "0.3.0", "--runner-digest", "sha256:" + strings.Repeat("a", 64),
	}
}

func startRunner(t testing.TB, a *authority, o startOptions) *runner {
	t.Helper()
	r := &runner{t: t, done: make(chan struct{})}
	args := append([]string{"--connect-url", a.url, "--state-dir", o.state}, identityFlags(a.identity)...)
	if !o.prpUse {
		args = append(args, "--workspace", o.state)
	}
	r.cmd = exec.Command(os.Args[0], append(args, o.args...)...) //nolint:gosec,noctx // G204: this test binary; ended by cleanup
	r.cmd.Env = append([]string{"RUNNERD_TEST_CHILD=1", "PATH=" + os.Getenv("PATH"), "HOME=" + o.state}, o.env...)
	r.cmd.Dir = o.state
	name := TicketVariable
	if o.prpUse {
		name = PRPTicketVariable
	}
	if o.ticket != "" {
		r.cmd.Env = append(r.cmd.Env, name+"="+o.ticket)
	}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if o.deadStderr {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := read.Close(); err != nil {
			t.Fatal(err)
		}
		r.cmd.Stderr = write
		defer write.Close() //nolint:errcheck // of a pipe nobody reads
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		err := r.cmd.Wait()
		var ee *exec.ExitError
		switch {
		case err == nil:
		case errors.As(err, &ee):
			r.code = ee.ExitCode()
		default:
			r.code = -2
		}
	}()
	t.Cleanup(func() {
		select {
		case <-r.done:
		default:
			r.kill()
		}
		if t.Failed() {
			t.Logf("runner %d stderr:\n%s", r.cmd.Process.Pid, r.stderr.String())
		}
	})
	return r
}

func (r *runner) kill() {
	r.t.Helper()
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.t.Fatal(err)
	}
	<-r.done
}

func (r *runner) wait() int {
	r.t.Helper()
	select {
	case <-r.done:
		return r.code
	case <-time.After(patience):
		r.t.Fatalf("runner did not end within %v", patience)
		return 0
	}
}

func (r *runner) wantExit(code int) {
	r.t.Helper()
	if got := r.wait(); got != code {
		r.t.Fatalf("exit code %d, want %d; stderr: %s", got, code, r.stderr.String())
	}
}

func stateFile(t testing.TB, state string) map[string]any {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(state, "runner-state.json")) //nolint:gosec // G304: test
	if err != nil {
		t.Fatal(err)
	}
	return decodeJSON(t, b)
}

// openScripted brings a scripted session to its open state.
func openScripted(a *authority, script map[string]any) {
	a.t.Helper()
	a.do(prp.CommandRunPrepare, prepare(scriptedProvider(script)))
	a.do(prp.CommandSessionOpen, map[string]any{"reuse": "same_session"})
}

func TestScriptedSession(t *testing.T) {
	t.Parallel()
	for _, prpUse := range []bool{false, true} {
		t.Run(fmt.Sprintf("prp use %v", prpUse), func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			state := t.TempDir()
			r := startRunner(t, a, startOptions{state: state, prpUse: prpUse, ticket: a.ticket()})
			openScripted(a, nil)
			res := a.do(prp.CommandTurnStart, map[string]any{"text": "hello", "turnId": "turn-a"})
			if got := res.Get("providerTurnId").Str(); got != "turn-a" {
				t.Fatalf("providerTurnId %q", got)
			}
			a.awaitEvent("turn.completed")
			if got := raw(a.do(prp.CommandRunnerDrain, map[string]any{})); !strings.Contains(got, `"retainedEventsDrained":true`) {
				t.Fatalf("drain: %s", got)
			}
			a.do(prp.CommandRunnerSuspend, map[string]any{})
			r.wantExit(0)
			want := []string{"session.started", "turn.started", "item.completed", "turn.completed"}
			if got := a.eventTypes(); !slices.Equal(got, want) {
				t.Fatalf("events %v, want %v", got, want)
			}
			v := stateFile(t, state)
			if v["lifecycle"] != "suspended" || v["pendingTerminalDelivery"] != nil || v["runId"] != "run-1" {
				t.Fatalf("runner-state.json: lifecycle %v, fence %v", v["lifecycle"], v["pendingTerminalDelivery"])
			}
			if n := len(v["processedCommands"].(map[string]any)); n != 5 { //nolint:errcheck // a test
				t.Fatalf("%d processed commands, want 5", n)
			}
		})
	}
}

func TestUnsupportedCommandsAreAnswered(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	r := startRunner(t, a, startOptions{state: t.TempDir(), ticket: a.ticket()})
	openScripted(a, nil)
	for _, kind := range []string{prp.CommandSessionGoalGet, prp.CommandSessionBudgetIncrease, prp.CommandRunAttach, prp.CommandSemanticToolResult, prp.CommandInteractionReceipt, prp.CommandTurnSteer, prp.CommandRequestResolve} {
		if got := a.do(kind, map[string]any{}); got.Get("code").Str() != "provider_command_unavailable" || got.Get("status").Str() != "rejected" {
			t.Errorf("%s: %s", kind, raw(got))
		}
	}
	if got := a.do(prp.CommandSessionSnapshot, map[string]any{}); got.Get("status").Str() != "session_open" || got.Get("threadId").Str() == "" {
		t.Errorf("snapshot: %s", raw(got))
	}
	if got := a.do(prp.CommandTurnInterrupt, map[string]any{}); got.Get("status").Str() != "already_terminal" {
		t.Errorf("interrupt: %s", raw(got))
	}
	if got := a.do(prp.CommandTurnStop, map[string]any{"reason": "x"}); raw(got) != `{"providerExitConfirmed":true}` {
		t.Errorf("stop: %s", raw(got))
	}
	a.do(prp.CommandRunnerShutdown, map[string]any{})
	r.wantExit(0)
}

func TestBadPrepareIsRefusedWithACode(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	startRunner(t, a, startOptions{state: t.TempDir(), ticket: a.ticket()})
	for _, tc := range []struct {
		payload any
		code    string
	}{
		{prepare(map[string]any{"kind": "nobody"}), "driver_unknown"},
		{prepare(map[string]any{"kind": "scripted", "extra": 1}), "input_invalid"},
		{prepare(map[string]any{"kind": "command", "argv": []any{}}), "input_invalid"},
		{map[string]any{"provider": map[string]any{"kind": "scripted"}, "authorizedTools": map[string]any{"schema": "paperclip.runner.authorized-tools.v1", "schemaVersion": 1, "operations": []any{}, "catalogDigest": "sha256:00"}}, "input_invalid"},
		{map[string]any{}, "input_invalid"},
	} {
		c := a.queue(prp.CommandRunPrepare, tc.payload)
		a.finish(c)
		if c.status != prp.StatusFailed || c.result.Get("code").Str() != tc.code || c.result.Get("message").Str() == "" {
			t.Errorf("%v: %s %s", tc.payload, c.status, raw(c.result))
		}
	}
	// Nothing is half-made: a good one still works.
	openScripted(a, nil)
}

func TestReconnectSendsTheSameBytes(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	r := startRunner(t, a, startOptions{state: t.TempDir(), ticket: a.ticket(), args: []string{"--reconnect-delay-ms", "1"}})
	openScripted(a, map[string]any{"events": 300, "textBytes": 50})
	a.mu.Lock()
	a.holdAcks = true
	a.mu.Unlock()
	a.mu.Lock()
	before := a.acked
	a.mu.Unlock()
	c := a.queue(prp.CommandTurnStart, map[string]any{"text": "x", "turnId": "turn-a"})
	a.finish(c)
	a.await("an unacknowledged event", func() bool { return len(a.events) > int(before) })
	a.mu.Lock()
	a.dropLocked()
	a.holdAcks = false // what was seen and not acknowledged comes again
	a.mu.Unlock()
	for range 3 {
		a.mu.Lock()
		n := a.conns
		a.mu.Unlock()
		a.drop()
		a.await("the next connection", func() bool { return a.conns > n })
	}
	a.awaitEvent("turn.completed")
	a.do(prp.CommandRunnerDrain, map[string]any{})
	a.do(prp.CommandRunnerShutdown, map[string]any{})
	r.wantExit(0)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, e := range a.events {
		if e.SourceSeq != int64(i+1) {
			t.Fatalf("event %d has number %d", i, e.SourceSeq)
		}
	}
	if len(a.events) != 304 {
		t.Fatalf("%d events, want 304", len(a.events))
	}
}

func TestKilledRunnerContinuesTheTurn(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state, gate := t.TempDir(), filepath.Join(t.TempDir(), "gate")
	r := startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	openScripted(a, map[string]any{"events": 100, "textBytes": 10, "gate": gate, "gateAt": 40})
	a.do(prp.CommandTurnStart, map[string]any{"text": "x", "turnId": "turn-a"})
	r.kill()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r = startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	a.awaitEvent("turn.completed")
	a.do(prp.CommandRunnerDrain, map[string]any{})
	a.do(prp.CommandRunnerShutdown, map[string]any{})
	r.wantExit(0)
	types := a.eventTypes()
	count := func(kind string) (n int) {
		for _, t := range types {
			if t == kind {
				n++
			}
		}
		return n
	}
	if count("item.delta") != 100 || count("turn.started") != 1 || count("turn.completed") != 1 || count("runner.reconciled") != 1 || count("session.resumed") != 1 {
		t.Fatalf("events %v", types)
	}
	index := 0
	for _, e := range a.events {
		if e.Type == "item.delta" {
			if n, ok := e.Payload.Get("index").SafeInt(); !ok || n != int64(index) {
				t.Fatalf("delta %d has index %d", index, n)
			}
			index++
		}
	}
}

func commandProvider(argv ...string) map[string]any {
	return map[string]any{"kind": "command", "argv": argv}
}

func TestKilledRunnerEndsACommandAsLost(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state := t.TempDir()
	pidFile := filepath.Join(state, "pid")
	r := startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	a.do(prp.CommandRunPrepare, prepare(commandProvider("sh", "-c", "echo $$ > "+pidFile+"; echo started; sleep 600 & wait")))
	a.do(prp.CommandSessionOpen, map[string]any{})
	a.do(prp.CommandTurnStart, map[string]any{"text": "", "turnId": "turn-a"})
	a.awaitEvent("item.delta")
	pid := readPID(t, pidFile)
	r.kill()
	if !alive(pid) {
		t.Fatal("the command died with its runner; the test proves nothing")
	}
	r = startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	ev := a.awaitEvent("turn.failed")
	if got := ev.Payload.Get("error", "code").Str(); got != "runner_lost" {
		t.Fatalf("turn.failed says %s", raw(ev.Payload))
	}
	if alive(pid) {
		t.Fatal("the command of the killed runner still runs")
	}
	a.do(prp.CommandRunnerDrain, map[string]any{})
	a.do(prp.CommandRunnerShutdown, map[string]any{})
	r.wantExit(0)
	if n := strings.Count(strings.Join(a.eventTypes(), " "), "turn.failed"); n != 1 {
		t.Fatalf("%d terminal events", n)
	}
}

func readPID(t testing.TB, path string) int {
	t.Helper()
	b, err := os.ReadFile(path) //nolint:gosec // G304: test
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(b), &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func TestPendingCommandBecomesIndeterminate(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state := t.TempDir()
	r := startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	// A Codex that never answers: session.open stays pending.
	a.do(prp.CommandRunPrepare, prepare(map[string]any{"kind": "codex", "command": "sleep", "args": []any{"600"}, "cwd": state}))
	open := a.queue(prp.CommandSessionOpen, map[string]any{})
	a.await("the provider process", func() bool { return strings.Contains(readLog(state), `"pid"`) || open.finished })
	r.kill()
	if open.finished {
		t.Fatalf("session.open ended: %s", raw(open.result))
	}
	startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	a.finish(open)
	if open.status != prp.StatusFailed || open.result.Get("code").Str() != "execution_indeterminate" {
		t.Fatalf("%s %s", open.status, raw(open.result))
	}
}

// readLog is the text of the session log: records hold their JSON as it is.
func readLog(state string) string {
	names, err := filepath.Glob(filepath.Join(state, "log", "*.seg"))
	if err != nil {
		return ""
	}
	var all strings.Builder
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil { //nolint:gosec // G304: test
			all.Write(b)
		}
	}
	return all.String()
}

func TestTicketIsNowhere(t *testing.T) {
	t.Parallel()
	for _, prpUse := range []bool{false, true} {
		t.Run(fmt.Sprintf("prp use %v", prpUse), func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			state := t.TempDir()
			pidFile := filepath.Join(state, "pid")
			ticket := a.ticket()
			r := startRunner(t, a, startOptions{state: state, prpUse: prpUse, ticket: ticket})
			a.do(prp.CommandRunPrepare, prepare(commandProvider("sh", "-c", "echo $$ > "+pidFile+"; echo up; exec sleep 600")))
			a.do(prp.CommandSessionOpen, map[string]any{})
			a.do(prp.CommandTurnStart, map[string]any{"text": "", "turnId": "turn-a"})
			a.awaitEvent("item.delta")
			for _, pid := range []int{r.cmd.Process.Pid, readPID(t, pidFile)} {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
				if os.Geteuid() != 0 && errors.Is(err, os.ErrPermission) {
					continue // not dumpable: nobody of this user can look
				}
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Contains(b, []byte("PATH=")) {
					t.Fatalf("environment of %d is empty: the test proves nothing", pid)
				}
				if bytes.Contains(b, []byte(ticket)) || bytes.Contains(b, []byte("TICKET")) {
					t.Fatalf("the ticket is in /proc/%d/environ", pid)
				}
			}
			if strings.Contains(readLog(state), ticket) {
				t.Fatal("the ticket is in the session log")
			}
			a.do(prp.CommandTurnStop, map[string]any{})
			a.do(prp.CommandRunnerShutdown, map[string]any{})
			r.wantExit(0)
		})
	}
}

func TestPassedVariablesAreRedacted(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	secret := "s3cr3t-value-of-a-variable"
	r := startRunner(t, a, startOptions{state: t.TempDir(), ticket: a.ticket(), env: []string{"MY_SECRET=" + secret}, args: []string{"--pass-env", "MY_SECRET"}})
	a.do(prp.CommandRunPrepare, prepare(commandProvider("sh", "-c", `printf 's3cr3t-'; sleep 0.2; printf 'value-of-a-variable'; echo "-$MY_SECRET-end"`)))
	a.do(prp.CommandSessionOpen, map[string]any{})
	a.do(prp.CommandTurnStart, map[string]any{"text": "", "turnId": "turn-a"})
	a.awaitEvent("turn.completed")
	a.do(prp.CommandRunnerShutdown, map[string]any{})
	r.wantExit(0)
	var text strings.Builder
	for _, e := range a.events {
		text.WriteString(e.Payload.Get("text").Str())
		if strings.Contains(raw(e.Whole), secret) {
			t.Fatalf("event %d holds the secret", e.SourceSeq)
		}
	}
	if got := text.String(); got != "[REDACTED]-[REDACTED]-end\n" {
		t.Fatalf("output %q", got)
	}
}

func TestTerminateDrains(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state := t.TempDir()
	pidFile := filepath.Join(state, "pid")
	r := startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	a.do(prp.CommandRunPrepare, prepare(commandProvider("sh", "-c", "echo $$ > "+pidFile+"; echo up; exec sleep 600")))
	a.do(prp.CommandSessionOpen, map[string]any{})
	a.do(prp.CommandTurnStart, map[string]any{"text": "", "turnId": "turn-a"})
	a.awaitEvent("item.delta")
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.wantExit(0)
	if alive(readPID(t, pidFile)) {
		t.Fatal("the command outlived its runner")
	}
	a.awaitEvent("turn.cancelled")
	if v := stateFile(t, state); v["lifecycle"] != "suspended" {
		t.Fatalf("lifecycle %v", v["lifecycle"])
	}
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	state := t.TempDir()
	r := startRunner(t, a, startOptions{state: state, ticket: a.ticket()})
	openScripted(a, nil)
	a.mu.Lock()
	err := a.sendLocked(a.conn, prp.KindRevoke, "revoke_1", prp.EncodeRevoke(1))
	a.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	r.wantExit(0)
	if v := stateFile(t, state); v["lifecycle"] != "revoked" {
		t.Fatalf("lifecycle %v", v["lifecycle"])
	}
	// Whoever starts it again gets nothing.
	startRunner(t, a, startOptions{state: state, ticket: a.ticket()}).wantExit(0)
}

func TestPing(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	startRunner(t, a, startOptions{state: t.TempDir(), ticket: a.ticket()})
	a.await("a connection", func() bool { return a.conn != nil })
	a.mu.Lock()
	err := a.sendLocked(a.conn, prp.KindPing, "ping_1", []byte("{}"))
	a.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	a.await("pong", func() bool { return slices.Contains(a.kinds, prp.KindPong) })
}

func TestLostTerminalAckLeavesTheFence(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.noResAck = true
	state := t.TempDir()
	r := startRunner(t, a, startOptions{state: state, prpUse: true, ticket: a.ticket()})
	openScripted(a, nil)
	a.do(prp.CommandRunnerSuspend, map[string]any{})
	r.wantExit(1)
	if v := stateFile(t, state); v["lifecycle"] != "suspended" || v["pendingTerminalDelivery"] == nil {
		t.Fatalf("lifecycle %v, fence %v", v["lifecycle"], v["pendingTerminalDelivery"])
	}
	// The authority has the result: the next process only finds that out.
	r = startRunner(t, a, startOptions{state: state, prpUse: true, ticket: a.ticket()})
	r.wantExit(0)
	if v := stateFile(t, state); v["lifecycle"] != "suspended" || v["pendingTerminalDelivery"] != nil {
		t.Fatalf("lifecycle %v, fence %v", v["lifecycle"], v["pendingTerminalDelivery"])
	}
	if slices.Contains(a.eventTypes(), "runner.reconciled") {
		t.Fatal("a runner that only reconciles a receipt says nothing else")
	}
}

// While a terminal result waits for its acknowledgement, a lease_renewed is an
// error: the authority renews nothing once it has sent that command.
func TestRenewalBehindATerminalResult(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.noResAck = true
	state := t.TempDir()
	r := startRunner(t, a, startOptions{state: state, prpUse: true, ticket: a.ticket()})
	openScripted(a, nil)
	suspend := a.queue(prp.CommandRunnerSuspend, map[string]any{})
	a.finish(suspend)
	a.mu.Lock()
	err := errors.Join(
		a.sendLocked(a.conn, prp.KindLeaseRenewed, "lease_renewed_1", prp.EncodeLeaseRenewed(prp.LeaseRenewed{PreviousExpiresAtUnixMs: a.lease.expires, ExpiresAtUnixMs: a.lease.expires})),
		a.sendLocked(a.conn, prp.KindCommandResultAck, "command_result_ack_x", prp.EncodeCommandResultAck(prp.CommandResult{
			CommandID: suspend.cmd.CommandID, ControllerSeq: suspend.cmd.ControllerSeq, CommandType: suspend.cmd.Type, Status: suspend.status,
		})),
	)
	a.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	r.wantExit(1)
	if v := stateFile(t, state); v["pendingTerminalDelivery"] == nil {
		t.Fatal("the fence is gone")
	}
}

// A spawner that was killed leaves a pipe without reader: a line on stderr must
// not end the runner with a signal.
func TestDeadStderrIsNoSignal(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	r := startRunner(t, a, startOptions{state: t.TempDir(), prpUse: true, ticket: a.ticket(), deadStderr: true})
	openScripted(a, nil)
	a.mu.Lock()
	err := a.sendLocked(a.conn, prp.KindAck, "ack_99", prp.EncodeAck(99))
	a.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	r.wantExit(1)
}

func TestSpentTicket(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.deafTo = prp.KindAuthResponse
	r := startRunner(t, a, startOptions{state: t.TempDir(), prpUse: true, ticket: a.ticket()})
	r.wantExit(1)
	if got := r.stderr.String(); !strings.HasPrefix(got, "paperclip-runnerd: ") || !strings.Contains(got, "fresh one-use ticket") {
		t.Fatalf("stderr %q", got)
	}
}

func TestTicketIsTriedAgainBeforeTheResponse(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.deafTo = prp.KindAuthHello
	startRunner(t, a, startOptions{state: t.TempDir(), ticket: a.ticket(), args: []string{"--reconnect-delay-ms", "1"}})
	a.await("the second attempt", func() bool { return a.conn != nil })
}

func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.leaseTTL = 600 * time.Millisecond
	r := startRunner(t, a, startOptions{state: t.TempDir(), ticket: a.ticket()})
	a.await("the third renewal", func() bool {
		n := 0
		for _, k := range a.kinds {
			if k == prp.KindLeaseRenew {
				n++
			}
		}
		return n >= 3
	})
	if a.conns != 1 {
		t.Fatalf("%d connections", a.conns)
	}
	_ = r
}

func TestFlags(t *testing.T) {
	t.Parallel()
	good := append([]string{"--connect-url", "ws://127.0.0.1:1/x", "--state-dir", t.TempDir()}, identityFlags(newIdentity())...)
	for _, tc := range []struct {
		name   string
		args   []string
		env    []string
		code   int
		stderr string
	}{
		{"unknown flag, our own use", append(slices.Clone(good), "--nope", "1"), []string{TicketVariable + "=bootstrap_x"}, 2, "unknown flag --nope"},
		{"no ticket", good, nil, 1, "no ticket"},
		{"empty ticket", good, []string{PRPTicketVariable + "=  "}, 1, "the ticket is empty"},
		{"listener", []string{"--listen-address", "0.0.0.0"}, []string{PRPTicketVariable + "=bootstrap_x"}, 1, "listener mode is not available"},
		{"ws to elsewhere", append(append([]string{}, good[2:]...), "--connect-url", "ws://192.0.2.1/x"), []string{PRPTicketVariable + "=bootstrap_x", "X=1"}, 1, "loopback"},
		{"mode not available", append(slices.Clone(good), "--permission", "ask"), []string{TicketVariable + "=bootstrap_x"}, 2, "not available yet"},
		{"two tickets", append(slices.Clone(good), "--ticket-file", "/nonexistent"), []string{TicketVariable + "=bootstrap_x"}, 2, "cannot be opened"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], tc.args...) //nolint:gosec // G204: this test binary
			cmd.Env = append(tc.env, "RUNNERD_TEST_CHILD=1")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()
			var ee *exec.ExitError
			if !errors.As(err, &ee) || ee.ExitCode() != tc.code || !strings.Contains(stderr.String(), tc.stderr) {
				t.Fatalf("%v, stderr %q; want exit code %d and %q", err, stderr.String(), tc.code, tc.stderr)
			}
		})
	}
}

func newIdentity() prp.Identity {
	return prp.Identity{RunnerInstanceID: "r", EnvironmentLeaseID: "e", RunID: "u", NormalizedSessionID: "s", TurnID: "t", ItemID: "i"}
}

func TestBuildMetadata(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--build-metadata") //nolint:gosec // G204: this test binary
	cmd.Env = []string{"RUNNERD_TEST_CHILD=1"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var m metadata
	if err := json.Unmarshal(out, &m); err != nil || m.BinaryName != "paperclip-runnerd" || m.PRP.MaximumVersion != 2 || m.BinaryContractVersion != 2 {
		t.Fatalf("%s: %v", out, err)
	}
}

// TestHelp: a person gets the flags; in PRP use an unknown flag stays ignored.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--help", "-h"} {
		var out, errs strings.Builder
		if code := Main(t.Context(), []string{flag}, nil, Stdio{Out: &out, Err: &errs}); code != 0 || errs.Len() != 0 {
			t.Errorf("%s: exit code %d, stderr %q", flag, code, errs.String())
		}
		for _, want := range []string{"  --connect-url VALUE\n", "  --version\n"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q, want %q in it", flag, out.String(), want)
			}
		}
	}
}
