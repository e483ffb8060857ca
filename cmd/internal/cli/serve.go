package cli

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"bowline/controlplane"
	"bowline/controlplane/datadir"
	"bowline/controlplane/harness"
	"bowline/controlplane/resource"
	"bowline/wire"
)

func (a *app) serveCommand() *cobra.Command {
	var (
		o      controlplane.Options
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a control plane",
		Long: "Run a control plane on a data folder: one server per folder. It writes DATA/ready.json once\n" +
			"it serves, and an admin token to DATA/admin-token at its first start.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, err := a.dataDir(o.Data)
			if err != nil {
				return err
			}
			o.Data = data
			for _, path := range []*string{&o.ReadyFile, &o.TLSCert, &o.TLSKey} {
				if *path != "" {
					*path = a.abs(*path)
				}
			}
			for _, name := range o.AllowEnv {
				if !envName.MatchString(name) {
					return wire.Errorf(wire.CodeUsage, "--allow-env takes the name of a variable (letters, digits, underscores)").With("field", "allow-env")
				}
			}
			o.Environ = a.Env
			o.Build = build()
			o.Descriptors = descriptors()
			o.Log = slog.New(slog.NewJSONHandler(a.Stderr, nil))
			o.OnReady = func(r datadir.Ready, l controlplane.Listening) { a.announce(r, l, asJSON) }
			err = a.service(cmd.Context(), func(ctx context.Context) error { return controlplane.Serve(ctx, o) })
			if busy := new(wire.Error); errors.As(err, &busy) && busy.Code == wire.CodeDataDirBusy {
				return wire.Errorf(busy.Code, "%s; bowline stop --data %s ends it", busy.Message, data)
			}
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&o.Data, "data", "", "data folder `DIR` (default ${XDG_STATE_HOME:-~/.local/state}/bowline)")
	fl.StringVar(&o.Listen, "listen", controlplane.DefaultListen, "`ADDR`; port 0 picks a free port once and keeps it in the data folder")
	fl.StringVar(&o.ReadyFile, "ready-file", "", "write a second ready file at `FILE`")
	fl.StringVar(&o.Launch, "launch", "", "`WHO` starts runners: local (this server) or none (default: local on loopback, else none)")
	fl.StringVar(&o.TLSCert, "tls-cert", "", "certificate `FILE` (PEM)")
	fl.StringVar(&o.TLSKey, "tls-key", "", "key `FILE` (PEM)")
	fl.BoolVar(&o.BehindProxy, "behind-proxy", false, "allow plain HTTP beyond loopback: a proxy in front ends TLS")
	fl.StringArrayVar(&o.AllowEnv, "allow-env", nil, "`NAME` of a variable that runs may ask for; repeatable")
	fl.DurationVar(&o.IdleExit, "idle-exit", 0, "end after `DUR` without runs, runners and requests (0: never)")
	fl.StringVar(&o.MetricsAddr, "metrics", "", "serve /metrics without a token on the loopback `ADDR`")
	fl.BoolVar(&asJSON, "json", false, "print the ready record as one JSON line on stdout")
	oneOf(cmd, "launch", controlplane.LaunchLocal, controlplane.LaunchNone)
	return cmd
}

// announce tells where the server is, once it serves.
func (a *app) announce(r datadir.Ready, l controlplane.Listening, asJSON bool) {
	if asJSON {
		if err := a.printJSON(r); err != nil {
			a.warn("bowline: %v", err)
		}
		return
	}
	if l.NewToken {
		a.warn("bowline: wrote an admin token to %s", r.AdminTokenFile)
	}
	a.warn("bowline: serving at %s", r.URL)
	if l.MetricsAddr != nil {
		a.warn("bowline: metrics at http://%s/metrics", l.MetricsAddr)
	}
}

// untilSignal runs fn until it returns or SIGINT or SIGTERM asks it to end;
// signalled tells that one did.
func (a *app) untilSignal(ctx context.Context, fn func(context.Context) error) (signalled bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-a.Signals:
			signalled = true
			cancel()
		case <-ctx.Done():
		}
	}()
	err = fn(ctx)
	cancel()
	<-stopped
	return signalled, err
}

// interruptible runs fn; Ctrl-C ends it and the command with
// [wire.ExitSignal].
func (a *app) interruptible(ctx context.Context, fn func(context.Context) error) error {
	signalled, err := a.untilSignal(ctx, fn)
	if signalled && err != nil {
		return &exitError{wire.ExitSignal}
	}
	return err
}

// service runs fn until it fails; being asked to end is no failure.
func (a *app) service(ctx context.Context, fn func(context.Context) error) error {
	_, err := a.untilSignal(ctx, fn)
	return err
}

func (a *app) stopCommand() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the server of the data folder and wait until it is gone",
		Long: "Stop the server of the data folder and wait until it is gone. Runs are not cancelled: their\n" +
			"runners keep what they have and come back to the next server of the folder.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := a.dataDir(data)
			if err != nil {
				return err
			}
			return a.interruptible(cmd.Context(), func(ctx context.Context) error {
				was, err := a.stopServer(ctx, dir)
				switch {
				case err != nil:
					return err
				case was:
					a.warn("bowline: stopped")
				default:
					a.warn("bowline: no server runs on %s", dir)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "data folder `DIR` (default ${XDG_STATE_HOME:-~/.local/state}/bowline)")
	return cmd
}

func (a *app) harnessCommand() *cobra.Command {
	h := &cobra.Command{
		Use: "harness", Short: "Offer a part of Bowline to outside test suites", Args: noCommand,
		RunE: whichVerb("which harness?", "prp"),
	}
	h.AddCommand(&cobra.Command{
		Use:   "prp",
		Short: "One PRP authority behind JSON lines on stdin and stdout",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.service(cmd.Context(), func(ctx context.Context) error {
				return harness.Run(ctx, a.Stdin, a.Stdout, harness.Options{Log: slog.New(slog.NewJSONHandler(a.Stderr, nil))})
			})
		},
	})
	return h
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if b := build(); asJSON {
				return a.printJSON(map[string]any{
					"version": b.Version, "revision": b.Revision, "go": b.Go,
					"platform": runtime.GOOS + "/" + runtime.GOARCH,
					"profiles": []string{"prp"}, "prpVersions": []int{1, 2},
					"apiVersion": resource.APIVersion,
				})
			}
			return a.printVersion()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) printVersion() error {
	b := build()
	return a.say("bowline %s %s %s", b.Version, dash(b.Revision), b.Go)
}

// build reads what the Go tool stamped into the binary.
func build() resource.Build {
	b := resource.Build{Version: "devel", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

// dateless is the format of durations in talk: whole milliseconds.
func dateless(d time.Duration) string { return d.Round(time.Millisecond).String() }
