package authority_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bowline/controlplane/authority"
	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// play drives a run with steps; each is one input. After every step the
// connection may be lost and the machine loaded again (crash), which must make
// no difference.
type play struct {
	*rig
	link  *authority.Link
	seq   int64 // of the runner's events
	crash func(step int) bool
	step  int
}

func (p *play) after() {
	p.step++
	if p.crash == nil || !p.crash(p.step) {
		return
	}
	p.load()
	if p.link != nil && p.m.Brief().Phase != authority.PhaseClosed {
		p.link = p.join()
	}
}

func (p *play) connect() { p.link = p.join(); p.after() }

func (p *play) event(eventType, payload string) {
	p.t.Helper()
	p.seq++
	p.mustSay(p.link, event(2, p.seq, eventType, payload))
	p.after()
}

// answer answers the first pending command, which must be of this type.
func (p *play) answer(commandType, status, inner string) {
	p.t.Helper()
	c := p.pending()
	if c == nil {
		p.t.Fatalf("no command is pending, expected %s", commandType)
	}
	want(p.t, "pending command", c.Type, commandType)
	p.mustSay(p.link, resultOf(2, c.CommandID, c.ControllerSeq, c.Type, status, inner))
	p.after()
}

func (p *play) pending() *store.CommandRow {
	commands := p.m.Snapshot().Commands
	for i := range commands {
		if commands[i].Status == prp.StatusPending {
			return &commands[i]
		}
	}
	return nil
}

func (p *play) apply(in authority.Input) {
	p.t.Helper()
	if err := p.m.Apply(p.now, in); err != nil {
		p.t.Fatalf("apply %T: %v", in, err)
	}
	p.commit()
	p.after()
}

// wait lets the time pass to the next deadline.
func (p *play) wait(atMost time.Duration) {
	p.t.Helper()
	next := p.m.NextDeadline()
	if next.IsZero() || next.Sub(p.now) > atMost {
		p.t.Fatalf("no deadline within %s (next is %s away)", atMost, next.Sub(p.now))
	}
	p.now = next
	p.apply(authority.Tick{})
}

func (p *play) toTurn() {
	p.t.Helper()
	p.apply(authority.Assigned{})
	p.connect()
	p.answer(prp.CommandRunPrepare, "completed", `{}`)
	p.answer(prp.CommandSessionOpen, "completed", `{}`)
	p.event("session.started", `{"threadId":"t","sessionId":"s"}`)
	p.answer(prp.CommandTurnStart, "completed", `{"providerTurnId":"pt-1"}`)
}

func (p *play) toClosed() {
	p.t.Helper()
	p.answer(prp.CommandRunnerDrain, "completed", `{"status":"completed","retainedEventsDrained":true}`)
	p.answer(prp.CommandRunnerSuspend, "completed", `{"status":"completed"}`)
	want(p.t, "phase", p.m.Brief().Phase, authority.PhaseClosed)
	if !p.m.NextDeadline().IsZero() {
		p.t.Fatalf("a closed session still has a deadline")
	}
}

// scenarios are whole lives of a run with what must come out.
type scenario struct {
	name           string
	status, reason string
	play           func(p *play)
}

func scenarios() []scenario {
	return []scenario{
		{"completed", store.StatusCompleted, "", func(p *play) {
			p.toTurn()
			p.event("turn.started", `{"providerTurnId":"pt-1"}`)
			p.event("item.completed", `{"itemId":"i"}`)
			p.event("usage.reported", `{"provider":"x","cumulative":{"inputTokens":3}}`)
			p.event("turn.completed", `{"providerTurnId":"pt-1","status":"completed","exitCode":0}`)
			p.event("session.closed", `{}`)
			p.toClosed()
		}},
		{"turn end before its result", store.StatusCompleted, "", func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.answer(prp.CommandSessionOpen, "completed", `{}`)
			p.event("turn.started", `{"providerTurnId":"pt-1"}`)
			p.event("turn.completed", `{"providerTurnId":"pt-1","status":"completed"}`)
			p.answer(prp.CommandTurnStart, "completed", `{"providerTurnId":"pt-1"}`)
			p.toClosed()
		}},
		{"prepare failed", store.StatusFailed, authority.ReasonPrepareFailed, func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "failed", `{"code":"bad","message":"no such provider"}`)
			p.answer(prp.CommandSessionOpen, "failed", `{}`)
			p.toClosed()
		}},
		{"prepare rejected inside", store.StatusFailed, authority.ReasonPrepareFailed, func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{"status":"rejected","code":"provider_command_unavailable"}`)
			p.answer(prp.CommandSessionOpen, "rejected", `{}`)
			p.toClosed()
		}},
		{"open failed", store.StatusFailed, authority.ReasonOpenFailed, func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.answer(prp.CommandSessionOpen, "rejected", `{}`)
			p.toClosed()
		}},
		{"open indeterminate", store.StatusFailed, authority.ReasonIndeterminate, func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.answer(prp.CommandSessionOpen, "failed", `{"code":"execution_indeterminate"}`)
			p.toClosed()
		}},
		{"start rejected", store.StatusFailed, authority.ReasonTurnRejected, func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.answer(prp.CommandSessionOpen, "completed", `{}`)
			p.answer(prp.CommandTurnStart, "completed", `{"status":"failed","message":"no"}`)
			p.answer(prp.CommandTurnStop, "completed", `{"providerExitConfirmed":true}`)
			p.toClosed()
		}},
		{"start without a turn", store.StatusFailed, authority.ReasonTurnRejected, func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.answer(prp.CommandSessionOpen, "completed", `{}`)
			p.answer(prp.CommandTurnStart, "completed", `{}`)
			p.answer(prp.CommandTurnStop, "completed", `{"providerExitConfirmed":true}`)
			p.toClosed()
		}},
		{"start indeterminate", store.StatusFailed, authority.ReasonIndeterminate, func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.answer(prp.CommandSessionOpen, "completed", `{}`)
			p.answer(prp.CommandTurnStart, "indeterminate", `null`)
			p.answer(prp.CommandTurnStop, "completed", `{"providerExitConfirmed":true}`)
			p.toClosed()
		}},
		{"turn failed", store.StatusFailed, "model_error", func(p *play) {
			p.toTurn()
			p.event("turn.failed", `{"error":{"code":"model_error","message":"it broke"}}`)
			p.toClosed()
		}},
		{"runner lost its provider", store.StatusFailed, "runner_lost", func(p *play) {
			p.toTurn()
			p.event("turn.failed", `{"error":{"code":"runner_lost"}}`)
			p.toClosed()
		}},
		{"turn failed without a code", store.StatusFailed, authority.ReasonTurnFailed, func(p *play) {
			p.toTurn()
			p.event("turn.failed", `{"error":{"code":"has spaces"}}`)
			p.toClosed()
		}},
		{"interrupted by itself", store.StatusFailed, authority.ReasonInterrupted, func(p *play) {
			p.toTurn()
			p.event("turn.interrupted", `{}`)
			p.toClosed()
		}},
		{"session failed", store.StatusFailed, "provider_exited", func(p *play) {
			p.toTurn()
			p.event("session.failed", `{"code":"provider_exited"}`)
			p.event("turn.failed", `{"error":{"code":"late"}}`)
			p.answer(prp.CommandTurnStop, "completed", `{"providerExitConfirmed":true}`)
			p.toClosed()
		}},
		{"no result", store.StatusFailed, authority.ReasonNoResult, func(p *play) {
			p.toTurn()
			p.event("session.closed", `{}`)
			p.answer(prp.CommandTurnStop, "failed", `{}`)
			p.toClosed()
		}},
		{"launch failed", store.StatusFailed, authority.ReasonLaunchFailed, func(p *play) {
			p.apply(authority.LaunchFailed{Message: "no such file"})
			want(p.t, "phase", p.m.Brief().Phase, authority.PhaseClosed)
		}},
		{"runner lost", store.StatusOrphaned, authority.ReasonRunnerLost, func(p *play) {
			p.toTurn()
			p.apply(authority.RunnerLost{})
			want(p.t, "phase", p.m.Brief().Phase, authority.PhaseClosed)
		}},
		{"lease ended", store.StatusOrphaned, authority.ReasonLeaseEnded, func(p *play) {
			p.toTurn()
			p.apply(authority.LeaseEnded{})
			p.apply(authority.RunnerLost{})
		}},
		{"cancelled before a runner", store.StatusCancelled, "", func(p *play) {
			p.apply(authority.Cancel{})
			p.wait(authority.CloseWithin)
			want(p.t, "phase", p.m.Brief().Phase, authority.PhaseClosed)
		}},
		{"cancelled before the turn", store.StatusCancelled, "", func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.apply(authority.Cancel{})
			p.apply(authority.Cancel{})
			p.answer(prp.CommandSessionOpen, "completed", `{}`)
			p.toClosed()
		}},
		{"cancelled while it starts", store.StatusCancelled, "", func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.answer(prp.CommandSessionOpen, "completed", `{}`)
			p.apply(authority.Cancel{})
			p.answer(prp.CommandTurnStart, "completed", `{"providerTurnId":"pt-1"}`)
			p.answer(prp.CommandTurnInterrupt, "completed", `{}`)
			p.event("turn.cancelled", `{}`)
			p.toClosed()
		}},
		{"cancelled and rejected", store.StatusCancelled, "", func(p *play) {
			p.connect()
			p.answer(prp.CommandRunPrepare, "completed", `{}`)
			p.answer(prp.CommandSessionOpen, "completed", `{}`)
			p.apply(authority.Cancel{})
			p.answer(prp.CommandTurnStart, "rejected", `{}`)
			p.answer(prp.CommandTurnStop, "completed", `{}`)
			p.toClosed()
		}},
		{"cancelled", store.StatusCancelled, "", func(p *play) {
			p.toTurn()
			p.apply(authority.Cancel{})
			want(p.t, "status", p.run().Status, store.StatusCancelling)
			p.answer(prp.CommandTurnInterrupt, "completed", `{}`)
			p.event("turn.interrupted", `{"status":"interrupted"}`)
			p.toClosed()
		}},
		{"indeterminate, told by the turn first", store.StatusFailed, authority.ReasonIndeterminate, func(p *play) {
			p.toTurn()
			p.event("turn.failed", `{"status":"failed","error":{"code":"execution_indeterminate","message":"m"}}`)
			p.toClosed()
		}},
		{"timed out", store.StatusFailed, authority.ReasonTimeout, func(p *play) {
			p.toTurn()
			p.apply(authority.TimedOut{})
			p.apply(authority.Cancel{})
			p.answer(prp.CommandTurnInterrupt, "completed", `{}`)
			p.event("turn.interrupted", `{"status":"interrupted"}`)
			want(p.t, "outcome", strings.Contains(string(p.run().Result), `"outcome":"timeout"`), true)
			p.toClosed()
		}},
		{"completed although timed out", store.StatusCompleted, "", func(p *play) {
			p.toTurn()
			p.apply(authority.TimedOut{})
			p.event("turn.completed", `{}`)
			p.answer(prp.CommandTurnInterrupt, "failed", `{}`)
			p.toClosed()
		}},
		{"timed out after a cancel", store.StatusCancelled, "", func(p *play) {
			p.toTurn()
			p.apply(authority.Cancel{})
			p.apply(authority.TimedOut{})
			p.answer(prp.CommandTurnInterrupt, "completed", `{}`)
			p.event("turn.cancelled", `{}`)
			p.toClosed()
		}},
		{"completed although cancelled", store.StatusCompleted, "", func(p *play) {
			p.toTurn()
			p.apply(authority.Cancel{})
			p.event("turn.completed", `{}`)
			p.answer(prp.CommandTurnInterrupt, "failed", `{}`)
			p.toClosed()
		}},
		{"cancel by stop", store.StatusCancelled, "", func(p *play) {
			p.toTurn()
			p.apply(authority.Cancel{})
			p.answer(prp.CommandTurnInterrupt, "completed", `{}`)
			p.wait(authority.StopAfter)
			p.answer(prp.CommandTurnStop, "completed", `{"providerExitConfirmed":true}`)
			p.toClosed()
		}},
		{"cancel unconfirmed", store.StatusCancelled, authority.ReasonCancelUnconfirmed, func(p *play) {
			p.toTurn()
			p.apply(authority.Cancel{})
			p.wait(authority.StopAfter)
			p.wait(authority.GiveUpAfter)
			p.wait(authority.CloseWithin)
			want(p.t, "phase", p.m.Brief().Phase, authority.PhaseClosed)
		}},
		{"stop not confirmed", store.StatusCancelled, authority.ReasonCancelUnconfirmed, func(p *play) {
			p.toTurn()
			p.apply(authority.Cancel{})
			p.answer(prp.CommandTurnInterrupt, "completed", `{}`)
			p.wait(authority.StopAfter)
			p.answer(prp.CommandTurnStop, "completed", `{"providerExitConfirmed":false}`)
			p.wait(authority.GiveUpAfter)
			p.toClosed()
		}},
		{"drained in several steps", store.StatusCompleted, "", func(p *play) {
			p.toTurn()
			p.event("turn.completed", `{}`)
			for range 3 {
				p.answer(prp.CommandRunnerDrain, "completed", `{"retainedEventsDrained":false}`)
			}
			want(p.t, "pending", p.m.Brief().Pending, 0)
			p.wait(time.Second)
			p.toClosed()
		}},
		{"never drained", store.StatusCompleted, "", func(p *play) {
			p.toTurn()
			p.event("turn.completed", `{}`)
			p.wait(authority.CloseWithin)
			want(p.t, "phase", p.m.Brief().Phase, authority.PhaseClosed)
		}},
	}
}

// outcome is what must not depend on crashes.
type outcome struct {
	status, reason, result string
	log                    []string
	commands               []string
}

func (p *play) outcome() outcome {
	run := p.run()
	o := outcome{status: run.Status, reason: run.Reason, result: string(run.Result)}
	ended := 0
	for _, ev := range p.hostLog() {
		o.log = append(o.log, fmt.Sprintf("%s late=%v", ev.Type, ev.Late))
		if ev.Type == authority.EventRunEnded {
			ended++
		}
	}
	want(p.t, "terminal events", ended, 1)
	for _, c := range p.m.Snapshot().Commands {
		o.commands = append(o.commands, c.Type+" "+c.Status)
	}
	return o
}

func TestConductor(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			straight := &play{rig: withRun(t)}
			s.play(straight)
			expected := straight.outcome()
			want(t, "status", expected.status, s.status)
			want(t, "reason", expected.reason, s.reason)
			compare := func(name string, crash func(step int) bool) {
				t.Helper()
				p := &play{rig: withRun(t), crash: crash}
				s.play(p)
				got := p.outcome()
				if !slices.Equal(got.log, expected.log) || !slices.Equal(got.commands, expected.commands) ||
					got.status != expected.status || got.reason != expected.reason || got.result != expected.result {
					t.Fatalf("%s: got\n%+v\nexpected\n%+v", name, got, expected)
				}
			}
			for at := 1; at <= straight.step; at++ {
				compare(fmt.Sprintf("crash after step %d", at), func(step int) bool { return step == at })
			}
			compare("crash after every step", func(int) bool { return true })
		})
	}
}

func TestConductorLog(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.toTurn()
	p.event("usage.reported", `{"cumulative":{"inputTokens":3}}`)
	p.event("turn.completed", `{"status":"completed","exitCode":3,"signal":null}`)
	p.event("item.delta", `{"itemId":"i","text":"late"}`)
	p.toClosed()
	var lines []string
	for _, ev := range p.hostLog() {
		line := ev.Type
		if ev.Origin == store.OriginControlPlane {
			line += string(ev.Body)
		}
		if ev.Late {
			line += " late"
		}
		lines = append(lines, line)
	}
	expected := []string{
		`run.status{"status":"queued"}`, `run.status{"status":"assigned"}`, `run.status{"status":"starting"}`,
		`session.started`, `run.status{"status":"running"}`, `usage.reported`, `turn.completed`,
		`run.ended{"reason":"","result":{"status":"completed","exitCode":3,"signal":null,"outcome":"completed","message":"","usage":{"cumulative":{"inputTokens":3}}},"status":"completed"}`,
		`item.delta late`,
	}
	if !slices.Equal(lines, expected) {
		t.Fatalf("log is\n%s\nexpected\n%s", strings.Join(lines, "\n"), strings.Join(expected, "\n"))
	}
	run := p.run()
	if run.StartedAt.IsZero() || run.EndedAt.IsZero() {
		t.Error("times are not set")
	}
	want(t, "exit code", object(string(run.Result)).Get("exitCode").Kind(), canonjson.Number)
}

// The turn's end and run.ended are one transaction.
func TestTerminalEventIsAtomic(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.toTurn()
	raw := event(2, p.seq+1, "turn.completed", `{}`)
	e, err := prp.ParseEnvelope(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.m.Message(p.now, p.link, e, raw); err != nil {
		t.Fatal(err)
	}
	b := p.m.Take()
	if len(b.Tx.Events) != 2 || b.Tx.Events[1].Type != authority.EventRunEnded || b.Tx.Run == nil || b.Tx.Run.Status != store.StatusCompleted {
		t.Fatalf("transaction holds %d events, run %v", len(b.Tx.Events), b.Tx.Run)
	}
}

func TestFaultEndsTheRun(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.toTurn()
	if err := p.say(p.link, event(2, 1, "session.started", `{"other":1}`)); err == nil {
		t.Fatal("a changed replay was taken")
	}
	p.link = p.join()
	p.answer(prp.CommandTurnStop, "completed", `{"providerExitConfirmed":true}`)
	p.answer(prp.CommandRunnerSuspend, "completed", `{}`)
	o := p.outcome()
	want(t, "status", o.status, store.StatusFailed)
	want(t, "reason", o.reason, authority.ReasonIntegrityFault)
	want(t, "phase", p.m.Brief().Phase, authority.PhaseClosed)
}

func TestEachCommandWaitsForTheResultBefore(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.connect()
	want(t, "sent", p.kinds(), "welcome:run.prepare")
	p.answer(prp.CommandRunPrepare, "completed", `{}`)
	want(t, "sent", p.kinds(), "command:session.open")
	p.answer(prp.CommandSessionOpen, "completed", `{}`)
	want(t, "sent", p.kinds(), "command:turn.start")
	p.answer(prp.CommandTurnStart, "completed", `{"providerTurnId":"pt-1"}`)
	want(t, "sent", p.kinds(), "")
	p.event("turn.completed", `{}`)
	want(t, "sent", p.kinds(), "command:runner.drain ack")
	p.answer(prp.CommandRunnerDrain, "completed", `{"retainedEventsDrained":true}`)
	want(t, "sent", p.kinds(), "command:runner.suspend")
	p.answer(prp.CommandRunnerSuspend, "completed", `{}`)
	want(t, "sent", p.kinds(), "command_result_ack")
}

func TestInterruptNamesTheTurn(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.toTurn()
	p.apply(authority.Cancel{})
	payload := object(string(p.pending().Record)).Get("payload")
	want(t, "turnId", payload.Get("turnId").Str(), "turn-1")
	want(t, "providerTurnId", payload.Get("providerTurnId").Str(), "pt-1")
}

func TestCreateChecks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(n *authority.NewRun)
		code   wire.Code
	}{
		"prompt":   {func(n *authority.NewRun) { n.Prompt = strings.Repeat("x", prp.MaxQueuedCommandBytes) }, wire.CodeCommandTooLarge},
		"prepare":  {func(n *authority.NewRun) { n.Prepare = json.RawMessage(`[]`) }, wire.CodeInputInvalid},
		"lease":    {func(n *authority.NewRun) { n.LeaseTTL = time.Second }, wire.CodeInputInvalid},
		"identity": {func(n *authority.NewRun) { n.Identity.TurnID = "a b" }, wire.CodeInputInvalid},
		"big prepare": {func(n *authority.NewRun) {
			n.Prepare = json.RawMessage(`{"x":"` + strings.Repeat("x", prp.MaxQueuedCommandBytes) + `"}`)
		}, wire.CodeCommandTooLarge},
	} {
		n := newRun()
		c.change(&n)
		if _, err := authority.Create(time.UnixMilli(1), n); wire.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestApplyWithoutARun(t *testing.T) {
	t.Parallel()
	r := plain(t)
	want(t, "cancel", wire.CodeOf(r.m.Apply(r.now, authority.Cancel{})), wire.CodeNotFound)
	if err := r.m.Apply(r.now, authority.Tick{}); err != nil {
		t.Errorf("tick: %v", err)
	}
}

func TestLargeMembersAreNotRepeated(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.toTurn()
	p.event("turn.failed", `{"big":"`+strings.Repeat("x", 9<<10)+`","error":{"code":"e","message":"`+strings.Repeat("y", 3000)+`"}}`)
	result := object(string(p.run().Result))
	if result.Has("big") {
		t.Error("a large member is in the result")
	}
	want(t, "message", len(result.Get("message").Str()), 1200)
}

func TestReturningRunnerIsSuspended(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.toTurn()
	p.apply(authority.RunnerLost{})
	p.take()
	p.connect()
	want(t, "sent", p.kinds(), "welcome:turn.stop")
	p.answer(prp.CommandTurnStop, "completed", `{}`)
	p.answer(prp.CommandRunnerDrain, "completed", `{}`)
	want(t, "sent", p.kinds(), "command:runner.drain command:runner.suspend")
	p.answer(prp.CommandRunnerSuspend, "completed", `{}`)
	p.connect()
	want(t, "sent", p.kinds(), "command_result_ack welcome")
	o := p.outcome()
	want(t, "status", o.status, store.StatusOrphaned)
}

// TestConductorModel plays random inputs. Whatever happens, a run ends at most
// once and keeps its end, and after a cancel it ends by the clock alone.
func TestConductorModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := &play{rig: withRun(t)}
		var end string // status and reason once there are any
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				ended := 0
				for _, ev := range p.hostLog() {
					if ev.Late == (ended == 0) {
						t.Fatalf("event %d is late=%v after %d ends", ev.Seq, ev.Late, ended)
					}
					if ev.Type == authority.EventRunEnded {
						ended++
					}
				}
				run := p.run()
				if terminal := store.Terminal(run.Status); terminal != (ended == 1) || ended > 1 {
					t.Fatalf("status %s with %d terminal events", run.Status, ended)
				}
				now := run.Status + " " + run.Reason
				if ended == 1 && end == "" {
					end = now
				}
				if ended == 1 && now != end {
					t.Fatalf("the end changed from %s to %s", end, now)
				}
				if phase := p.m.Brief().Phase; phase == authority.PhaseClosed && (ended == 0 || !p.m.NextDeadline().IsZero()) {
					t.Fatalf("closed with %d ends, deadline %v", ended, p.m.NextDeadline())
				}
			},
			"connect": func(*rapid.T) { p.connect() },
			"crash":   func(*rapid.T) { p.load(); p.link = nil },
			"event": func(t *rapid.T) {
				if p.link == nil {
					t.Skip("not joined")
				}
				p.event(rapid.SampledFrom([]string{
					"turn.accepted", "turn.started", "turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled",
					"session.started", "session.failed", "session.closed", "usage.reported", "harness.ready",
				}).Draw(t, "type"), `{"providerTurnId":"pt"}`)
			},
			"answer": func(t *rapid.T) {
				c := p.pending()
				if p.link == nil || c == nil {
					t.Skip("nothing to answer")
				}
				p.answer(c.Type, rapid.SampledFrom([]string{"completed", "completed", "completed", "failed", "rejected", "indeterminate"}).Draw(t, "status"),
					rapid.SampledFrom([]string{
						`{"providerTurnId":"pt","retainedEventsDrained":true,"providerExitConfirmed":true}`, `{"providerTurnId":"pt"}`,
						`{}`, `null`, `{"status":"failed"}`, `{"code":"execution_indeterminate"}`,
					}).Draw(t, "inner"))
			},
			"input": func(t *rapid.T) {
				inputs := []authority.Input{authority.Assigned{}, authority.Cancel{}, authority.Tick{}, authority.LaunchFailed{}, authority.RunnerLost{}, authority.LeaseEnded{}}
				p.apply(rapid.SampledFrom(inputs).Draw(t, "input"))
			},
			"time": func(t *rapid.T) {
				p.now = p.now.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "seconds")) * time.Second)
				p.apply(authority.Tick{})
			},
		})
		// Nobody answers any more: the clock alone ends it.
		p.apply(authority.Cancel{})
		for range 10 {
			next := p.m.NextDeadline()
			if next.IsZero() {
				break
			}
			if next.After(p.now) {
				p.now = next
			}
			p.apply(authority.Tick{})
		}
		want(t, "phase", p.m.Brief().Phase, authority.PhaseClosed)
	})
}

func TestDrainsAreBounded(t *testing.T) {
	t.Parallel()
	p := &play{rig: withRun(t)}
	p.toTurn()
	p.event("turn.completed", `{}`)
	drains := 0
	for ; p.pending() == nil || p.pending().Type == prp.CommandRunnerDrain; drains++ {
		if drains > 100 {
			t.Fatal("no end of it")
		}
		if p.pending() == nil {
			p.wait(time.Second)
		}
		p.answer(prp.CommandRunnerDrain, "completed", `{"retainedEventsDrained":false}`)
	}
	want(t, "drains", drains, 64)
	p.answer(prp.CommandRunnerSuspend, "completed", `{}`)
	want(t, "phase", p.m.Brief().Phase, authority.PhaseClosed)
}

// The largest prompt that Create takes can really be sent.
func TestLargestPrompt(t *testing.T) {
	t.Parallel()
	n := newRun()
	fits := func(size int) bool {
		n.Prompt = strings.Repeat("x", size)
		_, err := authority.Create(time.UnixMilli(1_800_000_000_000), n)
		return err == nil
	}
	largest := sort.Search(prp.MaxQueuedCommandBytes, func(size int) bool { return !fits(size) }) - 1
	n.Prompt = strings.Repeat("x", largest)
	tx, err := authority.Create(time.UnixMilli(1_800_000_000_000), n)
	if err != nil {
		t.Fatal(err)
	}
	p := &play{rig: newRig(t, true, tx)}
	p.toTurn()
	if text := object(string(p.m.Snapshot().Commands[2].Record)).Get("payload", "text").Str(); text != n.Prompt {
		t.Errorf("a prompt of %d bytes became %d", len(n.Prompt), len(text))
	}
}
