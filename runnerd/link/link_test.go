package link

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bowline/runnerd/journal"
	"bowline/wire/canonjson"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBackoff(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		base time.Duration
		n    int
		full bool
		r    float64
		want time.Duration
	}{
		// prp.md 1.7: base × 2^min(n,5), 1 ms to 5 s, 75 to 125 percent.
		{250 * time.Millisecond, 0, false, 0, 187500 * time.Microsecond},
		{250 * time.Millisecond, 0, false, 0.5, 250 * time.Millisecond},
		{250 * time.Millisecond, 1, false, 0.5, 500 * time.Millisecond},
		{250 * time.Millisecond, 4, false, 0.5, 4 * time.Second},
		{250 * time.Millisecond, 5, false, 0.5, 5 * time.Second},
		{250 * time.Millisecond, 90, false, 0.5, 5 * time.Second},
		{0, 3, false, 0.5, time.Millisecond},
		{10 * time.Millisecond, 90, false, 0.5, 320 * time.Millisecond},
		// Full jitter: from nothing to the whole pause.
		{250 * time.Millisecond, 1, true, 0, 0},
		{250 * time.Millisecond, 1, true, 0.5, 250 * time.Millisecond},
	} {
		if got := backoff(tc.base, tc.n, tc.full, tc.r); got != tc.want {
			t.Errorf("base %v, attempt %d, full %v, r %v: %v, want %v", tc.base, tc.n, tc.full, tc.r, got, tc.want)
		}
	}
}

// core does nothing.
type core struct{}

func (core) Resume() prp.Resume              { return prp.Resume{NextSourceEventSeq: 1} }
func (core) Welcome(prp.Welcome) error       { return nil }
func (core) Deliver(prp.Command) error       { return nil }
func (core) Ack(int64) error                 { return nil }
func (core) ResultAck(canonjson.Value) error { return nil }
func (core) Renewed() error                  { return nil }
func (core) Revoked() error                  { return nil }
func (core) Pong() prp.Pong                  { return prp.Pong{} }
func (core) Next(ctx context.Context, _ int64) ([]*journal.Entry, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// deadTarget is an address nobody listens on.
func deadTarget(t *testing.T) *carrier.Pinned {
	t.Helper()
	target, err := carrier.ParseTarget("ws://127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := target.Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return pinned
}

// clock moves by itself with every look.
type clock struct{ now time.Time }

func (c *clock) read() time.Time {
	c.now = c.now.Add(100 * time.Millisecond)
	return c.now
}

func TestRunEnds(t *testing.T) {
	t.Parallel()
	start := time.Now()
	base := Options{
		Target: deadTarget(t), Ticket: "bootstrap_x", MaxFrame: prp.MaxFrameBytes, Core: core{},
		Delay: time.Nanosecond, FullJitter: true, Rand: func() float64 { return 0 },
	}
	t.Run("ticket", func(t *testing.T) {
		t.Parallel()
		opt := base
		c := &clock{now: start}
		opt.Now = c.read
		if err := New(opt).Run(t.Context()); !errors.Is(err, ErrTicketRefused) {
			t.Fatal(err)
		}
		if tried := c.now.Sub(start); tried < ticketPatience {
			t.Fatalf("given up after %v", tried)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		t.Parallel()
		opt := base
		opt.Now = (&clock{now: start}).read
		opt.Deadline = start.Add(20 * time.Second)
		if err := New(opt).Run(t.Context()); !errors.Is(err, ErrDeadline) {
			t.Fatal(err)
		}
	})
	t.Run("lease", func(t *testing.T) {
		t.Parallel()
		opt := base
		opt.Now = (&clock{now: start}).read
		l := New(opt)
		l.held = &heldLease{HeldLease: prp.HeldLease{ID: "x", ExpiresAtUnixMs: start.Add(20 * time.Second).UnixMilli()}, token: "lease_x"}
		if err := l.Run(t.Context()); !errors.Is(err, ErrLeaseExpired) {
			t.Fatal(err)
		}
	})
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("because")
		cancel(why)
		if err := New(base).Run(ctx); !errors.Is(err, why) {
			t.Fatal(err)
		}
	})
}

// A connection without a socket, to look at one of its parts.
func part(ctx context.Context) *connection {
	ctx, cancel := context.WithCancelCause(ctx)
	return &connection{
		link: &Link{opt: Options{Now: time.Now, Core: core{}}, held: &heldLease{renewal: true}}, ctx: ctx, cancel: cancel,
		binding: prp.Binding{Version: 1}, control: make(chan message, controlQueue), events: make(chan *journal.Entry),
		moved: make(chan struct{}), renewed: make(chan struct{}, 1),
	}
}

func TestControlGoesFirstAndEventsAreNotStarved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := part(t.Context())
		c.wg.Go(func() {
			for i := range int64(3) {
				c.events <- &journal.Entry{Seq: i}
			}
		})
		for range 20 {
			c.control <- message{kind: prp.KindPong, plain: []byte("{}")}
		}
		synctest.Wait()
		var order []byte
		burst := 0
		for range 23 {
			m, e := c.pick(&burst)
			switch {
			case e != nil:
				order = append(order, 'e')
				synctest.Wait() // the next event stands ready
			case m.plain != nil:
				order = append(order, 'c')
			}
		}
		if got, want := string(order), "cccccccceccccccccecccce"; got != want {
			t.Fatalf("order %s, want %s", got, want)
		}
		c.wg.Wait()
		c.cancel(nil)
		if m, e := c.pick(&burst); e != nil || m.plain != nil {
			t.Fatal("something came out of an ended connection")
		}
	})
}

func TestWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := part(t.Context())
		if !c.await(Window) {
			t.Fatal("the last event of the window does not go out")
		}
		open := make(chan bool, 1)
		go func() { open <- c.await(Window + 1) }()
		synctest.Wait()
		select {
		case <-open:
			t.Fatal("one event beyond the window goes out")
		default:
		}
		c.advance(1)
		if !<-open {
			t.Fatal("an acknowledgement does not move the window")
		}
		go func() { open <- c.await(Window + 9) }()
		c.cancel(nil)
		if <-open {
			t.Fatal("the window of an ended connection opens")
		}
	})
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := part(t.Context())
		begun := time.Now()
		c.expires = begun.Add(time.Minute).UnixMilli()
		c.wg.Go(c.keepLease)
		first := <-c.control
		if at := time.Since(begun); at != 30*time.Second || first.kind != prp.KindLeaseRenew {
			t.Fatalf("%s after %v, want lease_renew at half of the life", first.kind, at)
		}
		<-c.control
		if at := time.Since(begun); at != 35*time.Second {
			t.Fatalf("repeated after %v, want 5 s later", at)
		}
		payload := func(previous, next time.Duration) canonjson.Value {
			v, err := canonjson.Parse(prp.EncodeLeaseRenewed(prp.LeaseRenewed{
				PreviousExpiresAtUnixMs: begun.Add(previous).UnixMilli(), ExpiresAtUnixMs: begun.Add(next).UnixMilli(),
			}))
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		if err := c.leaseRenewed(payload(time.Minute, 95*time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := c.leaseRenewed(payload(time.Minute, 99*time.Second)); err == nil {
			t.Fatal("a lease grew without being asked for")
		}
		<-c.control
		if at := time.Since(begun); at != 65*time.Second {
			t.Fatalf("next renewal after %v, want half of the new life", at)
		}
		// Nobody answers any more.
		go func() {
			for range c.control { //nolint:revive // drained
			}
		}()
		<-c.ctx.Done()
		if at := time.Since(begun); at < 94*time.Second || at > 96*time.Second {
			t.Fatalf("connection ended after %v, the lease after 95 s", at)
		}
		c.wg.Wait()
		close(c.control)
	})
}
