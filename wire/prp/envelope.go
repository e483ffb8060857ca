package prp

import (
	"strconv"

	"bowline/wire/canonjson"
)

// Envelope is any message of the profile as received. Whole is the exact
// object, unknown members included: replays are compared by it.
type Envelope struct {
	Whole   canonjson.Value
	Version int
	Kind    string
	Payload canonjson.Value // not checked here; Undefined when absent
}

// ParseEnvelope reads the members every message has: a JSON object with our
// protocol name, a version we know and a kind.
func ParseEnvelope(text []byte) (Envelope, error) {
	whole, err := canonjson.Parse(text)
	if err != nil {
		return Envelope{}, violation("envelope is not JSON: %v", err)
	}
	return EnvelopeOf(whole)
}

// MaxHandshakeNodes bounds the values in a message that comes before the peer
// has authenticated (ours; as many as a canonical form may have).
const MaxHandshakeNodes = canonjson.MaxNodes

// ParseHandshake is [ParseEnvelope] for a peer that has not authenticated.
func ParseHandshake(text []byte) (Envelope, error) {
	whole, err := canonjson.ParseBounded(text, MaxHandshakeNodes)
	if err != nil {
		return Envelope{}, violation("envelope is not JSON: %v", err)
	}
	return EnvelopeOf(whole)
}

// EnvelopeOf is [ParseEnvelope] of a value that was parsed already.
func EnvelopeOf(whole canonjson.Value) (Envelope, error) {
	if !whole.IsObject() {
		return Envelope{}, violation("envelope is not an object")
	}
	if whole.Get("protocol").Str() != Protocol {
		return Envelope{}, violation("protocol is not %q", Protocol)
	}
	version, ok := whole.Get("version").SafeInt()
	if !ok || version < VersionMin || version > VersionMax {
		return Envelope{}, violation("version is not %d to %d", VersionMin, VersionMax)
	}
	kind, ok := whole.Get("kind").AsString()
	if !ok {
		return Envelope{}, violation("kind is not a string")
	}
	return Envelope{Whole: whole, Version: int(version), Kind: kind, Payload: whole.Get("payload")}, nil
}

// Identity reads the six ids of the envelope.
func (e Envelope) Identity() (Identity, error) { return IdentityOf(e.Whole) }

// appendHead appends `{"protocol":…,"version":…`.
func appendHead(dst []byte, version int) []byte {
	dst = append(dst, `{"protocol":"`+Protocol+`","version":`...)
	return strconv.AppendInt(dst, int64(version), 10)
}

func appendText(dst []byte, name, value string) []byte {
	dst = append(dst, ',')
	dst = appendKey(dst, name)
	return canonjson.AppendString(dst, value)
}

func appendPayload(dst, payload []byte) []byte {
	dst = append(dst, `,"payload":`...)
	dst = append(dst, payload...)
	return append(dst, '}')
}

// plainEnvelope builds the three messages that go in the clear.
func plainEnvelope(version int, kind string, payload canonjson.Value) []byte {
	dst := appendHead(nil, version)
	dst = appendText(dst, "kind", kind)
	return appendPayload(dst, payload.JSON())
}

// ControlHeader is what every message of an authority carries beside its
// payload (prp.md 5.1). SentAt is an ISO time with milliseconds.
type ControlHeader struct {
	Version           int
	EnvelopeID        string
	Kind              string
	Identity          Identity
	ConnectionID      string
	ConnectionLeaseID string
	SentAt            string
}

// AppendControl appends a control envelope whose payload is the given JSON text.
func AppendControl(dst []byte, h ControlHeader, payload []byte) []byte {
	dst = appendHead(dst, h.Version)
	dst = appendText(dst, "envelopeId", h.EnvelopeID)
	dst = appendText(dst, "kind", h.Kind)
	dst = append(dst, ',')
	dst = h.Identity.appendMembers(dst)
	dst = appendText(dst, "connectionId", h.ConnectionID)
	dst = appendText(dst, "connectionLeaseId", h.ConnectionLeaseID)
	dst = appendText(dst, "sentAt", h.SentAt)
	return appendPayload(dst, payload)
}

// Control is a control envelope as a runner reads it.
type Control struct {
	ControlHeader
	Payload canonjson.Value // always an object
}

// ControlOf reads a control envelope; it does not compare it with anything.
func ControlOf(e Envelope) (Control, error) {
	id, err := e.Identity()
	if err != nil {
		return Control{}, err
	}
	c := Control{
		ControlHeader: ControlHeader{Version: e.Version, Kind: e.Kind, Identity: id},
		Payload:       e.Payload,
	}
	for _, m := range []struct {
		name string
		into *string
	}{
		{"envelopeId", &c.EnvelopeID},
		{"connectionId", &c.ConnectionID},
		{"connectionLeaseId", &c.ConnectionLeaseID},
		{"sentAt", &c.SentAt},
	} {
		s, ok := e.Whole.Get(m.name).AsString()
		if !ok || s == "" {
			return Control{}, violation("%s: %s is not a string", e.Kind, m.name)
		}
		*m.into = s
	}
	if !c.Payload.IsObject() {
		return Control{}, violation("%s: payload is not an object", e.Kind)
	}
	return c, nil
}

// Binding is what a runner holds every control envelope against (5.1).
type Binding struct {
	Version           int
	Identity          Identity
	ConnectionID      string
	ConnectionLeaseID string
}

// Verify compares an envelope with the connection it came over. The expiry of
// the lease is the caller's to check: it has the clock.
func (c Control) Verify(b Binding) error {
	switch {
	case c.Version != b.Version:
		return violation("%s: version is not the negotiated one", c.Kind)
	case c.Identity != b.Identity:
		return violation("%s: identity is not ours", c.Kind)
	case c.ConnectionID != b.ConnectionID:
		return violation("%s: connectionId is not this connection", c.Kind)
	case c.ConnectionLeaseID != b.ConnectionLeaseID:
		return violation("%s: connectionLeaseId is not our lease", c.Kind)
	}
	return nil
}

// AppendRunnerMessage appends an event or command_result envelope (5.1) whose
// payload is the given JSON text.
func AppendRunnerMessage(dst []byte, version int, kind string, id Identity, payload []byte) []byte {
	dst = appendHead(dst, version)
	dst = appendText(dst, "kind", kind)
	dst = append(dst, ',')
	dst = id.appendMembers(dst)
	return appendPayload(dst, payload)
}

// AppendRunnerLeaseMessage appends a lease_renew, pong or activation envelope,
// which also name the connection and its lease (5.1).
func AppendRunnerLeaseMessage(dst []byte, kind string, b Binding, payload []byte) []byte {
	dst = appendHead(dst, b.Version)
	dst = appendText(dst, "kind", kind)
	dst = append(dst, ',')
	dst = b.Identity.appendMembers(dst)
	dst = appendText(dst, "connectionId", b.ConnectionID)
	dst = appendText(dst, "connectionLeaseId", b.ConnectionLeaseID)
	return appendPayload(dst, payload)
}

// VerifyRunner compares a lease-style message of a runner with the connection
// it came over (5.9).
func (e Envelope) VerifyRunner(b Binding) error {
	id, err := e.Identity()
	if err != nil {
		return err
	}
	switch {
	case e.Version != b.Version:
		return violation("%s: version is not the negotiated one", e.Kind)
	case id != b.Identity:
		return violation("%s: identity is not the session's", e.Kind)
	case e.Whole.Get("connectionId").Str() != b.ConnectionID:
		return violation("%s: connectionId is not this connection", e.Kind)
	case e.Whole.Get("connectionLeaseId").Str() != b.ConnectionLeaseID:
		return violation("%s: connectionLeaseId is not this connection's lease", e.Kind)
	}
	return nil
}
