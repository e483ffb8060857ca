// Package memstore is a store.Store in memory for tests of the state machine
// and the live session: it applies transactions as the real one does and can be
// told to fail. What those tests do not need is not there and panics.
//
// Safe for use by several goroutines.
package memstore

import (
	"context"
	"maps"
	"slices"
	"sync"

	"bowline/controlplane/store"
	"bowline/wire"
)

// Store is the fake. The zero value is empty and works.
type Store struct {
	// The methods that are not overridden panic: nil.
	store.Store

	mu       sync.Mutex
	sessions map[string]*data
	runs     map[string]store.RunRow
	audit    []store.AuditRow
	latched  error
	commits  int
	before   func(n int, tx *store.Tx) error
	after    func(n int, tx *store.Tx) error
}

type data struct {
	row         store.SessionRow
	events      []store.EventRow
	redelivered map[int64]int64
	commands    map[int64]store.CommandRow
	tickets     map[string]store.TicketRow
	leases      map[string]store.LeaseRow
}

// Before sets a hook that is called with the number of each commit, from 1,
// before it is applied; its error fails the commit.
func (s *Store) Before(f func(n int, tx *store.Tx) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// After is Before for a commit that was applied nevertheless: its outcome is
// unknown to the caller.
func (s *Store) After(f func(n int, tx *store.Tx) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = f
}

// Latch makes the store latched.
func (s *Store) Latch(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latched = err
}

// Commits is how many commits were tried.
func (s *Store) Commits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

// AuditRows gives what was audited.
func (s *Store) AuditRows() []store.AuditRow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.audit)
}

// Latched implements store.Store.
func (s *Store) Latched() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latched
}

// Close implements store.Store.
func (s *Store) Close() error { return nil }

// Commit implements store.Store.
func (s *Store) Commit(_ context.Context, tx *store.Tx) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latched != nil {
		return s.latched
	}
	s.commits++
	if s.before != nil {
		if err := s.before(s.commits, tx); err != nil {
			return err
		}
	}
	if err := s.apply(tx); err != nil {
		return err
	}
	if s.after != nil {
		return s.after(s.commits, tx)
	}
	return nil
}

func conflict(what string) error { return wire.Errorf(wire.CodeConflict, "memstore: %s", what) }

func (s *Store) apply(tx *store.Tx) error {
	if n := tx.NewSession; n != nil {
		if s.sessions[n.ID] != nil {
			return conflict("session exists")
		}
		if s.sessions == nil {
			s.sessions = make(map[string]*data)
			s.runs = make(map[string]store.RunRow)
		}
		s.sessions[n.ID] = &data{
			row: *n, redelivered: make(map[int64]int64), commands: make(map[int64]store.CommandRow),
			tickets: make(map[string]store.TicketRow), leases: make(map[string]store.LeaseRow),
		}
	}
	if id := tx.BumpGeneration; id != "" {
		d := s.sessions[id]
		if d == nil {
			return wire.Errorf(wire.CodeNotFound, "memstore: no session")
		}
		d.row.Generation++
	}
	head := tx.NewSession
	if tx.Session != nil {
		head = tx.Session
		d := s.sessions[head.ID]
		if d == nil || d.row.Generation != head.Generation {
			return conflict("generation")
		}
		d.row = *head
	}
	if n := tx.NewRun; n != nil {
		s.runs[n.ID] = *n
	}
	if n := tx.Run; n != nil {
		s.runs[n.ID] = *n
	}
	s.audit = append(s.audit, tx.Audit...)
	if head == nil {
		return nil
	}
	d := s.sessions[head.ID]
	for _, ev := range tx.Events {
		if ev.Seq != int64(len(d.events)+1) {
			return conflict("event sequence")
		}
		d.events = append(d.events, ev)
	}
	for _, seq := range tx.Redelivered {
		d.redelivered[seq]++
	}
	for _, c := range tx.Commands {
		d.commands[c.ControllerSeq] = c
	}
	for _, t := range tx.Tickets {
		d.tickets[t.CredentialID] = t
	}
	for _, l := range tx.Leases {
		d.leases[l.CredentialID] = l
	}
	for _, id := range tx.DropTickets {
		delete(d.tickets, id)
	}
	for _, id := range tx.DropLeases {
		delete(d.leases, id)
	}
	return nil
}

// Session implements store.Store.
func (s *Store) Session(_ context.Context, id string, eventWindow int) (*store.SessionState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.sessions[id]
	if d == nil {
		return nil, wire.Errorf(wire.CodeNotFound, "memstore: no session")
	}
	st := &store.SessionState{Session: d.row}
	for i := len(d.events) - 1; i >= 0 && len(st.Events) < eventWindow; i-- {
		if d.events[i].Origin == store.OriginRunner {
			st.Events = append(st.Events, d.delivered(d.events[i]))
		}
	}
	slices.Reverse(st.Events)
	for _, seq := range slices.Sorted(maps.Keys(d.commands)) {
		st.Commands = append(st.Commands, d.commands[seq])
	}
	for _, k := range slices.Sorted(maps.Keys(d.tickets)) {
		st.Tickets = append(st.Tickets, d.tickets[k])
	}
	for _, k := range slices.Sorted(maps.Keys(d.leases)) {
		st.Leases = append(st.Leases, d.leases[k])
	}
	return st, nil
}

func (d *data) delivered(ev store.EventRow) store.EventRow {
	ev.DeliveryCount += d.redelivered[ev.SourceSeq]
	return ev
}

// Events implements store.Store; it ignores maxBytes.
func (s *Store) Events(_ context.Context, id string, after int64, limit, _ int) ([]store.EventRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.sessions[id]
	if d == nil {
		return nil, wire.Errorf(wire.CodeNotFound, "memstore: no session")
	}
	var out []store.EventRow
	for _, ev := range d.events {
		if ev.Seq > after && len(out) < limit {
			out = append(out, d.delivered(ev))
		}
	}
	return out, nil
}

// Run implements store.Store.
func (s *Store) Run(_ context.Context, id string) (*store.RunRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run, ok := s.runs[id]
	if !ok {
		return nil, wire.Errorf(wire.CodeNotFound, "memstore: no run")
	}
	return &run, nil
}

// SessionByRun implements store.Store.
func (s *Store) SessionByRun(_ context.Context, runID string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, d := range s.sessions {
		if d.row.Identity.RunID == runID {
			return id, nil
		}
	}
	return "", wire.Errorf(wire.CodeNotFound, "memstore: no session of the run")
}
