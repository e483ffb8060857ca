package runnerd

import (
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"bowline/driver"
	"bowline/wire"
	"bowline/wire/prp"
)

// Defaults and bounds of the flags (prp.md 11.4 in PRP use; ours otherwise,
// architecture, "Limits").
const (
	prpOutboxBytes  = 16 << 20
	prpReserveBytes = 1 << 20
	ownOutboxBytes  = 256 << 20
	ownReserveBytes = 16 << 20
	maxOutboxBytes  = 512 << 20
	defaultDelay    = 250 * time.Millisecond
)

// config is the command line, checked.
type config struct {
	prpUse     bool
	connectURL string
	caBundle   string
	stateDir   string
	identity   prp.Identity
	version    string
	digest     string
	maxOutbox  int64
	p0Reserve  int64
	maxFrame   int
	delay      time.Duration
	grace      time.Duration
	maxRuntime time.Duration

	diagnosticsDir string // PRP use only

	ticketFD   int // -1: none
	ticketFile string
	passEnv    []string
	workspace  string
	permission driver.Permission
	metrics    string
	logFormat  string

	buildMetadata bool
	printVersion  bool
}

// flagSpec is one flag.
type flagSpec struct {
	name  string
	value bool // takes a value
	own   bool // only in our own use
}

func flagSpecs() []flagSpec {
	value := func(names ...string) (list []flagSpec) {
		for _, n := range names {
			list = append(list, flagSpec{name: n, value: true})
		}
		return list
	}
	list := value("connect-url", "ca-bundle-path", "state-dir", "runner-id", "environment-lease-id", "run-id", "session-id",
		"turn-id", "item-id", "runner-version", "runner-digest", "max-outbox-bytes", "p0-reserve-bytes", "max-frame-bytes",
		"reconnect-delay-ms", "reconnect-grace-ms", "max-runtime-ms", "max-lifetime-ms", "diagnostics-directory",
		"listen-address", "listen-port", "listen-path", "ticket-fd", "ticket-file")
	for _, n := range []string{"pass-env", "workspace", "permission", "metrics", "log-format"} {
		list = append(list, flagSpec{name: n, value: true, own: true})
	}
	return append(list, flagSpec{name: "build-metadata"}, flagSpec{name: "version"})
}

// printHelp lists the flags. In PRP use there is no help: unknown flags are
// ignored there (prp.md 11.4).
func printHelp(w io.Writer) error {
	text := "runnerd runs one agent and reports to a control plane. It is started by a launcher,\n" +
		"for example by bowline run; docs/cli.md describes its flags:\n\n"
	for _, s := range flagSpecs() {
		text += "  --" + s.name
		if s.value {
			text += " VALUE"
		}
		text += "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

func usage(format string, args ...any) *wire.Error {
	return wire.Errorf(wire.CodeUsage, format, args...)
}

// split reads the command line into flag values. In PRP use unknown flags and
// stray values are skipped, and the last of a repeated flag counts.
func split(args []string, prpUse bool) (map[string]string, error) {
	specs := flagSpecs()
	got := make(map[string]string)
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(strings.TrimPrefix(args[i], "--"), "=")
		known := slices.IndexFunc(specs, func(s flagSpec) bool { return s.name == name })
		if !strings.HasPrefix(args[i], "--") || known < 0 {
			if prpUse {
				continue
			}
			if !strings.HasPrefix(args[i], "-") {
				return nil, usage("argument %d: no arguments but flags are expected", i+1)
			}
			// A value may be a secret by mistake: only the flag's name is shown.
			return nil, usage("unknown flag --%s", strings.TrimLeft(name, "-"))
		}
		spec := specs[known]
		switch {
		case spec.value && !inline:
			if i+1 >= len(args) {
				return nil, usage("flag --%s needs a value", name)
			}
			i++
			value = args[i]
		case !spec.value && inline:
			return nil, usage("flag --%s takes no value", name)
		}
		if _, twice := got[name]; twice && !prpUse {
			return nil, usage("flag --%s is given twice", name)
		}
		got[name] = value
	}
	return got, nil
}

// mentions tells whether args name a flag, before they are parsed.
func mentions(args []string, names ...string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		return strings.HasPrefix(a, "--") && slices.Contains(names, name)
	})
}

// parseFlags checks the command line.
func parseFlags(args []string, prpUse bool) (config, error) {
	c := config{prpUse: prpUse, ticketFD: -1, permission: driver.PermissionDefault, logFormat: "json"}
	got, err := split(args, prpUse)
	if err != nil {
		return c, err
	}
	if _, c.buildMetadata = got["build-metadata"]; c.buildMetadata {
		return c, nil
	}
	if _, c.printVersion = got["version"]; c.printVersion {
		return c, nil
	}
	for _, name := range []string{"listen-address", "listen-port", "listen-path"} {
		if _, ok := got[name]; ok {
			return c, wire.Errorf(wire.CodeNotAvailable, "flag --%s: listener mode is not available, this runner always dials (--connect-url)", name)
		}
	}
	c.connectURL, c.caBundle, c.stateDir = got["connect-url"], got["ca-bundle-path"], got["state-dir"]
	c.identity = prp.Identity{
		RunnerInstanceID: got["runner-id"], EnvironmentLeaseID: got["environment-lease-id"], RunID: got["run-id"],
		NormalizedSessionID: got["session-id"], TurnID: got["turn-id"], ItemID: got["item-id"],
	}
	c.version, c.digest = got["runner-version"], got["runner-digest"]
	c.diagnosticsDir = got["diagnostics-directory"]
	for _, name := range []string{"connect-url", "state-dir", "runner-id", "environment-lease-id", "run-id", "session-id", "turn-id", "item-id", "runner-version", "runner-digest"} {
		if got[name] == "" {
			return c, usage("flag --%s is required", name)
		}
	}
	if err := c.identity.ValidateRunner(); err != nil {
		return c, usage("identity flags: %s", messageOf(err))
	}
	if !regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(c.digest) {
		return c, usage("flag --runner-digest: not sha256: and 64 hex digits")
	}
	if err := c.numbers(got); err != nil {
		return c, err
	}
	return c, c.own(got)
}

func messageOf(err error) string {
	if we, ok := err.(*wire.Error); ok { //nolint:errorlint // made by ValidateRunner, never wrapped
		return we.Message
	}
	return err.Error()
}

func (c *config) numbers(got map[string]string) error {
	c.maxOutbox, c.p0Reserve, c.maxFrame = ownOutboxBytes, ownReserveBytes, prp.MaxFrameBytes
	if c.prpUse {
		c.maxOutbox, c.p0Reserve = prpOutboxBytes, prpReserveBytes
	}
	frame, delay := int64(c.maxFrame), defaultDelay.Milliseconds()
	var grace, runtime, lifetime int64
	for _, n := range []struct {
		name     string
		into     *int64
		min, max int64
	}{
		{"max-outbox-bytes", &c.maxOutbox, 1, maxOutboxBytes},
		{"p0-reserve-bytes", &c.p0Reserve, 0, maxOutboxBytes},
		{"max-frame-bytes", &frame, prp.MaxFrameBytesSmallest, prp.MaxFrameBytesLargest},
		{"reconnect-delay-ms", &delay, 0, 1 << 31},
		{"reconnect-grace-ms", &grace, 0, 1 << 40},
		{"max-runtime-ms", &runtime, 0, 1 << 40},
		{"max-lifetime-ms", &lifetime, 0, 1 << 40},
	} {
		text, ok := got[n.name]
		if !ok {
			continue
		}
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v < n.min || v > n.max {
			return usage("flag --%s: not an integer from %d to %d", n.name, n.min, n.max)
		}
		*n.into = v
	}
	if _, given := got["max-outbox-bytes"]; given && got["p0-reserve-bytes"] == "" && c.p0Reserve >= c.maxOutbox {
		c.p0Reserve = c.maxOutbox / 16
	}
	if c.p0Reserve >= c.maxOutbox {
		return usage("flag --p0-reserve-bytes: %d is not smaller than --max-outbox-bytes %d", c.p0Reserve, c.maxOutbox)
	}
	if runtime == 0 {
		runtime = lifetime
	}
	c.maxFrame, c.delay = int(frame), time.Duration(delay)*time.Millisecond
	c.grace, c.maxRuntime = time.Duration(grace)*time.Millisecond, time.Duration(runtime)*time.Millisecond
	return nil
}

// own reads the flags of our own use.
func (c *config) own(got map[string]string) error {
	if text, ok := got["ticket-fd"]; ok {
		fd, err := strconv.Atoi(text)
		if err != nil || fd < 0 || fd > 1<<20 {
			return usage("flag --ticket-fd: not a file descriptor")
		}
		c.ticketFD = fd
	}
	c.ticketFile = got["ticket-file"]
	if names := got["pass-env"]; names != "" {
		for _, n := range strings.Split(names, ",") {
			if n == "" || strings.ContainsAny(n, "= \x00") {
				return usage("flag --pass-env: not a list of variable names")
			}
			c.passEnv = append(c.passEnv, n)
		}
	}
	c.workspace, c.metrics = got["workspace"], got["metrics"]
	if f, ok := got["log-format"]; ok {
		if f != "json" && f != "text" {
			return usage("flag --log-format: not json or text")
		}
		c.logFormat = f
	}
	mode, ok := got["permission"]
	if !ok {
		return nil
	}
	switch c.permission = driver.Permission(mode); c.permission {
	case driver.PermissionDefault, driver.PermissionDeny, driver.PermissionAllow:
		return nil
	case driver.PermissionAsk, driver.PermissionEdits:
		return wire.Errorf(wire.CodeNotAvailable, "flag --permission: mode %s is not available yet", mode)
	}
	return usage("flag --permission: not default, deny or allow")
}
