package authority

import (
	"time"

	"bowline/controlplane/store"
	cryptoprp "bowline/crypto/prp"
	"bowline/wire"
	"bowline/wire/prp"
)

// IssueTicket stages a one-use ticket and returns its text, which exists
// nowhere else (prp.md 2.1, 2.2). ttl outside 1 s to 60 s or not in whole
// milliseconds: wire.CodeTicketInvalid.
func (m *Machine) IssueTicket(now time.Time, ttl time.Duration) (string, error) {
	if ttl < prp.TicketLifetimeMin || ttl > prp.TicketLifetimeMax || ttl%time.Millisecond != 0 {
		return "", wire.Errorf(wire.CodeTicketInvalid, "ticket lifetime must be %d to %d whole milliseconds",
			prp.TicketLifetimeMin.Milliseconds(), prp.TicketLifetimeMax.Milliseconds())
	}
	m.prune(now)
	token := prp.TicketPrefix + m.opt.NewID()
	nowMs := now.UnixMilli()
	row := &store.TicketRow{
		RecordID: prp.TicketRecordPrefix + m.opt.NewID(), CredentialID: cryptoprp.CredentialID(token),
		AuthKey: cryptoprp.DeriveAuthKey(token).Reveal(), SessionID: m.head.ID, RunID: m.head.Identity.RunID,
		Identity: m.head.Identity, RunnerVersion: m.head.RunnerVersion, RunnerDigest: m.head.RunnerDigest,
		ExpiresAtMs: nowMs + ttl.Milliseconds(), CreatedAtMs: nowMs,
	}
	m.tickets[row.CredentialID] = row
	touch(&m.staged.tickets, row.CredentialID)
	m.head.FreshBootstraps++
	m.staged.head = true
	m.effect(Effect{Kind: EffectTicket})
	return token, nil
}

// prune drops used and expired tickets, revoked and expired leases (2.9).
func (m *Machine) prune(now time.Time) {
	nowMs := now.UnixMilli()
	for id, t := range m.tickets {
		if t.UsedAtMs != 0 || t.ExpiresAtMs <= nowMs {
			delete(m.tickets, id)
			m.staged.tx.DropTickets = append(m.staged.tx.DropTickets, id)
		}
	}
	for id, l := range m.leases {
		if l.RevokedAtMs != 0 || l.ExpiresAtMs <= nowMs {
			delete(m.leases, id)
			m.staged.tx.DropLeases = append(m.staged.tx.DropLeases, id)
		}
	}
}

// Admission is a hello that was accepted, waiting for its proof.
type Admission struct {
	Challenge prp.Challenge
	Key       cryptoprp.AuthKey
	Deadline  time.Time // the response must have arrived by then

	hello  prp.Hello
	ticket *store.TicketRow // as it was when challenged
	lease  *store.LeaseRow
}

// Reasons a handshake is refused for, in metrics and audit.
const (
	RefusedIdentity   = "identity"
	RefusedBuild      = "build"
	RefusedWarm       = "warm_transition"
	RefusedCredential = "credential"
	RefusedVersion    = "version"
	RefusedLate       = "late"
	RefusedChanged    = "credential_changed"
	RefusedHello      = "hello_malformed"
	RefusedResponse   = "response_malformed"
	RefusedProof      = "proof"
	RefusedTimeout    = "timeout"
)

// Anybody who knows the address can be refused: the audit log must not grow
// with their patience.
const (
	maxRefusalsAudited = 20 // per refusalWindow and session
	refusalWindow      = time.Minute
)

// Refused records a handshake that was refused; a ticket stays usable.
func (m *Machine) Refused(now time.Time, reason string) {
	m.effect(Effect{Kind: EffectRefused, Reason: reason})
	if now.Sub(m.refusalsSince) >= refusalWindow {
		m.refusalsSince, m.refusals = now, 0
	}
	m.refusals++
	if m.refusals <= maxRefusalsAudited {
		m.audit(now, "runner.refused", map[string]any{"reason": reason})
	}
}

func (m *Machine) refuse(now time.Time, reason string) error {
	m.Refused(now, reason)
	return violation("handshake refused: %s", reason)
}

// Hello authorises a hello (3.1, 3.2) and gives the challenge to answer with.
// An error closes the connection without a word.
func (m *Machine) Hello(now time.Time, hello prp.Hello) (*Admission, error) {
	m.prune(now)
	a := &Admission{hello: hello}
	if reason := m.authorise(now, a); reason != "" {
		return nil, m.refuse(now, reason)
	}
	kind, leaseVersion := prp.CredentialBootstrap, 0
	if a.lease != nil {
		kind, leaseVersion = prp.CredentialLease, a.lease.ProtocolVersion
	}
	version, err := hello.SelectVersion(leaseVersion)
	if err != nil {
		return nil, m.refuse(now, RefusedVersion)
	}
	c := prp.NewChallenge(hello, kind, m.opt.NewID(), version)
	var key [cryptoprp.KeySize]byte
	if a.lease != nil {
		c.CredentialLeaseID, c.RevocationEpoch = a.lease.LeaseID, a.lease.RevocationEpoch
		c.CredentialExpiresAtUnixMs, key = a.lease.ExpiresAtMs, a.lease.AuthKey
	} else {
		c.CredentialExpiresAtUnixMs, key = a.ticket.ExpiresAtMs, a.ticket.AuthKey
	}
	if a.Key, err = cryptoprp.LoadAuthKey(key[:]); err != nil {
		panic("bug: authority: " + err.Error())
	}
	a.Challenge = c
	a.Deadline = time.UnixMilli(min(c.CredentialExpiresAtUnixMs, now.Add(prp.ChallengeLifetime).UnixMilli()))
	return a, nil
}

// authorise fills in the credential or tells why there is none. What is
// compared is today's state; a second call after the proof decides anew.
func (m *Machine) authorise(now time.Time, a *Admission) (reason string) {
	h, nowMs := a.hello, now.UnixMilli()
	switch {
	case h.Identity != m.head.Identity:
		return RefusedIdentity
	case h.RunnerVersion != m.head.RunnerVersion || h.RunnerDigest != m.head.RunnerDigest:
		return RefusedBuild
	case h.WarmTransitionID.Exists():
		return RefusedWarm
	}
	a.ticket, a.lease = nil, nil
	if t := m.tickets[h.CredentialID]; t != nil && t.UsedAtMs == 0 && t.ExpiresAtMs > nowMs {
		if t.Identity != h.Identity || t.RunnerVersion != m.head.RunnerVersion || t.RunnerDigest != m.head.RunnerDigest {
			return RefusedBuild
		}
		row := *t
		a.ticket = &row
		return ""
	}
	if l := m.leases[h.CredentialID]; l != nil && l.RevokedAtMs == 0 && l.ExpiresAtMs > nowMs {
		if l.Identity != h.Identity {
			return RefusedIdentity
		}
		if l.ProtocolVersion < h.ProtocolMin || l.ProtocolVersion > h.ProtocolMax {
			return RefusedVersion
		}
		row := *l
		a.lease = &row
		return ""
	}
	return RefusedCredential
}

// Authenticate is called when the proof of a has been verified: it looks at the
// credential again, consumes a ticket and makes its lease, closes every other
// link and stages the welcome (3.6, 4.9, 1.8).
func (m *Machine) Authenticate(now time.Time, a *Admission) (*Link, error) {
	if now.After(a.Deadline) {
		return nil, m.refuse(now, RefusedLate)
	}
	again := &Admission{hello: a.hello}
	if reason := m.authorise(now, again); reason != "" {
		return nil, m.refuse(now, reason)
	}
	if !sameRow(again.ticket, a.ticket) || !sameRow(again.lease, a.lease) {
		return nil, m.refuse(now, RefusedChanged)
	}
	version := a.Challenge.SelectedVersion
	token := ""
	lease := a.lease
	if a.ticket != nil {
		m.tickets[a.ticket.CredentialID].UsedAtMs = now.UnixMilli()
		touch(&m.staged.tickets, a.ticket.CredentialID)
		token = prp.LeaseTokenPrefix + m.opt.NewID()
		lease = &store.LeaseRow{
			RecordID: prp.LeaseRecordPrefix + m.opt.NewID(), CredentialID: cryptoprp.CredentialID(token),
			AuthKey: cryptoprp.DeriveAuthKey(token).Reveal(), LeaseID: prp.LeaseIDPrefix + m.opt.NewID(),
			SessionID: m.head.ID, Identity: m.head.Identity, ProtocolVersion: version,
			ExpiresAtMs: now.UnixMilli() + m.head.LeaseTTL.Milliseconds(),
		}
		row := *lease
		m.leases[lease.CredentialID] = &row
		touch(&m.staged.leases, lease.CredentialID)
	}
	m.head.ConnectionCount++
	m.head.LastLeaseID, m.head.LastLeaseExpiresAtMs = lease.LeaseID, lease.ExpiresAtMs
	m.staged.head = true

	for other := range m.links {
		m.effect(Effect{Kind: EffectClose, Link: other, Reason: "another connection authenticated"})
		m.Detach(other)
	}
	l := &Link{Number: m.head.ConnectionCount, ID: prp.ConnectionID(m.head.ConnectionCount), Version: version, lease: *lease}
	m.links[l] = struct{}{}
	m.current = l
	m.audit(now, "runner.join", map[string]any{
		"connection": l.ID, "leaseId": lease.LeaseID, "credentialKind": a.Challenge.CredentialKind, "version": version,
	})
	m.effect(Effect{Kind: EffectHandshake, Link: l, Reason: a.Challenge.CredentialKind})
	m.welcome(now, l, token, a.Challenge.WarmTransitionVersion)
	if m.cond != nil {
		m.condAuthenticated(now)
	}
	return l, nil
}

// welcome stages the first encrypted frame. warm: the hello offered the warm
// version, which challenge and welcome both repeat.
func (m *Machine) welcome(now time.Time, l *Link, token string, warm bool) {
	w := prp.Welcome{
		SelectedVersion: l.Version, LeaseID: l.lease.LeaseID, LeaseToken: token,
		LeaseExpiresAtUnixMs: l.lease.ExpiresAtMs, LeaseRevocationEpoch: l.lease.RevocationEpoch,
		Identity: m.head.Identity, MaxFrameBytes: prp.MaxFrameBytes, AckedSourceSeq: m.head.AckedSourceSeq,
		WarmTransitionVersion: warm,
	}
	// The first pending command is delivered by the welcome itself.
	if c := m.firstPending(); c != nil {
		m.delivered(c, l)
		wireForm := c.wireForm()
		w.PendingCommand = &wireForm
	}
	m.send(now, l, prp.KindWelcome, prp.WelcomeEnvelopeID(l.Number), prp.EncodeWelcome(w))
}

// renew answers lease_renew (5.9).
func (m *Machine) renew(now time.Time, l *Link, e prp.Envelope) error {
	if m.cond != nil && m.cond.Phase == PhaseClosed {
		// Nobody needs this runner any more: its lease lives on to its end, and
		// with it what it may still write.
		return violation("lease_renew: the session is closed")
	}
	if err := e.VerifyRunner(l.binding(m.head.Identity)); err != nil {
		return err
	}
	r, err := prp.LeaseRenewOf(e.Payload)
	if err != nil {
		return err
	}
	row := m.leases[l.lease.CredentialID] // admitted, so it is there
	if r.RevocationEpoch != row.RevocationEpoch || r.ExpiresAtUnixMs > row.ExpiresAtMs {
		return violation("lease_renew: not the lease as it stands")
	}
	if l.terminalSent {
		return nil
	}
	if r.ExpiresAtUnixMs == row.ExpiresAtMs {
		row.ExpiresAtMs = max(row.ExpiresAtMs, now.UnixMilli()+m.head.LeaseTTL.Milliseconds())
		touch(&m.staged.leases, row.CredentialID)
		l.lease = *row
		m.head.LastLeaseExpiresAtMs = row.ExpiresAtMs
		m.staged.head = true
	}
	m.effect(Effect{Kind: EffectLeaseRenew})
	m.send(now, l, prp.KindLeaseRenewed, prp.LeaseRenewedEnvelopeID(r.ExpiresAtUnixMs), prp.EncodeLeaseRenewed(prp.LeaseRenewed{
		PreviousExpiresAtUnixMs: r.ExpiresAtUnixMs, ExpiresAtUnixMs: row.ExpiresAtMs, RevocationEpoch: row.RevocationEpoch,
	}))
	return nil
}

func sameRow[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
