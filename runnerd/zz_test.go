package runnerd
import ("testing";"time";"os/exec";"os";"fmt";"strings";"bowline/wire/prp")
func TestZZ(t *testing.T) {
	a := newAuthority(t)
	for range 5 {
		state := t.TempDir()
		args := append([]string{"--connect-url", a.url, "--state-dir", state}, identityFlags(a.identity)...)
		cmd := exec.Command("/tmp/F-bin/runnerd", args...)
		cmd.Env = []string{TicketVariable+"="+a.ticket()}
		a.mu.Lock(); n := a.conns; a.mu.Unlock()
		b := time.Now()
		cmd.Start()
		a.await("c", func() bool { return a.conns > n })
		fmt.Println("start to authenticated", time.Since(b))
		time.Sleep(300*time.Millisecond)
		st, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		for _, l := range strings.Split(string(st), "\n") { if strings.HasPrefix(l, "VmRSS") || strings.HasPrefix(l, "RssAnon") { fmt.Println(l) } }
		cmd.Process.Kill(); cmd.Wait()
	}
	_ = prp.KindPing
}
func TestZY(t *testing.T) {
	for _, use := range []bool{false, true} {
	a := newAuthority(t)
	state := t.TempDir()
	startRunner(t, a, startOptions{state: state, ticket: a.ticket(), prpUse: use})
	openScripted(a, map[string]any{"events": 3000, "textBytes": 100})
	b := time.Now()
	a.do(prp.CommandTurnStart, map[string]any{"text": "x", "turnId": "turn-a"})
	a.awaitEvent("turn.completed")
	fmt.Println("prp", use, "3000 scripted events", time.Since(b))
	for range 3 { b = time.Now(); a.do(prp.CommandSessionSnapshot, map[string]any{}); fmt.Println("command", time.Since(b)) }
	}
}
func TestZX(t *testing.T) {
	for _, use := range []bool{false, true} {
	a := newAuthority(t)
	state := t.TempDir()
	startRunner(t, a, startOptions{state: state, ticket: a.ticket(), prpUse: use})
	a.do(prp.CommandRunPrepare, prepare(commandProvider("sh", "-c", "head -c 20000000 /dev/urandom")))
	a.do(prp.CommandSessionOpen, map[string]any{})
	b := time.Now()
	a.do(prp.CommandTurnStart, map[string]any{"text": "x", "turnId": "turn-a"})
	a.awaitEvent("turn.completed")
	fmt.Println("prp", use, "20 MB command output", time.Since(b), len(a.events))
	}
}
