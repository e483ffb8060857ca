package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bowline/controlplane/resource"
	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/canonjson"
)

// Kinds of drivers.
const (
	KindCommand  = "command"
	KindCodex    = "codex"
	KindScripted = "scripted"
)

// Kinds are the driver kinds of this build; each is also a driver's name.
func Kinds() []string { return []string{KindCodex, KindCommand, KindScripted} }

// Permission modes of a run (architecture, "permission mode").
const (
	permissionDefault = "default"
	permissionDeny    = "deny"
	permissionAllow   = "allow"
	permissionAsk     = "ask"
	permissionEdits   = "edits"
)

// MaxPromptJSON bounds the prompt's JSON text, quotes included, in bytes
// (architecture, "Limits"): what fits a command on prp.
const MaxPromptJSON = 480 << 10

// field is a refusal that names a member of the request and no value.
func field(code wire.Code, name, format string, args ...any) *wire.Error {
	return wire.Errorf(code, "%s: %s", name, fmt.Sprintf(format, args...)).With("field", name)
}

// checked is a request that may become a run.
type checked struct {
	req        *resource.CreateRun
	driver     Driver
	placement  string
	permission string
}

// check refuses what cannot become a run, before anything is made.
func (m *Manager) check(req *resource.CreateRun) (*checked, error) {
	c := &checked{req: req, placement: req.Placement, permission: req.Permission}
	if c.placement == "" {
		c.placement = store.PlacementLocal
	}
	if c.permission == "" {
		c.permission = permissionDefault
	}
	steps := []func(*checked) error{m.checkPlacement, m.checkDriver, checkInput, m.checkEnv, checkLabels, m.checkSchema, checkWorkspace}
	for _, step := range steps {
		if err := step(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (m *Manager) checkPlacement(c *checked) error {
	req := c.req
	switch c.placement {
	case store.PlacementLocal:
		if m.cfg.Launch == nil {
			return field(wire.CodeNotAvailable, "placement", "this server launches no runners; start one yourself with placement attached")
		}
		if req.Runner != nil {
			return field(wire.CodeInputInvalid, "runner", "is for placement attached only")
		}
		if req.Provider != nil {
			return field(wire.CodeInputInvalid, "provider", "is for placement attached only")
		}
	case store.PlacementAttached:
		if req.Runner == nil {
			return field(wire.CodeInputInvalid, "runner", "is required for placement attached: version and digest of what will join")
		}
	default:
		return field(wire.CodeInputInvalid, "placement", "expected local or attached")
	}
	if req.Session != "" {
		return field(wire.CodeNotAvailable, "session", "continuing a session is not available on profile prp")
	}
	switch c.permission {
	case permissionDefault, permissionDeny, permissionAllow:
	case permissionAsk, permissionEdits:
		return field(wire.CodeNotAvailable, "permission", "mode %s is not available yet; use default, deny or allow", c.permission)
	default:
		return field(wire.CodeInputInvalid, "permission", "expected default, deny or allow")
	}
	return nil
}

func (m *Manager) checkDriver(c *checked) error {
	if p := c.req.Provider; p != nil {
		if !slices.Contains(Kinds(), p.Kind) {
			return field(wire.CodeDriverUnknown, "provider.kind", "expected one of %s", strings.Join(Kinds(), ", "))
		}
		c.driver = Driver{Kind: p.Kind, Command: p.Command}
		return checkArgs("provider.command", p.Command)
	}
	d, ok := m.driver(c.req.Driver)
	if !ok {
		names := Kinds()
		for name := range m.cfg.Drivers {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return field(wire.CodeDriverUnknown, "driver", "nobody described this driver; known are %s", strings.Join(names, ", ")).With("known", names)
	}
	c.driver = d
	return nil
}

// checkInput checks prompt, argv, pty, script and limits against the driver's
// kind.
func checkInput(c *checked) error {
	req, kind := c.req, c.driver.Kind
	if n := len(canonjson.AppendString(nil, req.Prompt)); req.Prompt != "" && n > MaxPromptJSON {
		return field(wire.CodeTooLarge, "prompt", "its JSON text has %d bytes, the limit is %d", n, MaxPromptJSON).With("limit", MaxPromptJSON).With("size", n)
	}
	if err := checkArgs("argv", req.Argv); err != nil {
		return err
	}
	if len(req.Script) > resource.MaxScriptBytes {
		return field(wire.CodeTooLarge, "script", "has %d bytes, the limit is %d", len(req.Script), resource.MaxScriptBytes).With("limit", resource.MaxScriptBytes).With("size", len(req.Script))
	}
	unfit := func(name, needs string) error {
		return field(wire.CodeInputInvalid, name, "driver kind %s %s", kind, needs)
	}
	if kind != KindCommand {
		switch {
		case len(req.Argv) > 0:
			return unfit("argv", "takes no command")
		case req.PTY:
			return unfit("pty", "has no terminal")
		}
	}
	if kind != KindScripted && len(req.Script) > 0 {
		return unfit("script", "takes no script")
	}
	switch kind {
	case KindCommand:
		if req.Prompt != "" {
			return unfit("prompt", "takes argv, no prompt")
		}
		if len(req.Argv)+len(c.driver.Command) == 0 {
			return unfit("argv", "needs a command")
		}
	case KindCodex:
		if req.Prompt == "" {
			return unfit("prompt", "needs a prompt")
		}
	}
	if l := req.Limits; l != nil && (l.TurnTimeMs < 0 || l.TurnTimeMs > resource.MaxTurnTimeMs) {
		return field(wire.CodeInputInvalid, "limits.turnTimeMs", "expected 0 to %d", resource.MaxTurnTimeMs)
	}
	return nil
}

func checkArgs(name string, argv []string) error {
	if len(argv) > resource.MaxArgv {
		return field(wire.CodeTooLarge, name, "has %d arguments, the limit is %d", len(argv), resource.MaxArgv).With("limit", resource.MaxArgv).With("size", len(argv))
	}
	for i, a := range argv {
		at := fmt.Sprintf("%s[%d]", name, i)
		switch {
		case len(a) >= resource.MaxArgBytes:
			return field(wire.CodeTooLarge, at, "has %d bytes, the limit is %d", len(a), resource.MaxArgBytes-1).With("limit", resource.MaxArgBytes-1).With("size", len(a))
		case strings.ContainsRune(a, 0):
			return field(wire.CodeInputInvalid, at, "holds a NUL character")
		case i == 0 && a == "":
			return field(wire.CodeInputInvalid, at, "is empty: the first argument is the program")
		}
	}
	return nil
}

func (m *Manager) checkEnv(c *checked) error {
	if len(c.req.Env) > resource.MaxEnvNames {
		return field(wire.CodeTooLarge, "env", "has %d names, the limit is %d", len(c.req.Env), resource.MaxEnvNames).With("limit", resource.MaxEnvNames).With("size", len(c.req.Env))
	}
	for i, name := range c.req.Env {
		at := fmt.Sprintf("env[%d]", i)
		if !isEnvName(name) {
			return field(wire.CodeInputInvalid, at, "is no name of a variable: letters, digits and _, not starting with a digit, at most %d", resource.MaxNameBytes).With("size", len(name))
		}
		if c.placement == store.PlacementLocal && !slices.Contains(m.cfg.AllowEnv, name) {
			return field(wire.CodeEnvNotAllowed, at, "the server's --allow-env does not list this variable")
		}
	}
	return nil
}

func isEnvName(s string) bool {
	if s == "" || len(s) > resource.MaxNameBytes {
		return false
	}
	for i, c := range []byte(s) {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		digit := c >= '0' && c <= '9'
		if !letter && (!digit || i == 0) {
			return false
		}
	}
	return true
}

func checkLabels(c *checked) error {
	if len(c.req.Labels) > resource.MaxLabels {
		return field(wire.CodeTooLarge, "labels", "has %d members, the limit is %d", len(c.req.Labels), resource.MaxLabels).With("limit", resource.MaxLabels).With("size", len(c.req.Labels))
	}
	for k, v := range c.req.Labels {
		if k == "" || len(k) > resource.MaxLabelBytes || len(v) > resource.MaxLabelBytes {
			return field(wire.CodeInputInvalid, "labels", "a name has 1 to %d bytes, a value at most as many", resource.MaxLabelBytes).With("limit", resource.MaxLabelBytes)
		}
	}
	return nil
}

// checkWorkspace looks at the folder itself where it is on this machine.
func checkWorkspace(c *checked) error {
	ws := c.req.Workspace
	invalid := func(format string, args ...any) *wire.Error {
		return field(wire.CodeWorkspaceInvalid, "workspace", format, args...)
	}
	switch {
	case ws == "" && c.placement == store.PlacementAttached:
		return field(wire.CodeInputInvalid, "workspace", "is required for placement attached: a path on the runner's machine")
	case ws == "":
		return nil
	case len(ws) >= resource.MaxPathBytes:
		return invalid("has %d bytes, the limit is %d", len(ws), resource.MaxPathBytes-1).With("limit", resource.MaxPathBytes-1).With("size", len(ws))
	case strings.ContainsRune(ws, 0):
		return invalid("holds a NUL character")
	case !filepath.IsAbs(ws):
		return invalid("is not an absolute path")
	case c.placement != store.PlacementLocal:
		return nil
	}
	st, err := os.Stat(ws)
	switch {
	case os.IsNotExist(err):
		return invalid("no such directory")
	case err != nil:
		e := invalid("cannot be looked at")
		e.Cause = err
		return e
	case !st.IsDir():
		return invalid("is not a directory")
	}
	return nil
}
