package authority

import (
	"time"

	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// The close sequence of prp.md 8.15, as far as it concerns the wire: a turn that
// may still be active is stopped, runner.drain is repeated until the runner has
// handed over everything, runner.suspend ends it.

func (m *Machine) beginClose(now time.Time) {
	c := m.cond
	c.Prompt = ""
	c.StopAtMs, c.GiveUpAtMs = 0, 0
	c.CloseByMs = now.Add(CloseWithin).UnixMilli()
	if c.StartSeq != 0 && !c.TurnOver && c.StopSeq == 0 {
		c.StopSeq = m.condQueue(now, prp.CommandTurnStop, reasonPayload("close"))
	}
	if m.fault != nil {
		// Events are refused from here on, so nothing can be drained any more.
		m.suspend(now)
		return
	}
	c.Phase = PhaseDrain
	m.drain(now)
}

func (m *Machine) drain(now time.Time) {
	m.cond.Drains++
	m.cond.DrainSeq = m.condQueue(now, prp.CommandRunnerDrain, canonjson.ObjectValue())
}

// drained takes the result of a runner.drain.
func (m *Machine) drained(now time.Time, all bool) {
	c := m.cond
	if c.Phase != PhaseDrain {
		return
	}
	switch {
	case all || c.Drains >= maxDrains || m.fault != nil:
		m.suspend(now)
	case c.Drains < drainsAtOnce:
		m.drain(now)
	default:
		c.DrainAtMs = now.Add(drainPause).UnixMilli()
	}
	m.saveRun()
}

func (m *Machine) suspend(now time.Time) {
	m.cond.Phase = PhaseSuspend
	m.cond.DrainAtMs = 0
	m.cond.SuspendSeq = m.condQueue(now, prp.CommandRunnerSuspend, canonjson.ObjectValue())
}

// closed ends the session for its runner.
func (m *Machine) closed() {
	c := m.cond
	if c.Phase == PhaseClosed {
		return
	}
	c.Phase = PhaseClosed
	c.StopAtMs, c.GiveUpAtMs, c.CloseByMs, c.DrainAtMs = 0, 0, 0, 0
	m.effect(Effect{Kind: EffectClosed})
	m.saveRun()
}
