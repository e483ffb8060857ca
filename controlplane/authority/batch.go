package authority

import (
	"bowline/controlplane/store"
	"bowline/wire/prp"
)

// EffectKind names what has to happen once a batch is durable.
type EffectKind uint8

// The effects.
const (
	// EffectSend: send Plain (a control envelope) over Link.
	EffectSend EffectKind = iota + 1
	// EffectClose: close Link; Reason is for the log.
	EffectClose
	// EffectCloseAll: close every connection, authenticated or not (prp.md 10.9).
	EffectCloseAll
	// EffectDispatch: hand Call to the tool handler, then tell [Machine.ToolStarted].
	EffectDispatch
	// EffectFault: Fault has just been latched; tell whoever waits.
	EffectFault
	// EffectClosed: the close sequence is over; the session serves nobody any more.
	EffectClosed
	// The rest is for counting only.
	EffectCommitted  // one runner event
	EffectDuplicate  // one redelivered event
	EffectMalformed  // one frame that did not open
	EffectCommand    // a command got its result: Type, Status, Seconds
	EffectDupResult  // a result came again
	EffectHandshake  // a connection authenticated; Reason tells the credential
	EffectRefused    // a handshake was refused; Reason tells why
	EffectAck        // an ack was sent
	EffectRunEnded   // the run reached Status
	EffectRunStatus  // the run reached Status, not terminal
	EffectTicket     // a ticket was issued
	EffectLeaseRenew // a lease was renewed or replayed
)

// Effect is one thing to do after the commit. Which members are set depends on
// its kind.
type Effect struct {
	Kind    EffectKind
	Link    *Link
	Plain   []byte
	Call    *ToolCall
	Fault   *prp.IntegrityFault
	Reason  string
	Type    string
	Status  string
	Seconds float64
}

// Batch is what the inputs since the last Take amount to.
type Batch struct {
	Tx      store.Tx
	Write   bool // Tx is not empty: commit it before the effects
	Effects []Effect
}

// staging collects until Take. Rows are named, not copied, so that one written
// twice is written once, as it then is.
type staging struct {
	tx       store.Tx
	head     bool
	run      bool
	commands map[int64]struct{}
	tickets  map[string]struct{}
	leases   map[string]struct{}
	effects  []Effect
}

func (m *Machine) effect(e Effect) { m.staged.effects = append(m.staged.effects, e) }

func touch[K comparable](set *map[K]struct{}, key K) {
	if *set == nil {
		*set = make(map[K]struct{})
	}
	(*set)[key] = struct{}{}
}

// Take hands out what was staged. The batch shares nothing with the machine
// that later inputs change.
func (m *Machine) Take() Batch {
	s := m.staged
	m.staged = staging{}
	tx := s.tx
	rows := len(tx.Events) + len(tx.Redelivered) + len(tx.DropTickets) + len(tx.DropLeases) + len(tx.Audit) +
		len(s.commands) + len(s.tickets) + len(s.leases)
	for seq := range s.commands {
		tx.Commands = append(tx.Commands, m.commands[seq-1].row)
	}
	for id := range s.tickets {
		if t := m.tickets[id]; t != nil {
			tx.Tickets = append(tx.Tickets, *t)
		}
	}
	for id := range s.leases {
		if l := m.leases[id]; l != nil {
			tx.Leases = append(tx.Leases, *l)
		}
	}
	if s.run {
		run := *m.run
		tx.Run = &run
	}
	write := rows > 0 || s.head || s.run
	if write {
		// Always there: the generation in it fences a second writer.
		head := m.head
		tx.Session = &head
	}
	return Batch{Tx: tx, Write: write, Effects: s.effects}
}
