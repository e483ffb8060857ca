package session_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bowline/controlplane/authority"
	"bowline/controlplane/session"
	"bowline/controlplane/session/memstore"
	"bowline/controlplane/store"
	cryptoprp "bowline/crypto/prp"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// patience bounds every wait outside a synctest bubble.
const patience = 20 * time.Second

const (
	runnerVersion = "0.3.0"
	runnerDigest  = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func identity() prp.Identity {
	return prp.Identity{
		RunnerInstanceID: "runner-1", EnvironmentLeaseID: "lease-1", RunID: "0190a000-0000-7000-8000-000000000001",
		NormalizedSessionID: "session-1", TurnID: "turn-1", ItemID: "item-1",
	}
}

// pipe is one end of a carrier in memory. Its buffers are unbounded by default.
type pipe struct {
	mu     *sync.Mutex
	cond   *sync.Cond
	in     *[][]byte
	out    *[][]byte
	closed *bool
	limit  int // messages that wait to be read before a write blocks, 0 = none
}

func newPipe() (server, client *pipe) {
	mu := new(sync.Mutex)
	cond := sync.NewCond(mu)
	var up, down [][]byte
	var closed bool
	return &pipe{mu: mu, cond: cond, in: &up, out: &down, closed: &closed},
		&pipe{mu: mu, cond: cond, in: &down, out: &up, closed: &closed}
}

func gone() error { return wire.Errorf(wire.CodeUnavailable, "pipe closed") }

func (p *pipe) ReadMessage(ctx context.Context) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = p.Close() })
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(*p.in) == 0 && !*p.closed {
		p.cond.Wait()
	}
	// What had arrived is lost when the socket is destroyed on this side, and
	// still readable when the peer did it; the test's client reads it all.
	if len(*p.in) == 0 {
		return nil, gone()
	}
	m := (*p.in)[0]
	*p.in = (*p.in)[1:]
	p.cond.Broadcast()
	return m, nil
}

func (p *pipe) WriteMessage(ctx context.Context, m []byte) error {
	stop := context.AfterFunc(ctx, func() { p.mu.Lock(); p.cond.Broadcast(); p.mu.Unlock() })
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.limit > 0 && len(*p.out) >= p.limit && !*p.closed && ctx.Err() == nil {
		p.cond.Wait()
	}
	if *p.closed || ctx.Err() != nil {
		return gone()
	}
	*p.out = append(*p.out, append([]byte(nil), m...))
	p.cond.Broadcast()
	return nil
}

func (p *pipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	*p.closed = true
	p.cond.Broadcast()
	return nil
}

// waiting is how many messages could be read at once.
func (p *pipe) waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(*p.in)
}

func (p *pipe) RemoteAddr() string { return "pipe" }

// rig is a session on a store in memory.
type rig struct {
	t   *testing.T
	st  *memstore.Store
	s   *session.Session
	cfg session.Config
	wg  sync.WaitGroup
	mu  sync.Mutex
	ids int
}

func (r *rig) newID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids++
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", r.ids)
}

func newRig(t *testing.T, tx *store.Tx, change func(cfg *session.Config)) *rig {
	t.Helper()
	r := &rig{t: t, st: new(memstore.Store)}
	r.cfg = session.Config{Store: r.st, Options: authority.ProductOptions(r.newID)}
	if change != nil {
		change(&r.cfg)
	}
	if err := r.st.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	s, err := session.Open(r.t.Context(), r.cfg, identity().NormalizedSessionID)
	if err != nil {
		r.t.Fatal(err)
	}
	r.s = s
}

// close ends the session and waits for its connections.
func (r *rig) close() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.s.Close(ctx); err != nil {
		r.t.Errorf("close: %v", err)
	}
	r.wg.Wait()
}

func plain(t *testing.T, change func(cfg *session.Config)) *rig {
	t.Helper()
	tx, err := authority.NewSession(identity(), runnerVersion, runnerDigest, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, tx, change)
}

func withRun(t *testing.T, change func(cfg *session.Config)) *rig {
	t.Helper()
	tx, err := authority.Create(time.Now(), authority.NewRun{
		Identity: identity(), RunnerVersion: runnerVersion, RunnerDigest: runnerDigest, LeaseTTL: time.Hour,
		Driver: "scripted", Placement: store.PlacementLocal, Request: []byte(`{}`), Prepare: []byte(`{"provider":{"kind":"scripted"}}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, tx, change)
}

func (r *rig) ticket() string {
	r.t.Helper()
	ticket, err := r.s.IssueTicket(r.t.Context(), prp.TicketLifetimeMax)
	if err != nil {
		r.t.Fatal(err)
	}
	return ticket
}

// runner is the other side of a connection.
type runner struct {
	t       *testing.T
	conn    *pipe
	channel *prp.Channel
	binding prp.Binding
	welcome canonjson.Value
}

// dial connects without a word.
func (r *rig) dial() *runner {
	r.t.Helper()
	server, client := newPipe()
	r.wg.Go(func() { _ = r.s.Serve(context.Background(), server) })
	return &runner{t: r.t, conn: client}
}

func (r *rig) join() *runner {
	r.t.Helper()
	return r.joinWith(r.ticket(), nil)
}

func (r *rig) joinWith(token string, lease *prp.HeldLease) *runner {
	r.t.Helper()
	c := r.dial()
	c.sendResponse(c.hello(token, lease))
	c.readWelcome(lease)
	return c
}

type pendingProof struct {
	keys     *cryptoprp.ClientHandshake
	proof    string
	response []byte
}

func (c *runner) hello(token string, lease *prp.HeldLease) pendingProof {
	c.t.Helper()
	h := prp.Hello{
		CredentialID: cryptoprp.CredentialID(token), ClientNonce: "nonce", ProtocolMin: 1, ProtocolMax: 2,
		Identity: identity(), RunnerVersion: runnerVersion, RunnerDigest: runnerDigest,
	}
	c.raw(prp.EncodeHello(h))
	e, err := prp.ParseEnvelope(c.read("challenge"))
	if err != nil {
		c.t.Fatal(err)
	}
	challenge, serverProof, err := prp.ChallengeOf(e, h, lease, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	canonical, err := challenge.Canonical()
	if err != nil {
		c.t.Fatal(err)
	}
	hs := cryptoprp.NewClientHandshake(cryptoprp.DeriveAuthKey(token), canonical)
	proof, err := hs.Verify(serverProof)
	if err != nil {
		c.t.Fatal(err)
	}
	return pendingProof{hs, proof, prp.EncodeResponse(challenge.SelectedVersion, prp.Response{
		CredentialID: challenge.CredentialID, ClientNonce: challenge.ClientNonce, ServerNonce: challenge.ServerNonce, ClientProof: proof,
	})}
}

func (c *runner) sendResponse(p pendingProof) {
	c.t.Helper()
	c.channel = prp.NewChannel(prp.RoleRunner, p.keys.Finish(), prp.MaxFrameBytes)
	c.raw(p.response)
}

func (c *runner) readWelcome(lease *prp.HeldLease) {
	c.t.Helper()
	e := c.next("welcome")
	control, err := prp.ControlOf(e)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, c.binding, err = prp.WelcomeOf(control, prp.WelcomeExpectation{Version: 2, Identity: identity(), Lease: lease}); err != nil {
		c.t.Fatal(err)
	}
	c.welcome = e.Payload
}

func (c *runner) raw(message []byte) {
	c.t.Helper()
	if err := c.conn.WriteMessage(context.Background(), message); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

// send seals and sends.
func (c *runner) send(plain []byte) {
	c.t.Helper()
	frame, err := c.channel.Seal(nil, plain)
	if err != nil {
		c.t.Fatal(err)
	}
	c.raw(frame)
}

func (c *runner) read(what string) []byte {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := c.conn.ReadMessage(ctx)
	if err != nil {
		c.t.Fatalf("waiting for %s: %v", what, err)
	}
	return m
}

func (c *runner) next(what string) prp.Envelope {
	c.t.Helper()
	plain, err := c.channel.Open(c.read(what))
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
	e, err := prp.ParseEnvelope(append([]byte(nil), plain...))
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
	return e
}

func (c *runner) expect(kind string) prp.Envelope {
	c.t.Helper()
	e := c.next(kind)
	if e.Kind != kind {
		c.t.Fatalf("got %s, expected %s", e.Kind, kind)
	}
	return e
}

// ack expects an ack of exactly seq.
func (c *runner) ack(seq int64) {
	c.t.Helper()
	e := c.expect(prp.KindAck)
	if got, err := prp.AckOf(e.Payload); err != nil || got != seq {
		c.t.Fatalf("ack of %d (%v), expected %d", got, err, seq)
	}
}

// closed expects the end without another message.
func (c *runner) closed(why string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if m, err := c.conn.ReadMessage(ctx); err == nil {
		c.t.Fatalf("%s: a message of %d bytes came instead of the end", why, len(m))
	}
	if ctx.Err() != nil {
		c.t.Fatalf("%s: the connection was not closed", why)
	}
}

func event(seq int64, eventType, payload string) []byte {
	body := prp.AppendEvent(nil, prp.EventFields{
		SourceEventID: prp.RunnerEventID("runner-1", seq), SourceSeq: seq, Identity: identity(), Type: eventType, Priority: 1,
		EmittedAt: "2026-11-30T12:00:00.000Z", Payload: []byte(payload),
	})
	return prp.AppendRunnerMessage(nil, 2, prp.KindEvent, identity(), body)
}

func ready(seq int64) []byte { return event(seq, "harness.ready", `{}`) }

func result(id string, seq int64, commandType, inner string) []byte {
	return prp.AppendRunnerMessage(nil, 2, prp.KindCommandResult, identity(), prp.CommandResult{
		CommandID: id, ControllerSeq: seq, CommandType: commandType, Status: prp.StatusCompleted, Result: object(inner),
	}.Value().JSON())
}

func object(text string) canonjson.Value {
	v, err := canonjson.Parse([]byte(text))
	if err != nil {
		panic(err)
	}
	return v
}

func toolInput(seq int64, callID, input string) []byte {
	return event(seq, "semantic_tool.input", fmt.Sprintf(`{"semantic_tool":{"schema":"paperclip.prp.semantic_tool.v1","schemaVersion":1,`+
		`"phase":"input","operationId":"op","callId":%q,"correlation":{"runId":%q,"normalizedSessionId":"session-1","turnId":"turn-1","itemId":"item-1"},`+
		`"idempotencyKey":null,"content":{"digest":%q,"redactionDisposition":"digest_only","references":[]},"input":%s}}`,
		callID, identity().RunID, prp.SemanticDigest(object(input)), input))
}

func want[T comparable](t *testing.T, what string, got, expected T) {
	t.Helper()
	if got != expected {
		t.Fatalf("%s is %v, must be %v", what, got, expected)
	}
}

// await waits for a channel to close.
func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s did not happen", what)
	}
}
