package authority

import (
	"encoding/json"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// Phases of a run's life below its status.
const (
	PhasePrepare = "prepare" // run.prepare has no result yet
	PhaseOpen    = "open"    // session.open has none
	PhaseStart   = "start"   // turn.start has none
	PhaseTurn    = "turn"    // the turn runs
	PhaseDrain   = "drain"   // the run has ended; the runner hands over what it holds
	PhaseSuspend = "suspend" // runner.suspend has no result yet
	PhaseClosed  = "closed"  // nobody is served any more
)

// Times of the conductor, ours.
const (
	// StopAfter is how long an interrupted turn may take to end before the
	// provider is stopped.
	StopAfter = 10 * time.Second
	// GiveUpAfter is how long the stop may take to be proven before the run is
	// called cancelled without proof.
	GiveUpAfter = 15 * time.Second
	// CloseWithin bounds the close sequence, so that a runner that is gone does
	// not keep the session.
	CloseWithin = 30 * time.Second
	// drainPause lies between two runner.drain once the first few showed that
	// there is more to wait for.
	drainPause = 100 * time.Millisecond
	// drainsAtOnce are sent without a pause.
	drainsAtOnce = 3
	// maxDrains bounds the tries of one close sequence, and with it what a
	// runner can make us keep by its answers. The turn's end is the last thing
	// of a run, so hardly anything is left when the first one is sent.
	maxDrains = 64
)

// Reasons of terminal statuses that are not a provider's own.
const (
	ReasonPrepareFailed     = "prepare_failed"
	ReasonOpenFailed        = "open_failed"
	ReasonTurnRejected      = "turn_rejected"
	ReasonTurnFailed        = "turn_failed"
	ReasonIndeterminate     = "indeterminate"
	ReasonInterrupted       = "interrupted"
	ReasonSessionFailed     = "session_failed"
	ReasonNoResult          = "no_result"
	ReasonIntegrityFault    = "integrity_fault"
	ReasonLaunchFailed      = "launch_failed"
	ReasonRunnerLost        = "runner_lost"
	ReasonLeaseEnded        = "lease_ended"
	ReasonCancelUnconfirmed = "cancel_unconfirmed"
	ReasonTimeout           = "timeout" // of the turn
)

// Types of the control plane's own events.
const (
	EventRunStatus = "run.status" // {"status"}
	EventRunEnded  = "run.ended"  // {"status","reason","result"}: the one terminal event of a run
)

// conductor is the serialisable part of a run's state machine. Sequences name
// commands of the journal, 0 = not queued. Times are Unix milliseconds, 0 = not
// armed.
type conductor struct {
	Version        int             `json:"v"`
	Phase          string          `json:"phase"`
	Prompt         string          `json:"prompt,omitempty"`
	PrepareSeq     int64           `json:"prepareSeq"`
	OpenSeq        int64           `json:"openSeq"`
	StartSeq       int64           `json:"startSeq,omitempty"`
	InterruptSeq   int64           `json:"interruptSeq,omitempty"`
	StopSeq        int64           `json:"stopSeq,omitempty"`
	DrainSeq       int64           `json:"drainSeq,omitempty"`
	SuspendSeq     int64           `json:"suspendSeq,omitempty"`
	ProviderTurnID string          `json:"providerTurnId,omitempty"`
	StopAtMs       int64           `json:"stopAtMs,omitempty"`
	GiveUpAtMs     int64           `json:"giveUpAtMs,omitempty"`
	CloseByMs      int64           `json:"closeByMs,omitempty"`
	DrainAtMs      int64           `json:"drainAtMs,omitempty"`
	Drains         int             `json:"drains,omitempty"`
	TurnOver       bool            `json:"turnOver,omitempty"` // a terminal turn event was seen
	TimedOut       bool            `json:"timedOut,omitempty"` // it is cancelled because its time is up
	Usage          json.RawMessage `json:"usage,omitempty"`
}

const conductorVersion = 1

func loadConductor(run *store.RunRow) (*conductor, error) {
	c := new(conductor)
	if err := json.Unmarshal(run.Conductor, c); err != nil || c.Version != conductorVersion {
		return nil, damaged("run %s: state of the conductor is not readable", run.ID)
	}
	return c, nil
}

// saveRun stages run and conductor together.
func (m *Machine) saveRun() {
	state, err := json.Marshal(m.cond)
	if err != nil {
		panic("bug: authority: conductor state: " + err.Error())
	}
	m.run.Conductor = state
	m.staged.run = true
}

// Input is something that happened to a run outside its runner's connection.
type Input interface{ input() }

// The inputs of [Machine.Apply].
type (
	// Assigned says that the launcher has taken the run up.
	Assigned struct{}
	// Cancel says that somebody asked to cancel. Asking again changes nothing.
	Cancel struct{}
	// TimedOut says that the turn has used up its time. It is stopped as a
	// cancelled one is, and the run fails with reason timeout.
	TimedOut struct{}
	// LaunchFailed says that no runner could be started. Reason "" = launch_failed.
	LaunchFailed struct{ Reason, Message string }
	// RunnerLost says that whoever restarts the runner has given up.
	// Reason "" = runner_lost.
	RunnerLost struct{ Reason, Message string }
	// LeaseEnded says that the runner did not come back while its lease lived.
	LeaseEnded struct{}
	// Tick says that NextDeadline may have passed.
	Tick struct{}
)

func (Assigned) input()     {}
func (Cancel) input()       {}
func (TimedOut) input()     {}
func (LaunchFailed) input() {}
func (RunnerLost) input()   {}
func (LeaseEnded) input()   {}
func (Tick) input()         {}

// Apply takes an input. After the run's end every input but Tick and the
// runner's being gone is a no-op: the first end wins. Without a run:
// wire.CodeNotFound.
func (m *Machine) Apply(now time.Time, in Input) error {
	if m.cond == nil {
		if _, tick := in.(Tick); tick {
			return nil
		}
		return wire.Errorf(wire.CodeNotFound, "the session serves no run")
	}
	ended := store.Terminal(m.run.Status)
	switch in := in.(type) {
	case Assigned:
		if m.run.Status == store.StatusQueued {
			m.setStatus(now, store.StatusAssigned)
		}
	case Cancel:
		if !ended {
			m.condCancel(now)
		}
	case TimedOut:
		if !ended && m.run.CancelAt.IsZero() {
			m.cond.TimedOut = true
			m.condCancel(now)
		}
	case LaunchFailed:
		reason := in.Reason
		if reason == "" {
			reason = ReasonLaunchFailed
		}
		m.runnerGone(now, store.StatusFailed, reason, in.Message)
	case RunnerLost:
		reason := in.Reason
		if reason == "" {
			reason = ReasonRunnerLost
		}
		m.runnerGone(now, store.StatusOrphaned, reason, in.Message)
	case LeaseEnded:
		m.runnerGone(now, store.StatusOrphaned, ReasonLeaseEnded, "")
	case Tick:
		m.condTick(now)
	default:
		panic("bug: authority: unknown input")
	}
	return nil
}

// runnerGone ends a run whose runner will not answer any more, and the close
// sequence with it.
func (m *Machine) runnerGone(now time.Time, status, reason, message string) {
	if !store.Terminal(m.run.Status) {
		m.end(now, status, reason, outcome{message: message})
	}
	m.closed()
}

// NextDeadline is when to call Apply with Tick; zero = no need.
func (m *Machine) NextDeadline() time.Time {
	if m.cond == nil {
		return time.Time{}
	}
	var next int64
	for _, at := range []int64{m.cond.StopAtMs, m.cond.GiveUpAtMs, m.cond.CloseByMs, m.cond.DrainAtMs} {
		if at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	if next == 0 {
		return time.Time{}
	}
	return time.UnixMilli(next)
}

func (m *Machine) condTick(now time.Time) {
	c, nowMs := m.cond, now.UnixMilli()
	due := func(at *int64) bool {
		if *at == 0 || *at > nowMs {
			return false
		}
		*at = 0
		return true
	}
	switch {
	case due(&c.CloseByMs):
		m.closed()
	case due(&c.GiveUpAtMs):
		m.end(now, store.StatusCancelled, ReasonCancelUnconfirmed, outcome{})
	case due(&c.StopAtMs):
		c.StopSeq = m.condQueue(now, prp.CommandTurnStop, reasonPayload("cancelled"))
		c.GiveUpAtMs = now.Add(GiveUpAfter).UnixMilli()
	case due(&c.DrainAtMs):
		m.drain(now)
	default:
		return
	}
	m.saveRun()
}

// setStatus changes a status that is not terminal and says so in the log.
func (m *Machine) setStatus(now time.Time, status string) {
	m.run.Status = status
	m.logOwn(now, EventRunStatus, map[string]any{"status": status})
	m.effect(Effect{Kind: EffectRunStatus, Status: status})
	m.saveRun()
}

func (m *Machine) logOwn(now time.Time, eventType string, payload map[string]any) {
	body, err := json.Marshal(payload)
	if err != nil {
		panic("bug: authority: payload of " + eventType + ": " + err.Error())
	}
	m.appendLog(now, ownEvent(eventType, body))
}

// condQueue journals a command of the conductor. It is sent at once when
// nothing else waits; otherwise it follows the one that does.
func (m *Machine) condQueue(now time.Time, commandType string, payload canonjson.Value) int64 {
	deliver := m.pending == 0 && !m.delivering
	row, err := m.journal(now, Command{Type: commandType, Payload: payload, Deliver: deliver}, 0)
	if err != nil {
		// Only the prompt could be too large, and Create has refused it then.
		panic("bug: authority: " + commandType + ": " + err.Error())
	}
	return row.ControllerSeq
}

func reasonPayload(reason string) canonjson.Value {
	return canonjson.ObjectValue(canonjson.Member{Key: "reason", Value: canonjson.StringValue(reason)})
}

func (m *Machine) condAuthenticated(now time.Time) {
	switch m.run.Status {
	case store.StatusQueued, store.StatusAssigned:
		m.setStatus(now, store.StatusStarting)
	}
	// A runner that was given up and came back after all has nothing to wait
	// for: without this it would sit there until its lease ends.
	if c := m.cond; c.Phase == PhaseClosed && c.SuspendSeq == 0 {
		c.SuspendSeq = m.condQueue(now, prp.CommandRunnerSuspend, canonjson.ObjectValue())
		m.saveRun()
	}
}

func (m *Machine) condFault(now time.Time) {
	if !store.Terminal(m.run.Status) {
		m.end(now, store.StatusFailed, ReasonIntegrityFault, outcome{})
	}
}

func (m *Machine) condCancel(now time.Time) {
	c := m.cond
	if !m.run.CancelAt.IsZero() {
		return
	}
	m.run.CancelAt = now
	if c.StartSeq == 0 {
		m.end(now, store.StatusCancelled, "", outcome{})
		return
	}
	c.StopAtMs = now.Add(StopAfter).UnixMilli()
	if c.Phase == PhaseTurn {
		m.interrupt(now)
	}
	m.setStatus(now, store.StatusCancelling)
}

func (m *Machine) interrupt(now time.Time) {
	if m.cond.InterruptSeq != 0 {
		return
	}
	m.cond.InterruptSeq = m.condQueue(now, prp.CommandTurnInterrupt, canonjson.ObjectValue(
		canonjson.Member{Key: "turnId", Value: canonjson.StringValue(m.head.Identity.TurnID)},
		canonjson.Member{Key: "providerTurnId", Value: canonjson.StringValue(m.cond.ProviderTurnID)},
	))
}

// maxProviderTurnID bounds a provider's name of a turn, in bytes (architecture,
// "Limits": identifiers). The run keeps it and turn.interrupt repeats it.
const maxProviderTurnID = 240

// accepted marks the turn as accepted. A name beyond the limit is not kept.
func (m *Machine) accepted(now time.Time, providerTurnID string) {
	c := m.cond
	if providerTurnID != "" && len(providerTurnID) <= maxProviderTurnID {
		c.ProviderTurnID = providerTurnID
	}
	c.Phase = PhaseTurn
	if m.run.StartedAt.IsZero() {
		m.run.StartedAt = now
	}
	switch {
	case !m.run.CancelAt.IsZero():
		m.interrupt(now)
		m.saveRun()
	case m.run.Status != store.StatusRunning:
		m.setStatus(now, store.StatusRunning)
	default:
		m.saveRun()
	}
}
