package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"bowline/controlplane/authority"
	"bowline/controlplane/resource"
	"bowline/controlplane/session"
	"bowline/controlplane/store"
	"bowline/controlplane/store/sqlite"
	"bowline/wire"
)

// clock is a clock that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type rig struct {
	*Manager
	t     *testing.T
	st    store.Store
	clock *clock
	cfg   Config
	dir   string
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	dir := t.TempDir()
	st, err := sqlite.Open(within(t), filepath.Join(dir, "db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, st: st, dir: dir, clock: &clock{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}}
	r.cfg = Config{
		Store: st, NewToken: uuid.NewString, Now: r.clock.Now,
		NewID:     func() string { return uuid.Must(uuid.NewV7()).String() },
		Workspace: func(id string) string { return filepath.Join(dir, "workspaces", id) },
		Metrics:   session.NewMetrics(prometheus.NewRegistry()),
		AllowEnv:  []string{"ALLOWED"},
		// A launcher whose program cannot be executed: nothing runs by accident.
		Launch: &Launcher{
			Path: "/nonexistent/runnerd", Version: "0.3.0", Digest: "sha256:" + strings.Repeat("a", 64),
			ConnectURL: func(id string) string { return "ws://127.0.0.1:1" + resource.ConnectPath + id },
			Folder:     func(id string) string { return filepath.Join(dir, "runs", id) },
		},
		Drivers: map[string]Driver{"mine": {Kind: KindCodex, Command: []string{"/opt/codex", "app-server", "-x"}, Env: map[string]string{"KEY": "value"}}},
	}
	if change != nil {
		change(&r.cfg)
	}
	r.start()
	t.Cleanup(func() {
		r.stop()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) start() {
	r.t.Helper()
	m, err := New(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Manager = m
	if err := m.Start(within(r.t)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) stop() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		r.t.Error(err)
	}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), 60*time.Second, errors.New("test took longer than 60 s"))
	t.Cleanup(cancel)
	return ctx
}

// attached is a request that starts nothing.
func attached() *resource.CreateRun {
	return &resource.CreateRun{
		Driver: "command", Argv: []string{"true"}, Workspace: "/w", Placement: resource.PlacementAttached,
		Runner: &resource.RunnerBuild{Version: "0.3.0", Digest: "sha256:" + strings.Repeat("b", 64)},
	}
}

func (r *rig) create(req *resource.CreateRun, key string) *resource.Run {
	r.t.Helper()
	run, _, err := r.Create(within(r.t), "token:t", req, key)
	if err != nil {
		r.t.Fatal(err)
	}
	return run
}

// follow reads a run's lines to the end.
func (r *rig) follow(id, after string) []resource.Line {
	r.t.Helper()
	f, err := r.Follow(within(r.t), id, after)
	if err != nil {
		r.t.Fatal(err)
	}
	var all []resource.Line
	for {
		lines, end, err := f.Next(within(r.t))
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, lines...)
		if end {
			return all
		}
	}
}

func types(lines []resource.Line) []string {
	var out []string
	for _, l := range lines {
		if l.Event != nil {
			out = append(out, l.ID+" "+l.Event.Type)
		} else {
			out = append(out, l.Type)
		}
	}
	return out
}

func TestCreateAttached(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(attached(), "")
	id := run.Runner.Identity
	ids := []string{id.RunnerInstanceID, id.EnvironmentLeaseID, id.RunID, id.NormalizedSessionID, id.TurnID, id.ItemID}
	for _, v := range ids {
		if u, err := uuid.Parse(v); err != nil || u.Version() != 7 {
			t.Errorf("id %q is no UUIDv7", v)
		}
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 6 {
		t.Errorf("ids repeat: %v", ids)
	}
	if run.Status != store.StatusQueued || run.ID != id.RunID || run.SessionID != id.NormalizedSessionID ||
		run.Runner.ConnectPath != "/api/runner/v1/connect/"+run.ID || run.Head != "1.1" {
		t.Errorf("run %+v", run)
	}
	st, err := r.st.Session(within(t), run.SessionID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Commands) != 2 || st.Commands[0].Type != "run.prepare" || st.Commands[1].Type != "session.open" {
		t.Errorf("first commands: %+v", st.Commands)
	}
	if st.Session.LeaseTTL != time.Hour {
		t.Errorf("lease %s, want 1 h", st.Session.LeaseTTL)
	}
	audit, err := r.st.Audit(within(t), 0, 10)
	if err != nil || len(audit) != 1 || audit[0].Action != "run.create" || audit[0].Actor != "token:t" || audit[0].Target != run.ID {
		t.Errorf("audit %+v, %v", audit, err)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "workspaces")); err == nil {
		t.Error("a folder was made although the request named one")
	}
}

func TestWorkspaceFreshPerRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(&resource.CreateRun{Driver: "scripted"}, "")
	if run.Workspace != filepath.Join(r.dir, "workspaces", run.ID) {
		t.Errorf("workspace %q", run.Workspace)
	}
	st, err := os.Stat(run.Workspace)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v; want a folder with 0700", st, err)
	}
}

func TestProviderObjects(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cases := map[string]struct {
		change func(*resource.CreateRun)
		want   string
	}{
		"command": {
			func(q *resource.CreateRun) {
				q.Argv, q.PTY, q.Env = []string{"sh", "-c", "x"}, true, []string{"B", "A"}
				q.Limits = &resource.Limits{TurnTimeMs: 5}
			},
			`{"kind":"command","argv":["sh","-c","x"],"cwd":"/w","envNames":["A","B"],"pty":true,"timeoutMs":5}`,
		},
		"scripted": {
			func(q *resource.CreateRun) { q.Driver, q.Argv = "scripted", nil },
			`{"kind":"scripted"}`,
		},
		"scripted with a script": {
			func(q *resource.CreateRun) {
				q.Driver, q.Argv, q.Script = "scripted", nil, json.RawMessage(`{"events":3}`)
			},
			`{"kind":"scripted","script":{"events":3}}`,
		},
		"codex default": {
			func(q *resource.CreateRun) { q.Driver, q.Argv, q.Prompt = "codex", nil, "p" },
			`{"kind":"codex","provider":"codex","driver":"codex_app_server","providerVersion":"codex-app-server-v1","command":"codex","args":["app-server"],"cwd":"/w","model":null,"approvalPolicy":null,"externallySandboxed":false,"instructions":"","collaborationMode":"default","includeCollaborationModeInstructions":true,"includeSkillInstructions":true,"runtimeContext":{}}`,
		},
		"codex deny": {
			func(q *resource.CreateRun) { q.Driver, q.Argv, q.Prompt, q.Permission = "codex", nil, "p", "deny" },
			`"approvalPolicy":"untrusted","externallySandboxed":false`,
		},
		"codex allow": {
			func(q *resource.CreateRun) { q.Driver, q.Argv, q.Prompt, q.Permission = "codex", nil, "p", "allow" },
			`"approvalPolicy":"never","externallySandboxed":true`,
		},
		"of the server's config": {
			func(q *resource.CreateRun) { q.Driver, q.Argv, q.Prompt = "mine", nil, "p" },
			`"command":"/opt/codex","args":["app-server","-x"]`,
		},
		"of the caller's config": {
			func(q *resource.CreateRun) {
				q.Driver, q.Argv, q.Prompt = "theirs", nil, "p"
				q.Provider = &resource.ProviderConfig{Kind: "codex", Command: []string{"/their/codex"}}
			},
			`"command":"/their/codex","args":["app-server"]`,
		},
	}
	for name, c := range cases {
		req := attached()
		c.change(req)
		run := r.create(req, "")
		st, err := r.st.Session(within(t), run.SessionID, 0)
		if err != nil {
			t.Fatal(err)
		}
		var record struct {
			Payload struct {
				AuthorizedTools map[string]any  `json:"authorizedTools"`
				Provider        json.RawMessage `json:"provider"`
			} `json:"payload"`
		}
		if err := json.Unmarshal(st.Commands[0].Record, &record); err != nil {
			t.Fatal(err)
		}
		got := string(record.Payload.Provider)
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: provider\n%s\nwant\n%s", name, got, c.want)
		}
		// SHA-256 of "[]" by sha256sum.
		if d := record.Payload.AuthorizedTools["catalogDigest"]; d != "sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945" {
			t.Errorf("%s: catalog digest %v", name, d)
		}
	}
}

// Bad input is refused with a code and a field, and leaves nothing behind.
func TestBadInput(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) {
		c.Descriptors = []wire.Descriptor{
			{Name: KindCommand, InputSchema: json.RawMessage(`{"type":"object"}`)},
			{Name: KindCodex, InputSchema: json.RawMessage(`{"type":"object"}`)},
			{Name: KindScripted, InputSchema: json.RawMessage(`{"type":"object","properties":{"script":{"type":"object","additionalProperties":false,"properties":{"events":{"type":"integer","maximum":10}}}}}`)},
		}
	})
	file := filepath.Join(r.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	local := func() *resource.CreateRun { return &resource.CreateRun{Driver: "command", Argv: []string{"true"}} }
	codex := func(n int) *resource.CreateRun {
		return &resource.CreateRun{Driver: "codex", Prompt: strings.Repeat("x", n)}
	}
	many := func(n int) []string { return slices.Repeat([]string{"A"}, n) }
	labels := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint(i)] = ""
		}
		return m
	}
	const secret = "s3cr3t-value"
	cases := []struct {
		name  string
		req   *resource.CreateRun
		code  wire.Code
		field string
	}{
		{"unknown driver", &resource.CreateRun{Driver: secret, Argv: []string{"x"}}, wire.CodeDriverUnknown, "driver"},
		{"no argv", &resource.CreateRun{Driver: "command"}, wire.CodeInputInvalid, "argv"},
		{"empty program", &resource.CreateRun{Driver: "command", Argv: []string{""}}, wire.CodeInputInvalid, "argv[0]"},
		{"NUL in argv", &resource.CreateRun{Driver: "command", Argv: []string{"x", "\x00" + secret}}, wire.CodeInputInvalid, "argv[1]"},
		{"prompt for a command", &resource.CreateRun{Driver: "command", Argv: []string{"x"}, Prompt: secret}, wire.CodeInputInvalid, "prompt"},
		{"argv for codex", &resource.CreateRun{Driver: "codex", Prompt: "p", Argv: []string{secret}}, wire.CodeInputInvalid, "argv"},
		{"codex without a prompt", &resource.CreateRun{Driver: "codex"}, wire.CodeInputInvalid, "prompt"},
		{"pty for codex", &resource.CreateRun{Driver: "codex", Prompt: "p", PTY: true}, wire.CodeInputInvalid, "pty"},
		{"script for a command", &resource.CreateRun{Driver: "command", Argv: []string{"x"}, Script: json.RawMessage(`{}`)}, wire.CodeInputInvalid, "script"},
		{"script against its schema", &resource.CreateRun{Driver: "scripted", Script: json.RawMessage(`{"events":11}`)}, wire.CodeInputInvalid, "script.events"},
		{"script with an unknown member", &resource.CreateRun{Driver: "scripted", Script: json.RawMessage(`{"` + secret + `":1}`)}, wire.CodeInputInvalid, "script"},
		{"prompt one past its limit", codex(MaxPromptJSON - 2 + 1), wire.CodeTooLarge, "prompt"},
		{"prompt that grows in JSON", &resource.CreateRun{Driver: "codex", Prompt: strings.Repeat("\"", MaxPromptJSON/2)}, wire.CodeTooLarge, "prompt"},
		{"workspace missing", func() *resource.CreateRun { q := local(); q.Workspace = "/nonexistent/" + secret; return q }(), wire.CodeWorkspaceInvalid, "workspace"},
		{"workspace a file", func() *resource.CreateRun { q := local(); q.Workspace = file; return q }(), wire.CodeWorkspaceInvalid, "workspace"},
		{"workspace relative", func() *resource.CreateRun { q := local(); q.Workspace = secret; return q }(), wire.CodeWorkspaceInvalid, "workspace"},
		{"workspace too long", func() *resource.CreateRun {
			q := local()
			q.Workspace = "/" + strings.Repeat("w", resource.MaxPathBytes-1)
			return q
		}(), wire.CodeWorkspaceInvalid, "workspace"},
		{"attached without a workspace", func() *resource.CreateRun { q := attached(); q.Workspace = ""; return q }(), wire.CodeInputInvalid, "workspace"},
		{"attached without a build", func() *resource.CreateRun { q := attached(); q.Runner = nil; return q }(), wire.CodeInputInvalid, "runner"},
		{"build for local", func() *resource.CreateRun { q := attached(); q.Placement = ""; return q }(), wire.CodeInputInvalid, "runner"},
		{"provider for local", func() *resource.CreateRun {
			q := local()
			q.Provider = &resource.ProviderConfig{Kind: "command"}
			return q
		}(), wire.CodeInputInvalid, "provider"},
		{"unknown provider kind", func() *resource.CreateRun {
			q := attached()
			q.Provider = &resource.ProviderConfig{Kind: secret}
			return q
		}(), wire.CodeDriverUnknown, "provider.kind"},
		{"env not listed", func() *resource.CreateRun { q := local(); q.Env = []string{"ALLOWED", "S3CR3T"}; return q }(), wire.CodeEnvNotAllowed, "env[1]"},
		{"env with a value", func() *resource.CreateRun { q := local(); q.Env = []string{"A=" + secret}; return q }(), wire.CodeInputInvalid, "env[0]"},
		{"env one past its limit", func() *resource.CreateRun { q := attached(); q.Env = many(resource.MaxEnvNames + 1); return q }(), wire.CodeTooLarge, "env"},
		{"argv one past its limit", func() *resource.CreateRun { q := local(); q.Argv = many(resource.MaxArgv + 1); return q }(), wire.CodeTooLarge, "argv"},
		{"argument one past its limit", func() *resource.CreateRun {
			q := local()
			q.Argv = []string{"x", strings.Repeat("y", resource.MaxArgBytes)}
			return q
		}(), wire.CodeTooLarge, "argv[1]"},
		{"argv beyond a command", func() *resource.CreateRun {
			q := local()
			q.Argv = slices.Repeat([]string{strings.Repeat("y", 100<<10)}, 6)
			return q
		}(), wire.CodeCommandTooLarge, ""},
		{"labels one past their limit", func() *resource.CreateRun { q := local(); q.Labels = labels(resource.MaxLabels + 1); return q }(), wire.CodeTooLarge, "labels"},
		{"label too long", func() *resource.CreateRun {
			q := local()
			q.Labels = map[string]string{"a": strings.Repeat("b", resource.MaxLabelBytes+1)}
			return q
		}(), wire.CodeInputInvalid, "labels"},
		{"mode ask", func() *resource.CreateRun { q := local(); q.Permission = "ask"; return q }(), wire.CodeNotAvailable, "permission"},
		{"mode edits", func() *resource.CreateRun { q := local(); q.Permission = "edits"; return q }(), wire.CodeNotAvailable, "permission"},
		{"unknown mode", func() *resource.CreateRun { q := local(); q.Permission = secret; return q }(), wire.CodeInputInvalid, "permission"},
		{"a session to continue", func() *resource.CreateRun { q := local(); q.Session = secret; return q }(), wire.CodeNotAvailable, "session"},
		{"unknown placement", func() *resource.CreateRun { q := local(); q.Placement = secret; return q }(), wire.CodeInputInvalid, "placement"},
		{"time limit negative", func() *resource.CreateRun { q := local(); q.Limits = &resource.Limits{TurnTimeMs: -1}; return q }(), wire.CodeInputInvalid, "limits.turnTimeMs"},
		{"time limit one past", func() *resource.CreateRun {
			q := local()
			q.Limits = &resource.Limits{TurnTimeMs: resource.MaxTurnTimeMs + 1}
			return q
		}(), wire.CodeInputInvalid, "limits.turnTimeMs"},
	}
	for _, c := range cases {
		run, _, err := r.Create(within(t), "token:t", c.req, "key-"+c.name)
		var e *wire.Error
		if !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%s: got %v, %v; want code %s", c.name, run, err, c.code)
			continue
		}
		if got, ok := e.Details["field"]; c.field != "" && (!ok || got != c.field) {
			t.Errorf("%s: field %v, want %s", c.name, got, c.field)
		}
		if c.field != "" && !strings.HasPrefix(e.Message, c.field) {
			t.Errorf("%s: message %q does not name %s", c.name, e.Message, c.field)
		}
		told, _ := json.Marshal(e.Details)
		if strings.Contains(e.Message+string(told), secret) {
			t.Errorf("%s: shows the value: %q %s", c.name, e.Message, told)
		}
	}
	list, err := r.List(within(t), store.RunQuery{Limit: 10})
	if err != nil || len(list.Runs) != 0 {
		t.Errorf("runs after refusals: %+v, %v", list, err)
	}
	if entries, err := os.ReadDir(filepath.Join(r.dir, "workspaces")); err == nil && len(entries) > 0 {
		t.Errorf("%d folders were left behind", len(entries))
	}
	if audit, err := r.st.Audit(within(t), 0, 10); err != nil || len(audit) != 0 {
		t.Errorf("audit after refusals: %+v, %v", audit, err)
	}
}

func TestAtTheLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	prompt := attached()
	prompt.Driver, prompt.Argv, prompt.Prompt = "codex", nil, strings.Repeat("x", MaxPromptJSON-2)
	argv := attached()
	argv.Argv = slices.Repeat([]string{"a"}, resource.MaxArgv)
	env := attached()
	env.Env = slices.Repeat([]string{"A"}, resource.MaxEnvNames)
	limit := attached()
	limit.Limits = &resource.Limits{TurnTimeMs: resource.MaxTurnTimeMs}
	for name, req := range map[string]*resource.CreateRun{"prompt": prompt, "argv": argv, "env": env, "time": limit} {
		if _, _, err := r.Create(within(t), "token:t", req, ""); err != nil {
			t.Errorf("%s at its limit: %v", name, err)
		}
	}
}

func TestNoLauncher(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.Launch = nil })
	_, _, err := r.Create(within(t), "token:t", &resource.CreateRun{Driver: "command", Argv: []string{"true"}}, "")
	if wire.CodeOf(err) != wire.CodeNotAvailable {
		t.Errorf("local run without a launcher: %v", err)
	}
	if run := r.create(attached(), ""); run.Status != store.StatusQueued {
		t.Errorf("attached run: %s", run.Status)
	}
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	first := r.create(attached(), "key")
	again, fresh, err := r.Create(within(t), "token:t", attached(), "key")
	if err != nil || fresh || again.ID != first.ID {
		t.Fatalf("same key, same request: %v, fresh %v, %v", again, fresh, err)
	}
	other := attached()
	other.Argv = []string{"false"}
	if _, _, err := r.Create(within(t), "token:t", other, "key"); wire.CodeOf(err) != wire.CodeConflict {
		t.Errorf("same key, other request: %v", err)
	}
	if run, fresh, err := r.Create(within(t), "token:other", other, "key"); err != nil || !fresh || run.ID == first.ID {
		t.Errorf("same key of another token: fresh %v, %v", fresh, err)
	}
	r.clock.add(idempotencyWindow - time.Second)
	if again, fresh, err := r.Create(within(t), "token:t", attached(), "key"); err != nil || fresh || again.ID != first.ID {
		t.Errorf("within the window: fresh %v, %v", fresh, err)
	}
	r.clock.add(time.Second)
	second, fresh, err := r.Create(within(t), "token:t", other, "key")
	if err != nil || !fresh || second.ID == first.ID {
		t.Fatalf("after the window: fresh %v, %v", fresh, err)
	}
	if again, fresh, err := r.Create(within(t), "token:t", other, "key"); err != nil || fresh || again.ID != second.ID {
		t.Errorf("after the window, repeated: fresh %v, %v", fresh, err)
	}
}

func TestIdempotencyRace(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const racers = 12
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids, made := map[string]bool{}, 0
	gate := make(chan struct{})
	for range racers {
		wg.Go(func() {
			<-gate
			run, fresh, err := r.Create(within(t), "token:t", attached(), "key")
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			ids[run.ID] = true
			if fresh {
				made++
			}
		})
	}
	close(gate)
	wg.Wait()
	list, err := r.List(within(t), store.RunQuery{Limit: 100})
	if err != nil || len(list.Runs) != 1 || len(ids) != 1 || made != 1 {
		t.Errorf("%d runs, %d ids, %d fresh, %v; want one of each", len(list.Runs), len(ids), made, err)
	}
}

func TestCancelBeforeTheTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(attached(), "")
	for range 2 { // idempotent
		got, err := r.Cancel(within(t), "token:t", run.ID)
		if err != nil || got.Status != store.StatusCancelled || got.CancelRequestedAt == nil {
			t.Fatalf("cancel: %+v, %v", got, err)
		}
	}
	want := []string{"status", "1.1 run.status", "1.2 run.ended"}
	if got := types(r.follow(run.ID, "")); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	if _, err := r.Cancel(within(t), "token:t", uuid.NewString()); wire.CodeOf(err) != wire.CodeNotFound {
		t.Errorf("cancel of an unknown run: %v", err)
	}
}

func TestRunnerLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for reason, want := range map[string][2]string{
		resource.LostGaveUp:       {store.StatusOrphaned, "runner_gave_up"},
		resource.LostLaunchFailed: {store.StatusFailed, "launch_failed"},
	} {
		run := r.create(attached(), "")
		for range 2 { // the first end wins, the second report is no error
			got, err := r.RunnerLost(within(t), "token:t", run.ID, &resource.RunnerLost{Reason: reason, Detail: "why"})
			if err != nil || got.Status != want[0] || got.Reason != want[1] || !strings.Contains(string(got.Result), `"why"`) {
				t.Errorf("%s: %+v, %v", reason, got, err)
			}
		}
		if got := types(r.follow(run.ID, "")); len(got) != 3 || !strings.HasSuffix(got[2], "run.ended") {
			t.Errorf("%s: events %v; want one terminal event", reason, got)
		}
	}
	run := r.create(attached(), "")
	if _, err := r.RunnerLost(within(t), "token:t", run.ID, &resource.RunnerLost{Reason: "bored"}); wire.CodeOf(err) != wire.CodeInputInvalid {
		t.Errorf("unknown reason: %v", err)
	}
	local := r.create(&resource.CreateRun{Driver: "scripted"}, "")
	if _, err := r.RunnerLost(within(t), "token:t", local.ID, &resource.RunnerLost{Reason: resource.LostGaveUp}); wire.CodeOf(err) != wire.CodeConflict {
		t.Errorf("report about a local run: %v", err)
	}
}

func TestLocalRunThatCannotBeLaunchedFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(&resource.CreateRun{Driver: "command", Argv: []string{"true"}}, "")
	lines := r.follow(run.ID, "")
	last := lines[len(lines)-1]
	if last.Event == nil || last.Event.Type != resource.EventRunEnded || last.Event.Origin != store.OriginControlPlane {
		t.Fatalf("last line %+v", last)
	}
	got, err := r.Get(within(t), run.ID)
	if err != nil || got.Status != store.StatusFailed || got.Reason != "launch_failed" {
		t.Errorf("run %+v, %v", got, err)
	}
}

func TestTickets(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(attached(), "")
	seen := map[string]bool{}
	for _, ttl := range []time.Duration{0, time.Second, 60 * time.Second} {
		ticket, err := r.IssueTicket(within(t), "token:t", run.ID, ttl)
		if err != nil || !strings.HasPrefix(ticket.Ticket, "bootstrap_") || seen[ticket.Ticket] {
			t.Fatalf("ttl %s: %+v, %v", ttl, ticket, err)
		}
		seen[ticket.Ticket] = true
		want := ttl
		if ttl == 0 {
			want = time.Minute
		}
		if got := ticket.ExpiresAt.Sub(r.clock.Now()); got != want {
			t.Errorf("ttl %s: expires in %s", ttl, got)
		}
	}
	for _, ttl := range []time.Duration{-1, time.Second - 1, time.Minute + 1} {
		if _, err := r.IssueTicket(within(t), "token:t", run.ID, ttl); wire.CodeOf(err) != wire.CodeTicketInvalid {
			t.Errorf("ttl %s: %v", ttl, err)
		}
	}
	if _, err := r.IssueTicket(within(t), "token:t", uuid.NewString(), 0); wire.CodeOf(err) != wire.CodeNotFound {
		t.Errorf("unknown run: %v", err)
	}
	if _, err := r.Cancel(within(t), "token:t", run.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.IssueTicket(within(t), "token:t", run.ID, 0); wire.CodeOf(err) != wire.CodeConflict {
		t.Errorf("ended run: %v", err)
	}
	audit, err := r.st.Audit(within(t), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range audit {
		for text := range seen {
			if strings.Contains(string(a.Detail), text) {
				t.Errorf("the audit log holds a ticket: %s", a.Detail)
			}
		}
	}
}

func TestReaperEndsARunNobodyJoined(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(attached(), "")
	r.clock.add(JoinWithin - time.Second)
	r.reapOnce(within(t))
	if got, err := r.Get(within(t), run.ID); err != nil || got.Ended() {
		t.Fatalf("reaped early: %+v, %v", got, err)
	}
	r.clock.add(time.Second)
	r.reapOnce(within(t))
	got, err := r.Get(within(t), run.ID)
	if err != nil || got.Status != store.StatusOrphaned || got.Reason != ReasonNeverJoined {
		t.Errorf("run %+v, %v", got, err)
	}
	r.reapOnce(within(t))
	if n := len(r.follow(run.ID, "")); n != 3 {
		t.Errorf("%d lines; a second round wrote more", n)
	}
}

func TestReaperJudges(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	m := &Manager{cfg: Config{Now: func() time.Time { return now }}, started: now.Add(-time.Hour)}
	snap := func(change func(*session.Snapshot)) session.Snapshot {
		s := session.Snapshot{}
		s.Run = &store.RunRow{Status: store.StatusRunning, Placement: store.PlacementAttached, Driver: "codex", CreatedAt: now.Add(-2 * time.Hour), StartedAt: now.Add(-time.Minute), Request: json.RawMessage(`{"driver":"codex","limits":{"turnTimeMs":90000}}`)}
		s.Session.ConnectionCount = 1
		s.Session.LastLeaseExpiresAtMs = now.Add(time.Minute).UnixMilli()
		change(&s)
		return s
	}
	cases := map[string]struct {
		s    session.Snapshot
		want string
	}{
		"lease lives": {snap(func(*session.Snapshot) {}), ""},
		"lease ended, grace not": {snap(func(s *session.Snapshot) {
			s.Session.LastLeaseExpiresAtMs = now.Add(-leaseGrace + time.Second).UnixMilli()
		}), ""},
		"lease and grace ended": {snap(func(s *session.Snapshot) { s.Session.LastLeaseExpiresAtMs = now.Add(-leaseGrace).UnixMilli() }), "run.lease_expired"},
		"ended, but connected": {snap(func(s *session.Snapshot) {
			s.Session.LastLeaseExpiresAtMs = now.Add(-time.Hour).UnixMilli()
			s.Connected = true
		}), ""},
		"already over":           {snap(func(s *session.Snapshot) { s.Run.Status = store.StatusFailed; s.Session.LastLeaseExpiresAtMs = 1 }), ""},
		"local, not joined yet":  {snap(func(s *session.Snapshot) { s.Session.ConnectionCount = 0; s.Run.Placement = store.PlacementLocal }), ""},
		"attached, never joined": {snap(func(s *session.Snapshot) { s.Session.ConnectionCount = 0 }), "run.never_joined"},
		"time limit not reached": {snap(func(s *session.Snapshot) { s.Connected = true; s.Run.StartedAt = now.Add(-89 * time.Second) }), ""},
		"time limit reached":     {snap(func(s *session.Snapshot) { s.Connected = true; s.Run.StartedAt = now.Add(-90 * time.Second) }), "run.time_limit"},
		"time limit, cancelled": {snap(func(s *session.Snapshot) {
			s.Connected = true
			s.Run.StartedAt = now.Add(-time.Hour)
			s.Run.CancelAt = now
		}), ""},
		"time limit of a command": {snap(func(s *session.Snapshot) {
			s.Connected = true
			s.Run.StartedAt = now.Add(-time.Hour)
			s.Run.Driver = "command"
		}), ""},
		"time limit before a turn": {snap(func(s *session.Snapshot) { s.Connected = true; s.Run.StartedAt = time.Time{} }), ""},
	}
	for name, c := range cases {
		in, action := m.judge(c.s)
		if action != c.want || (in == nil) != (c.want == "") {
			t.Errorf("%s: %T, %q; want %q", name, in, action, c.want)
		}
	}
	// A server that has just started gives everybody time to come back.
	m.started = now
	if _, action := m.judge(snap(func(s *session.Snapshot) { s.Session.LastLeaseExpiresAtMs = 1 })); action != "" {
		t.Errorf("just started: %q", action)
	}
}

func TestFollowWaitsForNews(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(attached(), "")
	f, err := r.Follow(within(t), run.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	next := func() []resource.Line {
		t.Helper()
		lines, _, err := f.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	if l := next(); len(l) != 1 || l[0].Type != resource.LineStatus || l[0].ID != "" || l[0].Head != "1.1" {
		t.Fatalf("first line %+v", l)
	}
	if got := types(next()); !slices.Equal(got, []string{"1.1 run.status"}) {
		t.Fatalf("backlog %v", got)
	}
	// Nothing is there: Next waits, gives up with its context, and can be
	// called again.
	gone, cancel := context.WithCancel(within(t))
	cancel()
	if _, _, err := f.Next(gone); !errors.Is(err, context.Canceled) {
		t.Fatalf("Next with an ended context: %v", err)
	}
	waiting := make(chan []resource.Line)
	go func() {
		lines, end, err := f.Next(within(t))
		if err != nil || !end {
			t.Errorf("end %v, %v", end, err)
		}
		waiting <- lines
	}()
	if _, err := r.Cancel(within(t), "token:t", run.ID); err != nil {
		t.Fatal(err)
	}
	if got := types(<-waiting); !slices.Equal(got, []string{"1.2 run.ended"}) {
		t.Errorf("news %v", got)
	}
}

func TestFollowCursors(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(attached(), "")
	if _, err := r.Cancel(within(t), "token:t", run.ID); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[string][]string{
		"":    {"status", "1.1 run.status", "1.2 run.ended"},
		"1.0": {"status", "1.1 run.status", "1.2 run.ended"},
		"1.1": {"status", "1.2 run.ended"},
		"1.2": {"status"},
	} {
		if got := types(r.follow(run.ID, after)); !slices.Equal(got, want) {
			t.Errorf("after %q: %v, want %v", after, got, want)
		}
	}
	for _, bad := range []string{"1", "1.", ".1", "x", "1.3", "2.1", "0.1", "01.1", "1.01", "1.-1", "1.1.1", "1.99999999999999999999"} {
		if _, err := r.Follow(within(t), run.ID, bad); wire.CodeOf(err) != wire.CodeBadCursor {
			t.Errorf("cursor %q: %v", bad, err)
		}
	}
	if _, err := r.Follow(within(t), uuid.NewString(), ""); wire.CodeOf(err) != wire.CodeNotFound {
		t.Errorf("unknown run: %v", err)
	}
}

// pruned is a store that has forgotten the first events.
type pruned struct {
	store.Store
	from *atomic.Int64
}

func (p pruned) Events(ctx context.Context, id string, after int64, limit, maxBytes int) ([]store.EventRow, error) {
	return p.Store.Events(ctx, id, max(after, p.from.Load()-1), limit, maxBytes)
}

func TestFollowTellsWhatWasPruned(t *testing.T) {
	t.Parallel()
	var from atomic.Int64
	r := newRig(t, func(c *Config) { c.Store = pruned{c.Store, &from} })
	run := r.create(attached(), "")
	if _, err := r.Cancel(within(t), "token:t", run.ID); err != nil {
		t.Fatal(err)
	}
	from.Store(2)
	_, err := r.Follow(within(t), run.ID, "1.0")
	var e *wire.Error
	if !errors.As(err, &e) || e.Code != wire.CodeGone || e.Details["earliest"] != "1.1" {
		t.Errorf("pruned cursor: %v, want gone with the earliest cursor", err)
	}
	if got := types(r.follow(run.ID, "1.1")); !slices.Equal(got, []string{"status", "1.2 run.ended"}) {
		t.Errorf("after the earliest cursor: %v", got)
	}
	// From the beginning there is one gap with both bounds.
	lines := r.follow(run.ID, "")
	if got := types(lines); !slices.Equal(got, []string{"status", "gap", "1.2 run.ended"}) {
		t.Fatalf("from the beginning: %v", got)
	}
	if g := lines[1]; g.From != "1.1" || g.To != "1.1" || g.ID != "" {
		t.Errorf("gap %+v", g)
	}
}

func TestRestartTakesUpOpenRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	open := r.create(attached(), "")
	done := r.create(attached(), "")
	if _, err := r.Cancel(within(t), "token:t", done.ID); err != nil {
		t.Fatal(err)
	}
	before := r.follow(done.ID, "")
	r.stop()
	r.start()
	if r.peek(open.ID) == nil {
		t.Error("the open run is not live after a restart")
	}
	after := r.follow(done.ID, "")
	if !slices.Equal(types(before), types(after)) {
		t.Errorf("log of the ended run: %v, before the restart %v", types(after), types(before))
	}
	got, err := r.Cancel(within(t), "token:t", open.ID)
	if err != nil || got.Status != store.StatusCancelled {
		t.Errorf("cancel after the restart: %+v, %v", got, err)
	}
	if busy, err := r.Busy(within(t)); err != nil || busy {
		t.Errorf("busy %v, %v with no open run", busy, err)
	}
}

func TestSessionIsClosedWhenNobodyNeedsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	run := r.create(attached(), "")
	e := r.peek(run.ID)
	if e == nil {
		t.Fatal("the run is not live")
	}
	if err := e.live.Apply(within(t), authority.RunnerLost{}); err != nil {
		t.Fatal(err)
	}
	// The close sequence is over at once, the session goes a moment later.
	for r.peek(run.ID) == e {
		ch := e.live.Changed()
		if e.live.Brief().Phase != authority.PhaseClosed {
			t.Fatal("not closed")
		}
		select {
		case <-ch:
		case <-within(t).Done():
			t.Fatal("the session is still live")
		}
	}
	got, err := r.Get(within(t), run.ID)
	if err != nil || !got.Ended() || got.Head == "" || got.Runner == nil {
		t.Errorf("read from the store: %+v, %v", got, err)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var ids []string
	for range 5 {
		ids = append(ids, r.create(attached(), "").ID)
	}
	slices.Reverse(ids) // newest first
	var got []string
	for cursor := ""; ; {
		page, err := r.List(within(t), store.RunQuery{Limit: 2, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range page.Runs {
			got = append(got, run.ID)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("listed %v, want %v", got, ids)
	}
}
