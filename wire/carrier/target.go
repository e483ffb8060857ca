package carrier

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"bowline/wire"
)

// Target is a connect URL that passed the rules of prp.md 1.4.
type Target struct {
	Secure bool   // wss
	Host   string // without brackets
	Port   uint16 // never 0
	Path   string // at least "/"
}

// Resolver finds the addresses of a host; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

func badURL(reason string) error {
	return wire.Errorf(wire.CodeConfigInvalid, "connect URL: %s", reason).With("field", "connectUrl")
}

// ParseTarget checks a connect URL (prp.md 1.4). It fails with a *wire.Error of
// code config_invalid that names the rule and not the URL, which could hold a
// password.
func ParseTarget(raw string) (Target, error) {
	var t Target
	rest, plain := strings.CutPrefix(raw, "ws://")
	if !plain {
		if rest, t.Secure = strings.CutPrefix(raw, "wss://"); !t.Secure {
			return Target{}, badURL("scheme must be ws:// or wss://")
		}
	}
	for i := range len(rest) {
		switch c := rest[i]; {
		case c <= ' ' || c == 0x7F:
			return Target{}, badURL("control characters and white space are not allowed")
		case c > 0x7F:
			return Target{}, badURL("only ASCII is allowed")
		case c == '?' || c == '#' || c == '\\':
			return Target{}, badURL(`"?", "#" and "\" are not allowed`)
		}
	}
	authority := rest
	t.Path = "/"
	if slash := strings.IndexByte(rest, '/'); slash >= 0 {
		authority, t.Path = rest[:slash], rest[slash:]
	}
	if strings.ContainsAny(authority, "@%") {
		return Target{}, badURL(`"@" and "%" are not allowed in the host`)
	}
	host, port, err := splitAuthority(authority)
	if err != nil {
		return Target{}, err
	}
	t.Host = host
	switch {
	case port != "":
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port[0] == '+' {
			return Target{}, badURL("port must be 1 to 65535")
		}
		t.Port = uint16(n)
	case t.Secure:
		t.Port = 443
	default:
		t.Port = 80
	}
	return t, nil
}

func splitAuthority(authority string) (host, port string, err error) {
	if inner, ok := strings.CutPrefix(authority, "["); ok {
		end := strings.IndexByte(inner, ']')
		if end < 0 {
			return "", "", badURL("IPv6 address is not closed by ]")
		}
		host, port = inner[:end], inner[end+1:]
		if a, err := netip.ParseAddr(host); err != nil || !a.Is6() {
			return "", "", badURL("no IPv6 address between [ and ]")
		}
		if port == "" {
			return host, "", nil
		}
		if port[0] != ':' || len(port) == 1 {
			return "", "", badURL("port must be 1 to 65535")
		}
		return host, port[1:], nil
	}
	host, port, found := strings.Cut(authority, ":")
	switch {
	case strings.Contains(port, ":"):
		return "", "", badURL("IPv6 addresses must stand in [ and ]")
	case host == "":
		return "", "", badURL("host is empty")
	case strings.ContainsAny(host, "[]"):
		return "", "", badURL("brackets are only for IPv6 addresses")
	case found && port == "":
		return "", "", badURL("port must be 1 to 65535")
	}
	return host, port, nil
}

// String is the URL again, in its shortest form.
func (t Target) String() string {
	scheme, usual := "ws://", uint16(80)
	if t.Secure {
		scheme, usual = "wss://", 443
	}
	return scheme + t.hostPort(usual) + t.Path
}

func (t Target) hostPort(usual uint16) string {
	host := t.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if t.Port == usual {
		return host
	}
	return host + ":" + strconv.Itoa(int(t.Port))
}

// Pinned is a target whose addresses were looked up. It is dialled as often as
// needed; DNS is not asked again (prp.md 1.4), so a later answer cannot move a
// runner to another machine.
type Pinned struct {
	Target
	addrs []netip.Addr
}

// Resolve looks the host up once. ws:// is refused unless every address is
// loopback: without TLS only this machine may be on the way. A nil resolver is
// the system's.
func (t Target) Resolve(ctx context.Context, resolver Resolver) (*Pinned, error) {
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(t.Host); err == nil {
		addrs = []netip.Addr{a.Unmap()}
	} else {
		if resolver == nil {
			resolver = net.DefaultResolver
		}
		found, err := resolver.LookupNetIP(ctx, "ip", t.Host)
		if err != nil {
			return nil, unavailable("host name does not resolve", err)
		}
		for _, a := range found {
			addrs = append(addrs, a.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	if len(addrs) == 0 {
		return nil, unavailable("host name has no address", nil)
	}
	if !t.Secure {
		for _, a := range addrs {
			if !a.IsLoopback() {
				return nil, badURL("ws:// is for loopback only, use wss://")
			}
		}
	}
	return &Pinned{Target: t, addrs: addrs}, nil
}

// Addrs are the pinned addresses, sorted, for logs.
func (p *Pinned) Addrs() []netip.Addr { return slices.Clone(p.addrs) }
