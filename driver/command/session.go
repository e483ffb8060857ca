package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"bowline/driver"
	"bowline/wire"
)

// session implements driver.Session.
type session struct {
	driver   *Driver
	host     driver.Host
	provider Provider
	env      []string
	identity driver.Identity // without what belongs to a turn

	// life is the context of everything a turn emits; it ends when Close gives
	// up waiting.
	life   context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	closed  bool
	turn    *turn            // nil: none is running
	started []driver.Process // trees to be proven gone by Close
}

func newSession(d *Driver, host driver.Host, p Provider, env []string, id driver.Identity) *session {
	life, cancel := context.WithCancel(context.Background())
	return &session{driver: d, host: host, provider: p, env: env, identity: id, life: life, cancel: cancel}
}

// StartTurn runs the command. The text is ignored.
func (s *session) StartTurn(ctx context.Context, requested driver.Turn) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	item, err := s.driver.newID()
	if err != nil {
		return "", err
	}
	id := requested.ID
	if id == "" {
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
	t := newTurn(s, id, item)
	s.turn = t
	go func() {
		defer close(t.done)
		t.run()
	}()
	return id, nil
}

// Steer is not supported: a command has no input.
func (s *session) Steer(context.Context, string, string) error { return driver.ErrUnsupported }

// Resolve is not supported: a command asks nothing.
func (s *session) Resolve(context.Context, driver.Resolution) error { return driver.ErrUnsupported }

// Interrupt stops the running turn with the ladder of [turn.stop]. It does not
// wait for the end.
func (s *session) Interrupt(_ context.Context, providerTurnID string) error {
	s.mu.Lock()
	t := s.turn
	s.mu.Unlock()
	if t == nil || providerTurnID != "" && providerTurnID != t.id {
		return driver.ErrNoTurn
	}
	if !t.request(byInterrupt) {
		return driver.ErrNoTurn
	}
	return nil
}

func (s *session) Identity() driver.Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.identity
	if s.turn != nil {
		id.ActiveProviderTurnID = s.turn.id
		id.ProcessID = s.turn.pid()
	}
	return id
}

// Close stops the running turn and kills whatever earlier turns left behind.
// When ctx ends first, events not yet taken by the host are dropped and the
// error says so; the tree is killed all the same.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	t := s.turn
	s.mu.Unlock()

	var errs []error
	if t != nil {
		t.request(byClose)
		select {
		case <-t.done:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("command: close: %w", ctx.Err()))
			s.cancel()
			<-t.done
		}
	}
	s.mu.Lock()
	left := s.started
	s.started = nil
	s.mu.Unlock()
	for i, p := range left {
		if err := p.Stop(ctx, 0); err != nil {
			errs = append(errs, err)
			s.keep(left[i]) // a later Close tries again
		}
	}
	s.cancel()
	return errors.Join(errs...)
}

// keep remembers a tree for Close.
func (s *session) keep(p driver.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = append(s.started, p)
}

// ended lets the next turn start.
func (s *session) ended(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn == t {
		s.turn = nil
	}
}

// emit sends an event with payload as its JSON object.
func emit(ctx context.Context, host driver.Host, ev driver.Event, payload any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // output is full of <, > and &
	if err := e.Encode(payload); err != nil {
		return fmt.Errorf("command: %s: %w", ev.Type, err)
	}
	ev.Payload = bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	return host.Emit(ctx, ev)
}

// failure is the error member of turn.failed.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func spawnFailure(err error) failure {
	var typed *wire.Error
	if errors.As(err, &typed) {
		return failure{string(typed.Code), typed.Message}
	}
	return failure{string(wire.CodeSpawnFailed), "the program could not be started"}
}
