package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bowline/controlplane/resource"
	"bowline/controlplane/store"
	"bowline/wire"
)

// secret stands for anything that must never come back in an answer.
const secret = "s3cr3t-0f-th3-t3st"

// fakeRuns is a run manager that answers as told.
type fakeRuns struct {
	mu       sync.Mutex
	created  []*resource.CreateRun
	keys     []string
	actors   []string
	query    store.RunQuery
	ttl      time.Duration
	fresh    bool
	err      error
	follow   func(after string) (Follower, error)
	followed []string
}

func (f *fakeRuns) Create(_ context.Context, actor string, req *resource.CreateRun, key string) (*resource.Run, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.created, f.keys, f.actors = append(f.created, req), append(f.keys, key), append(f.actors, actor)
	return &resource.Run{ID: "run"}, f.fresh, f.err
}

func (f *fakeRuns) Get(_ context.Context, id string) (*resource.Run, error) {
	return &resource.Run{ID: id}, f.err
}

func (f *fakeRuns) List(_ context.Context, q store.RunQuery) (*resource.RunList, error) {
	f.query = q
	return &resource.RunList{Runs: []resource.Run{}}, f.err
}

func (f *fakeRuns) Cancel(_ context.Context, _, id string) (*resource.Run, error) {
	return &resource.Run{ID: id}, f.err
}

func (f *fakeRuns) RunnerLost(_ context.Context, _, id string, _ *resource.RunnerLost) (*resource.Run, error) {
	return &resource.Run{ID: id}, f.err
}

func (f *fakeRuns) IssueTicket(_ context.Context, _, id string, ttl time.Duration) (*resource.Ticket, error) {
	f.ttl = ttl
	return &resource.Ticket{RunID: id, Ticket: "bootstrap_x"}, f.err
}

func (f *fakeRuns) Follow(_ context.Context, _, after string) (Follower, error) {
	f.mu.Lock()
	f.followed = append(f.followed, after)
	f.mu.Unlock()
	if f.follow == nil {
		return &pages{}, f.err
	}
	return f.follow(after)
}

// pages hands out prepared pages, then ends.
type pages struct{ list [][]resource.Line }

func (p *pages) Next(context.Context) ([]resource.Line, bool, error) {
	if len(p.list) == 0 {
		return nil, true, nil
	}
	page := p.list[0]
	p.list = p.list[1:]
	return page, len(p.list) == 0, nil
}

// fakeTokens knows one token per scope, named as the scope.
type fakeTokens struct{ now time.Time }

func (f fakeTokens) Token(_ context.Context, hash [32]byte) (*store.TokenRow, error) {
	for _, scope := range []string{ScopeRead, ScopeRun, ScopeAnswer, ScopeOperate, ScopeAdmin, "expired", "revoked"} {
		if sha256.Sum256([]byte(scope)) != hash {
			continue
		}
		row := &store.TokenRow{ID: "id-" + scope, Hash: hash, Scopes: []string{scope}}
		switch scope {
		case "expired":
			row.Scopes, row.ExpiresAt = []string{ScopeAdmin}, f.now
		case "revoked":
			row.Scopes, row.RevokedAt = []string{ScopeAdmin}, f.now
		}
		return row, nil
	}
	return nil, wire.Errorf(wire.CodeNotFound, "no such token")
}

type rig struct {
	*Server
	runs *fakeRuns
	done chan struct{}
}

func newRig(change func(*Config)) *rig {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	r := &rig{runs: &fakeRuns{fresh: true}, done: make(chan struct{})}
	reg := prometheus.NewRegistry()
	cfg := Config{
		Runs: r.runs, Tokens: fakeTokens{now}, Meta: func() resource.Meta { return resource.Meta{Launch: "none"} },
		Metrics: reg, Register: reg, Done: r.done, Now: func() time.Time { return now },
	}
	if change != nil {
		change(&cfg)
	}
	r.Server = New(cfg)
	return r
}

// ask serves one request without a network. Headers are "Name: value".
func (r *rig) ask(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer admin")
	if body != "" {
		req.Header.Set("Content-Type", resource.MediaJSON)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Del(name)
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w
}

func code(t *testing.T, w *httptest.ResponseRecorder) wire.Code {
	t.Helper()
	var env resource.ErrorEnvelope
	if err := json.Unmarshal(w.Body.Bytes(), &env); err != nil {
		t.Fatalf("no error body: %s", w.Body)
	}
	if env.Error.RequestID == "" || env.Error.RequestID != w.Header().Get(resource.HeaderRequestID) {
		t.Errorf("request id %q, header %q", env.Error.RequestID, w.Header().Get(resource.HeaderRequestID))
	}
	if env.Error.Code.HTTPStatus() != w.Code {
		t.Errorf("code %s with status %d", env.Error.Code, w.Code)
	}
	return env.Error.Code
}

const good = `{"driver":"command","argv":["true"]}`

// Every answer, refusals included, carries the version and the schema hash.
func TestHeadersOnEveryAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	for _, c := range []struct {
		method, target, body string
		headers              []string
		status               int
	}{
		{"GET", "/v1/meta", "", nil, 200},
		{"POST", "/v1/runs", good, nil, 201},
		{"GET", "/v1/runs/x/events", "", nil, 200},
		{"GET", "/livez", "", nil, 200},
		{"GET", "/metrics", "", nil, 200},
		{"GET", "/openapi.json", "", nil, 200},
		{"POST", "/v1/runs", `{`, nil, 400},
		{"GET", "/v1/meta", "", []string{"Authorization: "}, 401},
		{"GET", "/v1/meta", "", []string{"Authorization: Bearer answer"}, 403},
		{"GET", "/nope", "", nil, 404},
		{"GET", "//v1/meta", "", nil, 404},
		{"GET", "/v1/../v1/meta", "", nil, 404},
		{"GET", "/v1/runs/", "", nil, 404},
		{"GET", "/docs", "", nil, 404},
		{"PUT", "/v1/runs", good, nil, 405},
		{"HEAD", "/v1/meta", "", nil, 405},
		{"OPTIONS", "/v1/runs", "", nil, 405},
		{"POST", "/v1/runs", strings.Repeat(" ", MaxBodyBytes+1), nil, 413},
		{"POST", "/v1/runs", good, []string{"Content-Type: text/plain"}, 415},
	} {
		w := r.ask(c.method, c.target, c.body, c.headers...)
		if w.Code != c.status {
			t.Errorf("%s %s: status %d, want %d: %s", c.method, c.target, w.Code, c.status, w.Body)
		}
		if w.Header().Get(resource.HeaderAPIVersion) != "1" || w.Header().Get(resource.HeaderSchemaHash) != r.SchemaHash() {
			t.Errorf("%s %s: headers %v", c.method, c.target, w.Header())
		}
		if c.status >= 400 && c.method != "HEAD" {
			code(t, w)
		}
		if c.status >= 400 && !strings.HasPrefix(w.Header().Get("Content-Type"), resource.MediaJSON) {
			t.Errorf("%s %s: content type %q", c.method, c.target, w.Header().Get("Content-Type"))
		}
	}
	w := r.ask("PUT", "/v1/runs", "")
	allow := w.Header().Values("Allow")
	slices.Sort(allow)
	if !slices.Equal(allow, []string{"GET", "POST"}) {
		t.Errorf("Allow %v", allow)
	}
}

func TestScopes(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	for i := range r.routes {
		rt := &r.routes[i]
		target := strings.ReplaceAll(rt.path, "{id}", "x")
		body := map[string]string{"createRun": good, "reportRunnerLost": `{"reason":"runner_gave_up"}`, "issueTicket": `{"runId":"x"}`}[rt.id]
		for _, token := range []string{"", ScopeRead, ScopeRun, ScopeAnswer, ScopeOperate, ScopeAdmin, "expired", "revoked", "unknown"} {
			auth := "Authorization: "
			if token != "" {
				auth += "Bearer " + token
			}
			w := r.ask(rt.method, target, body, auth)
			want := rt.statuses[0]
			if rt.scope != "" && token != rt.scope && token != ScopeAdmin {
				want = 403
				if token == "" || token == "expired" || token == "revoked" || token == "unknown" {
					want = 401
				}
			}
			if w.Code != want {
				t.Errorf("%s with token %q: %d, want %d: %s", rt.name(), token, w.Code, want, w.Body)
			}
		}
	}
	for _, bad := range []string{"Bearer", "Bearer ", "Basic admin", "admin", "Bearer " + strings.Repeat("a", maxTokenBytes+1)} {
		if w := r.ask("GET", "/v1/meta", "", "Authorization: "+bad); code(t, w) != wire.CodeUnauthorized || w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("Authorization %.20q: %d", bad, w.Code)
		}
	}
	if public := []string{"/livez", "/readyz"}; !slices.EqualFunc(public, slices.DeleteFunc(slices.Clone(r.routes), func(rt route) bool { return rt.scope != "" }), func(p string, rt route) bool { return rt.path == p }) {
		t.Error("public routes are not exactly /livez and /readyz")
	}
}

// The document and the routes are equal: each operation answers, nothing else does.
func TestDocumentEqualsRoutes(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	w := r.ask("GET", "/openapi.json", "")
	var doc struct {
		OpenAPI string                               `json:"openapi"`
		Paths   map[string]map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("openapi %q", doc.OpenAPI)
	}
	var documented, mounted []string
	for path, ops := range doc.Paths {
		for method, op := range ops {
			name := strings.ToUpper(method) + " " + path
			documented = append(documented, name)
			req := httptest.NewRequest(strings.ToUpper(method), strings.ReplaceAll(path, "{id}", "x"), nil)
			if _, pattern := r.mux.Handler(req); pattern != name {
				t.Errorf("%s is documented and served by %q", name, pattern)
			}
			responses, _ := op["responses"].(map[string]any)
			if responses["405"] == nil || responses["200"] == nil && responses["201"] == nil && responses["202"] == nil {
				t.Errorf("%s: responses %v", name, responses)
			}
		}
	}
	for i := range r.routes {
		mounted = append(mounted, r.routes[i].name())
	}
	slices.Sort(documented)
	slices.Sort(mounted)
	if !slices.Equal(documented, mounted) {
		t.Errorf("documented %v\nmounted    %v", documented, mounted)
	}
	sum := sha256.Sum256(w.Body.Bytes())
	if want := fmt.Sprintf("sha256:%x", sum); want != r.SchemaHash() {
		t.Errorf("schema hash %s, document %s", r.SchemaHash(), want)
	}
	if again := newRig(nil); again.SchemaHash() != r.SchemaHash() {
		t.Error("the document differs from start to start")
	}
	// Every member of the shapes has a schema; the request's are closed.
	if !bytes.Contains(w.Body.Bytes(), []byte(`"additionalProperties":false`)) {
		t.Error("no schema refuses unknown members")
	}
}

func TestStrictJSON(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	deep := func(n int) string {
		return `{"driver":"scripted","script":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	for name, c := range map[string]struct {
		body string
		want int
		path string // of the first violation
	}{
		"good":               {good, 201, ""},
		"deepest":            {deep(maxDepth - 1), 201, ""},
		"one too deep":       {deep(maxDepth), 400, ""},
		"empty":              {" ", 400, ""},
		"not JSON":           {"nope", 400, ""},
		"cut off":            {`{"driver":"x"`, 400, ""},
		"two values":         {good + good, 400, ""},
		"trailing garbage":   {good + "x", 400, ""},
		"member twice":       {`{"driver":"a","driver":"b","argv":["x"]}`, 400, ""},
		"nested twice":       {`{"driver":"a","labels":{"k":"1","k":"2"}}`, 400, ""},
		"not UTF-8":          {"{\"driver\":\"\xff\"}", 400, ""},
		"a list":             {`[]`, 400, "body"},
		"null":               {`null`, 400, "body"},
		"missing member":     {`{"argv":["x"]}`, 400, "body.driver"},
		"wrong type":         {`{"driver":1}`, 400, "body.driver"},
		"wrong item":         {`{"driver":"x","argv":["a",2]}`, 400, "body.argv[1]"},
		"wrong case":         {`{"Driver":"x","driver":"x"}`, 400, "body"},
		"unknown member":     {`{"driver":"x","promt":"x"}`, 400, "body"},
		"unknown nested":     {`{"driver":"x","limits":{"turnTime":1}}`, 400, "body.limits"},
		"label of a number":  {`{"driver":"x","labels":{"secretname":1}}`, 400, "body.labels.*"},
		"enum":               {`{"driver":"x","permission":"root"}`, 400, "body.permission"},
		"below the minimum":  {`{"driver":"x","limits":{"turnTimeMs":-1}}`, 400, "body.limits.turnTimeMs"},
		"not an integer":     {`{"driver":"x","limits":{"turnTimeMs":1.5}}`, 400, "body.limits.turnTimeMs"},
		"huge number":        {`{"driver":"x","limits":{"turnTimeMs":1e400}}`, 400, ""},
		"pattern":            {`{"driver":"x","runner":{"version":"1","digest":"sha256:00"}}`, 400, "body.runner.digest"},
		"too long":           {`{"driver":"` + strings.Repeat("x", resource.MaxNameBytes+1) + `"}`, 400, "body.driver"},
		"longest":            {`{"driver":"` + strings.Repeat("x", resource.MaxNameBytes) + `"}`, 201, ""},
		"too many arguments": {`{"driver":"x","argv":[` + strings.TrimSuffix(strings.Repeat(`"a",`, resource.MaxArgv+1), ",") + `]}`, 400, "body.argv"},
		"prototype":          {`{"driver":"x","__proto__":{}}`, 400, "body"},
	} {
		w := r.ask("POST", "/v1/runs", c.body)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d: %s", name, w.Code, c.want, w.Body)
			continue
		}
		if c.path == "" {
			continue
		}
		var env struct {
			Error struct {
				Message string
				Details struct{ Violations []violation }
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &env); err != nil || len(env.Error.Details.Violations) == 0 {
			t.Errorf("%s: %s", name, w.Body)
			continue
		}
		v := env.Error.Details.Violations[0]
		if v.Path != c.path && v.Path+"."+"driver" != c.path {
			t.Errorf("%s: path %q, want %q (%s)", name, v.Path, c.path, w.Body)
		}
		if !strings.HasPrefix(env.Error.Message, v.Path) {
			t.Errorf("%s: message %q does not name %s", name, env.Error.Message, v.Path)
		}
	}
	if w := r.ask("POST", "/v1/runs", `{"driver":"x","promt":"x"}`); !strings.Contains(w.Body.String(), "did you mean prompt?") {
		t.Errorf("no suggestion: %s", w.Body)
	}
	if w := r.ask("GET", "/v1/runs?limt=3", ""); !strings.Contains(w.Body.String(), "did you mean limit?") {
		t.Errorf("no suggestion: %s", w.Body)
	}
	if w := r.ask("POST", "/v1/runs/x/cancel", "{}"); w.Code != 400 {
		t.Errorf("a body where none is taken: %d", w.Code)
	}
}

// A secret posted anywhere never comes back.
func TestSecretsAreNeverEchoed(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	r.runs.err = errors.New("inside: " + secret)
	quoted := `"` + secret + `"`
	var bodies []string
	for _, member := range []string{"driver", "prompt", "argv", "pty", "script", "workspace", "env", "permission", "labels", "limits", "session", "placement", "runner", "provider", secret} {
		bodies = append(bodies,
			fmt.Sprintf(`{%q:%s}`, member, quoted),
			fmt.Sprintf(`{%q:[%s]}`, member, quoted),
			fmt.Sprintf(`{%q:{%s:1}}`, member, quoted),
			fmt.Sprintf(`{%q:{"k":%s}}`, member, quoted),
			fmt.Sprintf(`{"driver":"x",%q:%s}`, member, quoted),
			fmt.Sprintf(`{%q:1,%q:1}`, member, member),
		)
	}
	for _, m := range []string{"version", "digest"} {
		bodies = append(bodies, fmt.Sprintf(`{"driver":"x","runner":{%q:%s}}`, m, quoted))
	}
	bodies = append(bodies, secret, quoted, "{"+secret, `{"driver":"x"}`+secret, `{"reason":`+quoted+`}`, `{"runId":`+quoted+`,"ttlMs":`+quoted+`}`, `{"ttlMs":`+quoted+`}`)
	check := func(what string, w *httptest.ResponseRecorder) {
		t.Helper()
		if strings.Contains(w.Body.String(), secret) || strings.Contains(fmt.Sprint(w.Header()), secret) {
			t.Errorf("%s: the answer shows the secret: %s", what, w.Body)
		}
	}
	for _, target := range []string{"/v1/runs", "/v1/tickets", "/v1/runs/x/runner-lost", "/v1/runs/x/cancel", "/v1/meta", "/nope"} {
		for _, b := range bodies {
			check(target+" "+b, r.ask("POST", target, b))
		}
	}
	for _, target := range []string{
		"/" + secret, "/v1/runs/" + secret + "/nope", "/v1/runs/" + secret, "/v1/runs/" + secret + "/events",
		"/v1/runs?" + secret, "/v1/runs?" + secret + "=1", "/v1/runs?status=" + secret, "/v1/runs?limit=" + secret,
		"/v1/runs?status=a&status=" + secret, "/v1/runs?%zz" + secret, "/v1/runs/x/events?after=" + secret,
	} {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
			check(method+" "+target, r.ask(method, target, ""))
		}
	}
	for _, h := range []string{"Authorization: Bearer " + secret, "Authorization: " + secret, "Content-Type: " + secret, "Accept: " + secret, "Idempotency-Key: " + secret + "\x01", "Last-Event-ID: " + secret} {
		check(h, r.ask("POST", "/v1/runs", good, h))
		check(h, r.ask("GET", "/v1/runs/x/events", "", h))
	}
}

func TestInternalErrorsStayInside(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	r.runs.err = errors.New("the database said " + secret)
	w := r.ask("GET", "/v1/runs/x", "")
	if code(t, w) != wire.CodeInternal {
		t.Errorf("%s", w.Body)
	}
	r.runs.err = &wire.Error{Code: wire.CodeUnavailable, Message: "later", Cause: errors.New(secret)}
	w = r.ask("GET", "/v1/runs/x", "")
	if code(t, w) != wire.CodeUnavailable || w.Header().Get("Retry-After") == "" || strings.Contains(w.Body.String(), secret) {
		t.Errorf("%v %s", w.Header(), w.Body)
	}
}

func TestCreateHandsOverWhatWasAsked(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	if w := r.ask("POST", "/v1/runs", good, "Idempotency-Key: k-1"); w.Code != 201 {
		t.Fatal(w.Body)
	}
	r.runs.fresh = false
	if w := r.ask("POST", "/v1/runs", good, "Idempotency-Key: k-1"); w.Code != 200 {
		t.Fatalf("a repeated key answers %d", w.Code)
	}
	if !slices.Equal(r.runs.keys, []string{"k-1", "k-1"}) || r.runs.actors[0] != "token:id-admin" || r.runs.created[0].Argv[0] != "true" {
		t.Errorf("%v %v %+v", r.runs.keys, r.runs.actors, r.runs.created[0])
	}
	for _, bad := range []string{strings.Repeat("k", maxKeyBytes+1), "with space", "tab\t", "ümlaut"} {
		if w := r.ask("POST", "/v1/runs", good, "Idempotency-Key: "+bad); w.Code != 400 {
			t.Errorf("key %.20q: %d", bad, w.Code)
		}
	}
	if w := r.ask("POST", "/v1/runs", good, "Idempotency-Key: "+strings.Repeat("k", maxKeyBytes)); w.Code != 200 {
		t.Errorf("longest key: %d", w.Code)
	}
	for target, want := range map[string]store.RunQuery{
		"/v1/runs":                         {Limit: defaultPage},
		"/v1/runs?limit=200&status=queued": {Limit: 200, Status: "queued"},
		"/v1/runs?cursor=c":                {Limit: defaultPage, Cursor: "c"},
	} {
		if w := r.ask("GET", target, ""); w.Code != 200 || r.runs.query != want {
			t.Errorf("%s: %d, %+v", target, w.Code, r.runs.query)
		}
	}
	for _, target := range []string{"/v1/runs?limit=0", "/v1/runs?limit=201", "/v1/runs?limit=x", "/v1/runs?status=nope", "/v1/runs?limit=1&limit=2", "/v1/meta?x=1", "/v1/runs?" + strings.Repeat("a", MaxQueryBytes+1)} {
		if w := r.ask("GET", target, ""); w.Code != 400 && w.Code != 413 {
			t.Errorf("%.40s: %d", target, w.Code)
		}
	}
	if w := r.ask("POST", "/v1/tickets", `{"runId":"x","ttlMs":1000}`); w.Code != 201 || r.runs.ttl != time.Second {
		t.Errorf("ticket: %d %s, ttl %s", w.Code, w.Body, r.runs.ttl)
	}
	for _, ttl := range []string{"999", "60001", "0", "-1"} {
		if w := r.ask("POST", "/v1/tickets", `{"runId":"x","ttlMs":`+ttl+`}`); w.Code != 400 {
			t.Errorf("ttl %s: %d", ttl, w.Code)
		}
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	var broken error
	r := newRig(func(c *Config) {
		c.Checks = []Check{{"store", func(context.Context) error { return broken }}, {"other", func(context.Context) error { return nil }}}
	})
	if w := r.ask("GET", "/readyz?verbose", "", "Authorization: "); w.Code != 200 || w.Body.String() != "[+] store\n[+] other\nok\n" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	broken = errors.New("/path/to/" + secret)
	w := r.ask("GET", "/readyz?verbose", "", "Authorization: ")
	if code(t, w) != wire.CodeUnavailable || !strings.Contains(w.Body.String(), `"store"`) || strings.Contains(w.Body.String(), secret) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := r.ask("GET", "/livez", "", "Authorization: "); w.Code != 200 {
		t.Errorf("livez depends on a check: %d", w.Code)
	}
}

func TestProbesAreNoActivity(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	r := newRig(func(c *Config) { c.Now = func() time.Time { return now } })
	now = now.Add(time.Minute)
	for _, probe := range []string{"/livez", "/readyz", "/metrics", "/nope"} {
		r.ask("GET", probe, "")
	}
	if r.Idle() != time.Minute {
		t.Errorf("idle %s after probes, want 1m", r.Idle())
	}
	r.ask("GET", "/v1/meta", "")
	if r.Idle() != 0 {
		t.Errorf("idle %s after a request", r.Idle())
	}
}

func event(seq int, typ, payload string) resource.Line {
	return resource.Line{Type: resource.LineEvent, ID: fmt.Sprintf("1.%d", seq), RunID: "run", Event: &resource.Event{Type: typ, Payload: json.RawMessage(payload)}}
}

func TestStreamFormats(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	r.runs.follow = func(string) (Follower, error) {
		return &pages{[][]resource.Line{
			{{Type: resource.LineStatus, RunID: "run", Status: "running", Head: "1.2"}},
			{{Type: resource.LineGap, RunID: "run", From: "1.1", To: "1.1"}, event(2, "x", `{"html":"<b>&\u2028"}`)},
			{event(3, resource.EventRunEnded, `{}`)},
		}}, nil
	}
	w := r.ask("GET", "/v1/runs/run/events", "")
	if got := w.Header().Get("Content-Type"); got != resource.MediaSSE {
		t.Errorf("content type %q", got)
	}
	want := "event: status\n" + `data: {"type":"status","runId":"run","status":"running","head":"1.2"}` + "\n\n" +
		"event: gap\n" + `data: {"type":"gap","runId":"run","from":"1.1","to":"1.1"}` + "\n\n" +
		"id: 1.2\n" + `data: {"type":"event","id":"1.2","runId":"run","event":{"type":"x","at":"0001-01-01T00:00:00Z","origin":"","sessionId":"","payload":{"html":"<b>&\u2028"}}}` + "\n\n" +
		"id: 1.3\n" + `data: {"type":"event","id":"1.3","runId":"run","event":{"type":"run.ended","at":"0001-01-01T00:00:00Z","origin":"","sessionId":"","payload":{}}}` + "\n\n"
	if w.Body.String() != want {
		t.Errorf("SSE\n%s\nwant\n%s", w.Body, want)
	}
	w = r.ask("GET", "/v1/runs/run/events", "", "Accept: text/html, application/x-ndjson;q=0.9")
	if got := w.Header().Get("Content-Type"); got != resource.MediaNDJSON {
		t.Errorf("content type %q", got)
	}
	lines := strings.Split(strings.TrimSuffix(w.Body.String(), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines: %s", len(lines), w.Body)
	}
	for i, l := range lines {
		var line resource.Line
		if err := json.Unmarshal([]byte(l), &line); err != nil || (line.ID == "") != (i < 2) {
			t.Errorf("line %d: %s, %v", i, l, err)
		}
	}
}

func TestStreamCursorSources(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	r.ask("GET", "/v1/runs/x/events", "")
	r.ask("GET", "/v1/runs/x/events", "", "Last-Event-ID: 1.5")
	r.ask("GET", "/v1/runs/x/events?after=1.7", "", "Last-Event-ID: 1.5")
	if want := []string{"", "1.5", "1.7"}; !slices.Equal(r.runs.followed, want) {
		t.Errorf("cursors %q, want %q: ?after= wins", r.runs.followed, want)
	}
	if w := r.ask("GET", "/v1/runs/x/events?after=", ""); code(t, w) != wire.CodeBadCursor {
		t.Errorf("an empty cursor: %s", w.Body)
	}
	r.runs.follow = func(string) (Follower, error) {
		return nil, wire.Errorf(wire.CodeGone, "pruned").With("earliest", "1.4")
	}
	w := r.ask("GET", "/v1/runs/x/events?after=1.1", "")
	if code(t, w) != wire.CodeGone || !strings.Contains(w.Body.String(), `"earliest":"1.4"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// broken fails after its pages.
type broken struct {
	pages
	err error
}

func (b *broken) Next(ctx context.Context) ([]resource.Line, bool, error) {
	if len(b.list) == 0 {
		return nil, false, b.err
	}
	lines, _, err := b.pages.Next(ctx)
	return lines, false, err
}

func TestStreamThatBreaksSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	r.runs.follow = func(string) (Follower, error) {
		return &broken{pages{[][]resource.Line{{event(1, "x", `{}`)}}}, errors.New("disk: " + secret)}, nil
	}
	w := r.ask("GET", "/v1/runs/x/events", "", "Accept: application/x-ndjson")
	lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
	var last resource.Line
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Type != resource.LineError || last.ID != "" || last.Error.Code != wire.CodeInternal {
		t.Errorf("last line %s, %v", lines[len(lines)-1], err)
	}
	if strings.Contains(w.Body.String(), secret) {
		t.Error("the error's text is shown")
	}
}

// silent never has news.
type silent struct{}

func (silent) Next(ctx context.Context) ([]resource.Line, bool, error) {
	<-ctx.Done()
	return nil, false, ctx.Err()
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	for _, sse := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := httptest.NewRecorder()
			out := &streamWriter{w: w, rc: http.NewResponseController(w), sse: sse}
			ctx, cancel := context.WithTimeout(context.Background(), 3*keepAlive+time.Second)
			defer cancel()
			if err := out.follow(ctx, silent{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			want := strings.Repeat("\n", 3)
			if sse {
				want = strings.Repeat(": keep-alive\n\n", 3)
			}
			if w.Body.String() != want {
				t.Errorf("sse %v: %q in 46 s of silence, want %q", sse, w.Body, want)
			}
		})
	}
}

// stuck is a connection whose reader takes nothing: a write ends at its
// deadline.
type stuck struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (s *stuck) SetWriteDeadline(t time.Time) error { s.deadline = t; return nil }

func (s *stuck) Write([]byte) (int, error) {
	<-time.After(time.Until(s.deadline))
	return 0, os.ErrDeadlineExceeded
}

// endless always has another page.
type endless struct{ pages int }

func (e *endless) Next(context.Context) ([]resource.Line, bool, error) {
	e.pages++
	return []resource.Line{event(e.pages, "x", `{}`)}, false, nil
}

func TestSlowReaderIsClosedAndCostsOnePage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &stuck{ResponseRecorder: httptest.NewRecorder()}
		out := &streamWriter{w: w, rc: http.NewResponseController(w)}
		f, began := &endless{}, time.Now()
		if err := out.follow(t.Context(), f); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("follow: %v", err)
		}
		if took := time.Since(began); took != answerTimeout || f.pages != 1 {
			t.Errorf("closed after %s and %d pages, want %s and one", took, f.pages, answerTimeout)
		}
	})
}

// A stopping server ends its streams; a reader that is gone ends its own.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	r.runs.follow = func(string) (Follower, error) { return silent{}, nil }
	srv := httptest.NewServer(r)
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	open := func(ctx context.Context) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/v1/runs/x/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer read")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	leaving, leave := context.WithCancel(ctx)
	gone, staying := open(leaving), open(ctx)
	if r.Idle() != 0 {
		t.Error("an open stream is no activity")
	}
	leave()
	if _, err := io.Copy(io.Discard, gone.Body); err == nil {
		t.Error("the cancelled stream ended in order")
	}
	close(r.done)
	if rest, err := io.ReadAll(bufio.NewReader(staying.Body)); err != nil || len(rest) != 0 {
		t.Errorf("the stream of a stopping server: %q, %v", rest, err)
	}
	if err := errors.Join(gone.Body.Close(), staying.Body.Close()); err != nil {
		t.Error(err)
	}
}

func TestMetricsOfTheAPI(t *testing.T) {
	t.Parallel()
	r := newRig(nil)
	r.ask("GET", "/v1/runs/"+secret, "")
	r.ask("GET", "/"+secret, "")
	w := r.ask("GET", "/metrics", "")
	for _, want := range []string{
		`bowline_api_requests_total{route="GET /v1/runs/{id}",status="2xx"} 1`,
		`bowline_api_requests_total{route="unknown",status="4xx"} 1`,
		`bowline_subscribers 0`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s is missing in\n%s", want, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), secret) {
		t.Error("an id is in a label")
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"driver", "prompt", "argv", "pty", "labels", "limits"}
	for name, want := range map[string]string{
		"driver": "driver", "Driver": "driver", "drivr": "driver", "promt": "prompt", "label": "labels", "agrv": "argv",
		"completely-different": "", "": "", secret: "", strings.Repeat("driver", 20): "",
	} {
		if got := nearest(name, known); got != want {
			t.Errorf("nearest(%q) = %q, want %q", name, got, want)
		}
	}
}
