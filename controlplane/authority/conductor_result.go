package authority

import (
	"fmt"
	"time"

	"bowline/controlplane/store"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// indeterminateCode is the inner code of a command the runner cannot tell the
// outcome of (prp.md 5.5).
const indeterminateCode = "execution_indeterminate"

// judged is what a result says, outer and inner status together (6.3).
type judged struct {
	ok            bool
	indeterminate bool
	code          string
	message       string
}

func judgeResult(r prp.CommandResult) judged {
	inner := r.Result.Get("status").Str()
	j := judged{code: r.Result.Get("code").Str(), message: r.Result.Get("message").Str()}
	if e := r.Result.Get("error"); e.IsObject() {
		if j.code == "" {
			j.code = e.Get("code").Str()
		}
		if j.message == "" {
			j.message = e.Get("message").Str()
		}
	}
	if j.message == "" {
		j.message = j.code
	}
	j.indeterminate = r.Status == prp.StatusIndeterminate || inner == prp.StatusIndeterminate || j.code == indeterminateCode
	j.ok = !j.indeterminate && r.Status == prp.StatusCompleted && inner != prp.StatusFailed && inner != prp.StatusRejected
	return j
}

// condResult takes the result of a journaled command.
func (m *Machine) condResult(now time.Time, cmd *command, r prp.CommandResult) {
	c, seq, j := m.cond, cmd.row.ControllerSeq, judgeResult(r)
	switch {
	case seq == c.DrainSeq:
		m.drained(now, j.ok && isTrue(r.Result.Get("retainedEventsDrained")))
		return
	case seq == c.SuspendSeq:
		m.closed()
		return
	case store.Terminal(m.run.Status):
		return
	}
	switch seq {
	case c.PrepareSeq:
		if !j.ok {
			m.endRejected(now, j, ReasonPrepareFailed)
			return
		}
		c.Phase = PhaseOpen
		m.saveRun()
	case c.OpenSeq:
		if !j.ok {
			m.endRejected(now, j, ReasonOpenFailed)
			return
		}
		c.Phase = PhaseStart
		c.StartSeq = m.condQueue(now, prp.CommandTurnStart, startPayload(m.head.Identity, c.Prompt))
		c.Prompt = ""
		m.saveRun()
	case c.StartSeq:
		turn := r.Result.Get("providerTurnId").Str()
		switch {
		case !j.ok && !j.indeterminate && !m.run.CancelAt.IsZero():
			m.end(now, store.StatusCancelled, "", outcome{message: j.message})
		case !j.ok:
			m.endRejected(now, j, ReasonTurnRejected)
		case turn == "" || len(turn) > maxProviderTurnID:
			m.end(now, store.StatusFailed, ReasonTurnRejected, outcome{message: fmt.Sprintf("the result of turn.start names no providerTurnId of at most %d bytes", maxProviderTurnID)})
		default:
			m.accepted(now, turn)
		}
	case c.StopSeq:
		if isTrue(r.Result.Get("providerExitConfirmed")) {
			m.end(now, store.StatusCancelled, "", outcome{})
		}
	}
}

func (m *Machine) endRejected(now time.Time, j judged, reason string) {
	if j.indeterminate {
		reason = ReasonIndeterminate
	}
	m.end(now, store.StatusFailed, reason, outcome{message: j.message})
}

func isTrue(v canonjson.Value) bool {
	b, ok := v.AsBool()
	return ok && b
}

func startPayload(id prp.Identity, prompt string) canonjson.Value {
	return canonjson.ObjectValue(
		canonjson.Member{Key: "text", Value: canonjson.StringValue(prompt)},
		canonjson.Member{Key: "turnId", Value: canonjson.StringValue(id.TurnID)},
	)
}
