package launch

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"bowline/controlplane/resource"
	"bowline/wire"
	"bowline/wire/prp"
)

// Bounds of restarting.
const (
	// MaxRestarts is how many restarts in a row may fail (prp.md 11.9; issue).
	MaxRestarts = 5
	// MaxStarts bounds all starts of one run (ours): a runner that joins and
	// dies each time is not restarted for ever.
	MaxStarts = 200
	// endGrace is how long a runner may take to leave after its run has ended
	// (ours, longer than the close sequence of authority.CloseWithin), and
	// closedGrace after that sequence is known to be over; stopGrace is
	// between SIGTERM and SIGKILL (ours).
	endGrace    = 35 * time.Second
	closedGrace = 3 * time.Second
	stopGrace   = 5 * time.Second
	// settle is how long the end of a run may take to be known after its
	// runner has exited (ours): the exit is seen at once, the last
	// acknowledgement may still be on its way.
	settle = 100 * time.Millisecond
	// watchEvery is how often a living runner's log and lease are looked at
	// (ours).
	watchEvery = 5 * time.Second
)

// restartDelays of prp.md 11.9, before the jitter of 0.75..1.25.
func restartDelays() [MaxRestarts]time.Duration {
	return [MaxRestarts]time.Duration{
		250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
	}
}

// State is what a supervisor needs to know of its run.
type State struct {
	Ended       bool
	Connections int64     // authenticated connections so far
	Connected   bool      // one is open
	LeaseEnds   time.Time // newest lease; zero = none yet
}

// Owner connects a supervisor to the run's record: the control plane itself,
// or a client of it.
type Owner interface {
	// Ticket issues a fresh one-use ticket. wire.CodeConflict, CodeGone and
	// CodeNotFound mean that the run needs no runner any more.
	Ticket(ctx context.Context) (string, error)
	// Started makes the process durable. It returns before our own runnerd is
	// given its ticket.
	Started(ctx context.Context, attempt int, id ProcessID) error
	// Exited records the end of the process.
	Exited(ctx context.Context, attempt int, exit Exit) error
	// State reads the run.
	State(ctx context.Context) (State, error)
	// Lost ends the run: the runner cannot be started (reason
	// resource.LostLaunchFailed) or did not come back (LostGaveUp).
	Lost(ctx context.Context, reason, detail string) error
}

// Supervisor keeps the runner of one run running. The exported fields are set
// before [Supervisor.Run].
type Supervisor struct {
	Spec  Spec
	Owner Owner
	// Ended is closed when the run has its terminal outcome.
	Ended <-chan struct{}
	// Closed, if not nil, is closed when the run's close sequence is over and
	// its runner has nothing left to do.
	Closed <-chan struct{}
	// Previous is the process of an earlier owner, if one was recorded, and
	// Attempt its number (0 = never started).
	Previous ProcessID
	Attempt  int
	// Note is told what happens, for a status line or a log; may be nil.
	Note func(Note)
	// Sleep waits; nil = a timer. Jitter scales a delay; nil = 0.75..1.25.
	Sleep  func(ctx context.Context, d time.Duration) error
	Jitter func(d time.Duration) time.Duration
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// Kinds of notes.
const (
	NoteStarted    = "started"
	NoteAdopted    = "adopted"
	NoteExited     = "exited"
	NoteRestarting = "restarting"
	NoteTicket     = "ticket_unavailable"
	NoteGaveUp     = "gave_up"
	NoteStopped    = "stopped"
)

// Note is one thing that happened to a runner.
type Note struct {
	Kind    string
	Attempt int
	PID     int
	Exit    string // how it ended: the exit of NoteExited, else a sentence for people
	Delay   time.Duration
	Err     error
}

// Run returns nil when the run has ended and its runner is gone, or after the
// run was given up ([Owner.Lost]). When ctx ends it returns ctx's error and
// leaves the runner alone. Any other error is the owner's.
func (s *Supervisor) Run(ctx context.Context) error {
	s.defaults()
	restarts := 0
	if s.Attempt > 0 {
		done, joined, err := s.previous(ctx)
		if done || err != nil {
			return err
		}
		if !joined {
			restarts = 1
		}
	}
	for {
		if s.ended() {
			return nil
		}
		out, err := s.once(ctx)
		if err != nil || out.done {
			return err
		}
		if out.joined {
			restarts = 0
		}
		if restarts >= MaxRestarts || s.Attempt >= MaxStarts {
			s.note(Note{Kind: NoteGaveUp, Attempt: s.Attempt, Exit: out.detail})
			reason := resource.LostGaveUp
			if out.spawnFailed {
				reason = resource.LostLaunchFailed
			}
			return s.Owner.Lost(ctx, reason, out.detail)
		}
		delays := restartDelays()
		d := s.Jitter(delays[restarts])
		restarts++
		s.note(Note{Kind: NoteRestarting, Attempt: s.Attempt + 1, Exit: out.detail, Delay: d})
		if err := s.pause(ctx, d); err != nil {
			return err
		}
	}
}

func (s *Supervisor) defaults() {
	if s.Sleep == nil {
		s.Sleep = sleep
	}
	if s.Jitter == nil {
		s.Jitter = func(d time.Duration) time.Duration {
			return time.Duration(float64(d) * (0.75 + rand.Float64()/2)) //nolint:gosec // spreads restarts, guards nothing
		}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
}

// outcome of one start.
type outcome struct {
	done        bool // no further start is needed
	joined      bool // it authenticated
	spawnFailed bool
	detail      string
}

// once starts the runner, waits for its end and tells what it means.
func (s *Supervisor) once(ctx context.Context) (outcome, error) {
	ticket, done, err := s.ticket(ctx)
	if done || err != nil {
		return outcome{done: done}, err
	}
	before, err := s.state(ctx)
	if err != nil || before.Ended {
		return outcome{done: before.Ended}, err
	}
	s.Attempt++
	p, err := Start(&s.Spec, ticket)
	if err != nil {
		s.note(Note{Kind: NoteExited, Attempt: s.Attempt, Err: err})
		if wire.CodeOf(err) != wire.CodeSpawnFailed {
			return outcome{}, err
		}
		// A program that cannot be executed will not become one: only what a
		// full machine explains is tried again.
		out := outcome{spawnFailed: true, detail: Detail("", err)}
		if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) && !errors.Is(err, syscall.ETXTBSY) {
			out.done = true
			return out, s.Owner.Lost(ctx, resource.LostLaunchFailed, out.detail)
		}
		return out, nil
	}
	if err := s.Owner.Started(ctx, s.Attempt, p.ID); err != nil {
		_, serr := p.Stop(context.WithoutCancel(ctx), stopGrace)
		return outcome{}, errors.Join(err, serr, p.Release())
	}
	s.note(Note{Kind: NoteStarted, Attempt: s.Attempt, PID: p.ID.PID})
	if err := p.Give(ticket); err != nil {
		_, serr := p.Stop(context.WithoutCancel(ctx), stopGrace)
		return outcome{}, errors.Join(err, serr, p.Release())
	}
	return s.attend(ctx, p, before.Connections, ticket)
}

// previous deals with the process of an earlier owner: while it lives and its
// lease has not ended it is the runner; after that it is ended, because two
// runners on one state folder are refused.
func (s *Supervisor) previous(ctx context.Context) (done, joined bool, err error) {
	st, err := s.state(ctx)
	if err != nil {
		return false, false, err
	}
	p, err := Adopt(s.Previous)
	if err != nil {
		return false, false, err
	}
	if p == nil {
		return st.Ended, st.Connections > 0, nil
	}
	s.note(Note{Kind: NoteAdopted, Attempt: s.Attempt, PID: p.ID.PID})
	out, err := s.attend(ctx, p, st.Connections, "")
	return out.done, out.joined || st.Connections > 0, err
}

// attend waits until p is gone. An adopted process (no ticket) whose lease has
// ended without a connection is ended.
func (s *Supervisor) attend(ctx context.Context, p *Process, before int64, ticket string) (out outcome, err error) {
	defer func() { err = errors.Join(err, p.Release()) }()
	adopted := ticket == ""
	exit, err := s.wait(ctx, p, adopted)
	if err != nil {
		return outcome{}, err
	}
	if err := s.Owner.Exited(ctx, s.Attempt, exit); err != nil {
		return outcome{}, err
	}
	said := ""
	if exit.Code > 0 {
		said = p.lastWords(&s.Spec, ticket)
	}
	s.note(Note{Kind: NoteExited, Attempt: s.Attempt, PID: p.ID.PID, Exit: exit.String()})
	if err := s.pause(ctx, settle); err != nil {
		return outcome{}, err
	}
	after, err := s.state(ctx)
	if err != nil {
		return outcome{}, err
	}
	out = outcome{done: after.Ended, joined: after.Connections > before, detail: "the runner ended (" + exit.String() + ")"}
	switch {
	case said != "":
		out.detail += ": " + said
	case !out.joined && !adopted:
		out.detail += " without having joined"
	}
	return out, nil
}

// wait waits for p's end, looks after its log and stops it when the run has
// ended but the process has not.
func (s *Supervisor) wait(ctx context.Context, p *Process, adopted bool) (Exit, error) {
	var stopAt time.Time
	closed := false
	firstJoin := s.Now().Add(prp.TicketLifetimeMax)
	for {
		every := watchEvery
		if s.ended() {
			if stopAt.IsZero() {
				stopAt = s.Now().Add(endGrace)
			}
			if !closed && s.closed() {
				closed = true
				if at := s.Now().Add(closedGrace); at.Before(stopAt) {
					stopAt = at
				}
			}
			if !s.Now().Before(stopAt) {
				s.note(Note{Kind: NoteStopped, Attempt: s.Attempt, PID: p.ID.PID})
				return p.Stop(ctx, stopGrace)
			}
			every = min(every, max(stopAt.Sub(s.Now()), time.Millisecond))
		}
		if adopted {
			st, err := s.state(ctx)
			if err != nil {
				return Exit{}, err
			}
			if st.LeaseEnds.IsZero() {
				st.LeaseEnds = firstJoin // it may hold a ticket that is still good
			}
			if !st.Connected && !s.Now().Before(st.LeaseEnds) {
				s.note(Note{Kind: NoteStopped, Attempt: s.Attempt, PID: p.ID.PID})
				return p.Stop(ctx, stopGrace)
			}
		}
		exit, err := s.waitOrEnd(ctx, p, every)
		if err == nil {
			return exit, nil
		}
		if ctx.Err() != nil {
			return Exit{}, ctx.Err()
		}
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			return Exit{}, err
		}
		if err := p.log.bound(); err != nil {
			return Exit{}, err
		}
	}
}

// waitOrEnd waits for p for at most d, or until the run ends or is closed.
func (s *Supervisor) waitOrEnd(ctx context.Context, p *Process, d time.Duration) (Exit, error) {
	wctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	news := s.Ended
	if s.ended() {
		news = s.Closed
		if s.closed() {
			news = nil
		}
	}
	quit, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-news:
			cancel()
		case <-quit:
		}
	}()
	exit, err := p.Wait(wctx)
	close(quit)
	<-watched
	return exit, err
}

// ticket gets a ticket, waiting as long as the control plane cannot give one.
func (s *Supervisor) ticket(ctx context.Context) (ticket string, done bool, err error) {
	delays := restartDelays()
	for n := 0; ; n++ {
		if s.ended() {
			return "", true, nil
		}
		ticket, err := s.Owner.Ticket(ctx)
		if err == nil {
			return ticket, false, nil
		}
		if ctx.Err() != nil {
			return "", false, ctx.Err()
		}
		switch wire.CodeOf(err) {
		case wire.CodeConflict, wire.CodeGone, wire.CodeNotFound:
			return "", true, nil
		case wire.CodeUnavailable, wire.CodeTooManyRequests:
		default:
			return "", false, err
		}
		d := s.Jitter(delays[min(n, len(delays)-1)])
		s.note(Note{Kind: NoteTicket, Attempt: s.Attempt + 1, Delay: d, Err: err})
		if err := s.pause(ctx, d); err != nil {
			return "", false, err
		}
	}
}

// state reads the run, waiting as long as the control plane cannot be reached.
func (s *Supervisor) state(ctx context.Context) (State, error) {
	delays := restartDelays()
	for n := 0; ; n++ {
		st, err := s.Owner.State(ctx)
		if err == nil {
			st.Ended = st.Ended || s.ended()
			return st, nil
		}
		if ctx.Err() != nil {
			return State{}, ctx.Err()
		}
		if !slices.Contains([]wire.Code{wire.CodeUnavailable, wire.CodeTooManyRequests}, wire.CodeOf(err)) {
			return State{}, err
		}
		if s.ended() {
			return State{Ended: true}, nil
		}
		if err := s.pause(ctx, s.Jitter(delays[min(n, len(delays)-1)])); err != nil {
			return State{}, err
		}
	}
}

// pause waits for d or until the run ends.
func (s *Supervisor) pause(ctx context.Context, d time.Duration) error {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quit, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-s.Ended:
			cancel()
		case <-quit:
		}
	}()
	err := s.Sleep(wctx, d)
	close(quit)
	<-watched
	if err != nil && ctx.Err() == nil && s.ended() {
		return nil
	}
	return err
}

func (s *Supervisor) ended() bool {
	select {
	case <-s.Ended:
		return true
	default:
		return false
	}
}

func (s *Supervisor) closed() bool {
	select {
	case <-s.Closed: // nil: never
		return true
	default:
		return false
	}
}

func (s *Supervisor) note(n Note) {
	if s.Note != nil {
		s.Note(n)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
