package runnerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	cryptoprp "bowline/crypto/prp"
	"bowline/wire/canonjson"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// authority is a small authority in memory: the other side of a runner. It
// checks what it receives and fails the test when it breaks the profile.
type authority struct {
	t        testing.TB
	identity prp.Identity
	url      string
	leaseTTL time.Duration

	mu        sync.Mutex
	changed   chan struct{}
	tickets   map[string]bool // live tickets
	lease     *leaseRecord
	conns     int
	conn      *authConn // authenticated
	commands  []*authCommand
	events    []prp.Event
	envelopes map[string]string // source event id -> exact plaintext
	acked     int64
	redeliver int
	holdAcks  bool
	deafTo    string // kind of message that destroys the connection instead
	noResAck  bool   // command_result_ack is not sent
	maxVer    int
	kinds     []string // of every message received
}

type leaseRecord struct {
	id, token string
	expires   int64
	version   int
}

type authCommand struct {
	cmd      prp.Command
	result   canonjson.Value
	status   string
	finished bool
	sent     int64
}

type authConn struct {
	socket  carrier.Conn
	channel *prp.Channel
	id      string
	version int
	mu      sync.Mutex
}

func newAuthority(t testing.TB) *authority {
	a := &authority{
		t: t, leaseTTL: time.Hour, changed: make(chan struct{}), tickets: map[string]bool{}, envelopes: map[string]string{}, maxVer: prp.VersionMax,
		identity: prp.Identity{
			RunnerInstanceID: "runner-1", EnvironmentLeaseID: "lease-1", RunID: "run-1",
			NormalizedSessionID: "session-1", TurnID: "turn-1", ItemID: "item-1",
		},
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wg.Add(1)
		defer wg.Done()
		socket, err := carrier.Accept(w, r, carrier.AcceptOptions{MaxFrame: prp.MaxFrameBytes})
		if err != nil {
			return
		}
		a.serve(ctx, socket)
	})}
	wg.Go(func() { _ = server.Serve(ln) }) //nolint:errcheck // ends with Close
	t.Cleanup(func() {
		cancel()
		_ = server.Close() //nolint:errcheck // test
		wg.Wait()
	})
	a.url = "ws://" + ln.Addr().String() + prp.PathStandalone
	return a
}

func (a *authority) ticket() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := prp.TicketPrefix + uuid.NewString()
	a.tickets[t] = true
	return t
}

func (a *authority) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// await waits for a condition on the authority.
func (a *authority) await(what string, cond func() bool) {
	a.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	// Some conditions are files of the runner: nobody wakes us for those.
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		a.mu.Lock()
		ok, changed := cond(), a.changed
		a.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-look.C:
		case <-deadline.C:
			a.mu.Lock()
			defer a.mu.Unlock()
			var types []string
			for _, e := range a.events {
				types = append(types, e.Type)
			}
			a.t.Fatalf("waited %v for %s; events %v", patience, what, tail(types))
		}
	}
}

func tail(list []string) []string {
	if n := len(list); n > 20 {
		return list[n-20:]
	}
	return list
}

func (a *authority) queue(kind string, payload any) *authCommand {
	text, err := canonjson.Marshal(payload)
	if err != nil {
		a.t.Fatal(err)
	}
	v, err := canonjson.Parse(text)
	if err != nil {
		a.t.Fatal(err)
	}
	a.mu.Lock()
	seq := int64(len(a.commands) + 1)
	c := &authCommand{cmd: prp.Command{CommandID: prp.CommandIDOf(seq), ControllerSeq: seq, Type: kind, IssuedAt: prp.FormatTime(time.Now()), Payload: v}}
	a.commands = append(a.commands, c)
	conn := a.conn
	first := a.firstPending() == c
	a.mu.Unlock()
	if conn != nil && first {
		a.deliver(conn, c)
	}
	return c
}

// do queues a command and waits for its result, which must be completed.
func (a *authority) do(kind string, payload any) canonjson.Value {
	a.t.Helper()
	c := a.queue(kind, payload)
	a.finish(c)
	if c.status != prp.StatusCompleted {
		a.t.Fatalf("%s: %s %s", kind, c.status, c.result.JSON())
	}
	return c.result
}

func (a *authority) finish(c *authCommand) {
	a.t.Helper()
	a.await("the result of "+c.cmd.Type, func() bool { return c.finished })
}

func (a *authority) firstPending() *authCommand {
	for _, c := range a.commands {
		if !c.finished {
			return c
		}
	}
	return nil
}

func (a *authority) eventTypes() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []string
	for _, e := range a.events {
		list = append(list, e.Type)
	}
	return list
}

func (a *authority) awaitEvent(eventType string) prp.Event {
	a.t.Helper()
	var found prp.Event
	a.await("event "+eventType, func() bool {
		for _, e := range a.events {
			if e.Type == eventType {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// drop destroys the authenticated connection.
func (a *authority) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropLocked()
}

func (a *authority) dropLocked() {
	if c := a.conn; c != nil {
		a.conn = nil         // what is still in its buffers counts no more
		_ = c.socket.Close() //nolint:errcheck // test
	}
}

var errDrop = errors.New("authority closes")

func (a *authority) serve(ctx context.Context, socket carrier.Conn) {
	defer func() { _ = socket.Close() }() //nolint:errcheck // test
	conn, err := a.handshake(ctx, socket)
	if err != nil {
		return
	}
	defer func() {
		a.mu.Lock()
		if a.conn == conn {
			a.conn = nil
		}
		a.wake()
		a.mu.Unlock()
	}()
	for {
		frame, err := socket.ReadMessage(ctx)
		if err != nil {
			return
		}
		plain, err := conn.channel.Open(frame)
		if err != nil {
			a.t.Errorf("authority: frame: %v", err)
			return
		}
		if err := a.receive(conn, plain); err != nil {
			if !errors.Is(err, errDrop) {
				a.t.Errorf("authority: %v", err)
			}
			return
		}
	}
}

func (a *authority) handshake(ctx context.Context, socket carrier.Conn) (*authConn, error) {
	text, err := socket.ReadMessage(ctx)
	if err != nil {
		return nil, err
	}
	env, err := prp.ParseEnvelope(text)
	if err != nil {
		return nil, err
	}
	hello, err := prp.HelloOf(env)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	if a.deafTo == prp.KindAuthHello {
		a.deafTo = ""
		a.mu.Unlock()
		return nil, errDrop
	}
	kind, token, expires, version, leaseID := "", "", int64(0), 0, ""
	for t := range a.tickets {
		if cryptoprp.CredentialID(t) == hello.CredentialID {
			kind, token, expires = prp.CredentialBootstrap, t, time.Now().Add(time.Minute).UnixMilli()
			version = min(a.maxVer, hello.ProtocolMax)
		}
	}
	if l := a.lease; kind == "" && l != nil && cryptoprp.CredentialID(l.token) == hello.CredentialID {
		kind, token, expires, version, leaseID = prp.CredentialLease, l.token, l.expires, l.version, l.id
	}
	a.mu.Unlock()
	if kind == "" || hello.Identity != a.identity {
		return nil, errDrop
	}
	ch := prp.NewChallenge(hello, kind, uuid.NewString(), version)
	ch.CredentialExpiresAtUnixMs, ch.CredentialLeaseID = expires, leaseID
	canonical, err := ch.Canonical()
	if err != nil {
		return nil, err
	}
	shake := cryptoprp.NewServerHandshake(cryptoprp.DeriveAuthKey(token), canonical)
	if err := socket.WriteMessage(ctx, prp.EncodeChallenge(ch, shake.Proof())); err != nil {
		return nil, err
	}
	if text, err = socket.ReadMessage(ctx); err != nil {
		return nil, err
	}
	if env, err = prp.ParseEnvelope(text); err != nil {
		return nil, err
	}
	resp, err := prp.ResponseOf(env, ch)
	if err != nil {
		return nil, err
	}
	session, err := shake.Finish(resp.ClientProof)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.deafTo == prp.KindAuthResponse {
		a.deafTo = ""
		return nil, errDrop
	}
	a.conns++
	conn := &authConn{socket: socket, channel: prp.NewChannel(prp.RoleAuthority, session, prp.MaxFrameBytes), id: prp.ConnectionID(int64(a.conns)), version: version}
	w := prp.Welcome{SelectedVersion: version, Identity: a.identity, MaxFrameBytes: prp.MaxFrameBytes, AckedSourceSeq: a.acked}
	if kind == prp.CredentialBootstrap {
		delete(a.tickets, token)
		a.lease = &leaseRecord{id: prp.LeaseIDPrefix + uuid.NewString(), token: prp.LeaseTokenPrefix + uuid.NewString(), expires: time.Now().Add(a.leaseTTL).UnixMilli(), version: version}
		w.LeaseToken = a.lease.token
	}
	w.LeaseID, w.LeaseExpiresAtUnixMs = a.lease.id, a.lease.expires
	if c := a.firstPending(); c != nil {
		c.sent++
		w.PendingCommand = &c.cmd
	}
	if a.conn != nil {
		_ = a.conn.socket.Close() //nolint:errcheck // test
	}
	a.conn = conn
	a.wake()
	return conn, a.sendLocked(conn, prp.KindWelcome, "welcome_"+conn.id, prp.EncodeWelcome(w))
}

// sendLocked sends under a.mu, so that order on the wire is order of decisions.
func (a *authority) sendLocked(c *authConn, kind, envelopeID string, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	plain := prp.AppendControl(nil, prp.ControlHeader{
		Version: c.version, EnvelopeID: envelopeID, Kind: kind, Identity: a.identity,
		ConnectionID: c.id, ConnectionLeaseID: a.lease.id, SentAt: prp.FormatTime(time.Now()),
	}, payload)
	frame, err := c.channel.Seal(nil, plain)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.socket.WriteMessage(ctx, frame)
}

func (a *authority) deliver(conn *authConn, c *authCommand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn != conn || c.finished {
		return
	}
	c.sent++
	// A lost connection delivers it again.
	_ = a.sendLocked(conn, prp.KindCommand, prp.CommandEnvelopeID(c.cmd.CommandID, c.sent), c.cmd.Value().JSON()) //nolint:errcheck // see above
}

func (a *authority) receive(conn *authConn, plain []byte) error {
	env, err := prp.ParseEnvelope(plain)
	if err != nil {
		return err
	}
	id, err := env.Identity()
	if err != nil || id != a.identity {
		return fmt.Errorf("%s: identity", env.Kind)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.wake()
	if a.conn != conn {
		return errDrop
	}
	a.kinds = append(a.kinds, env.Kind)
	if a.deafTo == env.Kind {
		a.deafTo = ""
		return errDrop
	}
	switch env.Kind {
	case prp.KindEvent:
		return a.eventLocked(conn, env, string(plain))
	case prp.KindCommandResult:
		return a.resultLocked(conn, env)
	case prp.KindLeaseRenew:
		r, err := prp.LeaseRenewOf(env.Payload)
		if err != nil {
			return err
		}
		if r.ExpiresAtUnixMs == a.lease.expires {
			a.lease.expires = time.Now().Add(a.leaseTTL).UnixMilli()
		}
		return a.sendLocked(conn, prp.KindLeaseRenewed, prp.LeaseRenewedEnvelopeID(r.ExpiresAtUnixMs), prp.EncodeLeaseRenewed(prp.LeaseRenewed{
			PreviousExpiresAtUnixMs: r.ExpiresAtUnixMs, ExpiresAtUnixMs: a.lease.expires,
		}))
	case prp.KindPong:
		return nil
	}
	return fmt.Errorf("kind %s", env.Kind)
}

func (a *authority) eventLocked(conn *authConn, env prp.Envelope, plain string) error {
	ev, err := prp.EventOf(env.Payload)
	if err != nil {
		return err
	}
	if err := ev.CheckIdentity(a.identity); err != nil {
		return err
	}
	if old, known := a.envelopes[ev.SourceEventID]; known {
		if old != plain {
			return fmt.Errorf("event %d came again with other bytes", ev.SourceSeq)
		}
		a.redeliver++
		if !a.holdAcks {
			a.acked = max(a.acked, ev.SourceSeq)
		}
	} else {
		if ev.SourceSeq != int64(len(a.events))+1 {
			return fmt.Errorf("event %d after %d", ev.SourceSeq, a.acked)
		}
		a.envelopes[ev.SourceEventID] = plain
		a.events = append(a.events, ev)
		if a.holdAcks {
			return nil
		}
		a.acked = ev.SourceSeq
	}
	if a.holdAcks {
		return nil
	}
	return ignoreGone(a.sendLocked(conn, prp.KindAck, prp.AckEnvelopeID(a.acked), prp.EncodeAck(a.acked)))
}

// ignoreGone: the runner may be gone; it learns from the next welcome.
func ignoreGone(err error) error {
	if err != nil {
		return errDrop
	}
	return nil
}

func (a *authority) resultLocked(conn *authConn, env prp.Envelope) error {
	r, err := prp.CommandResultOf(env.Payload)
	if err != nil {
		return err
	}
	for _, c := range a.commands {
		if c.cmd.CommandID != r.CommandID {
			continue
		}
		if c.finished {
			if string(c.result.JSON()) != string(r.Result.JSON()) {
				return fmt.Errorf("%s: another result", c.cmd.Type)
			}
		}
		c.finished, c.status, c.result = true, r.Status, r.Result
		if prp.IsTerminalCommand(c.cmd.Type) && !a.noResAck {
			if err := a.sendLocked(conn, prp.KindCommandResultAck, prp.CommandResultAckEnvelopeID(r.ControllerSeq), prp.EncodeCommandResultAck(r)); err != nil {
				return ignoreGone(err)
			}
		}
		if next := a.firstPending(); next != nil && !prp.IsTerminalCommand(c.cmd.Type) {
			next.sent++
			return ignoreGone(a.sendLocked(conn, prp.KindCommand, prp.CommandEnvelopeID(next.cmd.CommandID, next.sent), next.cmd.Value().JSON()))
		}
		return nil
	}
	return fmt.Errorf("result of unknown command %s", r.CommandID)
}

// prepare is a run.prepare payload for a provider.
func prepare(provider any) map[string]any {
	return map[string]any{
		"authorizedTools": map[string]any{
			"schema": "paperclip.runner.authorized-tools.v1", "schemaVersion": 1,
			// SHA-256 of "[]".
			"catalogDigest": "sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945",
			"operations":    []any{},
		},
		"provider": provider,
	}
}

func scriptedProvider(script map[string]any) map[string]any {
	p := map[string]any{"kind": "scripted"}
	if script != nil {
		p["script"] = script
	}
	return p
}

func raw(v canonjson.Value) string { return string(v.JSON()) }

func decodeJSON(t testing.TB, text []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.NewDecoder(strings.NewReader(string(text))).Decode(&m); err != nil {
		t.Fatalf("not a JSON object: %v", err)
	}
	return m
}

// digestOf is the SHA-256 of an event's payload, members sorted.
func digestOf(e prp.Event) string {
	b, err := canonjson.CanonicalUnlimited(e.Payload)
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
