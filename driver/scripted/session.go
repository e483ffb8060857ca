package scripted

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"bowline/driver"
)

// session implements driver.Session.
type session struct {
	driver *Driver
	host   driver.Host
	script *Script // nil: the built-in turn
	ledger *ledger
	cwd    string

	// life ends when Close gives up waiting for the host.
	life   context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool // by Close, or failed by the script
	state  state
	turn   *turn // nil: none is running
}

func newSession(d *Driver, host driver.Host, script *Script, book *ledger, cwd string, st state) *session {
	life, cancel := context.WithCancel(context.Background())
	return &session{driver: d, host: host, script: script, ledger: book, cwd: cwd, life: life, cancel: cancel, state: st}
}

// begin tells the session's identity and takes up a running turn.
func (s *session) begin(ctx context.Context, eventType, effect string) error {
	running := s.state.Turn
	if err := s.ledger.effect(effect, ""); err != nil {
		return err
	}
	payload := map[string]any{"threadId": s.state.ThreadID, "sessionId": s.state.SessionID}
	if running != nil {
		payload["activeProviderTurnId"] = running.ID
	}
	ev, err := s.event(eventType, 1, payload, s.state)
	if err != nil {
		return err
	}
	const noIndex = -1
	if err := s.ledger.event(noIndex, "", eventType, ev.Payload); err != nil {
		return err
	}
	if err := s.host.Emit(ctx, ev); err != nil {
		return err
	}
	if running != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.play(*running)
	}
	return nil
}

// abandon frees what Open had acquired.
func (s *session) abandon(cause error) error {
	s.cancel()
	return errors.Join(cause, s.ledger.close())
}

// play starts the goroutine of a turn. s.mu is held.
func (s *session) play(st turnState) {
	t := &turn{s: s, id: st.ID, at: st.Next, reply: st.Reply, stop: make(chan struct{}), done: make(chan struct{})}
	s.turn = t
	go func() {
		defer close(t.done)
		t.run()
	}()
}

// StartTurn begins a turn; its id is the requested one.
func (s *session) StartTurn(ctx context.Context, requested driver.Turn) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	id := requested.ID
	if id == "" {
		var err error
		if id, err = s.driver.newID(); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return "", driver.ErrClosed
	case s.turn != nil:
		return "", driver.ErrTurnRunning
	}
	if err := s.ledger.effect("turn_start", id); err != nil {
		return "", err
	}
	s.play(turnState{ID: id, Reply: reply(requested.Text)})
	return id, nil
}

// Steer is not supported.
func (s *session) Steer(context.Context, string, string) error { return driver.ErrUnsupported }

// Resolve is not supported.
func (s *session) Resolve(context.Context, driver.Resolution) error { return driver.ErrUnsupported }

// Interrupt ends the running turn with turn.cancelled before its next event.
func (s *session) Interrupt(_ context.Context, providerTurnID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turn
	if t == nil || providerTurnID != "" && providerTurnID != t.id {
		return driver.ErrNoTurn
	}
	if err := s.ledger.effect("turn_interrupt", t.id); err != nil {
		return err
	}
	t.requestStop()
	return nil
}

func (s *session) Identity() driver.Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := driver.Identity{ThreadID: s.state.ThreadID, SessionID: s.state.SessionID, Cwd: s.cwd}
	if s.turn != nil {
		id.ActiveProviderTurnID = s.turn.id
	}
	return id
}

// Close ends the running turn with turn.cancelled. When ctx ends before the
// host took that event, it is dropped and the error says so.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	t := s.turn
	if t != nil {
		t.requestStop()
	}
	s.mu.Unlock()

	var errs []error
	if t != nil {
		select {
		case <-t.done:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("scripted: close: %w", ctx.Err()))
			s.cancel()
			<-t.done
		}
	}
	s.cancel()
	if first {
		errs = append(errs, s.ledger.effect("session_close", ""))
	}
	return errors.Join(append(errs, s.ledger.close())...)
}

// ended takes the turn off; failed closes the session to further turns.
func (s *session) ended(failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn = nil
	s.closed = s.closed || failed
}
