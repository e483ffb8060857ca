package authority

import (
	"slices"

	"bowline/controlplane/store"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// WindowSize is how many runner events are recognised when they come again
// (prp.md 8.3); it is also the event window to load a session with.
const WindowSize = prp.MaxRetainedEvents

// retained is one event of the window: what a replay is compared with.
type retained struct {
	id         string
	seq        int64 // of the source
	hostSeq    int64
	eventType  string
	deliveries int64
	whole      canonical // of the whole envelope
	call       *retainedCall
}

// retainedCall is the host tool call in a semantic input.
type retainedCall struct {
	commandID string    // of the command that answers it
	form      canonical // must equal the command's
}

// window holds the newest events in order, plus older ones that carry an
// unsettled call.
type window struct {
	byID  map[string]*retained
	order []*retained
}

func (w *window) add(r *retained) {
	if w.byID == nil {
		w.byID = make(map[string]*retained)
	}
	w.byID[r.id] = r
	w.order = append(w.order, r)
}

// evictable gives the index of the oldest event that may be dropped, -1 if there
// is none.
func (m *Machine) evictable() int {
	return slices.IndexFunc(m.window.order, func(r *retained) bool { return r.call == nil || m.callSettled(r.call) })
}

// makeRoom drops one event when the window is full; false when it cannot.
func (m *Machine) makeRoom() bool {
	w := &m.window
	if len(w.order) < WindowSize {
		return true
	}
	i := m.evictable()
	if i < 0 {
		return false
	}
	delete(w.byID, w.order[i].id)
	w.order[i] = nil
	if i == 0 {
		w.order = w.order[1:] // append moves the rest when the array is used up
		return true
	}
	w.order = slices.Delete(w.order, i, i+1)
	return true
}

// full tells whether a new event would find no room.
func (m *Machine) full() bool { return len(m.window.order) >= WindowSize && m.evictable() < 0 }

// pin keeps the list of events that the newest window would not load again.
func (m *Machine) pin() {
	oldest := m.head.AckedSourceSeq - WindowSize
	n := 0
	for n < len(m.window.order) && m.window.order[n].seq <= oldest {
		n++
	}
	if n == 0 && len(m.head.Pinned) == 0 {
		return
	}
	pinned := make([]int64, 0, n)
	for _, r := range m.window.order[:n] {
		pinned = append(pinned, r.hostSeq)
	}
	if !slices.Equal(pinned, m.head.Pinned) {
		m.head.Pinned = pinned
		m.staged.head = true
	}
}

// Retain takes one stored event into the window of a machine that is being
// loaded: first the pinned ones, then the newest, in order. It keeps no
// reference to the row's body, so a caller can load page by page.
func (m *Machine) Retain(row *store.EventRow) error {
	if row.Origin != store.OriginRunner {
		return nil
	}
	if n := len(m.window.order); n > 0 && row.SourceSeq <= m.window.order[n-1].seq {
		return damaged("events are not in order at %d", row.SourceSeq)
	}
	whole, err := canonjson.Parse(row.Body)
	if err != nil {
		return damaged("event %d does not parse", row.SourceSeq)
	}
	r := &retained{
		id: row.SourceEventID, seq: row.SourceSeq, hostSeq: row.Seq, eventType: row.Type,
		deliveries: row.DeliveryCount, whole: canonicalOf(whole),
	}
	if prp.IsSemanticInput(row.Type) {
		ev, err := prp.EventOf(whole.Get("payload"))
		if err != nil {
			return damaged("event %d is not valid", row.SourceSeq)
		}
		in, err := prp.SemanticInputOf(ev, m.head.Identity)
		if err != nil {
			return damaged("event %d is not a call", row.SourceSeq)
		}
		r.call = retainCall(m.head.Identity, ev, in)
	}
	m.window.add(r)
	return nil
}

// Loaded ends the loading: the window must reach up to the cursor.
func (m *Machine) Loaded() error {
	var last int64
	if n := len(m.window.order); n > 0 {
		last = m.window.order[n-1].seq
	}
	if last != m.head.AckedSourceSeq {
		return damaged("the last event is %d, the cursor %d", last, m.head.AckedSourceSeq)
	}
	// More than one loads: an unsettled one pushes the others out.
	for len(m.window.order) > WindowSize && m.makeRoom() {
	}
	return nil
}
