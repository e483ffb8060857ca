// Package client is the Go SDK of the host API. The CLI and the console use
// nothing else to talk to a control plane.
//
// Every failure is a *wire.Error: the server's own code and message when it
// answered, wire.CodeUnavailable when it could not be reached, and
// wire.CodeProtocol when what answered is not this API. The version header is
// checked before anything is decoded, on errors too.
//
// Calls that create carry an idempotency key and are repeated once when the
// connection broke before an answer came, so that a lost answer makes no
// second run.
//
// Concurrency: a [Client] may be used from any goroutine.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"bowline/controlplane/resource"
	"bowline/wire"
)

// Limits (ours).
const (
	maxAnswerBytes = 4 << 20          // one JSON answer
	maxLineBytes   = 8 << 20          // one stream line: twice the largest frame a runner may send
	callTimeout    = 60 * time.Second // one call that is not a stream
)

// Options of a [Client].
type Options struct {
	// Token is the bearer token.
	Token string
	// HTTP replaces the transport; nil = a fresh http.Transport that uses no
	// proxy for loopback (the standard rules).
	HTTP *http.Client
	// Sleep waits between reconnects; nil = a real timer. It returns early
	// with ctx's error.
	Sleep func(ctx context.Context, d time.Duration) error
	// Jitter scales a delay; nil = a random factor in 0.75..1.25.
	Jitter func(d time.Duration) time.Duration
}

// Client talks to one control plane.
type Client struct {
	base *url.URL
	opt  Options
	http *http.Client
}

// New makes a client of the server at baseURL ("http://127.0.0.1:4711"). A URL
// that is not http or https is wire.CodeUsage.
func New(baseURL string, opt Options) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, wire.Errorf(wire.CodeUsage, "the server's URL must be http://HOST:PORT or https://HOST:PORT")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, wire.Errorf(wire.CodeUsage, "the server's URL must have no user, query or fragment: the token comes from a file")
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	if opt.Sleep == nil {
		opt.Sleep = sleep
	}
	if opt.Jitter == nil {
		opt.Jitter = func(d time.Duration) time.Duration {
			return time.Duration(float64(d) * (0.75 + rand.Float64()/2)) //nolint:gosec // spreads reconnects, guards nothing
		}
	}
	c := &Client{base: u, opt: opt, http: opt.HTTP}
	if c.http == nil {
		t, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			return nil, wire.Errorf(wire.CodeInternal, "the default HTTP transport was replaced")
		}
		c.http = &http.Client{Transport: t.Clone()}
	}
	return c, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// BaseURL is where the client talks to.
func (c *Client) BaseURL() string { return c.base.String() }

// ConnectURL is the runner's WebSocket URL for a connect path of this server.
func (c *Client) ConnectURL(connectPath string) string {
	u := *c.base
	u.Scheme = map[string]string{"http": "ws", "https": "wss"}[u.Scheme]
	u.Path += connectPath
	return u.String()
}

// Meta describes the server.
func (c *Client) Meta(ctx context.Context) (*resource.Meta, error) {
	var m resource.Meta
	return &m, c.call(ctx, http.MethodGet, "/v1/meta", nil, "", &m)
}

// CreateRun creates a run. An empty key is replaced by a fresh one; the same
// key with the same request gives the same run.
func (c *Client) CreateRun(ctx context.Context, req resource.CreateRun, idempotencyKey string) (*resource.Run, error) {
	if idempotencyKey == "" {
		k, err := uuid.NewV7()
		if err != nil {
			return nil, &wire.Error{Code: wire.CodeInternal, Message: "no randomness for an idempotency key", Cause: err}
		}
		idempotencyKey = k.String()
	}
	var r resource.Run
	err := c.call(ctx, http.MethodPost, "/v1/runs", req, idempotencyKey, &r)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// GetRun reads one run.
func (c *Client) GetRun(ctx context.Context, id string) (*resource.Run, error) {
	var r resource.Run
	if err := c.call(ctx, http.MethodGet, "/v1/runs/"+url.PathEscape(id), nil, "", &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// ListQuery filters [Client.ListRuns].
type ListQuery struct {
	Status string
	Limit  int    // 0 = the server's default
	Cursor string // "" starts
}

// ListRuns lists runs, newest first, one page.
func (c *Client) ListRuns(ctx context.Context, q ListQuery) (*resource.RunList, error) {
	v := url.Values{}
	if q.Status != "" {
		v.Set("status", q.Status)
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Cursor != "" {
		v.Set("cursor", q.Cursor)
	}
	path := "/v1/runs"
	if len(v) > 0 {
		path += "?" + v.Encode()
	}
	var l resource.RunList
	if err := c.call(ctx, http.MethodGet, path, nil, "", &l); err != nil {
		return nil, err
	}
	return &l, nil
}

// CancelRun asks for a run to be cancelled. It answers at once; the run's
// terminal event follows. Cancelling again, or after the end, is no error.
func (c *Client) CancelRun(ctx context.Context, id string) (*resource.Run, error) {
	var r resource.Run
	if err := c.call(ctx, http.MethodPost, "/v1/runs/"+url.PathEscape(id)+"/cancel", nil, "", &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// RunnerLost reports that the launcher of an attached run gave up on its
// runner. Reporting it again, or after the end, is no error.
func (c *Client) RunnerLost(ctx context.Context, id, reason, detail string) (*resource.Run, error) {
	var r resource.Run
	body := resource.RunnerLost{Reason: reason, Detail: detail}
	if err := c.call(ctx, http.MethodPost, "/v1/runs/"+url.PathEscape(id)+"/runner-lost", body, "", &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// IssueTicket makes a one-use ticket for the runner of a run. ttl 0 = 60 s,
// the longest; the shortest is 1 s (prp.md 2.2).
func (c *Client) IssueTicket(ctx context.Context, runID string, ttl time.Duration) (*resource.Ticket, error) {
	var t resource.Ticket
	body := resource.IssueTicket{RunID: runID, TTLMs: ttl.Milliseconds()}
	if err := c.call(ctx, http.MethodPost, "/v1/tickets", body, "", &t); err != nil {
		return nil, err
	}
	return &t, nil
}

// Ready asks /readyz; nil means the server serves. It needs no token.
func (c *Client) Ready(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/readyz", nil, "", nil)
}

// call makes one call. A POST with an idempotency key is repeated once when
// the connection broke without an answer.
func (c *Client) call(ctx context.Context, method, path string, body any, key string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return &wire.Error{Code: wire.CodeBadRequest, Message: "the request cannot be encoded as JSON", Cause: err}
		}
	}
	for attempt := 0; ; attempt++ {
		err := c.once(ctx, method, path, raw, key, out)
		var down *unreachable
		if err == nil || !errors.As(err, &down) {
			return err
		}
		if attempt > 0 || ctx.Err() != nil || (method != http.MethodGet && key == "") {
			return down.asError()
		}
	}
}

func (c *Client) once(ctx context.Context, method, path string, raw []byte, key string, out any) error {
	req, err := c.request(ctx, method, path, raw)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", resource.MediaJSON)
	if key != "" {
		req.Header.Set(resource.HeaderIdempotencyKey, key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return &unreachable{host: c.base.Host, cause: err}
	}
	defer drain(resp.Body)
	if err := checkAnswer(resp); err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil {
		return &unreachable{host: c.base.Host, cause: err}
	}
	if len(data) > maxAnswerBytes {
		return wire.Errorf(wire.CodeProtocol, "the server's answer is larger than %d bytes", maxAnswerBytes)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return &wire.Error{Code: wire.CodeProtocol, Message: "the server's answer is not the JSON of this API version", Cause: err}
	}
	return nil
}

func (c *Client) request(ctx context.Context, method, path string, raw []byte) (*http.Request, error) {
	var body io.Reader
	if raw != nil {
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, body)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeUsage, Message: "the request's URL is malformed", Cause: err}
	}
	if raw != nil {
		req.Header.Set("Content-Type", resource.MediaJSON)
	}
	if c.opt.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.opt.Token)
	}
	return req, nil
}

// checkAnswer checks the version and turns an error answer into its typed
// error.
func checkAnswer(resp *http.Response) error {
	if v := resp.Header.Get(resource.HeaderAPIVersion); v != resource.APIVersion {
		if v == "" {
			return wire.Errorf(wire.CodeProtocol, "what answered (HTTP status %d) is not a Bowline server: no %s header", resp.StatusCode, resource.HeaderAPIVersion)
		}
		return wire.Errorf(wire.CodeProtocol, "the server speaks another API version than %s", resource.APIVersion)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return &wire.Error{Code: wire.CodeUnavailable, Message: "the connection to the server broke", Cause: err}
	}
	var env resource.ErrorEnvelope
	if err := json.Unmarshal(data, &env); err != nil || env.Error.Code == "" {
		return &wire.Error{Code: wire.CodeProtocol, Message: fmt.Sprintf("the server answered HTTP status %d without an error body", resp.StatusCode), Cause: err}
	}
	return env.Error.AsError()
}

// unreachable is a connection that broke before the whole answer came.
type unreachable struct {
	host  string
	cause error
}

func (u *unreachable) Error() string { return "cannot reach " + u.host + ": " + u.cause.Error() }

func (u *unreachable) Unwrap() error { return u.cause }

func (u *unreachable) asError() error {
	if errors.Is(u.cause, context.Canceled) {
		return u.cause
	}
	return &wire.Error{Code: wire.CodeUnavailable, Message: "the server at " + u.host + " cannot be reached", Cause: u.cause}
}

// drain empties a little of body so that the connection can be used again.
func drain(body io.ReadCloser) {
	_, err := io.CopyN(io.Discard, body, 64<<10)
	if cerr := body.Close(); err == nil || errors.Is(err, io.EOF) {
		err = cerr
	}
	if err != nil {
		return // the connection is not used again; there is nothing to tell
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
