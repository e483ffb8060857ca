package peer

import (
	"errors"
	"fmt"
	"time"
)

// Protocol is the value of every envelope's member "protocol".
const Protocol = "paperclip.runner"

// RunnerConfig is what a runner needs to join.
type RunnerConfig struct {
	URL             string
	Token           string // ticket or lease token
	Lease           bool   // Token is a lease token
	Identity        Identity
	Version, Digest string
	Min, Max        int
	// HeldLeaseID is the lease id that a lease challenge must name, if known.
	HeldLeaseID string
}

// Runner is a runner's connection to an authority.
type Runner struct {
	*Sock
	Config RunnerConfig

	Hello     M // as sent
	Challenge M // payload as received, with serverProof
	Canonical string
	Selected  int64
	Session   *Session
	SendCount uint64
	RecvCount uint64

	Welcome      M // whole envelope
	ConnectionID string
	LeaseID      string
	LeaseToken   string // from a bootstrap welcome
	LeaseExpiry  int64
}

// Dial opens the WebSocket and checks the 101.
func Dial(cfg RunnerConfig) (*Runner, error) {
	s, resp, err := DialRaw(cfg.URL, Upgrade{})
	if err != nil {
		return nil, err
	}
	if err := resp.CheckSwitch(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Runner{Sock: s, Config: cfg}, nil
}

// Join dials and plays the whole handshake.
func Join(cfg RunnerConfig) (*Runner, error) {
	r, err := Dial(cfg)
	if err != nil {
		return nil, err
	}
	if err := r.Authenticate(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Authenticate sends hello and response and reads challenge and welcome.
func (r *Runner) Authenticate() error {
	if err := r.SendHello(nil); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if err := r.ReadChallenge(); err != nil {
		return fmt.Errorf("challenge: %w", err)
	}
	if err := r.SendResponse(nil); err != nil {
		return fmt.Errorf("response: %w", err)
	}
	if err := r.ReadWelcome(); err != nil {
		return fmt.Errorf("welcome: %w", err)
	}
	return nil
}

// HelloEnvelope is the auth_hello this runner sends.
func (r *Runner) HelloEnvelope() M {
	kind := "bootstrap"
	if r.Config.Lease {
		kind = "lease"
	}
	return M{"protocol": Protocol, "version": 1, "kind": "auth_hello", "payload": Merge(r.Config.Identity.Members(), M{
		"credentialId": CredentialID(r.Config.Token), "credentialKind": kind, "clientNonce": RandomHex(32),
		"protocolMin": r.Config.Min, "protocolMax": r.Config.Max,
		"runnerVersion": r.Config.Version, "runnerDigest": r.Config.Digest,
		"resume": M{"lastControllerCommandSeq": 0, "nextSourceEventSeq": 1, "ackedSourceSeq": 0},
	})}
}

// SendHello sends auth_hello; change may alter the envelope first.
func (r *Runner) SendHello(change func(env M)) error {
	env := r.HelloEnvelope()
	if change != nil {
		change(env)
	}
	r.Hello = Clone(env).(M) //nolint:errcheck,forcetypeassert // an object clones to an object.
	return r.WriteText(Write(env))
}

// ReadChallenge reads and checks auth_challenge (3.4).
func (r *Runner) ReadChallenge() error {
	text, err := r.ReadText(IOTimeout)
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
	hello := Obj(r.Hello, "payload")
	optional := []string{}
	if Equal(hello["warmTransitionVersion"], 1) {
		optional = append(optional, "warmTransitionVersion")
	}
	err = Members(p, names(IdentityNames(), []string{
		"credentialId", "credentialKind", "clientNonce", "serverNonce", "runnerVersion", "runnerDigest", "selectedVersion",
		"credentialLeaseId", "credentialExpiresAt", "credentialExpiresAtUnixMs", "revocationEpoch", "serverProof",
	}, optional)...)
	if err != nil {
		return err
	}
	if env["protocol"] != Protocol || env["kind"] != "auth_challenge" {
		return violationf("challenge envelope is %v/%v", env["protocol"], env["kind"])
	}
	for _, n := range names(IdentityNames(), []string{"credentialId", "clientNonce", "runnerVersion", "runnerDigest"}) {
		if p[n] != hello[n] {
			return violationf("challenge does not echo %s: %v", n, p[n])
		}
	}
	r.Selected = Int(p, "selectedVersion")
	if Int(env, "version") != r.Selected || (r.Selected != 1 && r.Selected != 2) {
		return violationf("version %v, selectedVersion %v", env["version"], p["selectedVersion"])
	}
	if err := matches("serverNonce", p["serverNonce"], uuid4); err != nil {
		return err
	}
	kind := "bootstrap"
	if r.Config.Lease {
		kind = "lease"
		if err := matches("credentialLeaseId", p["credentialLeaseId"], "connection_lease_"+uuid4); err != nil {
			return err
		}
		if r.Config.HeldLeaseID != "" && p["credentialLeaseId"] != r.Config.HeldLeaseID {
			return violationf("credentialLeaseId %v, held %s", p["credentialLeaseId"], r.Config.HeldLeaseID)
		}
	} else if p["credentialLeaseId"] != nil {
		return violationf("credentialLeaseId %v for a ticket", p["credentialLeaseId"])
	}
	if p["credentialKind"] != kind || Int(p, "revocationEpoch") != 0 {
		return violationf("credentialKind %v, revocationEpoch %v", p["credentialKind"], p["revocationEpoch"])
	}
	if err := checkExpiry(p["credentialExpiresAt"], Int(p, "credentialExpiresAtUnixMs")); err != nil {
		return err
	}
	proof := Str(p, "serverProof")
	signed := Merge(p)
	delete(signed, "serverProof")
	r.Canonical, err = Canonical(signed)
	if err != nil {
		return err
	}
	if want := ServerProof(AuthKey(r.Config.Token), r.Canonical); proof != want {
		return violationf("serverProof does not match")
	}
	r.Challenge = p
	return nil
}

func checkExpiry(iso any, unixMs int64) error {
	if err := checkISO("expiry", iso); err != nil {
		return err
	}
	if want := FormatISO(time.UnixMilli(unixMs)); iso != want {
		return violationf("expiry %v differs from %d ms", iso, unixMs)
	}
	if unixMs <= time.Now().UnixMilli() {
		return violationf("expiry %v is in the past", iso)
	}
	return nil
}

// ResponseEnvelope is the auth_response to the challenge that was read.
func (r *Runner) ResponseEnvelope() M {
	key := AuthKey(r.Config.Token)
	proof := Str(r.Challenge, "serverProof")
	client := ClientProof(key, r.Canonical, proof)
	r.Session = NewSession(key, r.Canonical, proof, client)
	return M{"protocol": Protocol, "version": r.Selected, "kind": "auth_response", "payload": M{
		"credentialId": r.Challenge["credentialId"], "clientNonce": r.Challenge["clientNonce"],
		"serverNonce": r.Challenge["serverNonce"], "clientProof": client,
	}}
}

// SendResponse sends auth_response; change may alter the envelope first.
func (r *Runner) SendResponse(change func(env M)) error {
	env := r.ResponseEnvelope()
	if change != nil {
		change(env)
	}
	return r.WriteText(Write(env))
}

// ReadWelcome reads and checks the welcome, frame 0 (4.9).
func (r *Runner) ReadWelcome() error {
	env, err := r.Next(IOTimeout)
	if err != nil {
		return err
	}
	if env["kind"] != "welcome" {
		return violationf("first secure frame is %v", env["kind"])
	}
	p := Obj(env, "payload")
	want := []string{
		"selectedVersion", "heartbeatIntervalMs", "connectionLeaseRenewalVersion", "connectionLeaseId",
		"connectionLeaseExpiresAt", "connectionLeaseExpiresAtUnixMs", "connectionLeaseRevocationEpoch", "leaseBinding",
		"maxFrameBytes", "maxBatchEvents", "ackedSourceSeq", "pendingCommands",
	}
	if Equal(Get(r.Hello, "payload", "warmTransitionVersion"), 1) {
		want = append(want, "warmTransitionVersion?")
	}
	if !r.Config.Lease {
		want = append(want, "connectionLeaseToken")
		if err := matches("connectionLeaseToken", p["connectionLeaseToken"], "lease_"+uuid4); err != nil {
			return err
		}
		r.LeaseToken = Str(p, "connectionLeaseToken")
	}
	if err := Members(p, want...); err != nil {
		return err
	}
	for n, v := range map[string]int64{
		"selectedVersion": r.Selected, "heartbeatIntervalMs": 250, "connectionLeaseRenewalVersion": 1,
		"connectionLeaseRevocationEpoch": 0, "maxFrameBytes": MaxFrame, "maxBatchEvents": 100,
	} {
		if Int(p, n) != v {
			return violationf("welcome %s is %v, expected %d", n, p[n], v)
		}
	}
	id := r.Config.Identity
	binding := M{
		"runnerInstanceId": id.RunnerInstanceID, "environmentLeaseId": id.EnvironmentLeaseID, "runId": id.RunID,
		"normalizedSessionId": id.NormalizedSessionID, "protocolVersion": r.Selected,
	}
	if !Equal(p["leaseBinding"], binding) {
		return violationf("leaseBinding is %s", Write(p["leaseBinding"]))
	}
	if p["connectionLeaseId"] != env["connectionLeaseId"] {
		return violationf("lease ids differ: %v, %v", p["connectionLeaseId"], env["connectionLeaseId"])
	}
	if err := checkExpiry(p["connectionLeaseExpiresAt"], Int(p, "connectionLeaseExpiresAtUnixMs")); err != nil {
		return err
	}
	if Int(p, "ackedSourceSeq") < 0 || len(List(p, "pendingCommands")) > 1 || Get(p, "pendingCommands") == nil {
		return violationf("ackedSourceSeq %v, pendingCommands %s", p["ackedSourceSeq"], Write(p["pendingCommands"]))
	}
	for _, c := range List(p, "pendingCommands") {
		if err := CheckCommand(c); err != nil {
			return err
		}
	}
	r.LeaseExpiry = Int(p, "connectionLeaseExpiresAtUnixMs")
	r.Welcome = env
	return nil
}

// Pending returns the command in the welcome, or nil.
func (r *Runner) Pending() M {
	for _, c := range List(r.Welcome, "payload", "pendingCommands") {
		if m, ok := c.(M); ok {
			return m
		}
	}
	return nil
}

// LeaseConfig is the configuration to reconnect with the lease.
func (r *Runner) LeaseConfig() RunnerConfig {
	cfg := r.Config
	if !cfg.Lease {
		cfg.Token, cfg.Lease = r.LeaseToken, true
	}
	cfg.HeldLeaseID = r.LeaseID
	return cfg
}

// CheckCommand checks the shape of a command on the wire (5.4).
func CheckCommand(v any) error {
	c, ok := v.(M)
	if !ok {
		return violationf("command is not an object")
	}
	if err := Members(c, "schema", "commandId", "controllerSeq", "type", "issuedAt", "payload"); err != nil {
		return fmt.Errorf("command: %w", err)
	}
	schema := "paperclip.prp.command.v1"
	if len(Str(c, "type")) > 13 && Str(c, "type")[:13] == "session.goal." {
		schema = "paperclip.prp.command.v2"
	}
	if c["schema"] != schema || Int(c, "controllerSeq") < 1 {
		return violationf("command schema %v, controllerSeq %v", c["schema"], c["controllerSeq"])
	}
	if _, ok := c["payload"].(M); !ok {
		return violationf("command payload is not an object")
	}
	return checkISO("issuedAt", c["issuedAt"])
}

// Next reads, decrypts and checks the next control envelope (5.1).
func (r *Runner) Next(wait time.Duration) (M, error) {
	text, err := r.ReadText(wait)
	if err != nil {
		return nil, err
	}
	return r.Open(text)
}

// Open decrypts and checks one received text.
func (r *Runner) Open(text []byte) (M, error) {
	if len(text) > MaxFrame {
		return nil, violationf("frame of %d bytes", len(text))
	}
	plain, err := r.Session.OpenFrame(CoreToClient(), r.RecvCount, text)
	if err != nil {
		return nil, fmt.Errorf("secure frame %d: %w", r.RecvCount, err)
	}
	r.RecvCount++
	env, err := ParseObject(plain)
	if err != nil {
		return nil, err
	}
	err = Members(env, names(IdentityNames(), []string{
		"protocol", "version", "envelopeId", "kind", "connectionId", "connectionLeaseId", "sentAt", "payload",
	})...)
	if err != nil {
		return nil, fmt.Errorf("control envelope %v: %w", env["kind"], err)
	}
	if env["protocol"] != Protocol || Int(env, "version") != r.Selected {
		return nil, violationf("protocol %v version %v", env["protocol"], env["version"])
	}
	if err := checkIdentity(env, r.Config.Identity); err != nil {
		return nil, err
	}
	if err := checkISO("sentAt", env["sentAt"]); err != nil {
		return nil, err
	}
	if r.ConnectionID == "" {
		r.ConnectionID, r.LeaseID = Str(env, "connectionId"), Str(env, "connectionLeaseId")
		if err := matches("connectionLeaseId", env["connectionLeaseId"], "connection_lease_"+uuid4); err != nil {
			return nil, err
		}
		if err := matches("connectionId", env["connectionId"], `connection_[1-9][0-9]*`); err != nil {
			return nil, err
		}
		if err := matches("envelopeId", env["envelopeId"], "welcome_"+r.ConnectionID[len("connection_"):]); err != nil {
			return nil, err
		}
	}
	if env["connectionId"] != r.ConnectionID || env["connectionLeaseId"] != r.LeaseID {
		return nil, violationf("connection ids changed: %v %v", env["connectionId"], env["connectionLeaseId"])
	}
	return env, r.checkControl(env)
}

func (r *Runner) checkControl(env M) error {
	p := Obj(env, "payload")
	id := Str(env, "envelopeId")
	switch env["kind"] {
	case "welcome":
		return nil
	case "command":
		if err := CheckCommand(p); err != nil {
			return err
		}
		return matches("envelopeId", id, "command_"+Str(p, "commandId")+"_[1-9][0-9]*")
	case "ack":
		if err := Members(p, "ackedSourceSeq"); err != nil {
			return err
		}
		return matches("envelopeId", id, fmt.Sprintf("ack_%d", Int(p, "ackedSourceSeq")))
	case "command_result_ack":
		if err := Members(p, "commandId", "commandType", "controllerSeq", "status"); err != nil {
			return err
		}
		return matches("envelopeId", id, fmt.Sprintf("command_result_ack_%d", Int(p, "controllerSeq")))
	case "lease_renewed":
		err := Members(p, "previousExpiresAtUnixMs", "connectionLeaseExpiresAtUnixMs", "connectionLeaseRevocationEpoch")
		if err != nil {
			return err
		}
		return matches("envelopeId", id, fmt.Sprintf("lease_renewed_%d", Int(p, "previousExpiresAtUnixMs")))
	case "ping", "revoke":
		return nil
	}
	return violationf("control kind %v", env["kind"])
}

// Frame seals an envelope or raw text as the next frame and counts it.
func (r *Runner) Frame(env any) Frame {
	plain, ok := env.([]byte)
	if !ok {
		plain = Write(env)
	}
	f := Text(r.Session.SealFrame(ClientToCore(), r.SendCount, plain), true)
	r.SendCount++
	return f
}

// Send sends an envelope as the next secure frame.
func (r *Runner) Send(env any) error { return r.WriteFrames(r.Frame(env)) }

// EventEnvelope wraps a PRP event (5.1).
func (r *Runner) EventEnvelope(event M) M {
	return Merge(M{"protocol": Protocol, "version": r.Selected, "kind": "event", "payload": event}, r.Config.Identity.Members())
}

// NewEvent returns a valid v1 event.
func (r *Runner) NewEvent(seq int64, eventType string, payload M) M {
	id := r.Config.Identity
	return M{
		"schema": "paperclip.prp.event.v1", "sourceEventId": fmt.Sprintf("event_%s_%016d", id.RunnerInstanceID, seq),
		"sourceSeq": seq, "sourceInstanceId": id.RunnerInstanceID, "sourceKind": "runner", "runId": id.RunID,
		"normalizedSessionId": id.NormalizedSessionID, "turnId": id.TurnID, "itemId": id.ItemID,
		"eventType": eventType, "schemaVersion": 1, "priority": 1, "emittedAt": "2026-01-02T03:04:05.006Z", "payload": payload,
	}
}

// ResultEnvelope answers a command; status and result are free.
func (r *Runner) ResultEnvelope(command M, status string, result any) M {
	return Merge(M{"protocol": Protocol, "version": r.Selected, "kind": "command_result", "payload": M{
		"commandId": command["commandId"], "controllerSeq": command["controllerSeq"], "commandType": command["type"],
		"status": status, "result": result,
	}}, r.Config.Identity.Members())
}

// BoundEnvelope is the event-like form of lease and pong messages (5.1).
func (r *Runner) BoundEnvelope(kind string, payload M) M {
	return Merge(M{
		"protocol": Protocol, "version": r.Selected, "kind": kind, "payload": payload,
		"connectionId": r.ConnectionID, "connectionLeaseId": r.LeaseID,
	}, r.Config.Identity.Members())
}

// RenewEnvelope asks for a longer lease (5.9).
func (r *Runner) RenewEnvelope(expiry int64) M {
	return r.BoundEnvelope("lease_renew", M{"connectionLeaseExpiresAtUnixMs": expiry, "connectionLeaseRevocationEpoch": 0})
}
