package authority

import (
	"time"

	"bowline/controlplane/store"
	"bowline/wire/prp"
)

// Link is one authenticated connection as the machine sees it. The caller
// compares it by pointer and reads the exported members; the rest is the
// machine's.
type Link struct {
	Number  int64  // from 1, over the life of the session
	ID      string // connection_<Number>
	Version int    // negotiated

	lease        store.LeaseRow // copy taken when it authenticated or renewed
	terminalSent bool           // runner.suspend or runner.shutdown was sent, or its result came, over it
	closed       bool
}

func (l *Link) binding(id prp.Identity) prp.Binding {
	return prp.Binding{Version: l.Version, Identity: id, ConnectionID: l.ID, ConnectionLeaseID: l.lease.LeaseID}
}

// admit is the check before every dispatch (prp.md 5.3).
func (m *Machine) admit(now time.Time, l *Link) error {
	row := m.leases[l.lease.CredentialID]
	switch {
	case row == nil:
		return violation("the connection's lease is gone")
	case *row != l.lease:
		return violation("the connection's lease has changed")
	case row.RevokedAtMs != 0:
		return violation("the connection's lease is revoked")
	case row.ExpiresAtMs <= now.UnixMilli():
		return violation("the connection's lease has expired")
	}
	return nil
}

// Message takes one message of an authenticated link. raw is its exact text;
// the machine keeps a copy of what it needs. An error closes the link.
//
// Messages that arrived before a close took effect still come here: a link that
// was closed is served like any other, only nobody sees the answers (1.6).
func (m *Machine) Message(now time.Time, l *Link, e prp.Envelope, raw []byte) error {
	if err := m.admit(now, l); err != nil {
		return err
	}
	if e.Version != l.Version {
		return violation("%s: version is not the negotiated one", e.Kind)
	}
	switch e.Kind {
	case prp.KindEvent:
		return m.event(now, l, e, raw)
	case prp.KindCommandResult:
		return m.commandResult(now, l, e)
	case prp.KindLeaseRenew:
		return m.renew(now, l, e)
	case prp.KindPong:
		return nil
	}
	return violation("unknown kind")
}

// send stages a control envelope.
func (m *Machine) send(now time.Time, l *Link, kind, envelopeID string, payload []byte) {
	plain := prp.AppendControl(nil, prp.ControlHeader{
		Version: l.Version, EnvelopeID: envelopeID, Kind: kind, Identity: m.head.Identity,
		ConnectionID: l.ID, ConnectionLeaseID: l.lease.LeaseID, SentAt: prp.FormatTime(now),
	}, payload)
	m.effect(Effect{Kind: EffectSend, Link: l, Plain: plain})
}
