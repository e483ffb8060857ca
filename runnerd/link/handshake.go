package link

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	cryptoprp "bowline/crypto/prp"
	"bowline/wire"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

func newNonce() string {
	var b [32]byte
	rand.Read(b[:]) //nolint:errcheck // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// attempt dials, authenticates and serves one connection. end bounds dialling
// and authentication; zero: attemptLimit alone does.
func (l *Link) attempt(ctx context.Context, end time.Time) (authenticated bool, err error) {
	budget := attemptLimit
	if !end.IsZero() {
		budget = min(budget, max(time.Millisecond, end.Sub(l.opt.Now())))
	}
	dialCtx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	begun := l.opt.Now()
	socket, err := l.opt.Target.Dial(dialCtx, carrier.DialOptions{TLS: l.opt.TLS, MaxFrame: l.opt.MaxFrame})
	if err != nil {
		l.handshakeDone(false, err, begun)
		return false, err
	}
	c, welcome, err := l.authenticate(dialCtx, ctx, socket)
	l.handshakeDone(err == nil, err, begun)
	if err != nil {
		if cerr := socket.Close(); cerr != nil && l.opt.Log != nil {
			l.opt.Log.Debug("socket did not close", "err", cerr)
		}
		return false, err
	}
	cancel()
	return true, l.serve(c, welcome)
}

func (l *Link) handshakeDone(ok bool, err error, begun time.Time) {
	if l.opt.Hooks.Handshake == nil {
		return
	}
	code := ""
	if err != nil {
		code = string(wire.CodeOf(err))
	}
	l.opt.Hooks.Handshake(ok, code, l.opt.Now().Sub(begun))
}

// authenticate runs the handshake and reads the welcome (prp.md 3, 4.9).
func (l *Link) authenticate(ctx, life context.Context, socket carrier.Conn) (*connection, prp.Welcome, error) {
	token, kind := l.opt.Ticket, prp.CredentialBootstrap
	hello := prp.Hello{
		ProtocolMin: prp.VersionMin, ProtocolMax: prp.VersionMax,
		Identity: l.opt.Identity, RunnerVersion: l.opt.Version, RunnerDigest: l.opt.Digest,
		WarmTransitionVersion: true, ClientNonce: l.opt.Nonce(),
	}
	resume := l.opt.Core.Resume()
	hello.Resume = &resume
	var lease *prp.HeldLease
	if l.held != nil {
		token, kind, lease = l.held.token, prp.CredentialLease, &l.held.HeldLease
	}
	hello.CredentialID, hello.CredentialKind = cryptoprp.CredentialID(token), kind
	key := cryptoprp.DeriveAuthKey(token)
	if err := l.write(ctx, socket, prp.EncodeHello(hello)); err != nil {
		return nil, prp.Welcome{}, err
	}
	text, err := l.read(ctx, socket)
	if err != nil {
		return nil, prp.Welcome{}, err
	}
	envelope, err := prp.ParseHandshake(text)
	if err != nil {
		return nil, prp.Welcome{}, err
	}
	challenge, serverProof, err := prp.ChallengeOf(envelope, hello, lease, l.opt.Now().UnixMilli())
	if err != nil {
		return nil, prp.Welcome{}, err
	}
	canonical, err := challenge.Canonical()
	if err != nil {
		return nil, prp.Welcome{}, err
	}
	shake := cryptoprp.NewClientHandshake(key, canonical)
	clientProof, err := shake.Verify(serverProof)
	if err != nil {
		e := wire.Errorf(wire.CodeProtocol, "auth_challenge: server proof does not verify")
		e.Cause = err
		return nil, prp.Welcome{}, e
	}
	if lease == nil {
		// From the first byte on the authority may have consumed it (2.6).
		l.ticketTried = true
	}
	if err := l.write(ctx, socket, prp.EncodeResponse(challenge.SelectedVersion, prp.Response{
		CredentialID: hello.CredentialID, ClientNonce: hello.ClientNonce, ServerNonce: challenge.ServerNonce, ClientProof: clientProof,
	})); err != nil {
		return nil, prp.Welcome{}, err
	}
	channel := prp.NewChannel(prp.RoleRunner, shake.Finish(), l.opt.MaxFrame)
	return l.welcome(ctx, life, socket, channel, prp.WelcomeExpectation{
		Version: challenge.SelectedVersion, Identity: l.opt.Identity, Kind: kind, Lease: lease,
	}, token)
}

func (l *Link) welcome(ctx, life context.Context, socket carrier.Conn, channel *prp.Channel, want prp.WelcomeExpectation, token string) (*connection, prp.Welcome, error) {
	fail := func(err error) (*connection, prp.Welcome, error) { return nil, prp.Welcome{}, err }
	frame, err := l.read(ctx, socket)
	if err != nil {
		return fail(err)
	}
	plain, err := channel.Open(frame)
	if err != nil {
		if l.opt.Hooks.DecryptFailure != nil {
			l.opt.Hooks.DecryptFailure()
		}
		return fail(err)
	}
	envelope, err := prp.ParseEnvelope(plain)
	if err != nil {
		return fail(err)
	}
	control, err := prp.ControlOf(envelope)
	if err != nil {
		return fail(err)
	}
	want.NowUnixMs = l.opt.Now().UnixMilli()
	w, binding, err := prp.WelcomeOf(control, want)
	if err != nil {
		return fail(err)
	}
	if want.Lease == nil {
		token = w.LeaseToken
	}
	l.held = &heldLease{
		HeldLease: prp.HeldLease{ID: w.LeaseID, ExpiresAtUnixMs: w.LeaseExpiresAtUnixMs, RevocationEpoch: w.LeaseRevocationEpoch},
		token:     token, version: w.SelectedVersion, renewal: w.LeaseRenewalVersion > 0,
	}
	w.LeaseToken, l.opt.Ticket = "", "" // of no more use
	return newConnection(life, l, socket, channel, binding, w), w, nil
}

// read waits for one handshake message (prp.md 3.8).
func (l *Link) read(ctx context.Context, socket carrier.Conn) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opt.MessageTimeout)
	defer cancel()
	return socket.ReadMessage(ctx)
}

func (l *Link) write(ctx context.Context, socket carrier.Conn, message []byte) error {
	ctx, cancel := context.WithTimeout(ctx, l.opt.MessageTimeout)
	defer cancel()
	return socket.WriteMessage(ctx, message)
}
