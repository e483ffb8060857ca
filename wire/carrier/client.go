package carrier

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Times a runner allows itself (prp.md 1.4).
const (
	connectTimeout      = 3 * time.Second  // TCP, each address
	connectTotalTimeout = 10 * time.Second // TCP, all addresses
	upgradeTimeout      = 2 * time.Second  // TLS and WebSocket upgrade
)

// Dialer opens one TCP connection; *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// DialOptions configure [Dial] and [Pinned.Dial].
type DialOptions struct {
	// TLS is used for wss; nil means the platform's roots. ServerName is set
	// from the URL.
	TLS *tls.Config
	// MaxFrame is the longest message taken, in bytes. It must be positive.
	MaxFrame int
	// Resolver and Dialer are for tests; nil means the system's.
	Resolver Resolver
	Dialer   Dialer
	// Header is added to the upgrade request.
	Header http.Header
}

// Dial parses, resolves and dials in one step.
func Dial(ctx context.Context, url string, opts DialOptions) (Conn, error) {
	target, err := ParseTarget(url)
	if err != nil {
		return nil, err
	}
	pinned, err := target.Resolve(ctx, opts.Resolver)
	if err != nil {
		return nil, err
	}
	return pinned.Dial(ctx, opts)
}

// Dial connects to the first pinned address that answers. No proxy is ever
// used: the address is the one that was checked. It fails with a *wire.Error of
// code unavailable.
func (p *Pinned) Dial(ctx context.Context, opts DialOptions) (Conn, error) {
	if opts.MaxFrame <= 0 {
		panic("bug: carrier: MaxFrame is not positive")
	}
	socket, err := p.connect(ctx, opts.Dialer)
	if err != nil {
		return nil, unavailable("no address answers", err)
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeTimeout)
	defer cancel()
	if p.Secure {
		if socket, err = p.secure(ctx, socket, opts.TLS); err != nil {
			return nil, unavailable("TLS handshake failed", err)
		}
	}
	gate := newGate(socket, opts.MaxFrame)
	ws, err := p.upgrade(ctx, gate, opts.Header)
	if err != nil {
		return nil, unavailable("WebSocket upgrade failed", errors.Join(err, gate.Close()))
	}
	// The gate refuses longer frames before they are read, so this second limit
	// never speaks.
	ws.SetReadLimit(int64(opts.MaxFrame) + 1)
	return &clientConn{ws: ws, gate: gate}, nil
}

func (p *Pinned) connect(ctx context.Context, dialer Dialer) (net.Conn, error) {
	if dialer == nil {
		dialer = &net.Dialer{}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTotalTimeout)
	defer cancel()
	var errs []error
	for _, addr := range p.addrs {
		conn, err := connectOne(ctx, dialer, netip.AddrPortFrom(addr, p.Port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func connectOne(ctx context.Context, dialer Dialer, addr netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return dialer.DialContext(ctx, "tcp", addr.String())
}

func (p *Pinned) secure(ctx context.Context, socket net.Conn, config *tls.Config) (net.Conn, error) {
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config = config.Clone()
	config.ServerName = p.Host
	config.NextProtos = []string{"http/1.1"} // an upgrade needs HTTP/1.1
	conn := tls.Client(socket, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return conn, nil
}

// upgrade runs the library's handshake over a socket that is connected and, for
// wss, encrypted already; so the library always sees plain ws.
func (p *Pinned) upgrade(ctx context.Context, gate *gate, header http.Header) (*websocket.Conn, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return gate, nil
		},
	}
	usual := uint16(80)
	if p.Secure {
		usual = 443
	}
	ws, answer, err := websocket.Dial(ctx, "ws://"+p.hostPort(0)+p.Path, &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		HTTPHeader:      header,
		Host:            p.hostPort(usual),
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil && answer != nil && answer.Body != nil {
		err = errors.Join(err, answer.Body.Close())
	}
	return ws, err
}

// clientConn is the runner's side.
type clientConn struct {
	ws        *websocket.Conn
	gate      *gate
	closeOnce sync.Once
	closeErr  error
}

func (c *clientConn) RemoteAddr() string { return c.gate.RemoteAddr().String() }

func (c *clientConn) ReadMessage(ctx context.Context) ([]byte, error) {
	kind, message, err := c.ws.Read(ctx)
	if err == nil && kind != websocket.MessageText {
		err = errors.New("message is not text")
	}
	if err == nil {
		return message, nil
	}
	return nil, c.destroy(c.explain("read failed", err))
}

func (c *clientConn) WriteMessage(ctx context.Context, message []byte) error {
	if ctx.Err() != nil {
		return unavailable("write was given up before it began", context.Cause(ctx))
	}
	if err := c.ws.Write(ctx, websocket.MessageText, message); err != nil {
		return c.destroy(c.explain("write failed", err))
	}
	return nil
}

// explain prefers what the gate saw: the library only knows that its socket
// was closed.
func (c *clientConn) explain(what string, err error) error {
	if reason := c.gate.reason(); reason != nil {
		return reason
	}
	return unavailable(what, err)
}

func (c *clientConn) destroy(err error) error {
	if closeErr := c.Close(); closeErr != nil {
		return errors.Join(err, closeErr)
	}
	return err
}

func (c *clientConn) Close() error {
	c.closeOnce.Do(func() {
		// The socket first: the library would otherwise have a moment in which
		// to say goodbye.
		err := c.gate.Close()
		// It fails because its socket is closed, which is what is wanted; it
		// still has to be told so that its goroutines end.
		_ = c.ws.CloseNow() //nolint:errcheck // see above
		c.closeErr = err
	})
	return c.closeErr
}
