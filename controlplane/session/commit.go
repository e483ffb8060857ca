package session

import (
	"context"
	"log/slog"
	"time"

	"bowline/controlplane/authority"
	"bowline/wire"
)

// flush makes durable what is staged, then lets its effects out. The caller
// holds mu.
func (s *Session) flush(ctx context.Context) error {
	b := s.machine.Take()
	s.planted(&b)
	if b.Write {
		// A caller that goes away must not leave the outcome unknown.
		if err := s.cfg.Store.Commit(context.WithoutCancel(ctx), &b.Tx); err != nil {
			s.commitFailed(ctx, err)
			return err
		}
		if len(b.Tx.Events) > 0 || b.Tx.Run != nil {
			s.broadcast()
		}
		if b.Tx.Run != nil {
			s.poke()
		}
	}
	for i := range b.Effects {
		s.perform(&b.Effects[i])
	}
	return nil
}

// commitFailed throws away the state that is ahead of the disk.
func (s *Session) commitFailed(ctx context.Context, cause error) {
	s.cfg.Log.LogAttrs(ctx, slog.LevelError, "session commit failed",
		slog.String("session", s.id), slog.String("code", string(wire.CodeOf(cause))), slog.Any("error", cause))
	s.abortAll("a commit failed")
	s.byLink = make(map[*authority.Link]*conn)
	code := wire.CodeOf(cause)
	// Another owner, a latched or a closed store: this session cannot go on. A
	// full disk can pass.
	if code == wire.CodeConflict || code == wire.CodeUnavailable || s.cfg.Store.Latched() != nil {
		s.die(cause)
		return
	}
	m, err := load(context.WithoutCancel(ctx), s.cfg, s.id)
	if err != nil {
		s.die(err)
		return
	}
	m.Inherit(s.machine)
	s.machine = m
	s.poke()
}

// die ends the live session for good. The caller holds mu.
func (s *Session) die(cause error) {
	if s.dead != nil {
		return
	}
	s.dead = cause
	s.cancel()
	s.abortAll("the session is dead")
	s.broadcast()
	s.down()
}

// abortAll closes every connection, authenticated or not. The caller holds mu.
func (s *Session) abortAll(reason string) {
	for c := range s.conns {
		c.abort(reason)
	}
}

// perform does one effect. The caller holds mu; nothing here waits.
func (s *Session) perform(e *authority.Effect) {
	s.cfg.Metrics.count(e)
	switch e.Kind {
	case authority.EffectSend:
		if c := s.byLink[e.Link]; c != nil {
			c.out.push(e.Plain, true)
		}
	case authority.EffectClose:
		if c := s.byLink[e.Link]; c != nil {
			c.finish(e.Reason, true)
		}
	case authority.EffectCloseAll:
		for c := range s.conns {
			c.finish(e.Reason, true)
		}
	case authority.EffectDispatch:
		s.machine.ToolStarted(e.Call)
		s.tools++
		call := *e.Call
		s.wg.Go(func() { s.callTool(call) })
	case authority.EffectFault:
		s.faults++
		if f := s.cfg.OnFault; f != nil {
			fault := e.Fault
			s.wg.Go(func() { f(fault) })
		}
	case authority.EffectRunEnded:
		if f := s.cfg.OnRunEnded; f != nil {
			run := *s.machine.Brief().Run
			s.wg.Go(func() { f(run) })
		}
	case authority.EffectClosed:
		s.down()
		if f := s.cfg.OnClosed; f != nil {
			runID := s.machine.Identity().RunID
			s.wg.Go(func() { f(runID) })
		}
	}
}

// callTool runs the handler and journals its outcome.
func (s *Session) callTool(call authority.ToolCall) {
	result, err := s.cfg.Tools(s.ctx, call)
	if s.enter() != nil {
		return // the outcome stays unknown, and the call unsettled
	}
	defer s.mu.Unlock()
	s.machine.ToolDone(s.cfg.Now(), &call, result, err != nil)
	if s.flush(s.ctx) != nil && s.dead == nil {
		// What the handler said is lost; inventing a failure would be a lie.
		s.machine.ToolLost()
		if err := s.flush(s.ctx); err != nil {
			s.die(err)
		}
	}
}

func (s *Session) poke() {
	select {
	case s.rearm <- struct{}{}:
	default:
	}
}

// deadlines wakes the machine when one of its times has come.
func (s *Session) deadlines() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.rearm:
		case <-timer.C:
		}
		next := s.tick()
		if next < 0 {
			return
		}
		timer.Reset(next)
	}
}

// idleTick is how often an idle session looks at its clock anyway: harmless,
// and a deadline can never be missed for good.
const idleTick = time.Hour

// tick applies a Tick and tells how long until the next one; negative when the
// session has ended.
func (s *Session) tick() time.Duration {
	if s.enter() != nil {
		return -1
	}
	defer s.mu.Unlock()
	now := s.cfg.Now()
	for {
		next := s.machine.NextDeadline()
		if next.IsZero() {
			return idleTick
		}
		if next.After(now) {
			return next.Sub(now)
		}
		if err := s.machine.Apply(now, authority.Tick{}); err != nil {
			panic("bug: session: tick: " + err.Error())
		}
		if err := s.flush(s.ctx); err != nil {
			if s.dead != nil {
				return -1
			}
			return commitRetry
		}
	}
}

// commitRetry is how soon a deadline whose commit failed is tried again.
const commitRetry = time.Second
