package codex

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"bowline/driver"
	"bowline/wire"
)

// Values of the provider object that name this driver (prp.md 6.5).
const (
	Kind            = "codex"
	DriverName      = "codex_app_server"
	ProviderVersion = "codex-app-server-v1"
)

const (
	defaultCommand = "codex"
	maxArgs        = 256       // arguments of the command (ours)
	maxText        = 480 << 10 // bytes of instructions, and of command and arguments each (architecture, "Limits": prompt 480 KiB)
	maxShort       = 4096      // bytes of model and cwd (PATH_MAX)
)

// provider is the provider object, checked. Absent and null are the same.
type provider struct {
	command             string
	args                []string
	cwd                 string // empty: the workspace
	model               string
	approvalPolicy      string // empty: Codex's own
	externallySandboxed bool
	instructions        string
	plan                bool // collaborationMode plan
	modeInstructions    *bool
	skillInstructions   *bool
}

// memberOrder is the order members are checked in, so that the first error is
// the same every time. All but kind may be null or absent.
var memberOrder = [...]string{
	"kind", "provider", "driver", "providerVersion", "command", "args", "cwd", "model", "approvalPolicy",
	"externallySandboxed", "instructions", "collaborationMode", "includeCollaborationModeInstructions",
	"includeSkillInstructions", "runtimeContext",
}

// parseProvider checks every member; the error names the first wrong one.
func parseProvider(raw json.RawMessage) (provider, error) {
	p := provider{command: defaultCommand, args: []string{"app-server"}}
	members, err := driver.Object(raw, memberOrder[:]...)
	if err != nil {
		return p, err
	}
	for _, name := range memberOrder {
		value, ok := members[name]
		if name == "kind" && !ok {
			return p, driver.MemberError(name, "is required")
		}
		if !ok || isNull(value) && name != "kind" {
			continue
		}
		if err := p.set(name, value); err != nil {
			return p, err
		}
	}
	return p, nil
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(raw, []byte("null")) }

func (p *provider) set(name string, value json.RawMessage) error {
	switch name {
	case "kind", "provider":
		return constant(name, value, Kind)
	case "driver":
		return constant(name, value, DriverName)
	case "providerVersion":
		return constant(name, value, ProviderVersion)
	case "command":
		return text(name, value, &p.command, 1, maxText)
	case "args":
		return p.setArgs(value)
	case "cwd":
		if err := text(name, value, &p.cwd, 1, maxShort); err != nil {
			return err
		}
		return checkCwd(p.cwd)
	case "model":
		return text(name, value, &p.model, 1, maxShort)
	case "approvalPolicy":
		return oneOf(name, value, &p.approvalPolicy, "never", "on-request", "untrusted")
	case "externallySandboxed":
		return boolean(name, value, &p.externallySandboxed)
	case "instructions":
		return text(name, value, &p.instructions, 0, maxText)
	case "collaborationMode":
		var mode string
		err := oneOf(name, value, &mode, "default", "plan")
		p.plan = mode == "plan"
		return err
	case "includeCollaborationModeInstructions":
		p.modeInstructions = new(bool)
		return boolean(name, value, p.modeInstructions)
	case "includeSkillInstructions":
		p.skillInstructions = new(bool)
		return boolean(name, value, p.skillInstructions)
	case "runtimeContext":
		return nil // of any form, for tools we do not offer; nothing of it reaches Codex
	}
	panic("bug: codex provider member " + name)
}

func (p *provider) setArgs(value json.RawMessage) error {
	var args []json.RawMessage
	if err := json.Unmarshal(value, &args); err != nil {
		return driver.MemberError("args", "must be a list of strings")
	}
	if len(args) > maxArgs {
		return driver.MemberError("args", fmt.Sprintf("has more than %d items", maxArgs)).With("limit", maxArgs)
	}
	p.args = make([]string, len(args))
	for i, a := range args {
		if err := text(fmt.Sprintf("args[%d]", i), a, &p.args[i], 0, maxText); err != nil {
			return err
		}
	}
	return nil
}

func constant(name string, value json.RawMessage, want string) error {
	var got string
	if err := json.Unmarshal(value, &got); err != nil || got != want {
		return driver.MemberError(name, fmt.Sprintf("must be %q", want))
	}
	return nil
}

func oneOf(name string, value json.RawMessage, to *string, allowed ...string) error {
	if err := json.Unmarshal(value, to); err == nil {
		for _, a := range allowed {
			if *to == a {
				return nil
			}
		}
	}
	return driver.MemberError(name, "must be one of "+strings.Join(allowed, ", "))
}

func boolean(name string, value json.RawMessage, to *bool) error {
	if err := json.Unmarshal(value, to); err != nil {
		return driver.MemberError(name, "must be true or false")
	}
	return nil
}

func text(name string, value json.RawMessage, to *string, low, high int) error {
	if err := json.Unmarshal(value, to); err != nil || isNull(value) {
		return driver.MemberError(name, "must be a string")
	}
	switch {
	case len(*to) < low:
		return driver.MemberError(name, "must not be empty")
	case len(*to) > high:
		return driver.MemberError(name, fmt.Sprintf("is longer than %d bytes", high)).With("limit", high)
	case strings.ContainsRune(*to, 0):
		return driver.MemberError(name, "contains a NUL byte")
	case !utf8.ValidString(*to):
		return driver.MemberError(name, "is not UTF-8")
	}
	return nil
}

// checkCwd looks at the folder itself: Codex takes any path and fails later.
func checkCwd(cwd string) error {
	if !filepath.IsAbs(cwd) {
		return driver.MemberError("cwd", "must be an absolute path")
	}
	info, err := os.Stat(cwd)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return wire.Errorf(wire.CodeWorkspaceInvalid, "provider.cwd does not exist").With("member", "cwd")
	case err != nil:
		return &wire.Error{Code: wire.CodeWorkspaceInvalid, Message: "provider.cwd cannot be looked at", Details: map[string]any{"member": "cwd"}, Cause: err}
	case !info.IsDir():
		return wire.Errorf(wire.CodeWorkspaceInvalid, "provider.cwd is not a directory").With("member", "cwd")
	}
	return nil
}

// argv resolves a bare command name in the PATH the provider will have: the
// runner's own may be another.
func (p *provider) argv(env []string) ([]string, error) {
	command := p.command
	if !strings.Contains(command, "/") {
		found := lookPath(command, env)
		if found == "" {
			return nil, wire.Errorf(wire.CodeSpawnFailed, "provider.command is not found in PATH").With("member", "command")
		}
		command = found
	}
	return append([]string{command}, p.args...), nil
}

func lookPath(name string, env []string) string {
	var path string
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, "PATH="); ok {
			path = rest // the last one counts, as for execve's callers
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue // a relative entry would look into the workspace
		}
		full := filepath.Join(dir, name)
		if info, err := os.Stat(full); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return full
		}
	}
	return ""
}

// policy is the row of the permission table for one session.
type policy struct {
	approval string // approvalPolicy of the thread, empty: not sent
	sandbox  string // sandbox of the thread, empty: not sent
	accept   bool   // answer approvals with accept
}

func permissions(mode driver.Permission, p provider) (policy, error) {
	var out policy
	if p.externallySandboxed {
		out.sandbox = fullAccess
	}
	switch mode {
	case driver.PermissionDefault, "":
		out.approval = p.approvalPolicy
	case driver.PermissionDeny:
		out.approval = "untrusted"
	case driver.PermissionAllow:
		out = policy{approval: "never", sandbox: fullAccess, accept: true}
	default:
		return out, wire.Errorf(wire.CodeNotAvailable, "permission mode is not available; there are default, deny and allow").With("field", "permission")
	}
	return out, nil
}

const fullAccess = "danger-full-access"
