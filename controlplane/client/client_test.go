package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowline/controlplane/resource"
	"bowline/wire"
)

// serverOf makes a server whose answers carry the version header, and a client
// of it that does not wait between reconnects.
func serverOf(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(resource.HeaderAPIVersion, resource.APIVersion)
		h(w, r)
	}))
	t.Cleanup(srv.Close)
	c, err := New(srv.URL+"/", Options{
		// Without kept connections: net/http repeats a request by itself when a
		// kept one turns out to be closed.
		Token: "tok", HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		Sleep:  func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
		Jitter: func(d time.Duration) time.Duration { return d },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), 30*time.Second, errors.New("test took longer than 30 s"))
	t.Cleanup(cancel)
	return ctx
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", resource.MediaJSON)
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(err)
	}
}

func refuse(w http.ResponseWriter, code wire.Code) {
	answer(w, code.HTTPStatus(), resource.ErrorEnvelope{Error: resource.ErrorBody{Code: code, Message: "no", RequestID: "r", Details: map[string]any{"field": "x"}}})
}

func TestCalls(t *testing.T) {
	t.Parallel()
	var got []string
	var mu sync.Mutex
	c := serverOf(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got = append(got, r.Method+" "+r.URL.RequestURI())
		mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer tok" {
			t.Errorf("%s: Authorization %q", r.URL.Path, r.Header.Get("Authorization"))
		}
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/v1/runs") && r.Header.Get(resource.HeaderIdempotencyKey) == "" {
			t.Error("a run is created without an idempotency key")
		}
		answer(w, 200, map[string]any{"id": "run", "apiVersion": "1", "ticket": "t", "runs": []any{}})
	})
	ctx := within(t)
	calls := []func() error{
		func() error { _, err := c.Meta(ctx); return err },
		func() error { _, err := c.CreateRun(ctx, resource.CreateRun{Driver: "command"}, ""); return err },
		func() error { _, err := c.GetRun(ctx, "a/b"); return err },
		func() error {
			_, err := c.ListRuns(ctx, ListQuery{Status: "running", Limit: 3, Cursor: "c&"})
			return err
		},
		func() error { _, err := c.CancelRun(ctx, "run"); return err },
		func() error { _, err := c.RunnerLost(ctx, "run", resource.LostGaveUp, "x"); return err },
		func() error { _, err := c.IssueTicket(ctx, "run", time.Second); return err },
		func() error { return c.Ready(ctx) },
	}
	for i, call := range calls {
		if err := call(); err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
	want := []string{
		"GET /v1/meta", "POST /v1/runs", "GET /v1/runs/a%2Fb", "GET /v1/runs?cursor=c%26&limit=3&status=running",
		"POST /v1/runs/run/cancel", "POST /v1/runs/run/runner-lost", "POST /v1/tickets", "GET /readyz",
	}
	if !slices.Equal(got, want) {
		t.Errorf("requests\n%q\nwant\n%q", got, want)
	}
}

func TestErrorsAreTyped(t *testing.T) {
	t.Parallel()
	c := serverOf(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/runs/refused":
			refuse(w, wire.CodeConflict)
		case "/v1/runs/version":
			w.Header().Set(resource.HeaderAPIVersion, "2")
			refuse(w, wire.CodeConflict)
		case "/v1/runs/foreign":
			w.Header().Del(resource.HeaderAPIVersion)
			w.WriteHeader(http.StatusTeapot)
		case "/v1/runs/html":
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, "<html>")
		case "/v1/runs/garbage":
			fmt.Fprint(w, "{")
		case "/v1/runs/huge":
			fmt.Fprintf(w, `{"id":%q}`, strings.Repeat("x", maxAnswerBytes))
		}
	})
	for id, want := range map[string]wire.Code{
		"refused": wire.CodeConflict, "version": wire.CodeProtocol, "foreign": wire.CodeProtocol,
		"html": wire.CodeProtocol, "garbage": wire.CodeProtocol, "huge": wire.CodeProtocol,
	} {
		_, err := c.GetRun(within(t), id)
		var e *wire.Error
		if !errors.As(err, &e) || e.Code != want {
			t.Errorf("%s: %v, want %s", id, err, want)
		}
		if id == "refused" && e.Details["field"] != "x" {
			t.Errorf("details %v", e.Details)
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.NotFoundHandler())
	url := srv.URL
	srv.Close()
	c, err := New(url, Options{Token: "secret-token", HTTP: &http.Client{Transport: &http.Transport{}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.GetRun(within(t), "x")
	if wire.CodeOf(err) != wire.CodeUnavailable || strings.Contains(err.Error(), "secret-token") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	if _, err := c.GetRun(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestNewRefusesOtherURLs(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"", "127.0.0.1:80", "ftp://x", "http://", "http://user:pw@host", "http://host?token=x", "http://host#f", "://"} {
		if _, err := New(u, Options{}); wire.CodeOf(err) != wire.CodeUsage || strings.Contains(err.Error(), "pw") {
			t.Errorf("%q: %v", u, err)
		}
	}
	c, err := New("https://host/base/", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.ConnectURL("/api/runner/v1/connect/x"); got != "wss://host/base/api/runner/v1/connect/x" {
		t.Errorf("connect URL %s", got)
	}
}

// hangUp breaks the connection without an answer.
func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	if err := conn.Close(); err != nil {
		panic(err)
	}
}

func TestLostAnswerIsAskedForAgainWithTheSameKey(t *testing.T) {
	t.Parallel()
	var keys []string
	c := serverOf(t, func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get(resource.HeaderIdempotencyKey))
		if len(keys) == 1 {
			hangUp(w)
			return
		}
		answer(w, 200, resource.Run{ID: "run"})
	})
	run, err := c.CreateRun(within(t), resource.CreateRun{}, "")
	if err != nil || run.ID != "run" || len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
		t.Errorf("run %v, %v, keys %q", run, err, keys)
	}
}

func TestTicketIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	c := serverOf(t, func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		hangUp(w)
	})
	if _, err := c.IssueTicket(within(t), "run", 0); wire.CodeOf(err) != wire.CodeUnavailable || n.Load() != 1 {
		t.Errorf("%d requests, %v", n.Load(), err)
	}
}

// line is an event line.
func line(seq int, typ string) string {
	return fmt.Sprintf(`{"type":"event","id":"1.%d","runId":"run","event":{"type":%q,"payload":{}}}`+"\n", seq, typ)
}

func TestEventsReconnectKeepingTheCursor(t *testing.T) {
	t.Parallel()
	var afters []string
	c := serverOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != resource.MediaNDJSON {
			t.Errorf("Accept %q", r.Header.Get("Accept"))
		}
		afters = append(afters, r.URL.Query().Get("after"))
		switch len(afters) {
		case 1: // two events, then the connection breaks inside a line
			fmt.Fprint(w, `{"type":"status","runId":"run","status":"running"}`+"\n"+line(1, "a")+"\n"+line(2, "b")+line(3, "c")[:20])
		case 2: // the server is away
			hangUp(w)
		case 3: // restarting
			refuse(w, wire.CodeUnavailable)
		case 4: // repeats one that was seen, then ends early without an error
			fmt.Fprint(w, line(2, "b")+line(3, "c"))
		case 5:
			fmt.Fprint(w, `{"type":"error","runId":"run","error":{"code":"internal","message":"m","requestId":"r"}}`+"\n")
		default:
			fmt.Fprint(w, line(4, resource.EventRunEnded)+line(5, "late"))
		}
	})
	var got []string
	var attempts []int
	for l, err := range c.EventsRetry(within(t), "run", "", func(n int, err error) error {
		if err == nil {
			t.Error("retry without a reason")
		}
		attempts = append(attempts, n)
		return nil
	}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, l.Type+l.ID)
	}
	if want := []string{"status", "event1.1", "event1.2", "event1.3", "event1.4"}; !slices.Equal(got, want) {
		t.Errorf("lines %q, want %q", got, want)
	}
	if want := []string{"", "1.2", "1.2", "1.2", "1.3", "1.3"}; !slices.Equal(afters, want) {
		t.Errorf("cursors asked for %q, want %q", afters, want)
	}
	if want := []int{1, 2, 3, 1, 2}; !slices.Equal(attempts, want) {
		t.Errorf("attempts in a row %v, want %v", attempts, want)
	}
}

func TestEventsEndWithARefusal(t *testing.T) {
	t.Parallel()
	for _, code := range []wire.Code{wire.CodeUnauthorized, wire.CodeForbidden, wire.CodeNotFound, wire.CodeBadCursor, wire.CodeGone} {
		var n atomic.Int32
		c := serverOf(t, func(w http.ResponseWriter, _ *http.Request) {
			n.Add(1)
			refuse(w, code)
		})
		var errs []error
		for _, err := range c.Events(within(t), "run", "1.1") {
			errs = append(errs, err)
		}
		if len(errs) != 1 || wire.CodeOf(errs[0]) != code || n.Load() != 1 {
			t.Errorf("%s: %v after %d requests", code, errs, n.Load())
		}
	}
}

func TestEventsEndWhenAskedTo(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	c := serverOf(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, line(1, "a"))
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-r.Context().Done() // the stream stays open
		released <- struct{}{}
	})
	for l, err := range c.Events(within(t), "run", "") {
		if err != nil || l.ID != "1.1" {
			t.Fatal(l, err)
		}
		break
	}
	select {
	case <-released: // breaking off closed the connection
	case <-within(t).Done():
		t.Fatal("the stream's connection was left open")
	}

	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	var last error
	for _, err := range c.Events(ctx, "run", "") {
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("cancelled: %v", last)
	}
	<-released
	stop := errors.New("enough")
	down := serverOf(t, func(w http.ResponseWriter, _ *http.Request) { hangUp(w) })
	for _, err := range down.EventsRetry(within(t), "run", "", func(n int, _ error) error {
		if n == 3 {
			return stop
		}
		return nil
	}) {
		last = err
	}
	if !errors.Is(last, stop) {
		t.Errorf("given up by the caller: %v", last)
	}
}

func TestEventsRefuseWhatIsNoStream(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"no JSON": "nonsense\n", "no id": `{"type":"event","runId":"run","event":{}}` + "\n",
		"endless line": strings.Repeat("x", maxLineBytes+1),
	} {
		c := serverOf(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) })
		var last error
		for _, err := range c.Events(within(t), "run", "") {
			last = err
		}
		if wire.CodeOf(last) != wire.CodeProtocol {
			t.Errorf("%s: %v", name, last)
		}
	}
}

func TestDelaysGrowToTheirLimit(t *testing.T) {
	t.Parallel()
	c := serverOf(t, func(w http.ResponseWriter, _ *http.Request) { hangUp(w) })
	var delays []time.Duration
	c.opt.Sleep = func(_ context.Context, d time.Duration) error {
		delays = append(delays, d)
		if len(delays) == 8 {
			return context.Canceled
		}
		return nil
	}
	for _, err := range c.Events(within(t), "run", "") {
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	ms := time.Millisecond
	if want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}; !slices.Equal(delays, want) {
		t.Errorf("delays %v, want %v", delays, want)
	}
}
