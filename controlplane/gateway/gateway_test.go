package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"bowline/controlplane/authority"
	"bowline/controlplane/gateway"
	"bowline/controlplane/session"
	"bowline/controlplane/session/memstore"
	"bowline/controlplane/session/sessiontest"
	"bowline/wire"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	runID  = "0190a000-0000-7000-8000-000000000001"
	digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func identity() prp.Identity {
	return prp.Identity{
		RunnerInstanceID: "runner-1", EnvironmentLeaseID: "lease-1", RunID: runID,
		NormalizedSessionID: "session-1", TurnID: "turn-1", ItemID: "item-1",
	}
}

type rig struct {
	t       *testing.T
	session *session.Session
	gateway *gateway.Gateway
	addr    string
}

func newRig(t *testing.T, change func(cfg *gateway.Config)) *rig {
	t.Helper()
	st := new(memstore.Store)
	tx, err := authority.NewSession(identity(), "0.3.0", digest, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	s, err := session.Open(t.Context(), session.Config{Store: st, Options: authority.ProductOptions(uuid.NewString)}, "session-1")
	if err != nil {
		t.Fatal(err)
	}
	cfg := gateway.Config{Lookup: func(_ context.Context, id string) (*session.Session, error) {
		if id != runID {
			return nil, wire.Errorf(wire.CodeNotFound, "no such run")
		}
		return s, nil
	}}
	if change != nil {
		change(&cfg)
	}
	g := gateway.New(cfg)
	server := httptest.NewServer(g)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), sessiontest.Patience)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
		server.Close()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return &rig{t: t, session: s, gateway: g, addr: strings.TrimPrefix(server.URL, "http://")}
}

func (r *rig) url() string { return "ws://" + r.addr + prp.PathEmbedded + "/" + runID }

func (r *rig) join() *sessiontest.Runner {
	r.t.Helper()
	return r.joinWith(nil)
}

func (r *rig) joinWith(conn carrier.Conn) *sessiontest.Runner {
	r.t.Helper()
	ticket, err := r.session.IssueTicket(r.t.Context(), time.Minute)
	if err != nil {
		r.t.Fatal(err)
	}
	return sessiontest.Join(r.t, sessiontest.Config{
		URL: r.url(), Conn: conn, Ticket: ticket, Identity: identity(), RunnerVersion: "0.3.0", RunnerDigest: digest,
	})
}

// raw sends an upgrade request and gives everything that is answered.
func (r *rig) raw(path string) string {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(sessiontest.Patience)); err != nil {
		r.t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", path)
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		r.t.Fatalf("%s: %v", path, err)
	}
	return strings.TrimSpace(line)
}

func TestServe(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	c := r.join()
	c.Event(1, "harness.ready", `{}`)
	c.Ack(1)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(cfg *gateway.Config) {
		found := cfg.Lookup
		cfg.Lookup = func(ctx context.Context, id string) (*session.Session, error) {
			if strings.HasPrefix(id, "ffffffff") {
				return nil, wire.Errorf(wire.CodeUnavailable, "not now")
			}
			return found(ctx, id)
		}
	})
	for path, want := range map[string]string{
		prp.PathEmbedded + "/" + runID:                                     "101",
		prp.PathEmbedded + "/" + runID + "?x=1":                            "101",
		prp.PathEmbedded + "/" + strings.Replace(runID, "0001", "0002", 1): "404",
		prp.PathEmbedded + "/not-a-uuid":                                   "400",
		prp.PathEmbedded + "/" + runID + "/":                               "400",
		prp.PathEmbedded + "/":                                             "400",
		prp.PathEmbedded:                                                   "404",
		"/other":                                                           "404",
		prp.PathEmbedded + "/ffffffff-0000-7000-8000-000000000001":         "503",
	} {
		if got := r.raw(path); !strings.Contains(got, " "+want+" ") {
			t.Errorf("%s: %s, expected %s", path, got, want)
		}
	}
}

func TestPlainRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr+prp.PathEmbedded+"/"+runID, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestLimitPerAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var idle []carrier.Conn
	for range gateway.MaxPerAddress {
		idle = append(idle, sessiontest.Dial(t, r.url()))
	}
	if got := r.raw(prp.PathEmbedded + "/" + runID); !strings.Contains(got, " 429 ") {
		t.Errorf("one past the limit: %s", got)
	}
	// One that goes makes room, and one that has authenticated does not count.
	if err := idle[0].Close(); err != nil {
		t.Fatal(err)
	}
	c := r.joinWith(r.dialEventually())
	if err := r.dialEventually().Close(); err != nil { // its slot is free again
		t.Fatal(err)
	}
	c.Event(1, "harness.ready", `{}`)
	c.Ack(1)
	for _, conn := range idle[1:] {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// dialEventually dials until there is room: the server notices the end of a
// connection in its own time.
func (r *rig) dialEventually() carrier.Conn {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), sessiontest.Patience)
	defer cancel()
	for {
		conn, err := carrier.Dial(ctx, r.url(), carrier.DialOptions{MaxFrame: prp.MaxFrameBytes})
		if err == nil {
			return conn
		}
		if ctx.Err() != nil {
			r.t.Fatal("no room was made")
		}
	}
}

func TestLimitInTotal(t *testing.T) {
	t.Parallel()
	n := 0
	r := newRig(t, func(cfg *gateway.Config) {
		cfg.ClientAddress = func(*http.Request) string { n++; return fmt.Sprint(n) } // dialled one after another
	})
	for range gateway.MaxUnauthenticated {
		conn := sessiontest.Dial(t, r.url())
		t.Cleanup(func() { _ = conn.Close() })
	}
	if got := r.raw(prp.PathEmbedded + "/" + runID); !strings.Contains(got, " 503 ") {
		t.Errorf("one past the limit: %s", got)
	}
}

func TestCloseEndsConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	c := r.join()
	ctx, cancel := context.WithTimeout(context.Background(), sessiontest.Patience)
	defer cancel()
	if err := r.gateway.Close(ctx); err != nil {
		t.Fatal(err)
	}
	c.Closed("a closed gateway")
	if got := r.raw(prp.PathEmbedded + "/" + runID); !strings.Contains(got, " 503 ") {
		t.Errorf("after Close: %s", got)
	}
}

func TestIsRunID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		runID: true, strings.ToUpper("abcdefab-cdef-1abc-abcd-abcdefabcdef"): true,
		"abcdefab-cdef-0abc-abcd-abcdefabcdef": false, "abcdefab-cdef-8abc-abcd-abcdefabcdef": true,
		"abcdefab-cdef-9abc-abcd-abcdefabcdef": false, "abcdefab-cdef-4abc-cbcd-abcdefabcdef": false,
		"abcdefab-cdef-4abc-7bcd-abcdefabcdef": false, "gbcdefab-cdef-4abc-abcd-abcdefabcdef": false,
		"abcdefabccdef-4abc-abcd-abcdefabcdef": false, "": false, runID + "0": false,
		"\x10bcdefab-cdef-4abc-abcd-abcdefabcdef": false, "0190a000-0000-\x17000-8000-000000000001": false,
	} {
		if got := gateway.IsRunID(id); got != want {
			t.Errorf("%q is %v", id, got)
		}
	}
}
