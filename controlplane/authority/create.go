package authority

import (
	"encoding/json"
	"math"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// NewRun is what a run and its session are made of.
type NewRun struct {
	Identity      prp.Identity
	RunnerVersion string // expected in the hello
	RunnerDigest  string // sha256:<64 hex>
	LeaseTTL      time.Duration

	Driver     string
	Placement  string // store.PlacementLocal or PlacementAttached
	Workspace  string
	Permission string
	Labels     map[string]string
	Request    json.RawMessage
	// Prepare is the payload of run.prepare (prp.md 6.5): an object.
	Prepare json.RawMessage
	// Prompt is the text of turn.start; empty for a command.
	Prompt string
}

// Create gives the transaction that makes a run, its session and its first two
// commands; the caller may add to it (idempotency, audit). It fails with
// wire.CodeInputInvalid, or wire.CodeCommandTooLarge when prompt or Prepare do
// not fit a command.
func Create(now time.Time, n NewRun) (*store.Tx, error) {
	if n.LeaseTTL < prp.LeaseLifetimeMin || n.LeaseTTL > prp.LeaseLifetimeMax {
		return nil, wire.Errorf(wire.CodeInputInvalid, "lease lifetime must be %s to %s", prp.LeaseLifetimeMin, prp.LeaseLifetimeMax)
	}
	if err := n.Identity.ValidateRunner(); err != nil {
		return nil, wire.Errorf(wire.CodeInputInvalid, "identity: %v", err)
	}
	prepare, err := canonjson.Parse(n.Prepare)
	if err != nil || !prepare.IsObject() {
		return nil, wire.Errorf(wire.CodeInputInvalid, "the payload of run.prepare is not an object")
	}
	// Journaled later, under a sequence that is not known yet: it must fit under
	// the longest there could be.
	const latest = math.MaxInt32
	start := prp.Command{
		CommandID: prp.CommandIDOf(latest), ControllerSeq: latest, Type: prp.CommandTurnStart,
		IssuedAt: prp.FormatTime(now), Payload: startPayload(n.Identity, n.Prompt),
	}
	if err := start.CheckSize(); err != nil {
		return nil, err
	}
	m := &Machine{
		opt: Options{JournalPending: prp.MaxJournalCommands},
		head: store.SessionRow{
			ID: n.Identity.NormalizedSessionID, Profile: "prp", Identity: n.Identity,
			RunnerVersion: n.RunnerVersion, RunnerDigest: n.RunnerDigest, LeaseTTL: n.LeaseTTL,
			Epoch: 1, RunAttachTemplate: n.Prepare,
		},
		run: &store.RunRow{
			ID: n.Identity.RunID, SessionID: n.Identity.NormalizedSessionID, Driver: n.Driver, Placement: n.Placement,
			Workspace: n.Workspace, Permission: n.Permission, Labels: n.Labels, Request: n.Request,
			CreatedAt: now,
		},
		byID: make(map[string]*command),
		cond: &conductor{Version: conductorVersion, Phase: PhasePrepare, Prompt: n.Prompt},
	}
	for _, q := range []struct {
		seq *int64
		cmd Command
	}{
		{&m.cond.PrepareSeq, Command{Type: prp.CommandRunPrepare, Payload: prepare}},
		{&m.cond.OpenSeq, Command{Type: prp.CommandSessionOpen, Payload: canonjson.ObjectValue(
			canonjson.Member{Key: "reuse", Value: canonjson.StringValue("same_session")},
		)}},
	} {
		row, err := m.Queue(now, q.cmd)
		if err != nil {
			return nil, err
		}
		*q.seq = row.ControllerSeq
	}
	m.setStatus(now, store.StatusQueued)
	batch := m.Take()
	tx := batch.Tx
	tx.NewSession, tx.Session = tx.Session, nil
	tx.NewRun, tx.Run = tx.Run, nil
	return &tx, nil
}

// NewSession gives the transaction that makes a session without a run: what an
// outside suite drives.
func NewSession(id prp.Identity, runnerVersion, runnerDigest string, leaseTTL time.Duration) (*store.Tx, error) {
	if leaseTTL < prp.LeaseLifetimeMin || leaseTTL > prp.LeaseLifetimeMax || leaseTTL%time.Millisecond != 0 {
		return nil, wire.Errorf(wire.CodeInputInvalid, "lease lifetime must be %d to %d whole milliseconds",
			prp.LeaseLifetimeMin.Milliseconds(), prp.LeaseLifetimeMax.Milliseconds())
	}
	if err := id.Validate(); err != nil {
		return nil, err
	}
	return &store.Tx{NewSession: &store.SessionRow{
		ID: id.NormalizedSessionID, Profile: "prp", Identity: id, RunnerVersion: runnerVersion, RunnerDigest: runnerDigest,
		LeaseTTL: leaseTTL, Epoch: 1,
	}}, nil
}
