package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serverPID reads the pid of the background server from the ready file.
func serverPID(t *testing.T, data string) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(data, "ready.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ready struct{ PID int }
	if err := json.Unmarshal(raw, &ready); err != nil || ready.PID <= 0 {
		t.Fatalf("ready file %q: %v", raw, err)
	}
	return ready.PID
}

// TestServerKilledDuringRun: the background server is killed with SIGKILL in
// the middle of `bowline run`. The command starts it again, the same runner
// goes on, and the output is whole.
func TestServerKilledDuringRun(t *testing.T) {
	t.Parallel()
	bin := program(t, "bowline")
	env, dir, data := cleanEnv(t), t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	p := startProgram(t, env, dir, bin, "run", "--json", "--data", data, "--", "sh", "-c",
		`echo before; until test -e go; do sleep 0.02; done; i=0; while test $i -lt 200; do echo line $i; i=$((i+1)); done; exit 7`)
	waitFor(t, "the command's first line", func() bool { return strings.Contains(p.stdout.String(), `before\n`) })
	runner := runnerPID(p.runID())
	pid := serverPID(t, data)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill the server: %v", err)
	}
	waitFor(t, "the server to be gone", func() bool { return !living(pid) })
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := p.wait()
	last := lastLine(t, r.stdout)
	result, _ := last["result"].(map[string]any)
	run, _ := last["run"].(map[string]any)
	if r.code != 1 || result["exitCode"] != 7.0 || run["status"] != "failed" {
		t.Fatalf("exit code %d, last line %v, stderr %q", r.code, last, r.stderr)
	}
	var out strings.Builder
	ids := map[string]bool{}
	for line := range strings.Lines(r.stdout) {
		var l struct {
			ID    string
			Event struct {
				Type    string
				Payload struct{ Stream, Text string }
			}
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if l.ID != "" && ids[l.ID] {
			t.Errorf("event %s is shown twice", l.ID)
		}
		ids[l.ID] = true
		if l.Event.Type == "item.delta" {
			out.WriteString(l.Event.Payload.Text)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 201 || !strings.HasSuffix(out.String(), "line 199\n") {
		t.Errorf("%d lines of output, want 201: %q", n, out.String())
	}
	if connections, _ := run["runner"].(map[string]any)["connections"].(float64); connections < 2 {
		t.Errorf("the runner connected %v times: the server was not killed in the middle", connections)
	}
	if now := serverPID(t, data); now == pid {
		t.Error("the server was not started again")
	}
	waitFor(t, "the runner to be gone", func() bool { return runner == 0 || !living(runner) })
}

// TestClosedPipe: `bowline run -- yes | head -1`. The run is cancelled, the
// command ends at once, and nothing is left behind.
func TestClosedPipe(t *testing.T) {
	t.Parallel()
	bin := program(t, "bowline")
	env, dir, data := cleanEnv(t), t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	cmd := exec.Command(bin, "run", "--data", data, "--", "sh", "-c", "echo $$ > pid; exec yes")
	cmd.Env, cmd.Dir = env, dir
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "y\n" {
		t.Errorf("first line %q, %v", line, err)
	}
	if err := out.(io.Closer).Close(); err != nil {
		t.Error(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }() // the exit code is read from ProcessState
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill() // it is ours
		<-done
		t.Fatalf("the command did not end within 30 s of its reader, stderr %q", stderr.String())
	}
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "stdout was closed") {
		t.Errorf("exit %v, stderr %q", cmd.ProcessState, stderr.String())
	}
	var list struct{ Runs []runView }
	waitFor(t, "the run to be cancelled", func() bool {
		r := runProgram(t, env, dir, bin, "runs", "list", "--json", "--data", data)
		return json.Unmarshal([]byte(r.stdout), &list) == nil && len(list.Runs) == 1 && list.Runs[0].Status == "cancelled"
	})
	pid := readPID(t, filepath.Join(dir, "pid"))
	waitFor(t, "the command to be gone", func() bool { return !living(pid) })
	waitFor(t, "the runner to be gone", func() bool { return runnerPID(list.Runs[0].ID) == 0 })
}

// TestForeignRunner: --runner starts another program exactly as an existing
// "paperclip.runner" runner is started (prp.md 11.4); our own slim runnerd is
// one. The recorder in between keeps what it was given.
func TestForeignRunner(t *testing.T) {
	t.Parallel()
	bin, runnerd := program(t, "bowline"), program(t, "runnerd")
	env, dir, data := cleanEnv(t, "NOT_FOR_RUNNERS=x", "HANDED_OVER=a-value-of-17-byt"), t.TempDir(), filepath.Join(t.TempDir(), "data")
	stopAfter(t, bin, env, data)
	r := runProgram(t, env, dir, bin, "run", "--data", data, "--runner", runnerd, "--", "echo", "hi")
	if r.code != 0 || r.stdout != "hi\n" {
		t.Fatalf("exit code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}

	recorder := filepath.Join(dir, "recorder")
	script := "#!/bin/sh\nprintf '%s\\n' \"$@\" > \"" + dir + "/argv\"\n" +
		"env | sed 's/^\\(PAPERCLIP_RUNNER_BOOTSTRAP_TICKET\\)=prp.*/\\1=TICKET/; s/=.*TICKET$/=TICKET/' > \"" + dir + "/env\"\n" +
		"exec \"" + runnerd + "\" \"$@\"\n"
	if err := os.WriteFile(recorder, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	r = runProgram(t, env, dir, bin, "run", "--json", "--data", data, "--env", "HANDED_OVER", "--runner", "./recorder", "--", "sh", "-c", `printf %s "${#HANDED_OVER}"`)
	last := lastLine(t, r.stdout)
	run, _ := last["run"].(map[string]any)
	if r.code != 0 || run["status"] != "completed" || !strings.Contains(r.stdout, `"text":"17"`) {
		t.Fatalf("exit code %d, last line %v, stderr %q", r.code, last, r.stderr)
	}
	id, _ := run["id"].(string)
	runner, _ := run["runner"].(map[string]any)
	identity, _ := runner["identity"].(map[string]any)
	raw, err := os.ReadFile(filepath.Join(dir, "argv"))
	if err != nil {
		t.Fatal(err)
	}
	argv := strings.Split(strings.TrimSpace(string(raw)), "\n")
	given := map[string]string{}
	var order []string
	for i := 0; i+1 < len(argv); i += 2 {
		given[argv[i]] = argv[i+1]
		order = append(order, argv[i])
	}
	const want = "--connect-url --state-dir --runner-id --environment-lease-id --run-id --session-id --turn-id --item-id " +
		"--runner-version --runner-digest --max-frame-bytes --max-outbox-bytes --p0-reserve-bytes --reconnect-delay-ms"
	if got := strings.Join(order, " "); got != want || len(argv)%2 != 0 {
		t.Errorf("flags %s, want %s", got, want)
	}
	for flag, value := range map[string]any{
		"--runner-id": identity["runnerInstanceId"], "--environment-lease-id": identity["environmentLeaseId"],
		"--run-id": identity["runId"], "--session-id": identity["normalizedSessionId"], "--turn-id": identity["turnId"], "--item-id": identity["itemId"],
		"--runner-version": "0.3.0", "--runner-digest": runner["digest"],
		"--max-frame-bytes": "1048576", "--max-outbox-bytes": "16777216", "--p0-reserve-bytes": "1048576", "--reconnect-delay-ms": "250",
	} {
		if given[flag] != value {
			t.Errorf("%s %q, want %q", flag, given[flag], value)
		}
	}
	if u := given["--connect-url"]; !strings.HasPrefix(u, "ws://127.0.0.1:") || !strings.HasSuffix(u, "/api/runner/v1/connect/"+id) {
		t.Errorf("--connect-url %q", u)
	}
	raw, err = os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	got := "\n" + string(raw)
	for _, name := range []string{"\nPAPERCLIP_RUNNER_BOOTSTRAP_TICKET=", "\nPATH=", "\nHOME=", "\nHANDED_OVER="} {
		if !strings.Contains(got, name) {
			t.Errorf("the runner's environment lacks %s", strings.TrimSpace(name))
		}
	}
	if strings.Contains(got, "NOT_FOR_RUNNERS") {
		t.Error("the runner got a variable that nobody named")
	}
}
