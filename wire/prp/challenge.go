package prp

import (
	"bowline/wire/canonjson"
)

// Challenge is auth_challenge.payload without its proof: exactly the members
// that are signed (prp.md 3.4). Nothing may be added to it, because a runner
// builds the signed object again from the members it knows.
type Challenge struct {
	CredentialID    string
	CredentialKind  string
	ClientNonce     string
	ServerNonce     string
	Identity        Identity
	RunnerVersion   string
	RunnerDigest    string
	SelectedVersion int
	// CredentialLeaseID is "" (null on the wire) for a ticket.
	CredentialLeaseID string
	// CredentialExpiresAt is the ISO text of CredentialExpiresAtUnixMs; an
	// authority may leave it empty and gets it filled in.
	CredentialExpiresAt       string
	CredentialExpiresAtUnixMs int64
	RevocationEpoch           int64 // 0 for a ticket
	WarmTransitionVersion     bool  // echo of the hello
	WarmTransitionID          canonjson.Value
}

// NewChallenge answers a hello; the caller fills in what the credential says.
func NewChallenge(h Hello, kind, serverNonce string, version int) Challenge {
	return Challenge{
		CredentialID: h.CredentialID, CredentialKind: kind,
		ClientNonce: h.ClientNonce, ServerNonce: serverNonce,
		Identity: h.Identity, RunnerVersion: h.RunnerVersion, RunnerDigest: h.RunnerDigest,
		SelectedVersion:       version,
		WarmTransitionVersion: h.WarmTransitionVersion, WarmTransitionID: h.WarmTransitionID,
	}
}

// Value is the signed object.
func (c Challenge) Value() canonjson.Value {
	p := canonjson.ObjectValue(
		member("credentialId", canonjson.StringValue(c.CredentialID)),
		member("credentialKind", canonjson.StringValue(c.CredentialKind)),
		member("clientNonce", canonjson.StringValue(c.ClientNonce)),
		member("serverNonce", canonjson.StringValue(c.ServerNonce)),
	)
	c.Identity.setIn(p)
	expires := c.CredentialExpiresAt
	if expires == "" {
		expires = FormatUnixMs(c.CredentialExpiresAtUnixMs)
	}
	for _, m := range []canonjson.Member{
		member("runnerVersion", canonjson.StringValue(c.RunnerVersion)),
		member("runnerDigest", canonjson.StringValue(c.RunnerDigest)),
		member("selectedVersion", canonjson.IntValue(int64(c.SelectedVersion))),
		member("credentialLeaseId", nullableText(c.CredentialLeaseID)),
		member("credentialExpiresAt", canonjson.StringValue(expires)),
		member("credentialExpiresAtUnixMs", canonjson.IntValue(c.CredentialExpiresAtUnixMs)),
		member("revocationEpoch", canonjson.IntValue(c.RevocationEpoch)),
	} {
		p.Set(m.Key, m.Value)
	}
	if c.WarmTransitionVersion {
		p.Set("warmTransitionVersion", canonjson.IntValue(WarmTransitionVersion))
	}
	p.Set("warmTransitionId", c.WarmTransitionID)
	return p
}

// Canonical gives the bytes both proofs cover. It fails with the errors of
// [canonjson.Canonical], which only a hostile WarmTransitionID can cause.
func (c Challenge) Canonical() ([]byte, error) { return canonjson.Canonical(c.Value()) }

// EncodeChallenge builds auth_challenge; the envelope's version is the selected
// one.
func EncodeChallenge(c Challenge, serverProof string) []byte {
	p := c.Value()
	p.Set("serverProof", canonjson.StringValue(serverProof))
	return plainEnvelope(c.SelectedVersion, KindAuthChallenge, p)
}

// HeldLease is the lease a runner reconnects with.
type HeldLease struct {
	ID              string
	ExpiresAtUnixMs int64
	RevocationEpoch int64
	// RenewalOutstanding: a lease_renew of ours was not answered, so the
	// authority may know a later expiry than we do.
	RenewalOutstanding bool
}

// ChallengeOf reads auth_challenge on the runner and holds it against the hello
// it answers (3.5). lease is nil for a ticket. The proof is returned for the
// handshake to verify over [Challenge.Canonical]; nothing in the challenge may
// be believed before that.
func ChallengeOf(e Envelope, hello Hello, lease *HeldLease, nowUnixMs int64) (c Challenge, serverProof string, err error) {
	fail := func(format string, args ...any) (Challenge, string, error) {
		return Challenge{}, "", violation("auth_challenge: "+format, args...)
	}
	if e.Kind != KindAuthChallenge {
		return fail("kind is %q", KindAuthChallenge)
	}
	p := e.Payload
	if !p.IsObject() {
		return fail("payload is not an object")
	}
	if c.Identity, err = IdentityOf(p); err != nil {
		return Challenge{}, "", err
	}
	if err := readTexts(p, KindAuthChallenge, []textMember{
		{"credentialId", &c.CredentialID},
		{"credentialKind", &c.CredentialKind},
		{"clientNonce", &c.ClientNonce},
		{"serverNonce", &c.ServerNonce},
		{"runnerVersion", &c.RunnerVersion},
		{"runnerDigest", &c.RunnerDigest},
		{"credentialExpiresAt", &c.CredentialExpiresAt},
		{"serverProof", &serverProof},
	}); err != nil {
		return Challenge{}, "", err
	}
	version, ok := p.Get("selectedVersion").SafeInt()
	if !ok || version < int64(hello.ProtocolMin) || version > int64(hello.ProtocolMax) || version < VersionMin || version > VersionMax {
		return fail("selectedVersion was not offered")
	}
	c.SelectedVersion = int(version)
	if c.CredentialExpiresAtUnixMs, ok = p.Get("credentialExpiresAtUnixMs").SafeInt(); !ok {
		return fail("credentialExpiresAtUnixMs is not an integer")
	}
	if c.RevocationEpoch, ok = p.Get("revocationEpoch").SafeInt(); !ok || c.RevocationEpoch < 0 {
		return fail("revocationEpoch is not an integer")
	}
	kind := CredentialBootstrap
	if lease != nil {
		kind = CredentialLease
	}
	switch {
	case e.Version != c.SelectedVersion:
		return fail("version is not the selected one")
	case c.CredentialID != hello.CredentialID:
		return fail("credentialId is not ours")
	case c.CredentialKind != kind:
		return fail("credentialKind is not %q", kind)
	case c.ClientNonce != hello.ClientNonce:
		return fail("clientNonce is not ours")
	case c.ServerNonce == "":
		return fail("serverNonce is empty")
	case c.Identity != hello.Identity:
		return fail("identity is not ours")
	case c.RunnerVersion != hello.RunnerVersion || c.RunnerDigest != hello.RunnerDigest:
		return fail("runner build is not ours")
	case c.CredentialExpiresAtUnixMs <= nowUnixMs:
		return fail("credential has expired")
	}
	leaseID := p.Get("credentialLeaseId")
	if lease == nil {
		if leaseID.Exists() && !leaseID.IsNull() {
			return fail("credentialLeaseId is set for a ticket")
		}
	} else if err := c.checkLease(leaseID, *lease); err != nil {
		return Challenge{}, "", err
	}
	if err := c.checkEchoes(p, hello); err != nil {
		return Challenge{}, "", err
	}
	return c, serverProof, nil
}

func (c *Challenge) checkLease(leaseID canonjson.Value, lease HeldLease) error {
	c.CredentialLeaseID = leaseID.Str()
	switch {
	case c.CredentialLeaseID != lease.ID || lease.ID == "":
		return violation("auth_challenge: credentialLeaseId is not ours")
	case c.RevocationEpoch != lease.RevocationEpoch:
		return violation("auth_challenge: revocationEpoch is not our lease's")
	case c.CredentialExpiresAtUnixMs == lease.ExpiresAtUnixMs:
		return nil
	case c.CredentialExpiresAtUnixMs > lease.ExpiresAtUnixMs && lease.RenewalOutstanding:
		return nil
	}
	return violation("auth_challenge: expiry is not our lease's")
}

// checkEchoes takes over the optional members, which must be exactly what the
// hello offered: an older authority leaves the version out, none invents one.
func (c *Challenge) checkEchoes(p canonjson.Value, hello Hello) error {
	if v := p.Get("warmTransitionVersion"); v.Exists() {
		if n, ok := v.SafeInt(); !ok || n != WarmTransitionVersion || !hello.WarmTransitionVersion {
			return violation("auth_challenge: warmTransitionVersion was not offered")
		}
		c.WarmTransitionVersion = true
	}
	c.WarmTransitionID = p.Get("warmTransitionId")
	same := c.WarmTransitionID.Kind() == hello.WarmTransitionID.Kind() &&
		c.WarmTransitionID.Str() == hello.WarmTransitionID.Str()
	if !same {
		return violation("auth_challenge: warmTransitionId is not ours")
	}
	return nil
}
