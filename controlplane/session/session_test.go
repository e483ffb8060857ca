package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bowline/controlplane/authority"
	"bowline/controlplane/session"
	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

func TestRunOverAConnection(t *testing.T) {
	t.Parallel()
	r := withRun(t, nil)
	defer r.close()
	changed := r.s.Changed()
	c := r.join()
	await(t, changed, "a change at the first connection")
	pending := c.welcome.Get("pendingCommands").At(0)
	want(t, "welcome delivers", pending.Get("type").Str(), prp.CommandRunPrepare)
	c.send(result("command_prp_00000001", 1, prp.CommandRunPrepare, `{}`))
	want(t, "next", c.expect(prp.KindCommand).Payload.Get("type").Str(), prp.CommandSessionOpen)
	c.send(result("command_prp_00000002", 2, prp.CommandSessionOpen, `{}`))
	want(t, "next", c.expect(prp.KindCommand).Payload.Get("type").Str(), prp.CommandTurnStart)
	c.send(result("command_prp_00000003", 3, prp.CommandTurnStart, `{"providerTurnId":"pt"}`))
	c.send(event(1, "turn.completed", `{}`))
	want(t, "next", c.expect(prp.KindCommand).Payload.Get("type").Str(), prp.CommandRunnerDrain)
	c.ack(1)
	c.send(result("command_prp_00000004", 4, prp.CommandRunnerDrain, `{"retainedEventsDrained":true}`))
	want(t, "next", c.expect(prp.KindCommand).Payload.Get("type").Str(), prp.CommandRunnerSuspend)
	c.send(result("command_prp_00000005", 5, prp.CommandRunnerSuspend, `{}`))
	c.expect(prp.KindCommandResultAck)
	await(t, r.s.Done(), "the end of the close sequence")
	want(t, "status", r.s.Brief().Run.Status, store.StatusCompleted)
}

// Nothing is acknowledged before the commit has returned.
func TestAckWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := plain(t, nil)
		c := r.join()
		release := make(chan struct{})
		r.st.Before(func(_ int, tx *store.Tx) error {
			if len(tx.Events) > 0 {
				<-release
			}
			return nil
		})
		c.send(ready(1))
		synctest.Wait() // everybody waits for the commit now
		want(t, "frames sent before the commit returned", c.conn.waiting(), 0)
		close(release)
		c.ack(1)
		r.close()
	})
}

func TestAFailedCommitKeepsTheFault(t *testing.T) {
	t.Parallel()
	r := plain(t, func(cfg *session.Config) { cfg.Options = authority.ReferenceOptions(cfg.Options.NewID) })
	defer r.close()
	c := r.join()
	c.send(ready(1))
	c.ack(1)
	c.send(event(1, "harness.ready", `{"changed":true}`))
	c.closed("a fault")
	fault := r.s.Snapshot().Fault
	r.st.Before(func(int, *store.Tx) error { return wire.Errorf(wire.CodeDiskFull, "no space") })
	if _, err := r.s.IssueTicket(t.Context(), time.Minute); wire.CodeOf(err) != wire.CodeDiskFull {
		t.Fatalf("ticket: %v", err)
	}
	r.st.Before(nil)
	if fault == nil || r.s.Snapshot().Fault != fault {
		t.Errorf("fault is %v, was %v", r.s.Snapshot().Fault, fault)
	}
}

func TestFramesThatWaitShareACommit(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	c := r.join()
	entered, release := make(chan struct{}), make(chan struct{})
	var commits atomic.Int64
	r.st.Before(func(_ int, tx *store.Tx) error {
		if len(tx.Events) > 0 && commits.Add(1) == 1 {
			close(entered)
			<-release
		}
		return nil
	})
	const n = 100
	c.send(ready(1))
	await(t, entered, "the first commit")
	for seq := int64(2); seq <= n; seq++ {
		c.send(ready(seq))
	}
	close(release)
	for seq := int64(1); seq <= n; seq++ {
		c.ack(seq) // each event has its own
	}
	if got := commits.Load(); got > n/4 {
		t.Errorf("%d commits for %d events that waited together", got, n)
	}
	want(t, "acked", r.s.Brief().Session.AckedSourceSeq, n)
}

func TestFailedCommitRunsNothingAhead(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	c := r.join()
	var failed atomic.Bool
	r.st.Before(func(_ int, tx *store.Tx) error {
		if len(tx.Events) > 0 && failed.CompareAndSwap(false, true) {
			return wire.Errorf(wire.CodeDiskFull, "no space")
		}
		return nil
	})
	c.send(ready(1))
	c.closed("a failed commit")
	want(t, "acked", r.s.Snapshot().Session.AckedSourceSeq, 0)
	c = r.join()
	acked, _ := c.welcome.Get("ackedSourceSeq").SafeInt()
	want(t, "welcome acknowledges", acked, 0)
	c.send(ready(1))
	c.ack(1)
	want(t, "log", len(r.events()), 1)
}

func (r *rig) events() []store.EventRow {
	r.t.Helper()
	rows, err := r.st.Events(context.Background(), identity().NormalizedSessionID, 0, 1<<20, 1<<30)
	if err != nil {
		r.t.Fatal(err)
	}
	return rows
}

// The commit was applied although it reported failure: the replay is a
// duplicate then, not a second event.
func TestUnknownOutcomeThatWasApplied(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	c := r.join()
	var failed atomic.Bool
	r.st.After(func(_ int, tx *store.Tx) error {
		if len(tx.Events) > 0 && failed.CompareAndSwap(false, true) {
			return wire.Errorf(wire.CodeInternal, "unknown")
		}
		return nil
	})
	c.send(ready(1))
	c.closed("a failed commit")
	c = r.join()
	acked, _ := c.welcome.Get("ackedSourceSeq").SafeInt()
	want(t, "welcome acknowledges", acked, 1)
	c.send(ready(1))
	c.ack(1)
	want(t, "log", len(r.events()), 1)
}

func TestLatchedStoreEndsTheSession(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	c := r.join()
	idle := r.dial()
	r.st.Latch(wire.Errorf(wire.CodeStoreIndeterminate, "latched"))
	c.send(ready(1))
	c.closed("a latched store")
	idle.closed("a latched store")
	await(t, r.s.Done(), "the end")
	_, err := r.s.IssueTicket(t.Context(), time.Minute)
	want(t, "code", wire.CodeOf(err), wire.CodeStoreIndeterminate)
	if r.s.Err() == nil {
		t.Error("Err is nil")
	}
}

func TestSecondOwnerFences(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	c := r.join()
	first := r.s
	r.open()
	c.send(ready(1))
	c.closed("a fenced session")
	_, err := first.IssueTicket(t.Context(), time.Minute)
	want(t, "code", wire.CodeOf(err), wire.CodeConflict)
	second := r.s
	r.s = first
	r.close()
	r.s = second
	defer r.close()
	c = r.join()
	c.send(ready(1))
	c.ack(1)
}

func TestReconnectByLease(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	c := r.join()
	c.send(ready(1))
	c.ack(1)
	expires, _ := c.welcome.Get("connectionLeaseExpiresAtUnixMs").SafeInt()
	lease := &prp.HeldLease{ID: c.welcome.Get("connectionLeaseId").Str(), ExpiresAtUnixMs: expires}
	second := r.joinWith(c.welcome.Get("connectionLeaseToken").Str(), lease)
	c.closed("another connection")
	want(t, "connections", r.s.Snapshot().Connections, 1)
	second.send(ready(1))
	second.ack(1)
	second.send(ready(2))
	second.ack(2)
	if err := second.conn.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFramesBehindACloseAreHandled(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func(c *runner){
		"unknown kind": func(c *runner) { c.send(prp.AppendRunnerMessage(nil, 2, "what", identity(), []byte(`{}`))) },
		"wrong tag": func(c *runner) {
			c.raw([]byte(`{"schema":"` + prp.FrameSchema + `","counter":0,"ciphertext":"` + strings.Repeat("00", 40) + `"}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := plain(t, nil)
			defer r.close()
			c := r.join()
			bad(c)
			c.send(ready(1))
			c.closed("a bad frame")
			r.wg.Wait()
			want(t, "acked", r.s.Snapshot().Session.AckedSourceSeq, 1)
		})
	}
}

func TestResponseBehindASecondHelloConsumesTheTicket(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	ticket := r.ticket()
	c := r.dial()
	proof := c.hello(ticket, nil)
	c.raw([]byte(`{"protocol":"paperclip.runner","version":1,"kind":"auth_hello","payload":{}}`))
	c.raw(proof.response)
	c.closed("a second hello")
	r.wg.Wait()
	want(t, "connection count", r.s.Snapshot().Session.ConnectionCount, 1)
	want(t, "connections", r.s.Snapshot().Connections, 0)
	c = r.dial()
	c.raw(prp.EncodeHello(prp.Hello{
		CredentialID: "sha256:gone", ClientNonce: "n", ProtocolMin: 1, ProtocolMax: 2,
		Identity: identity(), RunnerVersion: runnerVersion, RunnerDigest: runnerDigest,
	}))
	c.closed("an unknown ticket")
}

func TestMalformedFramesArePersisted(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	for i, text := range []string{`{}`, `{"schema":"` + prp.FrameSchema + `","counter":1,"ciphertext":"00"}`, `[]`} {
		c := r.join()
		c.raw([]byte(text))
		c.closed(text)
		want(t, "malformed", r.s.Snapshot().Session.MalformedFrames, int64(i+1))
	}
	c := r.join()
	c.send([]byte(`{"a":`))
	c.closed("plaintext that is not JSON")
	want(t, "malformed", r.s.Snapshot().Session.MalformedFrames, 4)
	c = r.join()
	c.raw([]byte(`{`)) // not JSON at all: the carrier's affair
	c.closed("no JSON")
	r.close()
	r.open()
	want(t, "after a reload", r.s.Snapshot().Session.MalformedFrames, 4)
}

func TestHandshakeTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := plain(t, nil)
		c := r.dial()
		began := time.Now()
		c.closed("no hello")
		want(t, "after", time.Since(began).Round(time.Second), session.HandshakeTimeout)
		c = r.dial()
		c.hello(r.ticket(), nil)
		c.closed("no response")
		c = r.join()
		time.Sleep(10 * session.HandshakeTimeout)
		c.send(ready(1))
		c.ack(1)
		r.close()
	})
}

func TestCommitHook(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	r := plain(t, func(cfg *session.Config) {
		cfg.OnCommitted = func(_ context.Context, ev *prp.Event) error {
			if calls.Add(1) == 1 {
				return fmt.Errorf("looks like %w", prp.NewIntegrityFault(prp.ReasonSourceEventReplayConflict))
			}
			return nil
		}
	})
	defer r.close()
	c := r.join()
	c.send(ready(1))
	c.closed("a hook that fails")
	if f := r.s.Snapshot().Fault; f != nil {
		t.Error("a wrapped fault was promoted")
	}
	c = r.join()
	c.send(ready(1))
	c.ack(1)
	c.send(ready(1)) // every redelivery is offered again
	c.ack(1)
	want(t, "calls", calls.Load(), 3)
	want(t, "log", len(r.events()), 1)
}

func TestCommitHookFault(t *testing.T) {
	t.Parallel()
	fault := prp.NewIntegrityFault(prp.ReasonSourceEventReplayConflict)
	told := make(chan *prp.IntegrityFault, 2)
	r := plain(t, func(cfg *session.Config) {
		cfg.OnCommitted = func(context.Context, *prp.Event) error { return fault }
		cfg.OnFault = func(f *prp.IntegrityFault) { told <- f }
	})
	defer r.close()
	c := r.join()
	c.send(ready(1))
	c.closed("a fault")
	if r.s.Snapshot().Fault != fault || <-told != fault {
		t.Error("the fault is not the same object")
	}
	c = r.join()
	c.send(ready(1))
	c.closed("a latched fault")
	want(t, "told", r.s.Snapshot().Faults, 1)
}

// The runner reconnects and redelivers while the hook of the first delivery is
// still running: the event is appended once (prp.md 15.2 no. 18).
func TestReconnectDuringTheHook(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	r := plain(t, func(cfg *session.Config) {
		cfg.OnCommitted = func(context.Context, *prp.Event) error {
			if calls.Add(1) == 1 {
				close(entered)
				<-release
			}
			return nil
		}
	})
	defer r.close()
	first := r.join()
	first.send(ready(1))
	await(t, entered, "the hook")
	second := r.join()
	second.send(ready(1))
	second.ack(1)
	close(release)
	first.closed("another connection")
	r.mustSettle()
	want(t, "log", len(r.events()), 1)
	want(t, "acked", r.s.Snapshot().Session.AckedSourceSeq, 1)
	second.send(ready(2))
	second.ack(2)
}

// mustSettle makes sure that everything handed in so far was handled.
func (r *rig) mustSettle() { r.s.Snapshot() }

func TestFaultDuringTheHook(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	r := plain(t, func(cfg *session.Config) {
		cfg.OnCommitted = func(context.Context, *prp.Event) error {
			if calls.Add(1) == 2 {
				close(entered)
				<-release
			}
			return nil
		}
	})
	defer r.close()
	first := r.join()
	first.send(ready(1))
	first.ack(1)
	first.send(ready(2))
	await(t, entered, "the hook")
	second := r.join()
	second.send(event(1, "harness.ready", `{"changed":true}`))
	second.closed("a fault")
	close(release)
	first.closed("another connection")
	want(t, "acked", r.s.Snapshot().Session.AckedSourceSeq, 1)
}

func TestTools(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	r := plain(t, func(cfg *session.Config) {
		cfg.Tools = func(ctx context.Context, call authority.ToolCall) (canonjson.Value, error) {
			switch call.CallID {
			case "throw":
				return canonjson.Value{}, errors.New("no")
			case "hold":
				close(hold)
				<-ctx.Done()
				return canonjson.Value{}, ctx.Err()
			}
			return object(`{"ok":true}`), nil
		}
	})
	c := r.join()
	c.send(toolInput(1, "ok", `{}`))
	c.ack(1)
	cmd := c.expect(prp.KindCommand).Payload
	want(t, "id", cmd.Get("commandId").Str(), prp.ToolCommandID(identity().RunID, "ok"))
	c.send(result(cmd.Get("commandId").Str(), 1, prp.CommandSemanticToolResult, `{"status":"delivered","callId":"ok"}`))
	c.send(toolInput(2, "throw", `{}`))
	c.ack(2)
	cmd = c.expect(prp.KindCommand).Payload
	want(t, "code", cmd.Get("payload", "result", "code").Str(), "semantic_tool_bridge_failed")
	if !r.s.Snapshot().Settled {
		c.send(result(cmd.Get("commandId").Str(), 2, prp.CommandSemanticToolResult, `{}`))
	}
	c.send(toolInput(3, "hold", `{}`))
	c.ack(3)
	await(t, hold, "the call")
	s := r.s.Snapshot()
	want(t, "tools", s.Tools, 3)
	want(t, "settled", s.Settled, false)
	r.close()
	// Given up, not answered: nobody knows what the tool did.
	r.open()
	defer r.close()
	s = r.s.Snapshot()
	want(t, "commands", len(s.Commands), 2)
	want(t, "settled after a restart", s.Settled, false)
}

func TestToolResultThatCannotBeKept(t *testing.T) {
	t.Parallel()
	r := plain(t, func(cfg *session.Config) {
		cfg.Tools = func(context.Context, authority.ToolCall) (canonjson.Value, error) {
			return canonjson.StringValue(strings.Repeat("x", prp.MaxQueuedCommandBytes)), nil
		}
	})
	defer r.close()
	idle := r.dial()
	c := r.join()
	c.send(toolInput(1, "big", `{}`))
	c.ack(1)
	c.closed("a lost tool result")
	idle.closed("a lost tool result")
	want(t, "settled", r.s.Snapshot().Settled, false)
	r.join()
}

func TestDeadlinesRunByThemselves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := withRun(t, nil)
		c := r.join()
		c.send(result("command_prp_00000001", 1, prp.CommandRunPrepare, `{}`))
		c.expect(prp.KindCommand)
		c.send(result("command_prp_00000002", 2, prp.CommandSessionOpen, `{}`))
		c.expect(prp.KindCommand)
		c.send(result("command_prp_00000003", 3, prp.CommandTurnStart, `{"providerTurnId":"pt"}`))
		synctest.Wait()
		if err := r.s.Apply(t.Context(), authority.Cancel{}); err != nil {
			t.Fatal(err)
		}
		want(t, "next", c.expect(prp.KindCommand).Payload.Get("type").Str(), prp.CommandTurnInterrupt)
		// The runner never answers.
		began := time.Now()
		<-r.s.Done()
		want(t, "took", time.Since(began), authority.StopAfter+authority.GiveUpAfter+authority.CloseWithin)
		run := r.s.Brief().Run
		want(t, "status", run.Status, store.StatusCancelled)
		want(t, "reason", run.Reason, authority.ReasonCancelUnconfirmed)
		r.close()
	})
}

func TestSlowReaderIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := plain(t, nil)
		server, client := newPipe()
		server.limit = 1
		r.wg.Go(func() { _ = r.s.Serve(context.Background(), server) })
		c := &runner{t: t, conn: client}
		c.sendResponse(c.hello(r.ticket(), nil))
		c.readWelcome(nil)
		big := object(`{"x":"` + strings.Repeat("a", 400<<10) + `"}`)
		// Queued with delivery again and again, and never read.
		for range 40 {
			if _, err := r.s.Queue(t.Context(), authority.Command{ID: "same", Type: prp.CommandTurnStop, Payload: big, Deliver: true}); err != nil {
				t.Fatal(err)
			}
		}
		r.wg.Wait()
		want(t, "connections", r.s.Snapshot().Connections, 0)
		r.close()
	})
}

func TestQueueErrorsAreTyped(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	_, err := r.s.Queue(t.Context(), authority.Command{Type: "x", Payload: object(`{}`)})
	want(t, "code", wire.CodeOf(err), wire.CodeInputInvalid)
	_, err = r.s.IssueTicket(t.Context(), time.Hour)
	want(t, "code", wire.CodeOf(err), wire.CodeTicketInvalid)
	r.close()
	_, err = r.s.Queue(t.Context(), authority.Command{Type: prp.CommandRunnerDrain, Payload: object(`{}`)})
	want(t, "code", wire.CodeOf(err), wire.CodeUnavailable)
	server, client := newPipe()
	if err := r.s.Serve(t.Context(), server); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("serve: %v", err)
	}
	(&runner{t: t, conn: client}).closed("a closed session")
}

func TestServeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	ctx, cancel := context.WithCancel(context.Background())
	server, client := newPipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.s.Serve(ctx, server); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	c := &runner{t: t, conn: client}
	c.hello(r.ticket(), nil)
	cancel()
	await(t, done, "the end of Serve")
}

func TestOpenUnknownSession(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	_, err := session.Open(t.Context(), r.cfg, "nobody")
	want(t, "code", wire.CodeOf(err), wire.CodeNotFound)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r := plain(t, func(cfg *session.Config) { cfg.Metrics = session.NewMetrics(reg) })
	defer r.close()
	c := r.join()
	c.send(ready(1))
	c.ack(1)
	c.send(ready(1))
	c.ack(1)
	if _, err := r.s.Queue(t.Context(), authority.Command{Type: prp.CommandSessionSnapshot, Payload: object(`{}`), Deliver: true}); err != nil {
		t.Fatal(err)
	}
	families := func() map[string]float64 {
		t.Helper()
		got, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, f := range got {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetName() + "=" + l.GetValue()
				}
				switch {
				case m.GetCounter() != nil:
					values[name] = m.GetCounter().GetValue()
				case m.GetGauge() != nil:
					values[name] = m.GetGauge().GetValue()
				default:
					values[name] = float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
		return values
	}
	want(t, "depth", families()["bowline_log_depth log=commands"], 1)
	c.expect(prp.KindCommand)
	c.send(result("command_prp_00000001", 1, prp.CommandSessionSnapshot, `{}`))
	c.raw([]byte(`{}`))
	c.closed("a bad frame")
	r.join()
	got := families()
	for name, value := range map[string]float64{
		"bowline_events_committed_total":                                1,
		"bowline_acks_total":                                            2,
		"bowline_duplicates_total what=event":                           1,
		"bowline_commands_total kind=session.snapshot status=completed": 1,
		"bowline_command_duration_seconds kind=session.snapshot":        1,
		"bowline_malformed_frames_total":                                1,
		"bowline_handshakes_total result=joined":                        2,
		"bowline_reconnects_total":                                      1,
		"bowline_tickets_total":                                         2,
		"bowline_log_depth log=commands":                                0,
		"bowline_runner_connections":                                    1,
	} {
		if got[name] != value {
			t.Errorf("%s is %v, must be %v", name, got[name], value)
		}
	}
}

func TestAuditNamesNoSecret(t *testing.T) {
	t.Parallel()
	r := plain(t, nil)
	defer r.close()
	ticket := r.ticket()
	c := r.joinWith(ticket, nil)
	token := c.welcome.Get("connectionLeaseToken").Str()
	var actions []string
	for _, row := range r.st.AuditRows() {
		actions = append(actions, row.Action)
		if strings.Contains(string(row.Detail), ticket) || strings.Contains(string(row.Detail), token) {
			t.Errorf("a secret is in the audit: %s", row.Action)
		}
	}
	if !slices.Contains(actions, "runner.join") {
		t.Errorf("audit is %v", actions)
	}
}

// The log of a run holds the control plane's events between the runner's, and
// more than a page of them.
func TestLoadInPages(t *testing.T) {
	t.Parallel()
	r := withRun(t, nil)
	c := r.join()
	const n = authority.WindowSize + 700
	go func() {
		// Reads, or the session would cut a runner off that does not.
		for {
			if _, err := c.conn.ReadMessage(context.Background()); err != nil {
				return
			}
		}
	}()
	for seq := int64(1); seq <= n; seq++ {
		c.send(ready(seq))
	}
	r.until(n)
	r.close()
	r.open()
	defer r.close()
	events := r.s.Snapshot().Events
	want(t, "retained", len(events), authority.WindowSize)
	want(t, "oldest", events[0].SourceSeq, 701)
	c = r.join()
	c.send(ready(701))
	for c.next("ack").Kind != prp.KindAck { // the pending command may come first
	}
}

// until waits until seq is acknowledged.
func (r *rig) until(seq int64) {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		changed := r.s.Changed()
		if r.s.Brief().Session.AckedSourceSeq >= seq {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			r.t.Fatalf("event %d was not committed", seq)
		}
	}
}
