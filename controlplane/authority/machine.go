package authority

import (
	"encoding/json"
	"fmt"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/prp"
)

// Options say what kind of authority this is.
type Options struct {
	// NewID gives a random UUID v4 in lower case.
	NewID func() string
	// JournalTotal bounds the commands of the authority's whole life, 0 = not
	// bounded (prp.md 15.2 no. 8: a long session would run into it).
	JournalTotal int
	// JournalPending bounds the commands without a result, 0 = not bounded.
	JournalPending int
	// FaultSurvives keeps the fault latch over a restart; line M forgets it.
	FaultSurvives bool
	// Tools tells that somebody answers host tool calls; without, an event that
	// carries a call closes the connection (10.2 step 5).
	Tools bool
}

// ProductOptions are those of the control plane.
func ProductOptions(newID func() string) Options {
	return Options{NewID: newID, JournalPending: prp.MaxJournalCommands, FaultSurvives: true}
}

// ReferenceOptions are those of line M, which outside suites expect.
func ReferenceOptions(newID func() string) Options {
	return Options{NewID: newID, JournalTotal: prp.MaxJournalCommands, Tools: true}
}

// Machine is the authority of one session. Make it with [New].
type Machine struct {
	opt  Options
	head store.SessionRow
	run  *store.RunRow // nil without a run (harness)
	cond *conductor    // nil without a run

	tickets map[string]*store.TicketRow // by credential id
	leases  map[string]*store.LeaseRow  // by credential id

	commands  []*command // index = controllerSeq-1
	byID      map[string]*command
	pendFrom  int // no command before this index is pending
	pending   int
	toolsOpen int // semantic_tool.result commands that are not completed

	window window

	// Of this process only.
	links         map[*Link]struct{} // authenticated and not closed
	current       *Link              // the newest of them
	fault         *prp.IntegrityFault
	running       map[string]bool // tool command ids handed to the handler; false = staged, not yet handed over
	persistFailed bool
	delivering    bool // the first pending command is sent right after
	refusalsSince time.Time
	refusals      int

	scratch []byte // canonical forms are written here

	staged staging
}

// New begins to build the machine of a stored session: the caller hands its
// events to [Machine.Retain] and then calls [Machine.Loaded]. run is nil when
// the session serves none; st.Events is not looked at. It fails with
// wire.CodeLogDamaged when the rows contradict each other (prp.md 8.6).
func New(opt Options, st *store.SessionState, run *store.RunRow) (*Machine, error) {
	if opt.NewID == nil {
		panic("bug: authority: no source of ids")
	}
	m := &Machine{
		opt: opt, head: st.Session,
		tickets: make(map[string]*store.TicketRow), leases: make(map[string]*store.LeaseRow),
		byID: make(map[string]*command), links: make(map[*Link]struct{}), running: make(map[string]bool),
	}
	if err := m.head.Identity.Validate(); err != nil {
		return nil, damaged("identity: %v", err)
	}
	for i := range st.Tickets {
		m.tickets[st.Tickets[i].CredentialID] = &st.Tickets[i]
	}
	for i := range st.Leases {
		m.leases[st.Leases[i].CredentialID] = &st.Leases[i]
	}
	if err := m.loadCommands(st.Commands); err != nil {
		return nil, err
	}
	if reason := st.Session.FaultReason; reason != "" && opt.FaultSurvives {
		if reason != prp.ReasonSemanticInputDigestMismatch && reason != prp.ReasonSourceEventReplayConflict {
			return nil, damaged("unknown fault reason")
		}
		m.fault = prp.NewIntegrityFault(reason)
	}
	if run != nil {
		cond, err := loadConductor(run)
		if err != nil {
			return nil, err
		}
		m.run, m.cond = run, cond
	}
	return m, nil
}

// Inherit takes over what the machine that is being replaced held in memory
// only: the fault latch, running tool handlers, the persistence latch. Links
// are not taken over: the caller closes them.
func (m *Machine) Inherit(old *Machine) {
	if old.fault != nil {
		m.fault = old.fault
	}
	m.persistFailed = m.persistFailed || old.persistFailed
	for id, handed := range old.running {
		if handed {
			m.running[id] = true
		}
	}
}

// Identity of the session.
func (m *Machine) Identity() prp.Identity { return m.head.Identity }

// Fault is the latched fault or nil; always the same pointer.
func (m *Machine) Fault() *prp.IntegrityFault { return m.fault }

// Latch latches a fault that the caller's commit hook raised; the first wins.
func (m *Machine) Latch(now time.Time, fault *prp.IntegrityFault) {
	if m.fault != nil {
		return
	}
	m.fault = fault
	if m.opt.FaultSurvives {
		m.head.FaultReason = fault.Reason
		m.staged.head = true
	}
	m.audit(now, "fault.latched", map[string]any{"code": fault.Code(), "reason": fault.Reason, "recovery": fault.Recovery()})
	m.effect(Effect{Kind: EffectFault, Fault: fault})
	if m.cond != nil {
		m.condFault(now)
	}
}

// Malformed counts a frame that did not open or was not JSON (prp.md 4.8).
func (m *Machine) Malformed() {
	m.head.MalformedFrames++
	m.staged.head = true
	m.effect(Effect{Kind: EffectMalformed})
}

// Detach forgets a link whose connection is gone.
func (m *Machine) Detach(l *Link) {
	l.closed = true
	delete(m.links, l)
	if m.current == l {
		m.current = nil
	}
}

func (m *Machine) audit(now time.Time, action string, detail map[string]any) {
	body, err := json.Marshal(detail)
	if err != nil {
		panic("bug: authority: audit detail: " + err.Error())
	}
	m.staged.tx.Audit = append(m.staged.tx.Audit, store.AuditRow{
		At: now, Actor: "runner", Action: action, Target: m.head.ID, Detail: body,
	})
}

// appendLog gives ev the next number of the host log.
func (m *Machine) appendLog(now time.Time, ev store.EventRow) int64 {
	m.head.HeadSeq++
	m.staged.head = true
	ev.Seq = m.head.HeadSeq
	ev.RunID = m.head.Identity.RunID
	ev.At = now.UTC().Truncate(time.Millisecond)
	ev.Late = m.run != nil && store.Terminal(m.run.Status)
	m.staged.tx.Events = append(m.staged.tx.Events, ev)
	return ev.Seq
}

func damaged(format string, args ...any) error {
	return wire.Errorf(wire.CodeLogDamaged, "session state: %s", fmt.Sprintf(format, args...))
}

func violation(format string, args ...any) error {
	return wire.Errorf(wire.CodeProtocol, format, args...)
}
