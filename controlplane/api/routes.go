package api

import (
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"bowline/controlplane/resource"
	"bowline/controlplane/store"
	"bowline/wire"
)

// Pages of a list (ours).
const (
	defaultPage = 50
	maxPage     = 200
)

// param is a query or header parameter.
type param struct {
	name, in, doc string
	enum          []string
}

// route is one operation: the handler and its line in the document come from
// the same record.
type route struct {
	method, path string
	id, summary  string
	scope        string // "" = public
	probe        bool   // does not count as activity
	params       []param
	input        func() any // fresh body value; nil = no body
	inputType    reflect.Type
	statuses     []int // of success, the usual one first
	outputType   reflect.Type
	media        []string // of success; nil = JSON
	errors       []wire.Code

	call   func(r *http.Request, q url.Values, body any) (status int, out any, err error)
	stream func(w http.ResponseWriter, r *http.Request, q url.Values)
	check  func(tree any) error // set by document
}

func (rt *route) name() string { return rt.method + " " + rt.path }

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

func bodyOf[T any]() (func() any, reflect.Type) {
	return func() any { return new(T) }, reflect.TypeFor[T]()
}

// table is every route of the API.
func (s *Server) table() []route {
	createIn, createType := bodyOf[resource.CreateRun]()
	lostIn, lostType := bodyOf[resource.RunnerLost]()
	ticketIn, ticketType := bodyOf[resource.IssueTicket]()
	runID := param{name: "id", in: "path", doc: "run id"}
	key := param{name: resource.HeaderIdempotencyKey, in: "header", doc: "1 to 128 printable ASCII characters; kept for 24 h per token: the same body gives the same run, another body is a conflict"}
	return []route{
		{
			method: "GET", path: "/v1/meta", id: "getMeta", summary: "What this server is and knows", scope: ScopeRead,
			statuses: []int{200}, outputType: typeOf[resource.Meta](),
			call: s.meta,
		},
		{
			method: "POST", path: "/v1/runs", id: "createRun", summary: "Create a run", scope: ScopeRun,
			params: []param{key}, input: createIn, inputType: createType,
			statuses: []int{201, 200}, outputType: typeOf[resource.Run](),
			errors: []wire.Code{wire.CodeConflict, wire.CodeTooLarge, wire.CodeDriverUnknown},
			call:   s.createRun,
		},
		{
			method: "GET", path: "/v1/runs", id: "listRuns", summary: "List runs, newest first", scope: ScopeRead,
			params: []param{
				{name: "limit", in: "query", doc: "1 to 200, default 50"},
				{name: "cursor", in: "query", doc: "the member next of the page before"},
				{name: "status", in: "query", doc: "only runs in this status", enum: statuses()},
			},
			statuses: []int{200}, outputType: typeOf[resource.RunList](),
			call: s.listRuns,
		},
		{
			method: "GET", path: "/v1/runs/{id}", id: "getRun", summary: "One run", scope: ScopeRead,
			params: []param{runID}, statuses: []int{200}, outputType: typeOf[resource.Run](),
			errors: []wire.Code{wire.CodeNotFound},
			call: func(r *http.Request, _ url.Values, _ any) (int, any, error) {
				run, err := s.cfg.Runs.Get(r.Context(), r.PathValue("id"))
				return 200, run, err
			},
		},
		{
			method: "POST", path: "/v1/runs/{id}/cancel", id: "cancelRun", summary: "Ask for a run to be cancelled; idempotent, the terminal event follows", scope: ScopeRun,
			params: []param{runID}, statuses: []int{202}, outputType: typeOf[resource.Run](),
			errors: []wire.Code{wire.CodeNotFound},
			call: func(r *http.Request, _ url.Values, _ any) (int, any, error) {
				run, err := s.cfg.Runs.Cancel(r.Context(), actorOf(r.Context()), r.PathValue("id"))
				return 202, run, err
			},
		},
		{
			method: "POST", path: "/v1/runs/{id}/runner-lost", id: "reportRunnerLost", summary: "An attached launcher gave up on its runner: the run ends orphaned; idempotent", scope: ScopeRun,
			params: []param{runID}, input: lostIn, inputType: lostType, statuses: []int{202}, outputType: typeOf[resource.Run](),
			errors: []wire.Code{wire.CodeNotFound, wire.CodeConflict},
			call: func(r *http.Request, _ url.Values, body any) (int, any, error) {
				run, err := s.cfg.Runs.RunnerLost(r.Context(), actorOf(r.Context()), r.PathValue("id"), body.(*resource.RunnerLost)) //nolint:forcetypeassert // made by input
				return 202, run, err
			},
		},
		{
			method: "GET", path: "/v1/runs/{id}/events", id: "streamEvents", summary: "Events of a run as SSE, or as lines with Accept: application/x-ndjson; ends after run.ended", scope: ScopeRead,
			params: []param{
				runID,
				{name: "after", in: "query", doc: "cursor <epoch>.<seq>; wins over Last-Event-ID"},
				{name: resource.HeaderLastEventID, in: "header", doc: "cursor of the last event that was seen"},
			},
			statuses: []int{200}, media: []string{resource.MediaSSE, resource.MediaNDJSON}, outputType: typeOf[resource.Line](),
			errors: []wire.Code{wire.CodeBadCursor, wire.CodeNotFound, wire.CodeGone},
			stream: s.streamEvents,
		},
		{
			method: "POST", path: "/v1/tickets", id: "issueTicket", summary: "A one-use ticket for the runner of one run; its text appears once, here", scope: ScopeRun,
			input: ticketIn, inputType: ticketType, statuses: []int{201}, outputType: typeOf[resource.Ticket](),
			errors: []wire.Code{wire.CodeNotFound, wire.CodeConflict},
			call: func(r *http.Request, _ url.Values, body any) (int, any, error) {
				in := body.(*resource.IssueTicket) //nolint:forcetypeassert // made by input
				t, err := s.cfg.Runs.IssueTicket(r.Context(), actorOf(r.Context()), in.RunID, time.Duration(in.TTLMs)*time.Millisecond)
				return 201, t, err
			},
		},
		{
			method: "GET", path: "/livez", id: "livez", summary: "The process answers", probe: true,
			statuses: []int{200}, media: []string{"text/plain"},
			call: func(*http.Request, url.Values, any) (int, any, error) {
				return 200, rawAnswer{"text/plain; charset=utf-8", []byte("ok\n")}, nil
			},
		},
		{
			method: "GET", path: "/readyz", id: "readyz", summary: "The server can take work", probe: true,
			params:   []param{{name: "verbose", in: "query", doc: "name the checks"}},
			statuses: []int{200}, media: []string{"text/plain"}, errors: []wire.Code{wire.CodeUnavailable},
			call: s.readyz,
		},
		{
			method: "GET", path: "/metrics", id: "metrics", summary: "Prometheus text format", scope: ScopeRead, probe: true,
			statuses: []int{200}, media: []string{"text/plain"}, errors: []wire.Code{wire.CodeNotFound},
			call: s.metrics,
		},
		{
			method: "GET", path: "/openapi.json", id: "openAPI", summary: "This document", scope: ScopeRead,
			statuses: []int{200}, media: []string{resource.MediaJSON},
			call: func(*http.Request, url.Values, any) (int, any, error) {
				return 200, rawAnswer{resource.MediaJSON, s.openAPI}, nil
			},
		},
	}
}

func statuses() []string {
	return []string{
		store.StatusQueued, store.StatusAssigned, store.StatusStarting, store.StatusRunning, store.StatusWaiting,
		store.StatusCancelling, store.StatusCompleted, store.StatusFailed, store.StatusCancelled, store.StatusOrphaned,
	}
}

func (s *Server) meta(*http.Request, url.Values, any) (int, any, error) {
	m := s.cfg.Meta()
	m.APIVersion, m.SchemaHash = resource.APIVersion, s.schemaHash
	return 200, m, nil
}

func (s *Server) createRun(r *http.Request, _ url.Values, body any) (int, any, error) {
	key, err := idempotencyKey(r)
	if err != nil {
		return 0, nil, err
	}
	run, fresh, err := s.cfg.Runs.Create(r.Context(), actorOf(r.Context()), body.(*resource.CreateRun), key) //nolint:forcetypeassert // made by input
	if err != nil {
		return 0, nil, err
	}
	if fresh {
		return 201, run, nil
	}
	return 200, run, nil
}

func (s *Server) listRuns(r *http.Request, q url.Values, _ any) (int, any, error) {
	limit := defaultPage
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			return 0, nil, wire.Errorf(wire.CodeBadRequest, "query.limit: expected a number from 1 to %d", maxPage).With("limit", maxPage)
		}
		limit = n
	}
	list, err := s.cfg.Runs.List(r.Context(), store.RunQuery{Status: q.Get("status"), Limit: limit, Cursor: q.Get("cursor")})
	return 200, list, err
}

// maxKeyBytes of an idempotency key (ours).
const maxKeyBytes = 128

// idempotencyKey reads the header; "" when there is none.
func idempotencyKey(r *http.Request) (string, error) {
	values := r.Header.Values(resource.HeaderIdempotencyKey)
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	ok := len(values) == 1 && key != "" && len(key) <= maxKeyBytes
	for i := range len(key) {
		ok = ok && key[i] > ' ' && key[i] < 0x7f
	}
	if !ok {
		return "", wire.Errorf(wire.CodeBadRequest, "header %s: expected once, 1 to %d printable ASCII characters", resource.HeaderIdempotencyKey, maxKeyBytes)
	}
	return key, nil
}

// checkQuery refuses parameters that the route does not have, or has twice.
func checkQuery(rt *route, r *http.Request) (url.Values, error) {
	if len(r.URL.RawQuery) > MaxQueryBytes {
		return nil, wire.Errorf(wire.CodeTooLarge, "the query is larger than %d bytes", MaxQueryBytes).With("limit", MaxQueryBytes)
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, wire.Errorf(wire.CodeBadRequest, "the query is malformed")
	}
	var known []string
	for _, p := range rt.params {
		if p.in == "query" {
			known = append(known, p.name)
		}
	}
	for name, values := range q {
		i := slices.IndexFunc(rt.params, func(p param) bool { return p.in == "query" && p.name == name })
		if i < 0 {
			rule := "unknown parameter"
			if near := nearest(name, known); near != "" {
				rule += "; did you mean " + near + "?"
			}
			return nil, wire.Errorf(wire.CodeBadRequest, "query: %s", rule)
		}
		if len(values) > 1 {
			return nil, wire.Errorf(wire.CodeBadRequest, "query.%s: given %d times", name, len(values))
		}
		if enum := rt.params[i].enum; enum != nil && !slices.Contains(enum, values[0]) {
			return nil, wire.Errorf(wire.CodeBadRequest, "query.%s: expected one of %s", name, strings.Join(enum, ", "))
		}
	}
	return q, nil
}

// humaSchema makes the schema of a type in a registry.
func humaSchema(reg huma.Registry, t reflect.Type) *huma.Schema {
	return reg.Schema(t, true, t.Name())
}
