package session

import (
	"context"

	"bowline/controlplane/authority"
	cryptoprp "bowline/crypto/prp"
	"bowline/wire"
	"bowline/wire/prp"
)

// greet takes a frame of a connection that has not authenticated (prp.md 3).
func (c *conn) greet(ctx context.Context, frame []byte) error {
	s := c.s
	e, err := prp.ParseHandshake(frame)
	if err != nil {
		s.machine.Refused(s.cfg.Now(), authority.RefusedHello)
		return err
	}
	switch {
	case e.Kind == prp.KindAuthHello && c.admission == nil && c.handshake == nil:
		return c.hello(e)
	case e.Kind == prp.KindAuthResponse && c.admission != nil:
		return c.response(ctx, e)
	}
	s.machine.Refused(s.cfg.Now(), authority.RefusedHello)
	return wire.Errorf(wire.CodeProtocol, "not the message that is due in the handshake")
}

func (c *conn) hello(e prp.Envelope) error {
	s := c.s
	hello, err := prp.HelloOf(e)
	if err != nil {
		s.machine.Refused(s.cfg.Now(), authority.RefusedHello)
		return err
	}
	a, err := s.machine.Hello(s.cfg.Now(), hello)
	if err != nil {
		return err
	}
	canonical, err := a.Challenge.Canonical()
	if err != nil {
		s.machine.Refused(s.cfg.Now(), authority.RefusedHello)
		return err
	}
	c.admission = a
	c.handshake = cryptoprp.NewServerHandshake(a.Key, canonical)
	// Nothing in a challenge has to be durable.
	c.out.push(prp.EncodeChallenge(a.Challenge, c.handshake.Proof()), false)
	return nil
}

func (c *conn) response(ctx context.Context, e prp.Envelope) error {
	s, a := c.s, c.admission
	r, err := prp.ResponseOf(e, a.Challenge)
	if err != nil {
		s.machine.Refused(s.cfg.Now(), authority.RefusedResponse)
		return err
	}
	// One guess per challenge.
	c.admission = nil
	keys, err := c.handshake.Finish(r.ClientProof)
	if err != nil {
		s.machine.Refused(s.cfg.Now(), authority.RefusedProof)
		return err
	}
	link, err := s.machine.Authenticate(s.cfg.Now(), a)
	if err != nil {
		return err
	}
	c.link, c.handshake = link, nil
	c.channel = prp.NewChannel(prp.RoleAuthority, keys, prp.MaxFrameBytes)
	c.in.raise(ingressBytes)
	s.byLink[link] = c
	// The welcome must not wait for what else has arrived, and a connection
	// whose close is decided already takes no part in delivery.
	if err := s.flush(ctx); err != nil {
		return err
	}
	close(c.greeted)
	if c.authenticated != nil {
		c.authenticated()
	}
	if c.closing {
		s.machine.Detach(link)
	}
	return nil
}
