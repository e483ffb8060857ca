package datadir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"bowline/controlplane/launch"
	"bowline/wire"
)

// The test binary is also another process that owns a folder.
func TestMain(m *testing.M) {
	if dir := os.Getenv("OWN_FOLDER"); dir != "" {
		os.Exit(own(dir))
	}
	goleak.VerifyTestMain(m)
}

// own takes the folder, says so, and keeps it until stdin ends.
func own(dir string) int {
	d, _, err := Open(dir)
	if err != nil {
		fmt.Println(wire.CodeOf(err))
		return 1
	}
	if _, _, err := d.EnsureToken(); err != nil {
		return 2
	}
	if err := d.WriteReady(Ready{URL: "http://127.0.0.1:1", AdminTokenFile: d.AdminTokenFile(), PID: os.Getpid()}, ""); err != nil {
		return 3
	}
	fmt.Println("owned")
	var b [1]byte
	if _, err := os.Stdin.Read(b[:]); err == nil {
		return 4
	}
	if err := d.Close(); err != nil {
		return 5
	}
	return 0
}

type other struct {
	cmd   *exec.Cmd
	stdin *os.File
	says  string
}

func startOwner(t *testing.T, dir string) *other {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "OWN_FOLDER="+dir)
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil {
		t.Fatalf("the other process said nothing: %v", err)
	}
	return &other{cmd: cmd, stdin: w, says: strings.TrimSpace(string(line[:n]))}
}

func TestOneOwnerPerFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if s, why, err := Find(dir); s != nil || why != NotRunning || err != nil {
		t.Fatalf("Find without a folder: %v, %q, %v", s, why, err)
	}
	d, stale, err := Open(dir)
	if err != nil || stale {
		t.Fatalf("Open: %v, stale %v", err, stale)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("folder mode %v, %v", st.Mode(), err)
	}
	if s, why, err := Find(dir); s != nil || why != Starting || err != nil {
		t.Errorf("Find before it serves: %v, %q, %v", s, why, err)
	}
	_, _, err = Open(dir)
	var e *wire.Error
	if !errors.As(err, &e) || e.Code != wire.CodeDataDirBusy || e.Details["pid"] != os.Getpid() {
		t.Fatalf("second Open: %v", err)
	}
	token, made, err := d.EnsureToken()
	if err != nil || !made {
		t.Fatal(made, err)
	}
	again, made, err := d.EnsureToken()
	if err != nil || made || again != token {
		t.Fatalf("second EnsureToken: made %v, same %v, %v", made, again == token, err)
	}
	extra := filepath.Join(t.TempDir(), "extra.json")
	want := Ready{URL: "http://127.0.0.1:7", AdminTokenFile: d.AdminTokenFile(), PID: os.Getpid()}
	if err := d.WriteReady(want, extra); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{filepath.Join(dir, "ready.json"), extra, d.AdminTokenFile()} {
		if st, err := os.Stat(f); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want 0600", f, st, err)
		}
	}
	raw, err := os.ReadFile(extra)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil || len(got) != 3 {
		t.Errorf("ready file %s: want exactly url, adminTokenFile, pid", raw)
	}
	s, why, err := Find(dir)
	if err != nil || why != "" || s == nil || s.URL != want.URL || s.Token != token || s.PID != os.Getpid() {
		t.Fatalf("Find: %+v, %q, %v", s, why, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{filepath.Join(dir, "ready.json"), extra} {
		if _, err := os.Stat(f); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there after Close: %v", f, err)
		}
	}
	d, _, err = Open(dir)
	if err != nil {
		t.Fatalf("Open after Close: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOwnerThatWasKilledLeavesAStaleReadyFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := startOwner(t, dir)
	if o.says != "owned" {
		t.Fatal(o.says)
	}
	if _, _, err := Open(dir); wire.CodeOf(err) != wire.CodeDataDirBusy {
		t.Fatalf("Open while another process owns it: %v", err)
	}
	s, _, err := Find(dir)
	if err != nil || s == nil || s.PID != o.cmd.Process.Pid {
		t.Fatalf("Find: %+v, %v", s, err)
	}
	if id, alive, err := OwnerProcess(dir); err != nil || !alive || id.PID != s.PID {
		t.Errorf("OwnerProcess: %+v, %v, %v", id, alive, err)
	}
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := o.cmd.Wait(); err == nil {
		t.Fatal("killed, and no error")
	}
	if s, why, err := Find(dir); s != nil || why != Stale || err != nil {
		t.Errorf("Find after the kill: %v, %q, %v", s, why, err)
	}
	d, stale, err := Open(dir)
	if err != nil || !stale {
		t.Fatalf("Open after the kill: stale %v, %v", stale, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ready.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the stale ready file is still there: %v", err)
	}
	if err := errors.Join(d.Close(), o.stdin.Close()); err != nil {
		t.Error(err)
	}
}

func TestRaceForAFolderHasOneWinner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const racers = 16
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []*Dir
	gate := make(chan struct{})
	for range racers {
		wg.Go(func() {
			<-gate
			d, _, err := Open(dir)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, d)
			case wire.CodeOf(err) != wire.CodeDataDirBusy:
				t.Errorf("loser: %v", err)
			}
		})
	}
	close(gate)
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d winners", len(won))
	}
	if err := won[0].Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenRefusesAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(path); err == nil {
		t.Error("a file is no data folder")
	}
}

func TestOpenTightensTheFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d, _, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestReadToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content string
		want    string
	}{
		"plain":     {"secret-token\n", "secret-token"},
		"spaces":    {"  secret-token \n\n", "secret-token"},
		"empty":     {"\n", ""},
		"two lines": {"secret-token\nsecond", ""},
		"two words": {"secret-token second", ""},
		"huge":      {string(bytes.Repeat([]byte("a"), maxRecordBytes+1)), ""},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadToken(path)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err != nil && (strings.Contains(err.Error(), "secret-token") || wire.CodeOf(err) != wire.CodeUnauthorized) {
			t.Errorf("%s: error %v: shows the token or has another code", name, err)
		}
	}
	if _, err := ReadToken(filepath.Join(dir, "missing")); wire.CodeOf(err) != wire.CodeUnauthorized {
		t.Errorf("missing: %v", err)
	}
	if a, b := NewToken(), NewToken(); a == b || !strings.HasPrefix(a, TokenPrefix) {
		t.Error("tokens repeat or lack their prefix")
	}
}

func TestFindRefusesGarbage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d, _, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.WriteFile(filepath.Join(dir, "ready.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Find(dir); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("a ready file that is no JSON: %v", err)
	}
	// A ready file of another process than the owner: not this server's.
	if err := os.WriteFile(filepath.Join(dir, "ready.json"), []byte(`{"url":"http://127.0.0.1:1","pid":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, why, err := Find(dir); s != nil || why != Starting || err != nil {
		t.Errorf("Find: %v, %q, %v", s, why, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Find(dir); err == nil {
		t.Error("an owner record that is no JSON was taken")
	}
}

func TestDefault(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		xdg, home, want string
	}{
		{"/x", "/home/u", "/x/bowline"},
		{"", "/home/u", "/home/u/.local/state/bowline"},
		{"relative", "/home/u", "/home/u/.local/state/bowline"}, // the XDG rules ignore a relative path
		{"", "", ""},
	} {
		got, err := Default(func(name string) string {
			return map[string]string{"XDG_STATE_HOME": c.xdg, "HOME": c.home}[name]
		})
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func TestOwnerRecordNamesThisProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d, _, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	o, err := readOwner(dir)
	if err != nil {
		t.Fatal(err)
	}
	self, err := launch.Self()
	if err != nil || o.process() != self {
		t.Errorf("owner %+v, self %+v, %v", o, self, err)
	}
}
