package peer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"
)

// Authority listens on loopback for one runner. It is scripted: nothing is
// answered unless the test says so.
type Authority struct {
	Identity        Identity
	Version, Digest string
	// LeaseTTL is the life of the leases in welcomes.
	LeaseTTL time.Duration
	// MaxVersion is the highest protocol version that is selected (default 2).
	MaxVersion int64

	Ticket      string
	LeaseToken  string
	LeaseID     string
	LeaseExpiry int64 // Unix ms
	LeaseEpoch  int64
	Selected    int64
	// Acked is what welcomes and acks carry.
	Acked int64
	// Pending is the content of the next welcome's pendingCommands.
	Pending A

	Connections int64
	Path        string
	// TLS, when set, makes the authority speak wss.
	TLS      *tls.Config
	listener *net.TCPListener
	addr     string
}

// Listen opens an authority on a free loopback port.
func Listen(id Identity) (*Authority, error) {
	a := &Authority{
		Identity: id, Version: "0.3.0", Digest: "sha256:" + SHA256Hex("a runner"), LeaseTTL: time.Hour, MaxVersion: 2,
		Path: "/durableRecovery/connect", Ticket: "bootstrap_" + NewUUID(), addr: "127.0.0.1:0",
	}
	if err := a.Reopen(); err != nil {
		return nil, err
	}
	return a, nil
}

// Reopen listens again after [Authority.Close], on the same port.
func (a *Authority) Reopen() error {
	ln, err := net.Listen("tcp", a.addr)
	if err != nil {
		return err
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		panic("bug: not a TCP listener")
	}
	a.listener, a.addr = tcp, ln.Addr().String()
	return nil
}

// Close stops listening; links stay.
func (a *Authority) Close() error {
	err := a.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Addr is host and port.
func (a *Authority) Addr() string { return a.addr }

// URL is the connect URL for the runner.
func (a *Authority) URL() string {
	if a.TLS != nil {
		return "wss://" + a.addr + a.Path
	}
	return "ws://" + a.addr + a.Path
}

// NewTicket replaces the ticket.
func (a *Authority) NewTicket() string {
	a.Ticket = "bootstrap_" + NewUUID()
	return a.Ticket
}

// Accept waits for a connection and reads its opening request.
func (a *Authority) Accept(wait time.Duration) (*Link, error) {
	if err := a.listener.SetDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	conn, err := a.listener.AcceptTCP()
	if err != nil {
		return nil, fmt.Errorf("no connection: %w", mapNetError(err))
	}
	l := &Link{Sock: newServerSock(a.wrap(conn)), Authority: a}
	l.Request, err = l.readHead()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening request: %w", err), l.Close())
	}
	return l, nil
}

func (a *Authority) wrap(conn net.Conn) net.Conn {
	if a.TLS != nil {
		return tls.Server(conn, a.TLS)
	}
	return conn
}

// AcceptAndAdmit waits for a connection and plays the handshake.
func (a *Authority) AcceptAndAdmit(wait time.Duration) (*Link, error) {
	l, err := a.Accept(wait)
	if err != nil {
		return nil, err
	}
	if err := l.Admit(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// HostOf returns host and port of a URL.
func HostOf(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "", err
	}
	return u.Host, nil
}
