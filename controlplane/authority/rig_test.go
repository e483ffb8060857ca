package authority_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"bowline/controlplane/authority"
	"bowline/controlplane/session/memstore"
	"bowline/controlplane/store"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// tb is what *testing.T and *rapid.T share.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
}

const (
	runnerVersion = "0.3.0"
	runnerDigest  = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func identity() prp.Identity {
	return prp.Identity{
		RunnerInstanceID: "runner-1", EnvironmentLeaseID: "lease-1", RunID: "0190a000-0000-7000-8000-000000000001",
		NormalizedSessionID: "session-1", TurnID: "turn-1", ItemID: "item-1",
	}
}

// rig is a machine on a store in memory, with a clock and ids of its own.
type rig struct {
	t    tb
	st   *memstore.Store
	opt  authority.Options
	m    *authority.Machine
	now  time.Time
	ids  int
	sent []sent // frames that went out after their commit
	seen map[authority.EffectKind]int
	all  []authority.Effect
}

type sent struct {
	link *authority.Link
	env  prp.Envelope
}

func (r *rig) newID() string {
	r.ids++
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", r.ids)
}

func newRig(t tb, product bool, tx *store.Tx) *rig {
	r := &rig{t: t, st: new(memstore.Store), now: time.UnixMilli(1_800_000_000_000), seen: map[authority.EffectKind]int{}}
	r.opt = authority.ReferenceOptions(r.newID)
	if product {
		r.opt = authority.ProductOptions(r.newID)
	}
	if err := r.st.Commit(context.Background(), tx); err != nil {
		t.Fatalf("create: %v", err)
	}
	r.load()
	return r
}

// plain is a session without a run, as the harness has it.
func plain(t tb) *rig {
	tx, err := authority.NewSession(identity(), runnerVersion, runnerDigest, time.Hour)
	if err != nil {
		t.Fatalf("new session: %v", err)
	}
	return newRig(t, false, tx)
}

func newRun() authority.NewRun {
	return authority.NewRun{
		Identity: identity(), RunnerVersion: runnerVersion, RunnerDigest: runnerDigest, LeaseTTL: time.Hour,
		Driver: "scripted", Placement: store.PlacementLocal, Workspace: "/w", Permission: "default",
		Request: json.RawMessage(`{}`), Prepare: json.RawMessage(`{"provider":{"kind":"scripted"}}`), Prompt: "do it",
	}
}

// withRun is a session that serves a run.
func withRun(t tb) *rig {
	tx, err := authority.Create(time.UnixMilli(1_800_000_000_000), newRun())
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return newRig(t, true, tx)
}

// load makes a machine of what is stored.
func (r *rig) load() {
	r.t.Helper()
	ctx := context.Background()
	st, err := r.st.Session(ctx, identity().NormalizedSessionID, authority.WindowSize)
	if err != nil {
		r.t.Fatalf("load: %v", err)
	}
	var pinned []store.EventRow
	for _, seq := range st.Session.Pinned {
		rows, err := r.st.Events(ctx, st.Session.ID, seq-1, 1, 1<<20)
		if err != nil || len(rows) != 1 {
			r.t.Fatalf("pinned %d: %v", seq, err)
		}
		pinned = append(pinned, rows[0])
	}
	run, err := r.st.Run(ctx, st.Session.Identity.RunID)
	if err != nil {
		run = nil
	}
	if r.m, err = build(r.opt, st, run, pinned); err != nil {
		r.t.Fatalf("new: %v", err)
	}
}

func build(opt authority.Options, st *store.SessionState, run *store.RunRow, pinned []store.EventRow) (*authority.Machine, error) {
	m, err := authority.New(opt, st, run)
	if err != nil {
		return nil, err
	}
	for _, rows := range [][]store.EventRow{pinned, st.Events} {
		for i := range rows {
			if err := m.Retain(&rows[i]); err != nil {
				return nil, err
			}
		}
	}
	return m, m.Loaded()
}

// commit makes durable what was staged and lets the effects out.
func (r *rig) commit() {
	r.t.Helper()
	b := r.m.Take()
	if b.Write {
		if err := r.st.Commit(context.Background(), &b.Tx); err != nil {
			r.t.Fatalf("commit: %v", err)
		}
	}
	for _, e := range b.Effects {
		r.seen[e.Kind]++
		r.all = append(r.all, e)
		switch e.Kind {
		case authority.EffectSend:
			env, err := prp.ParseEnvelope(e.Plain)
			if err != nil {
				r.t.Fatalf("sent: %v", err)
			}
			r.sent = append(r.sent, sent{e.Link, env})
		case authority.EffectDispatch:
			r.m.ToolStarted(e.Call)
		}
	}
}

// take gives the frames sent since the last take.
func (r *rig) take() []sent {
	s := r.sent
	r.sent = nil
	return s
}

func (r *rig) kinds() string {
	var kinds []string
	for _, s := range r.take() {
		kind := s.env.Kind
		if kind == prp.KindCommand {
			kind += ":" + s.env.Payload.Get("type").Str()
		}
		if kind == prp.KindWelcome && s.env.Payload.Get("pendingCommands").Len() > 0 {
			kind += ":" + s.env.Payload.Get("pendingCommands").At(0).Get("type").Str()
		}
		kinds = append(kinds, kind)
	}
	return strings.Join(kinds, " ")
}

func (r *rig) ticket() string {
	r.t.Helper()
	ticket, err := r.m.IssueTicket(r.now, prp.TicketLifetimeMax)
	if err != nil {
		r.t.Fatalf("ticket: %v", err)
	}
	r.commit()
	return ticket
}

func hello(credentialID string) prp.Hello {
	return prp.Hello{
		CredentialID: credentialID, ClientNonce: "nonce", ProtocolMin: 1, ProtocolMax: 2,
		Identity: identity(), RunnerVersion: runnerVersion, RunnerDigest: runnerDigest,
	}
}

// join authenticates with a fresh ticket.
func (r *rig) join() *authority.Link {
	r.t.Helper()
	return r.joinAs(hello(credentialID(r.ticket())))
}

func (r *rig) joinAs(h prp.Hello) *authority.Link {
	r.t.Helper()
	a, err := r.m.Hello(r.now, h)
	if err != nil {
		r.t.Fatalf("hello: %v", err)
	}
	l, err := r.m.Authenticate(r.now, a)
	if err != nil {
		r.t.Fatalf("authenticate: %v", err)
	}
	r.commit()
	return l
}

// say hands a message over and commits.
func (r *rig) say(l *authority.Link, raw []byte) error {
	r.t.Helper()
	e, err := prp.ParseEnvelope(raw)
	if err != nil {
		r.t.Fatalf("message: %v", err)
	}
	err = r.m.Message(r.now, l, e, raw)
	r.commit()
	return err
}

func (r *rig) mustSay(l *authority.Link, raw []byte) {
	r.t.Helper()
	if err := r.say(l, raw); err != nil {
		r.t.Fatalf("refused: %v", err)
	}
}

func event(version int, seq int64, eventType, payload string) []byte {
	return eventWithID(version, seq, prp.RunnerEventID("runner-1", seq), eventType, payload)
}

func eventWithID(version int, seq int64, id, eventType, payload string) []byte {
	body := prp.AppendEvent(nil, prp.EventFields{
		SourceEventID: id, SourceSeq: seq, Identity: identity(), Type: eventType, Priority: 1,
		EmittedAt: "2026-11-30T12:00:00.000Z", Payload: []byte(payload),
	})
	return prp.AppendRunnerMessage(nil, version, prp.KindEvent, identity(), body)
}

func result(version int, seq int64, commandType, status, inner string) []byte {
	return resultOf(version, prp.CommandIDOf(seq), seq, commandType, status, inner)
}

func resultOf(version int, id string, seq int64, commandType, status, inner string) []byte {
	v, err := canonjson.Parse([]byte(inner))
	if err != nil {
		panic(err)
	}
	return prp.AppendRunnerMessage(nil, version, prp.KindCommandResult, identity(), prp.CommandResult{
		CommandID: id, ControllerSeq: seq, CommandType: commandType, Status: status, Result: v,
	}.Value().JSON())
}

func object(text string) canonjson.Value {
	v, err := canonjson.Parse([]byte(text))
	if err != nil {
		panic(err)
	}
	return v
}

// hostLog reads the whole log and checks that it is dense.
func (r *rig) hostLog() []store.EventRow {
	r.t.Helper()
	rows, err := r.st.Events(context.Background(), identity().NormalizedSessionID, 0, 1<<30, 1<<30)
	if err != nil {
		r.t.Fatalf("events: %v", err)
	}
	for i, row := range rows {
		if row.Seq != int64(i+1) {
			r.t.Fatalf("host log has %d at place %d", row.Seq, i)
		}
	}
	return rows
}

func (r *rig) run() store.RunRow {
	r.t.Helper()
	run, err := r.st.Run(context.Background(), identity().RunID)
	if err != nil {
		r.t.Fatalf("run: %v", err)
	}
	return *run
}

func wantErr(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Fatalf("error is %v, must contain %q", err, part)
	}
}

func want[T comparable](t tb, what string, got, expected T) {
	t.Helper()
	if got != expected {
		t.Fatalf("%s is %v, must be %v", what, got, expected)
	}
}
