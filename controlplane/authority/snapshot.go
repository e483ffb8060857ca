package authority

import (
	"bowline/controlplane/store"
	"bowline/wire/prp"
)

// Snapshot is the state as it stands; only a caller that has committed
// everything it took may show it.
type Snapshot struct {
	Session  store.SessionRow
	Run      *store.RunRow // nil without a run
	Fault    *prp.IntegrityFault
	Settled  bool
	Phase    string // of the conductor: "" without a run
	Pending  int    // commands without a result
	Oldest   int64  // Unix ms at which the oldest of them was queued, 0 = none
	Commands []store.CommandRow
	Events   []EventInfo // the retained window
}

// EventInfo describes one retained event.
type EventInfo struct {
	SourceSeq     int64
	SourceEventID string
	EventType     string
	DeliveryCount int64
}

// Snapshot copies the state. Its commands share their JSON with the machine:
// read only.
func (m *Machine) Snapshot() Snapshot {
	s := m.Brief()
	s.Settled = m.Settled()
	s.Commands = make([]store.CommandRow, 0, len(m.commands))
	for _, c := range m.commands {
		s.Commands = append(s.Commands, c.row)
	}
	s.Events = make([]EventInfo, 0, len(m.window.order))
	for _, r := range m.window.order {
		s.Events = append(s.Events, EventInfo{
			SourceSeq: r.seq, SourceEventID: r.id, EventType: r.eventType, DeliveryCount: r.deliveries,
		})
	}
	return s
}

// Brief is Snapshot without commands, events and settledness: cheap.
func (m *Machine) Brief() Snapshot {
	s := Snapshot{Session: m.head, Fault: m.fault, Pending: m.pending}
	if m.run != nil {
		run := *m.run
		s.Run = &run
		s.Phase = m.cond.Phase
	}
	if c := m.firstPending(); c != nil {
		s.Oldest = c.row.QueuedAt.UnixMilli()
	}
	return s
}

// Connected tells whether a runner is authenticated.
func (m *Machine) Connected() bool { return m.current != nil }

// Links is how many connections are authenticated.
func (m *Machine) Links() int { return len(m.links) }
