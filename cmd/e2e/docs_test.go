package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"bowline/cmd/internal/cli"
	"bowline/cmd/internal/config"
	"bowline/controlplane/launch"
	"bowline/wire"
)

// page is a document of docs/.
type page struct {
	t    *testing.T
	name string
	text string
}

func readPage(t *testing.T, name string) page {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(repoRoot(t), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return page{t, name, string(raw)}
}

// section is the text under a heading, up to the next one of its level or above.
func (p page) section(heading string) string {
	p.t.Helper()
	_, rest, ok := strings.Cut("\n"+p.text, "\n"+heading+"\n")
	if !ok {
		p.t.Errorf("docs/%s has no heading %q", p.name, heading)
		return ""
	}
	level := strings.Index(heading, " ")
	for i := 0; ; {
		at := strings.Index(rest[i:], "\n#")
		if at < 0 {
			return rest
		}
		i += at + 1
		if n := len(rest[i:]) - len(strings.TrimLeft(rest[i:], "#")); n <= level && rest[i+n] == ' ' {
			return rest[:i]
		}
	}
}

// rows are the cells of the first table of a section, without its head.
func rows(section string) [][]string {
	var out [][]string
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if len(out) > 0 {
				break
			}
			continue
		}
		var cells []string
		for _, c := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(c))
		}
		out = append(out, cells)
	}
	if len(out) < 2 {
		return nil
	}
	return out[2:]
}

// names are the first words in backticks of each row's first cell.
func names(section string) []string {
	var out []string
	for _, r := range rows(section) {
		out = append(out, strings.Trim(r[0], "`"))
	}
	return out
}

// same compares what a document lists with what the program has, both ways.
func same(t *testing.T, what string, documented, actual []string) {
	t.Helper()
	documented, actual = slices.Clone(documented), slices.Clone(actual)
	slices.Sort(documented)
	slices.Sort(actual)
	for i, d := range documented {
		if i > 0 && d == documented[i-1] {
			t.Errorf("%s: %s is documented twice", what, d)
		}
		if !slices.Contains(actual, d) {
			t.Errorf("%s: %s is documented and does not exist", what, d)
		}
	}
	for _, a := range actual {
		if !slices.Contains(documented, a) {
			t.Errorf("%s: %s exists and is not documented", what, a)
		}
	}
	if len(actual) == 0 {
		t.Errorf("%s: nothing was found to compare with", what)
	}
}

func TestDocsRoutes(t *testing.T) {
	t.Parallel()
	p := readPage(t, "host-api.md")
	s := startServer(t, program(t, "bowline"))
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct {
				Name   string
				Schema struct{ Enum []string }
			}
		}
	}
	if status := s.do("GET", "/openapi.json", nil, &doc); status != 200 {
		t.Fatalf("/openapi.json: status %d", status)
	}
	var actual, documented, statuses []string
	for path, methods := range doc.Paths {
		for m, op := range methods {
			actual = append(actual, strings.ToUpper(m)+" "+path)
			for _, param := range op.Parameters {
				if param.Name == "status" {
					statuses = param.Schema.Enum
				}
			}
		}
	}
	for _, r := range rows(p.section("## Routes")) {
		path := strings.Trim(r[1], "`")
		documented = append(documented, r[0]+" "+path)
		p.section("### " + r[0] + " " + path)
		// Without a token a public route answers and no other does.
		req, err := http.NewRequestWithContext(t.Context(), r[0], s.URL+strings.ReplaceAll(path, "{id}", "x"), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if want := map[bool]int{true: 200, false: 401}[r[2] == "public"]; resp.StatusCode != want {
			t.Errorf("%s %s without a token: status %d, want %d", r[0], path, resp.StatusCode, want)
		}
		for _, h := range []string{"Bowline-Api-Version", "Bowline-Schema-Hash", "Bowline-Request-Id"} {
			if resp.Header.Get(h) == "" {
				t.Errorf("%s %s: no header %s", r[0], path, h)
			}
		}
	}
	same(t, "routes", documented, actual)
	same(t, "statuses", names(p.section("## Statuses")), statuses)
}

// constants are the string constants of a package whose name has a prefix.
func constants(t *testing.T, dir string, prefixes ...string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repoRoot(t), dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range v.Names {
				if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name.Name, p) }) || i >= len(v.Values) {
					continue
				}
				if text, ok := literal(v.Values[i]); ok {
					out = append(out, text)
				}
			}
			return true
		})
	}
	return out
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

func TestDocsReasons(t *testing.T) {
	t.Parallel()
	actual := slices.Concat(constants(t, "controlplane/authority", "Reason"), constants(t, "controlplane/runs", "Reason"), constants(t, "controlplane/resource", "Lost"))
	slices.Sort(actual)
	same(t, "reasons", names(readPage(t, "host-api.md").section("## Reasons")), slices.Compact(actual))
}

// flagWord is how a document names a flag: with the word its help uses for the
// value.
func flagWord(f *pflag.Flag) string {
	value, _ := pflag.UnquoteUsage(f)
	return strings.TrimSpace("--" + f.Name + " " + value)
}

func TestDocsCommandLine(t *testing.T) {
	t.Parallel()
	p := readPage(t, "cli.md")
	var verbs, documented []string
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		if cmd.Name() == "completion" { // cobra's own, one verb per shell
			verbs = append(verbs, cmd.CommandPath())
			return
		}
		if cmd.HasSubCommands() {
			for _, c := range cmd.Commands() {
				walk(c)
			}
			return
		}
		verbs = append(verbs, cmd.CommandPath())
		var flags []string
		add := func(f *pflag.Flag) {
			if f.Name != "help" {
				flags = append(flags, flagWord(f))
			}
		}
		cmd.InheritedFlags().VisitAll(add)
		cmd.LocalFlags().VisitAll(add)
		section := p.section("## " + cmd.CommandPath())
		if len(flags) == 0 && rows(section) == nil {
			return
		}
		same(t, "flags of "+cmd.CommandPath(), names(section), flags)
	}
	walk(cli.Root())
	for line := range strings.Lines(p.text) {
		if verb, ok := strings.CutPrefix(strings.TrimSpace(line), "## bowline "); ok {
			documented = append(documented, "bowline "+verb)
		}
	}
	same(t, "verbs", documented, verbs)

	var codes []string
	for _, c := range []int{wire.ExitOK, wire.ExitFailed, wire.ExitUsage, wire.ExitNotReady, wire.ExitRefused, wire.ExitIntegrity, wire.ExitSignal} {
		codes = append(codes, strconv.Itoa(c))
	}
	same(t, "exit codes", names(p.section("## Exit codes")), codes)
	same(t, "flags of runnerd", names(p.section("## runnerd")), runnerdFlags(t))
}

// runnerdFlags reads the names in runnerd's table of flags.
func runnerdFlags(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, name := range literals(t, "runnerd/flags.go", "flagSpecs") {
		out = append(out, "--"+name)
	}
	return out
}

// literals are the strings in a function of a file.
func literals(t *testing.T, file, function string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repoRoot(t), filepath.FromSlash(file)), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != function {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				if text, ok := literal(e); ok {
					out = append(out, text)
				}
			}
			return true
		})
	}
	return out
}

// TestDocsEnvironment compares the variables of an agent and of a stand-in.
func TestDocsEnvironment(t *testing.T) {
	t.Parallel()
	table := rows(readPage(t, "cli.md").section("### What the agent gets"))
	if len(table) != 3 {
		t.Fatalf("the table has %d rows, want 3", len(table))
	}
	drivers := literals(t, "runnerd/run.go", "kinds") // and the kinds themselves
	drivers = slices.DeleteFunc(drivers, func(s string) bool { return slices.Contains(config.Kinds(), s) })
	for i, actual := range [][]string{
		literals(t, "runnerd/supervise/env.go", "providerNames"), drivers, literals(t, "controlplane/launch/launch.go", "standInEnv"),
	} {
		same(t, "variables, "+table[i][0], strings.Split(strings.ReplaceAll(table[i][1], "`", ""), ", "), actual)
	}
}

func TestDocsConfig(t *testing.T) {
	t.Parallel()
	section := readPage(t, "cli.md").section("## Config file")
	keys := []string{"from"} // read by hand
	var collect func(typ reflect.Type)
	collect = func(typ reflect.Type) {
		for i := range typ.NumField() {
			key := typ.Field(i).Tag.Get("yaml")
			if key == "" {
				continue
			}
			keys = append(keys, key)
			if field := typ.Field(i).Type; field.Kind() == reflect.Map && field.Elem().Kind() == reflect.Struct {
				collect(field.Elem())
			}
		}
	}
	collect(reflect.TypeFor[config.Config]())
	same(t, "keys of the config file", names(section), keys)
	_, example, _ := strings.Cut(section, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	c, err := config.Parse([]byte(example))
	if err != nil {
		t.Fatalf("the example of a config file: %v", err)
	}
	if len(c.Drivers) != 2 || c.Drivers["check"].Kind != "command" || c.Drivers["codex"].Env["OPENAI_API_KEY"].From != "WORK_KEY" {
		t.Errorf("the example is read as %+v", c)
	}
}

// family is a metric as it is served.
type family struct {
	kind   string
	labels map[string]bool
}

var sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)

// scrape reads the Prometheus text at url.
func scrape(t *testing.T, url string) map[string]family {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatalf("scrape: %v", err)
	}
	defer resp.Body.Close()
	out := map[string]family{}
	current := ""
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		line := s.Text()
		if fields := strings.Fields(line); strings.HasPrefix(line, "# TYPE ") {
			current = fields[2]
			out[current] = family{fields[3], map[string]bool{}}
			continue
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil || !strings.HasPrefix(m[1], current) {
			t.Fatalf("%s: line %q", url, line)
		}
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(m[2], -1) {
			if l[1] != "le" {
				out[current].labels[l[1]] = true
			}
		}
	}
	return out
}

// freeAddr is a loopback address nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestDocsMetrics starts a server and a runner with --metrics, as shipped, and
// compares what they serve with docs/metrics.md.
func TestDocsMetrics(t *testing.T) {
	t.Parallel()
	p := readPage(t, "metrics.md")
	serverAddr, runnerAddr := freeAddr(t), freeAddr(t)
	runnerd := program(t, "runnerd")
	s := startServer(t, program(t, "bowline"), "--metrics", serverAddr)
	dir := t.TempDir()
	digest, err := launch.Digest(runnerd)
	if err != nil {
		t.Fatal(err)
	}
	var run struct {
		ID     string
		Runner struct {
			ConnectPath, Version, Digest string
			Identity                     struct {
				RunnerInstanceID    string `json:"runnerInstanceId"`
				EnvironmentLeaseID  string `json:"environmentLeaseId"`
				RunID               string `json:"runId"`
				NormalizedSessionID string `json:"normalizedSessionId"`
				TurnID              string `json:"turnId"`
				ItemID              string `json:"itemId"`
			}
		}
	}
	if status := s.do("POST", "/v1/runs", map[string]any{
		"driver": "command", "argv": []string{"sh", "-c", "until test -e go; do sleep 0.02; done"},
		"placement": "attached", "workspace": dir, "runner": map[string]any{"version": "0.3.0", "digest": digest},
	}, &run); status != 201 {
		t.Fatalf("create: status %d", status)
	}
	var ticket struct{ Ticket string }
	if status := s.do("POST", "/v1/tickets", map[string]any{"runId": run.ID}, &ticket); status != 201 {
		t.Fatalf("ticket: status %d", status)
	}
	id := run.Runner.Identity
	startProgram(t, cleanEnv(t, "BOWLINE_TICKET="+ticket.Ticket), dir, runnerd,
		"--connect-url", "ws"+strings.TrimPrefix(s.URL, "http")+run.Runner.ConnectPath, "--state-dir", filepath.Join(dir, "state"),
		"--runner-id", id.RunnerInstanceID, "--environment-lease-id", id.EnvironmentLeaseID, "--run-id", id.RunID,
		"--session-id", id.NormalizedSessionID, "--turn-id", id.TurnID, "--item-id", id.ItemID,
		"--runner-version", run.Runner.Version, "--runner-digest", run.Runner.Digest, "--metrics", runnerAddr)
	status := func(want string) func() bool {
		return func() bool {
			var v runView
			s.do("GET", "/v1/runs/"+run.ID, nil, &v)
			return v.Status == want
		}
	}
	waitFor(t, "the run to run", status("running"))
	runner := scrape(t, "http://"+runnerAddr+"/metrics")
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the run to end", status("completed"))
	plane := scrape(t, "http://"+serverAddr+"/metrics")
	for name := range plane {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			delete(plane, name)
		}
	}
	for heading, served := range map[string]map[string]family{"## Control plane": plane, "## runnerd": runner} {
		section := p.section(heading)
		same(t, "metrics, "+heading, names(section), slices.Collect(maps.Keys(served)))
		for _, r := range rows(section) {
			name := strings.Trim(r[0], "`")
			f, ok := served[name]
			if !ok {
				continue
			}
			labels := slices.Sorted(maps.Keys(f.labels))
			var documented []string
			for _, l := range strings.Split(r[2], ",") {
				if l = strings.Trim(l, " `"); l != "" {
					documented = append(documented, l)
				}
			}
			slices.Sort(documented)
			if r[1] != f.kind || !slices.Equal(labels, documented) {
				t.Errorf("%s is a %s with labels %v, documented as a %s with %v", name, f.kind, labels, r[1], documented)
			}
		}
	}
	for _, text := range []string{run.ID, dir, id.RunnerInstanceID} {
		for _, url := range []string{"http://" + serverAddr + "/metrics"} {
			resp, err := http.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || bytes.Contains(body, []byte(text)) {
				t.Errorf("%s shows an id or a path (%v)", url, err)
			}
		}
	}
}

// fenced is the first code block of a section.
func fenced(section string) string {
	_, rest, _ := strings.Cut(section, "```sh\n")
	block, _, _ := strings.Cut(rest, "```")
	return block
}

// TestDocsExamples executes the examples of docs/host-api.md: the shell finds
// the server, the request makes the run it describes, and the stream looks as
// the page says.
func TestDocsExamples(t *testing.T) {
	t.Parallel()
	p := readPage(t, "host-api.md")
	s := startServer(t, program(t, "bowline"))
	state := t.TempDir()
	if err := os.Symlink(s.data, filepath.Join(state, "bowline")); err != nil {
		t.Fatal(err)
	}
	sh := exec.Command("sh", "-c", fenced(p.section("# The host API"))+"\nprintf '%s %s' \"$URL\" \"$TOKEN\"\n")
	sh.Env = []string{"PATH=" + os.Getenv("PATH"), "XDG_STATE_HOME=" + state, "HOME=/nonexistent"}
	out, err := sh.Output()
	if err != nil || string(out) != s.URL+" "+s.Token {
		t.Errorf("the shell found %q, %v", out, err)
	}

	example := fenced(p.section("### POST /v1/runs"))
	body := regexp.MustCompile(`-d '([^']+)'`).FindStringSubmatch(example)
	key := regexp.MustCompile(`'Idempotency-Key: ([^']+)'`).FindStringSubmatch(example)
	if body == nil || key == nil {
		t.Fatalf("the example has no body or key: %s", example)
	}
	call := func(method, path, body string, header map[string]string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.Token)
		for k, v := range header {
			req.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	ids := map[string]bool{}
	for _, want := range []int{201, 200} {
		resp := call("POST", "/v1/runs", body[1], map[string]string{"Content-Type": "application/json", "Idempotency-Key": key[1]})
		var run struct {
			ID     string
			Labels map[string]string
		}
		if err := json.NewDecoder(resp.Body).Decode(&run); err != nil || resp.StatusCode != want || run.Labels["team"] != "red" {
			t.Fatalf("status %d, want %d; %+v, %v", resp.StatusCode, want, run, err)
		}
		ids[run.ID] = true
	}
	if len(ids) != 1 {
		t.Fatalf("one key made %d runs", len(ids))
	}
	if resp := call("POST", "/v1/runs", `{"driver":"scripted"}`, map[string]string{"Content-Type": "application/json", "Idempotency-Key": key[1]}); resp.StatusCode != 409 {
		t.Errorf("another body with the same key: status %d", resp.StatusCode)
	}
	id := slices.Collect(maps.Keys(ids))[0]
	// Its runner writes into the data folder until it has gone.
	defer waitFor(t, "the runner to be gone", func() bool { return runnerPID(id) == 0 })

	// Every member of the table exists, and no other.
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	s.do("GET", "/openapi.json", nil, &doc)
	same(t, "members of POST /v1/runs", names(p.section("### POST /v1/runs")), slices.Collect(maps.Keys(doc.Components.Schemas["CreateRun"].Properties)))
	same(t, "members of an event", names(p.section("### GET /v1/runs/{id}/events")), eventMembers(doc.Components.Schemas["Event"].Properties))

	resp := call("GET", "/v1/runs/"+id+"/events?after=1.2", "", map[string]string{"Accept": "application/x-ndjson"})
	type streamed struct {
		Type, ID, Status, Head string
		Event                  struct {
			Type, Origin string
			Payload      struct {
				Status, Reason, Text string
				Result               struct {
					ExitCode         *int
					Signal           any
					Outcome, Message string
				}
			}
		}
	}
	var lines []streamed
	for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
		if len(sc.Bytes()) == 0 {
			continue // keep-alive
		}
		var l streamed
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatalf("line %q: %v", sc.Text(), err)
		}
		lines = append(lines, l)
	}
	if len(lines) < 4 {
		t.Fatalf("%d lines", len(lines))
	}
	first, last := lines[0], lines[len(lines)-1]
	if first.Type != "status" || first.ID != "" || first.Status == "" || first.Head == "" {
		t.Errorf("first line %+v", first)
	}
	text := ""
	for i, l := range lines[1:] {
		if want := fmt.Sprintf("1.%d", i+3); l.Type != "event" || l.ID != want {
			t.Errorf("line %d is %s %s, want event %s", i+2, l.Type, l.ID, want)
		}
		text += l.Event.Payload.Text
	}
	end := last.Event.Payload
	if text != "hello\n" || last.Event.Type != "run.ended" || last.Event.Origin != "control_plane" || end.Status != "failed" || end.Reason != "exit" ||
		end.Result.ExitCode == nil || *end.Result.ExitCode != 3 || end.Result.Outcome == "" || end.Result.Message == "" {
		t.Errorf("text %q, last line %+v", text, last)
	}

	resp = call("GET", "/v1/runs/"+id+"/events", "", map[string]string{"Last-Event-ID": "1.2"})
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.Header.Get("Content-Type") != "text/event-stream" ||
		!strings.HasPrefix(string(raw), "event: status\ndata: {\"type\":\"status\"") || !strings.Contains(string(raw), "\n\nid: 1.3\ndata: {\"type\":\"event\",\"id\":\"1.3\"") {
		t.Errorf("SSE: %v %v\n%.600s", resp.Header, err, raw)
	}
	for cursor, want := range map[string]int{"x": 400, "1.999999": 400, "2.1": 400, "": 400} {
		if resp := call("GET", "/v1/runs/"+id+"/events?after="+cursor, "", nil); resp.StatusCode != want {
			t.Errorf("cursor %q: status %d, want %d", cursor, resp.StatusCode, want)
		}
	}
}

// eventMembers splits what the table of events shows in one row.
func eventMembers(props map[string]any) []string {
	var out []string
	for name := range props {
		switch name {
		case "turnId": // shares a row with sessionId
		case "sessionId":
			out = append(out, "sessionId`, `turnId")
		default:
			out = append(out, name)
		}
	}
	return out
}
