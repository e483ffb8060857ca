package peer

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// exchange plays one connection between the two peers of this package and
// returns what each side thinks of it. The changes make one of them a mutant.
type exchange struct {
	hello     func(env M)
	challenge func(p M)
	after     func(env M)
	response  func(env M)
	welcome   func(env M)
	authority func(l *Link) error // after the welcome
	runner    func(r *Runner) error
}

func (x exchange) run(t *testing.T) (runnerErr, authorityErr error) {
	t.Helper()
	a, err := Listen(NewIdentity())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := RunnerConfig{URL: a.URL(), Token: a.Ticket, Identity: a.Identity, Version: a.Version, Digest: a.Digest, Min: 1, Max: 2}
	done := make(chan error, 1)
	go func() { done <- x.runnerSide(cfg) }()
	authorityErr = x.authoritySide(a)
	return <-done, authorityErr
}

func (x exchange) runnerSide(cfg RunnerConfig) error {
	r, err := Dial(cfg)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return r.SendHello(x.hello) }, r.ReadChallenge,
		func() error { return r.SendResponse(x.response) }, r.ReadWelcome,
		func() error {
			if x.runner == nil {
				return nil
			}
			return x.runner(r)
		},
	} {
		if err = step(); err != nil {
			break
		}
	}
	return errors.Join(err, r.Close())
}

func (x exchange) authoritySide(a *Authority) error {
	l, err := a.Accept(IOTimeout)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		l.CheckRequest, l.Switch, l.ReadHello,
		func() error { return l.SendChallenge(x.challenge, x.after) }, l.ReadResponse,
		func() error { return l.SendWelcome(x.welcome) },
		func() error {
			if x.authority == nil {
				return nil
			}
			return x.authority(l)
		},
	} {
		if err = step(); err != nil {
			break
		}
	}
	return errors.Join(err, l.Close())
}

func talk() exchange {
	command := M{
		"schema": "paperclip.prp.command.v1", "commandId": "c-1", "controllerSeq": 1, "type": "turn.start",
		"issuedAt": "2026-01-02T03:04:05.006Z", "payload": M{"text": "x"},
	}
	return exchange{
		authority: func(l *Link) error {
			if err := l.SendCommand(command, 1); err != nil {
				return err
			}
			for _, kind := range []string{"event", "command_result", "lease_renew"} {
				m, err := l.Next(IOTimeout)
				if err != nil {
					return err
				}
				if m["kind"] != kind {
					return violationf("got %v instead of %s", m["kind"], kind)
				}
			}
			return l.Ack(1)
		},
		runner: func(r *Runner) error {
			m, err := r.Next(IOTimeout)
			if err != nil {
				return err
			}
			c := Obj(m, "payload")
			err = errors.Join(
				r.Send(r.EventEnvelope(r.NewEvent(1, "turn.started", M{}))),
				r.Send(r.ResultEnvelope(c, "completed", M{})),
				r.Send(r.RenewEnvelope(r.LeaseExpiry)),
			)
			if err != nil {
				return err
			}
			m, err = r.Next(IOTimeout)
			if err != nil {
				return err
			}
			if m["kind"] != "ack" || Int(m, "payload", "ackedSourceSeq") != 1 {
				return violationf("ack is %s", Write(m))
			}
			return nil
		},
	}
}

func TestSelfInterop(t *testing.T) {
	t.Parallel()
	r, a := talk().run(t)
	if r != nil || a != nil {
		t.Fatalf("runner: %v, authority: %v", r, a)
	}
}

func TestSelfMutants(t *testing.T) {
	t.Parallel()
	payload := func(n string, v any) func(M) { return func(env M) { Obj(env, "payload")[n] = v } }
	// Each mutant must be noticed by the other side.
	mutants := map[string]struct {
		byRunner bool
		change   func(x *exchange)
	}{
		"hello with an extra member":       {false, func(x *exchange) { x.hello = payload("more", 1) }},
		"hello with another identity":      {false, func(x *exchange) { x.hello = payload("runId", "other") }},
		"hello with a short nonce":         {false, func(x *exchange) { x.hello = payload("clientNonce", "x") }},
		"challenge with an extra member":   {true, func(x *exchange) { x.challenge = func(p M) { p["more"] = 1 } }},
		"challenge without a lease member": {true, func(x *exchange) { x.challenge = func(p M) { delete(p, "credentialLeaseId") } }},
		"challenge with another identity":  {true, func(x *exchange) { x.challenge = func(p M) { p["itemId"] = "other" } }},
		"challenge changed after signing":  {true, func(x *exchange) { x.after = payload("serverNonce", NewUUID()) }},
		"challenge with a foreign version": {true, func(x *exchange) { x.after = func(env M) { env["version"] = 1 } }},
		"response with a wrong proof":      {false, func(x *exchange) { x.response = payload("clientProof", "00") }},
		"welcome without a token":          {true, func(x *exchange) { x.welcome = func(env M) { delete(Obj(env, "payload"), "connectionLeaseToken") } }},
		"welcome with another frame limit": {true, func(x *exchange) { x.welcome = payload("maxFrameBytes", 4<<20) }},
		"welcome with an extra member":     {true, func(x *exchange) { x.welcome = func(env M) { env["more"] = 1 } }},
		"welcome with a foreign lease id":  {true, func(x *exchange) { x.welcome = payload("connectionLeaseId", "x") }},
		"authority skips a counter":        {true, func(x *exchange) { x.authority = func(l *Link) error { l.SendCount++; return l.Ack(1) } }},
		"authority uses the runner's key": {true, func(x *exchange) {
			x.authority = func(l *Link) error {
				return l.WriteText(l.Session.SealFrame(ClientToCore(), l.SendCount, Write(l.Control("ack", "ack_1", M{"ackedSourceSeq": 1}))))
			}
		}},
		"authority sends a close frame": {true, func(x *exchange) {
			x.authority = func(l *Link) error { return l.WriteFrames(Frame{Fin: true, Opcode: OpClose}) }
		}},
		"authority fragments": {true, func(x *exchange) {
			x.authority = func(l *Link) error { return l.WriteFrames(Frame{Opcode: OpText, Payload: []byte("{}")}) }
		}},
		"authority sends plaintext": {true, func(x *exchange) {
			x.authority = func(l *Link) error { return l.WriteText(Write(l.Control("ack", "ack_1", M{"ackedSourceSeq": 1}))) }
		}},
		"ack with a wrong envelope id": {true, func(x *exchange) {
			x.authority = func(l *Link) error { return l.Send(l.Control("ack", "ack_2", M{"ackedSourceSeq": 1})) }
		}},
		"runner skips a counter": {false, func(x *exchange) {
			x.runner = func(r *Runner) error {
				r.SendCount++
				return r.Send(r.EventEnvelope(r.NewEvent(1, "turn.started", M{})))
			}
		}},
		"runner does not mask": {false, func(x *exchange) {
			x.runner = func(r *Runner) error { return r.WriteFrames(Text([]byte("{}"), false)) }
		}},
		"runner sends a foreign event": {false, func(x *exchange) {
			x.runner = func(r *Runner) error {
				ev := r.NewEvent(1, "turn.started", M{})
				ev["turnId"] = "other"
				return r.Send(r.EventEnvelope(ev))
			}
		}},
		"runner binds an event to a connection": {false, func(x *exchange) {
			x.runner = func(r *Runner) error { return r.Send(r.BoundEnvelope("event", r.NewEvent(1, "turn.started", M{}))) }
		}},
		"runner sends an unknown status": {false, func(x *exchange) {
			x.runner = func(r *Runner) error { return r.Send(r.ResultEnvelope(M{"commandId": "c"}, "indeterminate", nil)) }
		}},
	}
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := talk()
			m.change(&x)
			r, a := x.run(t)
			err := a
			if m.byRunner {
				err = r
			}
			if err == nil || errors.Is(err, ErrClosed) || errors.Is(err, ErrTimeout) {
				t.Fatalf("not noticed: runner %v, authority %v", r, a)
			}
		})
	}
}

func TestFrameForms(t *testing.T) {
	t.Parallel()
	a, err := Listen(NewIdentity())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	sizes := []int{0, 1, 125, 126, 65535, 65536, MaxFrame}
	done := make(chan error, 1)
	go func() {
		s, resp, err := DialRaw(a.URL(), Upgrade{})
		if err == nil {
			err = resp.CheckSwitch()
		}
		for _, n := range sizes {
			if err == nil {
				err = s.WriteText(make([]byte, n))
			}
		}
		if err == nil {
			err = s.ExpectClose(IOTimeout, nil)
		}
		if s != nil {
			err = errors.Join(err, s.Close())
		}
		done <- err
	}()
	l, err := a.Accept(IOTimeout)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Switch(); err != nil {
		t.Fatal(err)
	}
	for _, n := range sizes {
		text, err := l.ReadText(IOTimeout)
		if err != nil || len(text) != n {
			t.Fatalf("frame of %d: %d bytes, %v", n, len(text), err)
		}
	}
	if err := l.ExpectSilence(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(fmt.Errorf("client: %w", err))
	}
}
