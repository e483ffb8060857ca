package controlplane

import (
	"log/slog"
	"net"
	"time"

	"bowline/controlplane/datadir"
	"bowline/controlplane/resource"
	"bowline/wire"
)

// Who starts runners of runs that ask for none (placement local).
const (
	LaunchLocal = "local" // the server, on its own machine
	LaunchNone  = "none"  // nobody: only attached runs are taken
)

// DefaultListen is loopback with a kept port.
const DefaultListen = "127.0.0.1:0"

// DefaultIdleExit is how long a background server stays up without anything
// to do (issue 2).
const DefaultIdleExit = 30 * time.Minute

// Driver is an entry of the server's config file, its values resolved.
type Driver struct {
	Kind    string            // command, codex, scripted
	Command []string          // argv of the provider; nil = the kind's own default
	Env     map[string]string // of the provider; values are secrets
}

// Options of [Serve].
type Options struct {
	// Data is the data folder; "" = datadir.Default.
	Data string
	// Listen is HOST:PORT; "" = [DefaultListen]. Port 0 picks a free port once
	// and keeps it.
	Listen string
	// ReadyFile is written beside DATA/ready.json; "" = none.
	ReadyFile string
	// Launch is [LaunchLocal] or [LaunchNone]; "" = local on loopback, else
	// none.
	Launch          string
	TLSCert, TLSKey string // files; both or neither
	// BehindProxy allows plain HTTP on an address that is not loopback: a proxy
	// in front of it ends TLS.
	BehindProxy bool
	// AllowEnv are names of the server's environment that runs may ask for.
	AllowEnv []string
	// IdleExit ends the server after that long without requests, open runs or
	// connected runners; 0 = never.
	IdleExit time.Duration
	// MetricsAddr serves /metrics without a token on a loopback address of its
	// own; "" = only on the API, with scope read.
	MetricsAddr string

	Drivers     map[string]Driver
	Descriptors []wire.Descriptor
	Build       resource.Build

	// Runner is the executable of our own runnerd; "" = this binary, started
	// with argv[0] runnerd.
	Runner string
	// Environ is the environment that runners inherit from; nil = os.Environ.
	Environ []string
	// Log; nil = nothing is logged.
	Log *slog.Logger
	// OnReady is called once the server serves and the ready file is written.
	OnReady func(datadir.Ready, Listening)
}

// Listening tells where a server serves.
type Listening struct {
	Addr        net.Addr
	MetricsAddr net.Addr // nil without one
	NewToken    bool     // the admin token was made by this start
}

func (o *Options) logger() *slog.Logger {
	if o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Log
}
