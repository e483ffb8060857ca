package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"bowline/controlplane/resource"
	"bowline/controlplane/store"
	"bowline/wire"
)

// Limits (ours).
const (
	// MaxBodyBytes of a request: the prompt's 480 KiB, a script's 256 KiB and
	// room for the rest.
	MaxBodyBytes = 1 << 20
	// MaxQueryBytes of a request's query string.
	MaxQueryBytes = 8 << 10
	// bodyTimeout is how long a request's body may take.
	bodyTimeout = 30 * time.Second
	// answerTimeout is how long one answer, or one write of a stream, may take
	// before the reader counts as gone.
	answerTimeout = 30 * time.Second
	// keepAlive is how long a stream is silent before a comment is sent.
	keepAlive = 15 * time.Second
)

// Runs is the part of the run manager that the API serves.
type Runs interface {
	// Create makes a run; fresh is false when the idempotency key was seen
	// with the same request.
	Create(ctx context.Context, actor string, req *resource.CreateRun, key string) (run *resource.Run, fresh bool, err error)
	Get(ctx context.Context, id string) (*resource.Run, error)
	List(ctx context.Context, q store.RunQuery) (*resource.RunList, error)
	Cancel(ctx context.Context, actor, id string) (*resource.Run, error)
	RunnerLost(ctx context.Context, actor, id string, r *resource.RunnerLost) (*resource.Run, error)
	IssueTicket(ctx context.Context, actor, runID string, ttl time.Duration) (*resource.Ticket, error)
	// Follow opens a run's event stream after a cursor ("" = from the start).
	Follow(ctx context.Context, id, after string) (Follower, error)
}

// Follower reads a run's events in order.
type Follower interface {
	// Next waits for the next lines and returns them, at most a page; end
	// tells that nothing follows. ctx's error when ctx ends first: Next can be
	// called again.
	Next(ctx context.Context) (lines []resource.Line, end bool, err error)
}

// Tokens finds a host token by the SHA-256 of its text; wire.CodeNotFound for
// an unknown one.
type Tokens interface {
	Token(ctx context.Context, hash [32]byte) (*store.TokenRow, error)
}

// Check is one line of /readyz?verbose.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Config of a [Server].
type Config struct {
	Runs   Runs
	Tokens Tokens
	Meta   func() resource.Meta // without APIVersion and SchemaHash
	Checks []Check
	// Metrics serves /metrics; nil answers 404.
	Metrics prometheus.Gatherer
	// Register, if set, gets the API's own metrics.
	Register prometheus.Registerer
	// Done ends all streams when it is closed (the server stops).
	Done <-chan struct{}
	Log  *slog.Logger
	Now  func() time.Time
}

// Server is the API as an http.Handler.
type Server struct {
	cfg        Config
	mux        *http.ServeMux
	routes     []route
	openAPI    []byte
	schemaHash string
	requests   *prometheus.CounterVec
	streams    prometheus.Gauge

	activity atomic.Int64 // Unix ns of the last request that was no probe
	inFlight atomic.Int64 // requests that are no probes
}

// New builds the API. A broken route table panics with "bug: ".
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{
		cfg: cfg,
		mux: http.NewServeMux(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bowline_api_requests_total",
			Help: "Answered requests of the host API by route and HTTP status class.",
		}, []string{"route", "status"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "bowline_subscribers",
			Help: "Open event streams.",
		}),
	}
	if cfg.Register != nil {
		cfg.Register.MustRegister(s.requests, s.streams)
	}
	s.activity.Store(cfg.Now().UnixNano())
	s.routes = s.table()
	s.openAPI, s.schemaHash = document(s.routes)
	s.mount()
	return s
}

// SchemaHash identifies the API document.
func (s *Server) SchemaHash() string { return s.schemaHash }

// Idle tells how long ago the last request was that was no probe; 0 while one
// is being served.
func (s *Server) Idle() time.Duration {
	if s.inFlight.Load() > 0 {
		return 0
	}
	return s.cfg.Now().Sub(time.Unix(0, s.activity.Load()))
}

func (s *Server) mount() {
	paths := map[string][]string{}
	for i := range s.routes {
		r := &s.routes[i]
		s.mux.Handle(r.method+" "+r.path, s.endpoint(r))
		paths[r.path] = append(paths[r.path], r.method)
	}
	for p, methods := range paths {
		s.mux.HandleFunc(p, func(w http.ResponseWriter, r *http.Request) {
			for _, m := range methods {
				w.Header().Add("Allow", m)
			}
			s.fail(w, r, "", wire.Errorf(wire.CodeMethodNotAllowed, "this resource does not take that method; see the Allow header"))
		})
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, "", wire.Errorf(wire.CodeNotFound, "no such route; /openapi.json lists them"))
	})
}

type ctxKey int

const (
	keyRequestID ctxKey = iota
	keyActor
)

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := newRequestID()
	h := w.Header()
	h.Set(resource.HeaderAPIVersion, resource.APIVersion)
	h.Set(resource.HeaderSchemaHash, s.schemaHash)
	h.Set(resource.HeaderRequestID, id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	r = r.WithContext(context.WithValue(r.Context(), keyRequestID, id))

	rc := http.NewResponseController(w)
	now := time.Now() // of the sockets, whatever clock the API has
	// A writer without deadlines is a test's recorder.
	if err := errors.Join(rc.SetReadDeadline(now.Add(bodyTimeout)), rc.SetWriteDeadline(now.Add(answerTimeout))); err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.log(r.Context(), "deadlines cannot be set", err)
		return
	}
	// ServeMux would answer an unclean path with a redirect in text.
	if p := r.URL.Path; p == "" || p[0] != '/' || path.Clean(p) != p {
		s.fail(w, r, "", wire.Errorf(wire.CodeNotFound, "no such route; /openapi.json lists them"))
		return
	}
	// HEAD would match the GET routes, a stream among them.
	if r.Method == http.MethodHead {
		s.fail(w, r, "", wire.Errorf(wire.CodeMethodNotAllowed, "this resource does not take that method"))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// endpoint wraps a route with what all routes share.
func (s *Server) endpoint(rt *route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rt.probe {
			s.inFlight.Add(1)
			defer func() {
				s.activity.Store(s.cfg.Now().UnixNano())
				s.inFlight.Add(-1)
			}()
		}
		ctx := r.Context()
		if rt.scope != "" {
			actor, err := s.authorise(ctx, r, rt.scope)
			if err != nil {
				if wire.CodeOf(err) == wire.CodeUnauthorized {
					w.Header().Set("WWW-Authenticate", `Bearer realm="bowline"`)
				}
				s.fail(w, r, rt.name(), err)
				return
			}
			ctx = context.WithValue(ctx, keyActor, actor)
		}
		r = r.WithContext(ctx)
		query, err := checkQuery(rt, r)
		if err != nil {
			s.fail(w, r, rt.name(), err)
			return
		}
		if rt.stream != nil {
			rt.stream(w, r, query)
			return
		}
		body, err := s.readBody(rt, w, r)
		if err != nil {
			s.fail(w, r, rt.name(), err)
			return
		}
		status, out, err := rt.call(r, query, body)
		if err != nil {
			s.fail(w, r, rt.name(), err)
			return
		}
		s.answer(w, r, rt.name(), status, out)
	})
}

// answer writes a JSON answer, or raw bytes with their own media type.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, name string, status int, out any) {
	raw, ok := out.(rawAnswer)
	if !ok {
		data, err := encode(out)
		if err != nil {
			s.fail(w, r, name, err)
			return
		}
		raw = rawAnswer{resource.MediaJSON, data}
	}
	s.requests.WithLabelValues(name, class(status)).Inc()
	w.Header().Set("Content-Type", raw.media)
	w.WriteHeader(status)
	if _, err := w.Write(raw.data); err != nil {
		s.log(r.Context(), "answer not delivered", err)
	}
}

// rawAnswer is an answer that is no JSON of ours.
type rawAnswer struct {
	media string
	data  []byte
}

// fail answers with the one error body.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, name string, err error) {
	ctx := r.Context()
	body := resource.ErrorEnvelope{Error: resource.ErrorBodyOf(err, requestID(ctx))}
	status := body.Error.Code.HTTPStatus()
	if status >= 500 && status != http.StatusServiceUnavailable {
		s.log(ctx, "request failed", err)
	}
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	if name == "" {
		name = "unknown"
	}
	s.requests.WithLabelValues(name, class(status)).Inc()
	data, merr := encode(body)
	if merr != nil {
		panic("bug: error body: " + merr.Error()) // details are plain data
	}
	w.Header().Set("Content-Type", resource.MediaJSON)
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	if _, werr := w.Write(data); werr != nil {
		s.log(ctx, "answer not delivered", werr)
	}
}

func (s *Server) log(ctx context.Context, msg string, err error) {
	if s.cfg.Log == nil {
		return
	}
	s.cfg.Log.WarnContext(ctx, "api", "what", msg, "requestId", requestID(ctx), "error", err.Error())
}

func class(status int) string {
	switch {
	case status < 300:
		return "2xx"
	case status < 400:
		return "3xx"
	case status < 500:
		return "4xx"
	}
	return "5xx"
}

func requestID(ctx context.Context) string {
	id, ok := ctx.Value(keyRequestID).(string)
	if !ok {
		return ""
	}
	return id
}

func actorOf(ctx context.Context) string {
	a, ok := ctx.Value(keyActor).(string)
	if !ok {
		return "anonymous"
	}
	return a
}

func newRequestID() string {
	id, err := uuid.NewV7()
	if err != nil {
		panic("bug: crypto/rand: " + err.Error())
	}
	return id.String()
}
