package link

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"bowline/wire"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

// Options of a link.
type Options struct {
	Target   *carrier.Pinned
	TLS      *tls.Config
	Ticket   string
	Identity prp.Identity
	Version  string // runner version for the hello
	Digest   string // sha256:<64 hex>
	MaxFrame int    // bytes
	// MessageTimeout is how long each message of the handshake may take; 0: that
	// of prp.md 3.8.
	MessageTimeout time.Duration
	// Delay is the base of the pause between attempts; Jitter chooses the form:
	// false is prp.md 1.7 (75 to 125 percent), true is full jitter.
	Delay      time.Duration
	FullJitter bool
	// Grace is how long the link may be down after it was up once; 0: for ever.
	Grace time.Duration
	// Deadline ends everything; zero: never.
	Deadline time.Time

	Core  Core
	Log   *slog.Logger
	Hooks Hooks
	Now   func() time.Time // nil: time.Now
	// Rand gives a float in [0,1) for the jitter; nil: math/rand.
	Rand func() float64
	// Nonce gives 64 hex digits; nil: crypto/rand.
	Nonce func() string
}

// Link is one runner's connection, over all reconnects.
type Link struct {
	opt  Options
	held *heldLease // Run's goroutine only

	ticketTried bool // auth_response was begun with the ticket
	attempts    int

	mu   sync.Mutex
	conn *connection // authenticated, or nil
}

// heldLease is a lease with its token.
type heldLease struct {
	prp.HeldLease
	token   string
	version int
	renewal bool // the authority renews
}

// New makes a link that has not dialled yet.
func New(opt Options) *Link {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Rand == nil {
		opt.Rand = rand.Float64
	}
	if opt.MessageTimeout == 0 {
		opt.MessageTimeout = prp.RunnerHandshakeTimeout
	}
	if opt.Nonce == nil {
		opt.Nonce = newNonce
	}
	return &Link{opt: opt}
}

// fatal is an error of the core: it ends Run.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

// Run connects until ctx ends or one of the reasons above ends it.
func (l *Link) Run(ctx context.Context) error {
	if !l.opt.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, l.opt.Deadline, ErrDeadline)
		defer cancel()
	}
	started := l.opt.Now()
	var downSince time.Time // zero: never was up
	for {
		limits := l.limits(started, downSince)
		begun := l.opt.Now()
		authenticated, err := l.attempt(ctx, limits)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var f fatal
		if errors.As(err, &f) {
			return f.error
		}
		now := l.opt.Now()
		if authenticated {
			if now.Sub(begun) >= steady {
				l.attempts = 0
			}
			downSince = now
		} else if l.ticketTried && l.held == nil {
			return errors.Join(ErrTicketSpent, err)
		}
		if e := l.over(now, started, downSince); e != nil {
			return errors.Join(e, err)
		}
		l.tell(err, authenticated)
		if !l.pause(ctx, l.limits(started, downSince)) {
			return context.Cause(ctx)
		}
	}
}

// limits is when the next attempt has to be over; zero: no limit.
func (l *Link) limits(started, downSince time.Time) time.Time {
	end := l.opt.Deadline
	earlier := func(t time.Time) {
		if end.IsZero() || t.Before(end) {
			end = t
		}
	}
	if l.opt.Grace > 0 && !downSince.IsZero() {
		earlier(downSince.Add(l.opt.Grace))
	}
	if l.held != nil {
		earlier(time.UnixMilli(l.held.ExpiresAtUnixMs))
	} else {
		earlier(started.Add(ticketPatience))
	}
	return end
}

func (l *Link) over(now, started, downSince time.Time) error {
	switch {
	case !l.opt.Deadline.IsZero() && !now.Before(l.opt.Deadline):
		return ErrDeadline
	case l.opt.Grace > 0 && !downSince.IsZero() && now.Sub(downSince) >= l.opt.Grace:
		return ErrGrace
	case l.held != nil && now.UnixMilli() >= l.held.ExpiresAtUnixMs:
		return ErrLeaseExpired
	case l.held == nil && now.Sub(started) >= ticketPatience:
		return ErrTicketRefused
	}
	return nil
}

func (l *Link) tell(err error, authenticated bool) {
	code := string(wire.CodeOf(err))
	if l.opt.Hooks.Reconnect != nil {
		l.opt.Hooks.Reconnect(code)
	}
	if l.opt.Log != nil {
		l.opt.Log.Info("connection ended", "code", code, "authenticated", authenticated, "attempt", l.attempts, "err", err)
	}
}

// pause waits before the next attempt; false when ctx ended.
func (l *Link) pause(ctx context.Context, end time.Time) bool {
	d := backoff(l.opt.Delay, l.attempts, l.opt.FullJitter, l.opt.Rand())
	l.attempts++
	if !end.IsZero() {
		d = min(d, max(0, end.Sub(l.opt.Now())))
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// backoff is the pause before attempt n (from 0): base times 2^min(n,5), within
// 1 ms and maxBackoff, times 0.75 to 1.25 (prp.md 1.7), or times 0 to 1.
func backoff(base time.Duration, n int, full bool, r float64) time.Duration {
	d := min(max(base<<min(n, 5), time.Millisecond), maxBackoff)
	if full {
		return time.Duration(float64(d) * r)
	}
	return time.Duration(float64(d) * (0.75 + 0.5*r))
}

// SendResult sends a command_result payload if there is a connection. If there
// is none, the authority will deliver the command again and get it then.
func (l *Link) SendResult(payload []byte) {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c != nil {
		c.sendResult(payload)
	}
}

// Up tells whether a connection is authenticated.
func (l *Link) Up() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

// ConnectionDone is closed when the current connection has ended; nil when
// there is none.
func (l *Link) ConnectionDone() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return nil
	}
	return l.conn.ctx.Done()
}

func (l *Link) setConn(c *connection) {
	l.mu.Lock()
	l.conn = c
	l.mu.Unlock()
	if l.opt.Hooks.Connected != nil {
		l.opt.Hooks.Connected(c != nil)
	}
}
