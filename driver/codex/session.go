package codex

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"bowline/driver"
	"bowline/driver/jsonrpc"
)

// session is one app-server process with one thread.
//
// Three goroutines live as long as the process: run reads stdout, handles
// everything and is the only one that emits; awaitExit clears what the process
// left behind; readErrors drains stderr. Close waits for them and for the
// escalations of interrupts.
type session struct {
	host     driver.Host
	proc     driver.Process
	peer     *jsonrpc.Peer
	provider provider
	rules    policy
	stderr   *tail

	interruptGrace, closeGrace, stopGrace time.Duration

	ctx    context.Context // of everything emitted
	cancel context.CancelFunc
	wg     sync.WaitGroup
	exited chan struct{} // the leader has exited
	ended  chan struct{} // the last event is emitted
	stop   sync.Once
	soon   sync.Once

	mu        sync.Mutex
	threadID  string
	sessionID string
	model     string
	turn      *turn // the running one
	abandoned int   // turn/start calls whose caller gave up
	closing   bool
	dead      *driver.ProviderError // why no turn can be started any more

	// Only the reading goroutine touches what follows.
	over        bool // the host has ended the session
	isOpen      bool // session.started is emitted
	used        bool // the thread has had a turn
	early       []driver.Event
	items       map[string]*item
	unrequested string // id of a running turn nobody asked for
	diagnosed   map[string]int
	notices     int
	plans       int
	usage       usage
}

var _ driver.Session = (*session)(nil)

// run reads the provider until its end and then says how that was.
func (s *session) run() {
	defer close(s.ended)
	err := s.peer.Run(s.ctx)
	if err != nil {
		s.host.Diagnostic("codex: reading from the provider failed: %v", err)
	}
	s.end() // also when it only closed its output: it is of no use any more
	why := s.exitError()
	s.mu.Lock()
	s.dead = why
	closing, t := s.closing, s.turn
	s.mu.Unlock()
	if !closing {
		exit := s.proc.Wait()
		payload := object{"provider": Kind, "processId": s.proc.PID()}
		if exit.Signal != "" {
			payload["signal"] = exit.Signal
		} else {
			payload["exitCode"] = exit.Code
		}
		s.emit("harness.exited", priorityItem, payload)
	}
	s.failItems("", "provider_exited")
	if t == nil {
		return
	}
	switch {
	case t.held != nil:
		s.finish(t, *t.held)
	case closing:
		s.finish(t, terminal{typ: "turn.cancelled", payload: object{"status": "cancelled", "reason": "session_closed"}})
	case t.interruptWanted(s):
		s.finish(t, terminal{typ: "turn.interrupted", payload: object{"status": "interrupted", "forced": true}})
	default:
		s.finish(t, failed(why.Code, why.Message))
	}
}

// awaitExit clears what the leader leaves behind; a descendant may hold the
// pipes open, and then reading would never end.
func (s *session) awaitExit() {
	s.proc.Wait()
	close(s.exited)
	s.end()
}

// end stops the process tree and returns when it is gone.
func (s *session) end() {
	s.stop.Do(func() {
		if err := s.proc.Stop(background(), s.stopGrace); err != nil {
			s.host.Diagnostic("codex: stopping process %d: %v", s.proc.PID(), err)
		}
	})
}

// stopSoon is end for the reading goroutine, which must go on reading until
// the pipe is closed.
func (s *session) stopSoon() { s.soon.Do(func() { s.wg.Go(s.end) }) }

// abandon gives up a session that was not opened.
func (s *session) abandon() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.cancel()
	s.end()
	<-s.ended
	s.wg.Wait()
}

// Identity of the thread; see [driver.Session].
func (s *session) Identity() driver.Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := driver.Identity{ThreadID: s.threadID, SessionID: s.sessionID, ProcessID: s.proc.PID(), Cwd: s.provider.cwd}
	if s.turn != nil {
		id.ActiveProviderTurnID = s.turn.id
	}
	return id
}

// Resolve is not supported: approvals are answered by the permission mode.
func (s *session) Resolve(context.Context, driver.Resolution) error { return driver.ErrUnsupported }

// Steer adds input to the running turn.
func (s *session) Steer(ctx context.Context, providerTurnID, text string) error {
	s.mu.Lock()
	t, err := s.running(providerTurnID)
	if err == nil && t.id == "" {
		err = driver.ErrNoTurn
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	id := t.id
	s.mu.Unlock()
	return s.callError("steer_refused", s.peer.Call(ctx, methodTurnSteer, turnParams{
		ThreadID: s.threadID, ExpectedTurnID: id, Input: []userInput{{Type: "text", Text: text}},
	}, nil))
}

// running is the turn a caller means, "" for whichever runs. s.mu is held.
func (s *session) running(providerTurnID string) (*turn, error) {
	switch {
	case s.closing:
		return nil, driver.ErrClosed
	case s.turn == nil || providerTurnID != "" && s.turn.id != providerTurnID:
		return nil, driver.ErrNoTurn
	}
	return s.turn, nil
}

// callError turns the ways a call fails into those of a session.
func (s *session) callError(code string, err error) error {
	var (
		rpc    *jsonrpc.RPCError
		closed *jsonrpc.ClosedError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &rpc):
		return &driver.ProviderError{Code: code, Message: bound(rpc.Message, MaxMessage)}
	case errors.As(err, &closed):
		s.mu.Lock()
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return driver.ErrClosed
		}
		s.end() // it may have closed its pipes only
		return s.exitError()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return &driver.ProviderError{Code: code, Message: bound(err.Error(), MaxMessage)}
}

// Interrupt asks the running turn to stop and sees to it that it does.
func (s *session) Interrupt(ctx context.Context, providerTurnID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.running(providerTurnID)
	if err != nil {
		return err
	}
	if t.interrupt {
		return nil
	}
	t.interrupt = true
	s.wg.Go(func() { s.escalate(t) })
	if t.id == "" {
		return nil // not accepted yet: its acceptance sends the interrupt
	}
	id := t.id
	s.wg.Go(func() { s.sendInterrupt(context.WithoutCancel(ctx), id) })
	return nil
}

// sendInterrupt is also called on the reading goroutine; the context bounds
// only the wait for the writer.
func (s *session) sendInterrupt(ctx context.Context, id string) {
	_, err := s.peer.CallThen(ctx, methodInterrupt, threadRef{ThreadID: s.threadID, TurnID: id}, func(_ json.RawMessage, err error) {
		var rpc *jsonrpc.RPCError
		if errors.As(err, &rpc) {
			s.interruptRefused(id, rpc)
		}
	})
	if err != nil {
		s.host.Diagnostic("codex: interrupt not sent: %v", err)
	}
}

// interruptRefused runs on the reading goroutine. When Codex knows of no
// running turn its end has been lost; what else it refuses the grace settles.
func (s *session) interruptRefused(id string, rpc *jsonrpc.RPCError) {
	s.diagnose("interrupt_refused", object{"providerTurnId": safeID(id)})
	if t := s.current(id); t != nil && strings.Contains(rpc.Message, "no active turn") {
		s.hold(t, terminal{typ: "turn.interrupted", payload: object{"status": "interrupted"}})
	}
}

// escalate stops the process when the turn does not end by itself.
func (s *session) escalate(t *turn) {
	grace := time.NewTimer(s.interruptGrace)
	defer grace.Stop()
	select {
	case <-t.done:
	case <-s.ended:
	case <-grace.C:
		s.host.Diagnostic("codex: the turn did not end within %s of its interrupt, stopping process %d", s.interruptGrace, s.proc.PID())
		s.end()
	}
}

// Close ends the session; see [driver.Session].
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	s.mu.Unlock()
	if first {
		// Closed input is the polite request to end; when the pipe is broken
		// already there is nobody to ask.
		_ = s.peer.CloseWrite()
		grace := time.NewTimer(s.closeGrace)
		select {
		case <-s.exited:
		case <-grace.C:
		case <-ctx.Done():
		}
		grace.Stop()
	}
	s.end()
	var err error
	select {
	case <-s.ended:
	case <-ctx.Done(): // the host does not take the last events
		err = ctx.Err()
		s.cancel()
		<-s.ended
	}
	s.wg.Wait()
	s.cancel()
	return err
}
