package link

import (
	"time"

	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// renewRetry is the longest wait for an answer to lease_renew before it is sent
// again (prp.md 2.8).
const renewRetry = 5 * time.Second

func (c *connection) lease() prp.HeldLease {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.link.held.HeldLease
	l.ExpiresAtUnixMs, l.RenewalOutstanding = c.expires, c.asked
	return l
}

func (c *connection) remaining() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.UnixMilli(c.expires).Sub(c.link.opt.Now())
}

func (c *connection) expired() bool { return c.remaining() <= 0 }

// keepLease renews at half of the remaining life, and ends the connection when
// the lease ends (prp.md 2.8, 5.9).
func (c *connection) keepLease() {
	timer := time.NewTimer(c.remaining() / 2)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.renewed:
			timer.Reset(c.remaining() / 2)
			continue
		case <-c.ctx.Done():
			return
		}
		left := c.remaining()
		if left <= 0 {
			c.cancel(wire.Errorf(wire.CodeUnavailable, "the lease has expired"))
			return
		}
		if !c.link.held.renewal {
			timer.Reset(left)
			continue
		}
		c.mu.Lock()
		c.asked = true
		renew := prp.LeaseRenew{ExpiresAtUnixMs: c.expires, RevocationEpoch: c.link.held.RevocationEpoch}
		c.mu.Unlock()
		c.send(message{prp.KindLeaseRenew, prp.AppendRunnerLeaseMessage(nil, prp.KindLeaseRenew, c.binding, prp.EncodeLeaseRenew(renew))})
		timer.Reset(max(min(renewRetry, left/2), time.Millisecond))
	}
}

func (c *connection) leaseRenewed(payload canonjson.Value) error {
	r, err := prp.LeaseRenewedOf(payload, c.lease())
	if err != nil {
		return err
	}
	c.mu.Lock()
	grown := r.ExpiresAtUnixMs > c.expires
	c.expires = r.ExpiresAtUnixMs
	if grown {
		c.asked = false
	}
	c.mu.Unlock()
	c.link.tellLease(r.ExpiresAtUnixMs)
	select {
	case c.renewed <- struct{}{}:
	default:
	}
	return nil
}
