package prp

import (
	"strconv"

	"bowline/wire/canonjson"
)

// Resume are the cursors a runner tells in its hello; an authority of our kind
// takes them as information only (prp.md 3.1).
type Resume struct {
	LastControllerCommandSeq int64
	NextSourceEventSeq       int64
	AckedSourceSeq           int64
}

// Hello is auth_hello.payload. Unknown members are ignored.
type Hello struct {
	CredentialID   string
	CredentialKind string // "" when not sent; an authority does not read it
	ClientNonce    string // any text
	ProtocolMin    int
	ProtocolMax    int
	Identity       Identity
	RunnerVersion  string
	RunnerDigest   string
	// WarmTransitionVersion: the hello offered version 1.
	WarmTransitionVersion bool
	// WarmTransitionID is Undefined unless the member was there, whatever it
	// held: without a pending attach any value, null included, is refused.
	WarmTransitionID canonjson.Value
	Resume           *Resume
}

// EncodeHello builds auth_hello. Its envelope says version 1, which every
// authority takes before a challenge has selected another.
func EncodeHello(h Hello) []byte {
	p := canonjson.ObjectValue(
		member("credentialId", canonjson.StringValue(h.CredentialID)),
		member("credentialKind", optionalText(h.CredentialKind)),
		member("clientNonce", canonjson.StringValue(h.ClientNonce)),
		member("protocolMin", canonjson.IntValue(int64(h.ProtocolMin))),
		member("protocolMax", canonjson.IntValue(int64(h.ProtocolMax))),
	)
	h.Identity.setIn(p)
	p.Set("runnerVersion", canonjson.StringValue(h.RunnerVersion))
	p.Set("runnerDigest", canonjson.StringValue(h.RunnerDigest))
	if h.WarmTransitionVersion {
		p.Set("warmTransitionVersion", canonjson.IntValue(WarmTransitionVersion))
	}
	p.Set("warmTransitionId", h.WarmTransitionID)
	if r := h.Resume; r != nil {
		p.Set("resume", canonjson.ObjectValue(
			member("lastControllerCommandSeq", canonjson.IntValue(r.LastControllerCommandSeq)),
			member("nextSourceEventSeq", canonjson.IntValue(r.NextSourceEventSeq)),
			member("ackedSourceSeq", canonjson.IntValue(r.AckedSourceSeq)),
		))
	}
	return plainEnvelope(VersionMin, KindAuthHello, p)
}

// HelloOf reads auth_hello and checks everything that needs no stored state:
// types, and that the versions offered overlap ours. A runner's identity and
// build are compared with the credential's by the caller.
func HelloOf(e Envelope) (Hello, error) {
	if e.Kind != KindAuthHello {
		return Hello{}, violation("expected %s", KindAuthHello)
	}
	p := e.Payload
	if !p.IsObject() {
		return Hello{}, violation("auth_hello: payload is not an object")
	}
	var h Hello
	var err error
	if h.Identity, err = IdentityOf(p); err != nil {
		return Hello{}, err
	}
	if err := readTexts(p, "auth_hello", []textMember{
		{"credentialId", &h.CredentialID},
		{"clientNonce", &h.ClientNonce},
		{"runnerVersion", &h.RunnerVersion},
		{"runnerDigest", &h.RunnerDigest},
	}); err != nil {
		return Hello{}, err
	}
	h.CredentialKind = p.Get("credentialKind").Str()
	lowest, ok1 := p.Get("protocolMin").SafeInt()
	highest, ok2 := p.Get("protocolMax").SafeInt()
	if !ok1 || !ok2 || lowest > highest || lowest > VersionMax || highest < VersionMin {
		return Hello{}, violation("auth_hello: protocolMin and protocolMax do not overlap %d to %d", VersionMin, VersionMax)
	}
	// What lies beyond ours makes no difference; clamped so that it fits an int
	// everywhere.
	h.ProtocolMin = int(max(lowest, VersionMin-1))
	h.ProtocolMax = int(min(highest, VersionMax+1))
	version, ok := p.Get("warmTransitionVersion").SafeInt()
	h.WarmTransitionVersion = ok && version == WarmTransitionVersion
	h.WarmTransitionID = p.Get("warmTransitionId")
	if r := p.Get("resume"); r.IsObject() {
		h.Resume = resumeOf(r)
	}
	return h, nil
}

func resumeOf(v canonjson.Value) *Resume {
	var r Resume
	var ok [3]bool
	r.LastControllerCommandSeq, ok[0] = v.Get("lastControllerCommandSeq").SafeInt()
	r.NextSourceEventSeq, ok[1] = v.Get("nextSourceEventSeq").SafeInt()
	r.AckedSourceSeq, ok[2] = v.Get("ackedSourceSeq").SafeInt()
	if ok != [3]bool{true, true, true} {
		return nil
	}
	return &r
}

// SelectVersion gives the version of the connection (3.3): for a ticket
// (leaseVersion 0) the highest both know, for a lease the lease's own, which
// the hello must allow.
func (h Hello) SelectVersion(leaseVersion int) (int, error) {
	if leaseVersion == 0 {
		return min(VersionMax, h.ProtocolMax), nil
	}
	if leaseVersion < h.ProtocolMin || leaseVersion > h.ProtocolMax {
		return 0, violation("auth_hello: the lease's version is not offered")
	}
	return leaseVersion, nil
}

// Response is auth_response.payload (3.6).
type Response struct {
	CredentialID string
	ClientNonce  string
	ServerNonce  string
	ClientProof  string
}

// EncodeResponse builds auth_response; version is the selected one.
func EncodeResponse(version int, r Response) []byte {
	return plainEnvelope(version, KindAuthResponse, canonjson.ObjectValue(
		member("credentialId", canonjson.StringValue(r.CredentialID)),
		member("clientNonce", canonjson.StringValue(r.ClientNonce)),
		member("serverNonce", canonjson.StringValue(r.ServerNonce)),
		member("clientProof", canonjson.StringValue(r.ClientProof)),
	))
}

// ResponseOf reads auth_response and compares it with the pending challenge,
// the envelope's version included. The proof is left to the handshake.
func ResponseOf(e Envelope, pending Challenge) (Response, error) {
	if e.Kind != KindAuthResponse {
		return Response{}, violation("expected %s", KindAuthResponse)
	}
	if e.Version != pending.SelectedVersion {
		return Response{}, violation("auth_response: version is not the selected one")
	}
	if !e.Payload.IsObject() {
		return Response{}, violation("auth_response: payload is not an object")
	}
	var r Response
	if err := readTexts(e.Payload, KindAuthResponse, []textMember{
		{"credentialId", &r.CredentialID},
		{"clientNonce", &r.ClientNonce},
		{"serverNonce", &r.ServerNonce},
		{"clientProof", &r.ClientProof},
	}); err != nil {
		return Response{}, err
	}
	switch {
	case r.CredentialID != pending.CredentialID:
		return Response{}, violation("auth_response: credentialId is not the challenge's")
	case r.ClientNonce != pending.ClientNonce:
		return Response{}, violation("auth_response: clientNonce is not the challenge's")
	case r.ServerNonce != pending.ServerNonce:
		return Response{}, violation("auth_response: serverNonce is not the challenge's")
	}
	return r, nil
}

type textMember struct {
	name string
	into *string
}

func readTexts(v canonjson.Value, what string, members []textMember) error {
	for _, m := range members {
		s, ok := v.Get(m.name).AsString()
		if !ok {
			return violation("%s: %s is not a string", what, m.name)
		}
		*m.into = s
	}
	return nil
}

func member(key string, v canonjson.Value) canonjson.Member {
	return canonjson.Member{Key: key, Value: v}
}

// optionalText leaves a member out when it is empty.
func optionalText(s string) canonjson.Value {
	if s == "" {
		return canonjson.Value{}
	}
	return canonjson.StringValue(s)
}

// nullableText writes null for an empty text.
func nullableText(s string) canonjson.Value {
	if s == "" {
		return canonjson.NullValue()
	}
	return canonjson.StringValue(s)
}

func appendInt(dst []byte, name string, n int64) []byte {
	dst = appendKey(dst, name)
	return strconv.AppendInt(dst, n, 10)
}
