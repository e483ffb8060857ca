package controlplane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
)

// settingPort keeps the port in the store: runners dial it again after a
// restart.
const settingPort = "port"

// Ports a kept one is picked from (ours). They lie below Linux's range of
// ephemeral ports: a runner that redials a port inside that range while nobody
// listens can be given it as its own source port, connect to itself and keep
// the server from listening.
const (
	portLow   = 10240
	portHigh  = 32767
	portTries = 64
)

// listenPatience is how long a kept port may be busy before it counts as taken
// (ours): the server before us may still be closing.
const listenPatience = 2 * time.Second

// address is a checked --listen.
type address struct {
	host     string
	port     int
	loopback bool
}

// parseListen checks HOST:PORT.
func parseListen(ctx context.Context, listen string) (address, error) {
	if listen == "" {
		listen = DefaultListen
	}
	host, portText, err := net.SplitHostPort(listen)
	if err != nil {
		return address{}, wire.Errorf(wire.CodeUsage, "--listen must be HOST:PORT, with port 0 for a kept one")
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return address{}, wire.Errorf(wire.CodeUsage, "--listen: the port must be 0 to 65535")
	}
	a := address{host: host, port: int(port)}
	if host == "" {
		return a, nil // every address
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil || len(ips) == 0 {
		return address{}, &wire.Error{Code: wire.CodeUsage, Message: "--listen: the host does not resolve", Cause: err}
	}
	a.loopback = true
	for _, ip := range ips {
		a.loopback = a.loopback && ip.IP.IsLoopback()
	}
	return a, nil
}

// open listens. Port 0 means the kept port, or a new one that is kept from now
// on.
func (a address) open(ctx context.Context, st store.Store) (net.Listener, error) {
	if a.port != 0 {
		return a.patient(ctx, a.port)
	}
	kept, err := st.Setting(ctx, settingPort)
	if err == nil {
		port, perr := strconv.ParseUint(kept, 10, 16)
		if perr != nil || port == 0 {
			return nil, wire.Errorf(wire.CodeLogDamaged, "the kept port in the store is not a port")
		}
		return a.patient(ctx, int(port))
	}
	if wire.CodeOf(err) != wire.CodeNotFound {
		return nil, err
	}
	l, err := a.pick(ctx)
	if err != nil {
		return nil, err
	}
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listener without a TCP address: %s", l.Addr()), l.Close())
	}
	if err := st.Commit(ctx, &store.Tx{Settings: map[string]string{settingPort: strconv.Itoa(tcp.Port)}}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (a address) listen(ctx context.Context, port int) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", net.JoinHostPort(a.host, strconv.Itoa(port)))
}

// patient listens on a given port, waiting a moment for an earlier server to
// let go.
func (a address) patient(ctx context.Context, port int) (net.Listener, error) {
	deadline := time.Now().Add(listenPatience)
	for {
		l, err := a.listen(ctx, port)
		switch {
		case err == nil:
			return l, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("cannot listen on port %d", port), Cause: err}
		case time.Now().After(deadline):
			return nil, &wire.Error{
				Code:    wire.CodePortTaken,
				Message: fmt.Sprintf("port %d, which this server keeps or was told to use, is taken by another program", port),
				Details: map[string]any{"port": port}, Cause: err,
			}
		}
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
	}
}

// pick finds a free port outside the ephemeral range, or any if there is none.
func (a address) pick(ctx context.Context) (net.Listener, error) {
	high := min(portHigh, ephemeralLow()-1)
	for range portTries {
		if high <= portLow {
			break
		}
		n, err := rand.Int(rand.Reader, big.NewInt(int64(high-portLow+1)))
		if err != nil {
			return nil, err
		}
		l, err := a.listen(ctx, portLow+int(n.Int64()))
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) {
			return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "cannot listen", Cause: err}
		}
	}
	l, err := a.listen(ctx, 0)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "cannot listen", Cause: err}
	}
	return l, nil
}

// ephemeralLow is where the kernel's ephemeral ports begin.
func ephemeralLow() int {
	const linuxDefault = 32768
	raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return linuxDefault
	}
	low, _, _ := strings.Cut(strings.TrimSpace(string(raw)), "\t")
	n, err := strconv.Atoi(low)
	if err != nil {
		return linuxDefault
	}
	return n
}

// dialHost is the host by which this machine reaches the listener.
func (a address) dialHost(l net.Listener) string {
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok || tcp.IP.IsUnspecified() {
		return "127.0.0.1"
	}
	return tcp.IP.String()
}
