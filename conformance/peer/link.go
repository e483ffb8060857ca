package peer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Link is one connection of a runner.
type Link struct {
	*Sock
	Authority *Authority
	Request   *Response // the opening request: Line and Headers

	Hello     M // envelope
	Lease     bool
	Token     string
	Challenge M // signed payload with serverProof
	Canonical string
	Proof     string
	Session   *Session
	SendCount uint64
	RecvCount uint64

	ConnectionID string
	// Envelopes holds every decrypted text in order.
	Envelopes []string
}

// CheckRequest checks the runner's opening request (1.1, RFC 6455 4.1).
func (l *Link) CheckRequest() error {
	r := l.Request
	if r.Line != "GET "+l.Authority.Path+" HTTP/1.1" {
		return violationf("request line %q", r.Line)
	}
	one := func(name, want string) error {
		got := r.Header(name)
		if len(got) != 1 || !strings.EqualFold(got[0], want) {
			return violationf("%s is %q, expected %q", name, got, want)
		}
		return nil
	}
	if err := errors.Join(one("Upgrade", "websocket"), one("Sec-WebSocket-Version", "13"), one("Host", l.Authority.addr)); err != nil {
		return err
	}
	keys := r.Header("Sec-WebSocket-Key")
	if len(keys) != 1 {
		return violationf("keys %q", keys)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(keys[0])
	if err != nil || len(raw) != 16 {
		return violationf("key %q is not base64 of 16 bytes", keys[0])
	}
	if !strings.EqualFold(strings.Join(r.Header("Connection"), ","), "upgrade") {
		return violationf("Connection is %q", r.Header("Connection"))
	}
	for _, h := range []string{"Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions", "Authorization", "Cookie"} {
		if got := r.Header(h); len(got) != 0 {
			return violationf("%s is sent: %q", h, got)
		}
	}
	return nil
}

// Switch answers 101 with the three headers.
func (l *Link) Switch() error {
	key := strings.Join(l.Request.Header("Sec-WebSocket-Key"), ",")
	return l.WriteBytes([]byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		AcceptKey(key) + "\r\n\r\n"))
}

// ReadHello reads and checks auth_hello (3.1).
func (l *Link) ReadHello() error {
	text, err := l.ReadText(IOTimeout)
	if err != nil {
		return err
	}
	env, err := ParseObject(text)
	if err != nil {
		return err
	}
	if err := Members(env, "protocol", "version", "kind", "payload"); err != nil {
		return err
	}
	if env["protocol"] != Protocol || env["kind"] != "auth_hello" || (Int(env, "version") != 1 && Int(env, "version") != 2) {
		return violationf("hello envelope %v/%v/%v", env["protocol"], env["version"], env["kind"])
	}
	p := Obj(env, "payload")
	err = Members(p, names(IdentityNames(), []string{
		"credentialId", "credentialKind", "clientNonce", "protocolMin", "protocolMax", "runnerVersion", "runnerDigest",
		"resume", "warmTransitionVersion?",
	})...)
	if err != nil {
		return err
	}
	if err := checkIdentity(p, l.Authority.Identity); err != nil {
		return err
	}
	if err := matches("clientNonce", p["clientNonce"], "[0-9a-f]{64}"); err != nil {
		return err
	}
	a := l.Authority
	if p["runnerVersion"] != a.Version || p["runnerDigest"] != a.Digest || Int(p, "protocolMin") != 1 || Int(p, "protocolMax") != 2 {
		return violationf("hello says version %v digest %v min %v max %v", p["runnerVersion"], p["runnerDigest"], p["protocolMin"], p["protocolMax"])
	}
	if v, ok := p["warmTransitionVersion"]; ok && !Equal(v, 1) {
		return violationf("warmTransitionVersion %v", v)
	}
	resume := Obj(p, "resume")
	if err := Members(resume, "lastControllerCommandSeq", "nextSourceEventSeq", "ackedSourceSeq"); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	switch p["credentialKind"] {
	case "bootstrap":
		l.Token = a.Ticket
	case "lease":
		l.Token, l.Lease = a.LeaseToken, true
	}
	if l.Token == "" || p["credentialId"] != CredentialID(l.Token) {
		return violationf("credentialId does not name the %v that was handed out", p["credentialKind"])
	}
	l.Hello = env
	return nil
}

// ChallengePayload is the correct challenge, unsigned.
func (l *Link) ChallengePayload() M {
	a := l.Authority
	p := Obj(l.Hello, "payload")
	kind, expiry := "bootstrap", time.Now().UnixMilli()+60_000
	var leaseID any
	var epoch int64
	if l.Lease {
		kind, expiry, leaseID, epoch = "lease", a.LeaseExpiry, a.LeaseID, a.LeaseEpoch
	} else {
		a.Selected = min(a.MaxVersion, Int(p, "protocolMax"))
	}
	out := Merge(a.Identity.Members(), M{
		"credentialId": p["credentialId"], "credentialKind": kind, "clientNonce": p["clientNonce"], "serverNonce": NewUUID(),
		"runnerVersion": p["runnerVersion"], "runnerDigest": p["runnerDigest"], "selectedVersion": a.Selected,
		"credentialLeaseId": leaseID, "credentialExpiresAt": FormatISO(time.UnixMilli(expiry)),
		"credentialExpiresAtUnixMs": expiry, "revocationEpoch": epoch,
	})
	if v, ok := p["warmTransitionVersion"]; ok {
		out["warmTransitionVersion"] = v
	}
	return out
}

// SendChallenge signs and sends auth_challenge. change alters the payload
// before it is signed, after alters the whole envelope afterwards.
func (l *Link) SendChallenge(change func(p M), after func(env M)) error {
	p := l.ChallengePayload()
	if change != nil {
		change(p)
	}
	var err error
	if l.Canonical, err = Canonical(p); err != nil {
		return err
	}
	l.Proof = ServerProof(AuthKey(l.Token), l.Canonical)
	p["serverProof"] = l.Proof
	l.Challenge = CloneM(p)
	env := M{"protocol": Protocol, "version": l.Authority.Selected, "kind": "auth_challenge", "payload": p}
	if after != nil {
		after(env)
	}
	return l.WriteText(Write(env))
}

// ReadResponse reads and checks auth_response (3.6).
func (l *Link) ReadResponse() error {
	text, err := l.ReadText(IOTimeout)
	if err != nil {
		return err
	}
	env, err := ParseObject(text)
	if err != nil {
		return err
	}
	if err := Members(env, "protocol", "version", "kind", "payload"); err != nil {
		return err
	}
	p := Obj(env, "payload")
	if err := Members(p, "credentialId", "clientNonce", "serverNonce", "clientProof"); err != nil {
		return err
	}
	if env["protocol"] != Protocol || env["kind"] != "auth_response" || Int(env, "version") != l.Authority.Selected {
		return violationf("response envelope %v/%v/%v", env["protocol"], env["version"], env["kind"])
	}
	for _, n := range []string{"credentialId", "clientNonce", "serverNonce"} {
		if p[n] != l.Challenge[n] {
			return violationf("response does not echo %s", n)
		}
	}
	key := AuthKey(l.Token)
	want := ClientProof(key, l.Canonical, l.Proof)
	if p["clientProof"] != want {
		return violationf("clientProof does not match")
	}
	l.Session = NewSession(key, l.Canonical, l.Proof, want)
	return nil
}

// WelcomeEnvelope is the correct welcome; it hands out a lease to a ticket.
func (l *Link) WelcomeEnvelope() M {
	a := l.Authority
	a.Connections++
	l.ConnectionID = fmt.Sprintf("connection_%d", a.Connections)
	payload := M{}
	if !l.Lease {
		a.LeaseToken, a.LeaseID = "lease_"+NewUUID(), "connection_lease_"+NewUUID()
		a.LeaseExpiry, a.LeaseEpoch = time.Now().Add(a.LeaseTTL).UnixMilli(), 0
		payload["connectionLeaseToken"] = a.LeaseToken
	}
	pending := a.Pending
	if pending == nil {
		pending = A{}
	}
	id := a.Identity
	payload = Merge(payload, M{
		"selectedVersion": a.Selected, "heartbeatIntervalMs": 250, "connectionLeaseRenewalVersion": 1,
		"connectionLeaseId": a.LeaseID, "connectionLeaseExpiresAt": FormatISO(time.UnixMilli(a.LeaseExpiry)),
		"connectionLeaseExpiresAtUnixMs": a.LeaseExpiry, "connectionLeaseRevocationEpoch": a.LeaseEpoch,
		"leaseBinding": M{
			"runnerInstanceId": id.RunnerInstanceID, "environmentLeaseId": id.EnvironmentLeaseID, "runId": id.RunID,
			"normalizedSessionId": id.NormalizedSessionID, "protocolVersion": a.Selected,
		},
		"maxFrameBytes": MaxFrame, "maxBatchEvents": 100, "ackedSourceSeq": a.Acked, "pendingCommands": pending,
	})
	if v := Get(l.Hello, "payload", "warmTransitionVersion"); v != nil {
		payload["warmTransitionVersion"] = v
	}
	return l.Control("welcome", fmt.Sprintf("welcome_%d", a.Connections), payload)
}

// Control makes a control envelope (5.1).
func (l *Link) Control(kind, envelopeID string, payload M) M {
	a := l.Authority
	return Merge(a.Identity.Members(), M{
		"protocol": Protocol, "version": a.Selected, "envelopeId": envelopeID, "kind": kind, "connectionId": l.ConnectionID,
		"connectionLeaseId": a.LeaseID, "sentAt": FormatISO(time.Now()), "payload": payload,
	})
}

// SendWelcome sends the welcome; change may alter the envelope first.
func (l *Link) SendWelcome(change func(env M)) error {
	env := l.WelcomeEnvelope()
	if change != nil {
		change(env)
	}
	return l.Send(env)
}

// Admit plays the whole handshake.
func (l *Link) Admit() error {
	steps := []struct {
		name string
		do   func() error
	}{
		{"request", l.CheckRequest},
		{"101", l.Switch},
		{"hello", l.ReadHello},
		{"challenge", func() error { return l.SendChallenge(nil, nil) }},
		{"response", l.ReadResponse},
		{"welcome", func() error { return l.SendWelcome(nil) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// Send seals an envelope or raw text as the next secure frame.
func (l *Link) Send(env any) error {
	plain, ok := env.([]byte)
	if !ok {
		plain = Write(env)
	}
	text := l.Session.SealFrame(CoreToClient(), l.SendCount, plain)
	l.SendCount++
	return l.WriteText(text)
}

// SendCommand sends a command frame.
func (l *Link) SendCommand(command M, delivery int) error {
	return l.Send(l.Control("command", fmt.Sprintf("command_%s_%d", Str(command, "commandId"), delivery), command))
}

// Ack sends a cumulative acknowledgement and remembers it.
func (l *Link) Ack(seq int64) error {
	l.Authority.Acked = seq
	return l.Send(l.Control("ack", fmt.Sprintf("ack_%d", seq), M{"ackedSourceSeq": seq}))
}

// AckResult acknowledges a terminal command's result (5.2).
func (l *Link) AckResult(result M) error {
	return l.Send(l.Control("command_result_ack", fmt.Sprintf("command_result_ack_%d", Int(result, "controllerSeq")), M{
		"commandId": result["commandId"], "commandType": result["commandType"], "controllerSeq": result["controllerSeq"],
		"status": result["status"],
	}))
}

// Next reads, decrypts and checks the next envelope of the runner.
func (l *Link) Next(wait time.Duration) (M, error) {
	text, err := l.ReadText(wait)
	if err != nil {
		return nil, err
	}
	plain, err := l.Session.OpenFrame(ClientToCore(), l.RecvCount, text)
	if err != nil {
		return nil, violationf("secure frame %d: %v", l.RecvCount, err)
	}
	l.RecvCount++
	l.Envelopes = append(l.Envelopes, string(plain))
	env, err := ParseObject(plain)
	if err != nil {
		return nil, violationf("plaintext: %v", err)
	}
	a := l.Authority
	if env["protocol"] != Protocol || Int(env, "version") != a.Selected {
		return nil, violationf("protocol %v version %v", env["protocol"], env["version"])
	}
	if err := checkIdentity(env, a.Identity); err != nil {
		return nil, err
	}
	members := names(IdentityNames(), []string{"protocol", "version", "kind", "payload"})
	switch env["kind"] {
	case "event":
		if err := Members(env, members...); err != nil {
			return nil, fmt.Errorf("event envelope: %w", err)
		}
		return env, CheckEvent(Obj(env, "payload"), a.Identity)
	case "command_result":
		if err := Members(env, members...); err != nil {
			return nil, fmt.Errorf("result envelope: %w", err)
		}
		return env, checkResult(Obj(env, "payload"))
	case "pong", "lease_renew":
		if err := Members(env, names(members, []string{"connectionId", "connectionLeaseId"})...); err != nil {
			return nil, fmt.Errorf("%v envelope: %w", env["kind"], err)
		}
		if env["connectionId"] != l.ConnectionID || env["connectionLeaseId"] != a.LeaseID {
			return nil, violationf("%v for connection %v lease %v", env["kind"], env["connectionId"], env["connectionLeaseId"])
		}
		if env["kind"] == "pong" {
			return env, Members(Obj(env, "payload"), "lifecycle", "ackedSourceSeq", "outboxBytes")
		}
		return env, Members(Obj(env, "payload"), "connectionLeaseExpiresAtUnixMs", "connectionLeaseRevocationEpoch")
	}
	return nil, violationf("runner sent kind %v", env["kind"])
}

func checkResult(p M) error {
	if err := Members(p, "commandId", "controllerSeq", "commandType", "status", "result"); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return matches("status", p["status"], "completed|failed|rejected")
}
