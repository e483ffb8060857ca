// Package sessiontest is the runner's end of a PRP connection for tests that go
// through a real socket: it joins, sends and reads, and fails the test when the
// other side breaks the profile.
//
// A [Runner] belongs to one goroutine.
package sessiontest

import (
	"bytes"
	"context"
	"testing"
	"time"

	cryptoprp "bowline/crypto/prp"
	"bowline/wire/canonjson"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

// Patience bounds every wait.
const Patience = 20 * time.Second

// Runner is one connection.
type Runner struct {
	TB       testing.TB
	Conn     carrier.Conn
	Identity prp.Identity
	Binding  prp.Binding
	Welcome  canonjson.Value

	channel *prp.Channel
	out     []byte
}

// Config says who joins.
type Config struct {
	URL           string
	Conn          carrier.Conn // used instead of dialling URL when set
	Ticket        string
	Identity      prp.Identity
	RunnerVersion string
	RunnerDigest  string
}

// Dial opens the connection without a word.
func Dial(tb testing.TB, url string) carrier.Conn {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	conn, err := carrier.Dial(ctx, url, carrier.DialOptions{MaxFrame: prp.MaxFrameBytes})
	if err != nil {
		tb.Fatalf("dial: %v", err)
	}
	return conn
}

// Join dials and authenticates with a ticket. The connection is closed with the
// test.
func Join(tb testing.TB, cfg Config) *Runner {
	tb.Helper()
	if cfg.Conn == nil {
		cfg.Conn = Dial(tb, cfg.URL)
	}
	r := &Runner{TB: tb, Conn: cfg.Conn, Identity: cfg.Identity}
	tb.Cleanup(func() { _ = r.Conn.Close() })
	h := prp.Hello{
		CredentialID: cryptoprp.CredentialID(cfg.Ticket), CredentialKind: prp.CredentialBootstrap, ClientNonce: "nonce",
		ProtocolMin: prp.VersionMin, ProtocolMax: prp.VersionMax, Identity: cfg.Identity,
		RunnerVersion: cfg.RunnerVersion, RunnerDigest: cfg.RunnerDigest,
	}
	r.raw(prp.EncodeHello(h))
	e, err := prp.ParseEnvelope(r.read("auth_challenge"))
	r.ok(err)
	challenge, serverProof, err := prp.ChallengeOf(e, h, nil, time.Now().UnixMilli())
	r.ok(err)
	canonical, err := challenge.Canonical()
	r.ok(err)
	hs := cryptoprp.NewClientHandshake(cryptoprp.DeriveAuthKey(cfg.Ticket), canonical)
	proof, err := hs.Verify(serverProof)
	r.ok(err)
	r.raw(prp.EncodeResponse(challenge.SelectedVersion, prp.Response{
		CredentialID: challenge.CredentialID, ClientNonce: challenge.ClientNonce, ServerNonce: challenge.ServerNonce, ClientProof: proof,
	}))
	r.channel = prp.NewChannel(prp.RoleRunner, hs.Finish(), prp.MaxFrameBytes)
	welcome := r.Next("welcome")
	control, err := prp.ControlOf(welcome)
	r.ok(err)
	_, r.Binding, err = prp.WelcomeOf(control, prp.WelcomeExpectation{
		Version: challenge.SelectedVersion, Identity: cfg.Identity, Kind: prp.CredentialBootstrap, NowUnixMs: time.Now().UnixMilli(),
	})
	r.ok(err)
	r.Welcome = welcome.Payload
	return r
}

func (r *Runner) ok(err error) {
	r.TB.Helper()
	if err != nil {
		r.TB.Fatalf("runner: %v", err)
	}
}

func (r *Runner) raw(message []byte) {
	r.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	r.ok(r.Conn.WriteMessage(ctx, message))
}

func (r *Runner) read(what string) []byte {
	r.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	m, err := r.Conn.ReadMessage(ctx)
	if err != nil {
		r.TB.Fatalf("waiting for %s: %v", what, err)
	}
	return m
}

// Next reads one control envelope.
func (r *Runner) Next(what string) prp.Envelope {
	r.TB.Helper()
	plain, err := r.channel.Open(r.read(what))
	r.ok(err)
	e, err := prp.ParseEnvelope(bytes.Clone(plain))
	r.ok(err)
	return e
}

// Expect reads one control envelope of a kind.
func (r *Runner) Expect(kind string) prp.Envelope {
	r.TB.Helper()
	e := r.Next(kind)
	if e.Kind != kind {
		r.TB.Fatalf("got %s, expected %s", e.Kind, kind)
	}
	return e
}

// Send seals an envelope and sends it.
func (r *Runner) Send(plain []byte) {
	r.TB.Helper()
	var err error
	r.out, err = r.channel.Seal(r.out[:0], plain)
	r.ok(err)
	r.raw(r.out)
}

// Event sends an event of the runner itself.
func (r *Runner) Event(seq int64, eventType, payload string) {
	r.TB.Helper()
	r.Send(prp.AppendRunnerMessage(nil, r.Binding.Version, prp.KindEvent, r.Identity, prp.AppendEvent(nil, prp.EventFields{
		SourceEventID: prp.RunnerEventID(r.Identity.RunnerInstanceID, seq), SourceSeq: seq, Identity: r.Identity,
		Type: eventType, Priority: 1, EmittedAt: "2026-11-30T12:00:00.000Z", Payload: []byte(payload),
	})))
}

// Ack expects an acknowledgement of exactly seq.
func (r *Runner) Ack(seq int64) {
	r.TB.Helper()
	got, err := prp.AckOf(r.Expect(prp.KindAck).Payload)
	if err != nil || got != seq {
		r.TB.Fatalf("ack of %d (%v), expected %d", got, err, seq)
	}
}

// Answer completes a command.
func (r *Runner) Answer(command canonjson.Value, inner string) {
	r.TB.Helper()
	result, err := canonjson.Parse([]byte(inner))
	r.ok(err)
	seq, _ := command.Get("controllerSeq").SafeInt()
	r.Send(prp.AppendRunnerMessage(nil, r.Binding.Version, prp.KindCommandResult, r.Identity, prp.CommandResult{
		CommandID: command.Get("commandId").Str(), ControllerSeq: seq, CommandType: command.Get("type").Str(),
		Status: prp.StatusCompleted, Result: result,
	}.Value().JSON()))
}

// Closed expects the end of the connection without another message.
func (r *Runner) Closed(why string) {
	r.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if _, err := r.Conn.ReadMessage(ctx); err == nil {
		r.TB.Fatalf("%s: a message came instead of the end", why)
	}
	if ctx.Err() != nil {
		r.TB.Fatalf("%s: the connection was not closed", why)
	}
}
