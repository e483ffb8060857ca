package authority

import (
	"crypto/sha256"
	"slices"
	"time"

	"bowline/controlplane/store"
	"bowline/wire/prp"
)

// verdict is what the steps before the commit hook say of an event.
type verdict struct {
	ev    prp.Event
	whole canonical
	known *retained // set: a redelivery
	input *prp.SemanticInput
}

// maxScratchBytes is the largest buffer an idle session keeps.
const maxScratchBytes = 8 << 10

// judge runs steps 1 to 9 of prp.md 10.2, in their order. An error closes the
// connection; a fault is latched on the way.
func (m *Machine) judge(now time.Time, e prp.Envelope) (verdict, error) {
	var v verdict
	if m.fault != nil {
		return v, violation("event: a fault is latched")
	}
	id, err := e.Identity()
	if err != nil {
		return v, err
	}
	if id != m.head.Identity {
		return v, violation("event: envelope identity is not the session's")
	}
	if v.ev, err = prp.EventOf(e.Payload); err != nil {
		return v, err
	}
	if err := v.ev.CheckIdentity(m.head.Identity); err != nil {
		return v, err
	}
	if prp.IsSemanticInput(v.ev.Type) {
		if !m.opt.Tools {
			return v, violation("event: nobody answers host tool calls")
		}
		in, err := prp.SemanticInputOf(v.ev, m.head.Identity)
		if err != nil {
			return v, err
		}
		v.input = &in
	}
	v.known = m.window.byID[v.ev.SourceEventID]
	switch {
	case v.known == nil && v.ev.SourceSeq != m.head.AckedSourceSeq+1:
		return v, violation("event: sourceSeq is not the next one")
	case v.known != nil && v.ev.SourceSeq != v.known.seq:
		return v, violation("event: sourceSeq is not the one of its first delivery")
	}
	if v.input != nil && !v.input.DigestMatches() {
		return v, m.faultNow(now, prp.ReasonSemanticInputDigestMismatch)
	}
	v.whole, m.scratch = canonicalInto(m.scratch, e.Whole)
	if cap(m.scratch) > maxScratchBytes {
		m.scratch = nil
	}
	if v.known != nil {
		if !v.whole.ok || !v.known.whole.ok {
			return v, violation("event: redelivered beyond the limits of the canonical form")
		}
		if !v.whole.equals(v.known.whole) {
			return v, m.faultNow(now, prp.ReasonSourceEventReplayConflict)
		}
		return v, nil
	}
	if m.full() {
		return v, violation("event: the window is full of unsettled calls")
	}
	return v, nil
}

func (m *Machine) faultNow(now time.Time, reason string) error {
	m.Latch(now, prp.NewIntegrityFault(reason))
	return violation("event: integrity fault %s", reason)
}

// ProbeEvent runs the steps before the commit hook without taking the event: a
// caller with a hook calls it, then the hook, then [Machine.Message], which
// looks at everything again (prp.md 15.2 no. 18).
func (m *Machine) ProbeEvent(now time.Time, l *Link, e prp.Envelope) (prp.Event, error) {
	if err := m.admit(now, l); err != nil {
		return prp.Event{}, err
	}
	if e.Version != l.Version {
		return prp.Event{}, violation("event: version is not the negotiated one")
	}
	v, err := m.judge(now, e)
	return v.ev, err
}

func (m *Machine) event(now time.Time, l *Link, e prp.Envelope, raw []byte) error {
	v, err := m.judge(now, e)
	if err != nil {
		return err
	}
	if v.known != nil {
		v.known.deliveries++
		m.head.ReplayDeliveries++
		m.staged.tx.Redelivered = append(m.staged.tx.Redelivered, v.known.seq)
		m.staged.head = true
		m.effect(Effect{Kind: EffectDuplicate})
	} else {
		m.append(now, v, raw)
	}
	if v.input != nil {
		m.dispatch(v.ev, *v.input)
	}
	m.effect(Effect{Kind: EffectAck})
	m.send(now, l, prp.KindAck, prp.AckEnvelopeID(m.head.AckedSourceSeq), prp.EncodeAck(m.head.AckedSourceSeq))
	return nil
}

func (m *Machine) append(now time.Time, v verdict, raw []byte) {
	if !m.makeRoom() {
		panic("bug: authority: no room for an event that was judged to fit")
	}
	body := slices.Clone(raw)
	hostSeq := m.appendLog(now, store.EventRow{
		Origin: store.OriginRunner, Type: v.ev.Type, SourceSeq: v.ev.SourceSeq, SourceEventID: v.ev.SourceEventID,
		Priority: v.ev.Priority, DeliveryCount: 1, Body: body, Digest: sha256.Sum256(body),
	})
	r := &retained{
		id: v.ev.SourceEventID, seq: v.ev.SourceSeq, hostSeq: hostSeq, eventType: v.ev.Type, deliveries: 1, whole: v.whole,
	}
	if v.input != nil {
		r.call = retainCall(m.head.Identity, v.ev, *v.input)
	}
	m.window.add(r)
	m.head.AckedSourceSeq = v.ev.SourceSeq
	m.pin()
	m.effect(Effect{Kind: EffectCommitted})
	if m.cond != nil {
		m.condEvent(now, v.ev)
	}
}
