package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"bowline/driver"
)

// Limits of a provider object (ours; the kernel's own where named).
const (
	// MaxArgs is how many strings argv may have.
	MaxArgs = 4096
	// MaxArgBytes is the kernel's limit for one argument (MAX_ARG_STRLEN),
	// its final NUL included.
	MaxArgBytes = 128 << 10
	// MaxEnvNames is how many names envNames may have.
	MaxEnvNames = 256
	// MaxEnvName is the longest name, in bytes.
	MaxEnvName = 256
	// MaxPath is the kernel's limit for a path (PATH_MAX), NUL included.
	MaxPath = 4096
	// MaxTimeout is the longest timeout.
	MaxTimeout = 366 * 24 * time.Hour
)

// Provider is the provider object of run.prepare for a command:
//
//	{"kind":"command","argv":["sh","-c","…"],"cwd":"/abs","envNames":["A"],"pty":false,"timeoutMs":0}
//
// Only kind and argv are required. cwd defaults to the session's workspace,
// envNames are variables of runnerd that the command inherits beside the base
// ones, timeoutMs 0 is no timeout.
type Provider struct {
	Argv     []string
	Cwd      string
	EnvNames []string
	PTY      bool
	Timeout  time.Duration
}

// Parse reads a provider object strictly; errors are *wire.Error naming the
// member.
func Parse(raw json.RawMessage) (Provider, error) {
	members, err := driver.Object(raw, "kind", "argv", "cwd", "envNames", "pty", "timeoutMs")
	if err != nil {
		return Provider{}, err
	}
	var p Provider
	var kind string
	var timeoutMs int64
	for _, m := range []struct {
		name string
		into any
	}{
		{"kind", &kind},
		{"argv", &p.Argv},
		{"cwd", &p.Cwd},
		{"envNames", &p.EnvNames},
		{"pty", &p.PTY},
		{"timeoutMs", &timeoutMs},
	} {
		value, ok := members[m.name]
		if !ok {
			continue
		}
		if bytes.Equal(bytes.TrimSpace(value), []byte("null")) || json.Unmarshal(value, m.into) != nil {
			return Provider{}, driver.MemberError(m.name, "has the wrong type")
		}
	}
	if kind != Name {
		return Provider{}, driver.MemberError("kind", fmt.Sprintf("is not %q", Name))
	}
	if err := checkStrings(members["argv"], "argv"); err != nil {
		return Provider{}, err
	}
	if err := checkStrings(members["envNames"], "envNames"); err != nil {
		return Provider{}, err
	}
	if err := p.check(timeoutMs); err != nil {
		return Provider{}, err
	}
	_, given := members["cwd"]
	if given && !filepath.IsAbs(p.Cwd) {
		return Provider{}, driver.MemberError("cwd", "is not an absolute path")
	}
	p.Timeout = time.Duration(timeoutMs) * time.Millisecond
	return p, nil
}

// checkStrings refuses null inside a list, which encoding/json takes for "".
func checkStrings(raw json.RawMessage, name string) error {
	if raw == nil {
		return nil
	}
	var list []*string
	if err := json.Unmarshal(raw, &list); err != nil {
		return driver.MemberError(name, "has the wrong type")
	}
	for _, s := range list {
		if s == nil {
			return driver.MemberError(name, "holds null")
		}
	}
	return nil
}

func (p *Provider) check(timeoutMs int64) error {
	switch {
	case len(p.Argv) == 0 || p.Argv[0] == "":
		return driver.MemberError("argv", "names no program")
	case len(p.Argv) > MaxArgs:
		return driver.MemberError("argv", fmt.Sprintf("has %d strings, limit %d", len(p.Argv), MaxArgs))
	case len(p.EnvNames) > MaxEnvNames:
		return driver.MemberError("envNames", fmt.Sprintf("has %d names, limit %d", len(p.EnvNames), MaxEnvNames))
	case len(p.Cwd) >= MaxPath:
		return driver.MemberError("cwd", fmt.Sprintf("has %d bytes, limit %d", len(p.Cwd), MaxPath-1))
	case strings.ContainsRune(p.Cwd, 0):
		return driver.MemberError("cwd", "holds a NUL byte")
	case timeoutMs < 0 || timeoutMs > MaxTimeout.Milliseconds():
		return driver.MemberError("timeoutMs", fmt.Sprintf("is outside 0..%d", MaxTimeout.Milliseconds()))
	}
	for i, arg := range p.Argv {
		if len(arg) >= MaxArgBytes {
			return driver.MemberError("argv", fmt.Sprintf("string %d has %d bytes, limit %d", i, len(arg), MaxArgBytes-1))
		}
		if strings.ContainsRune(arg, 0) {
			return driver.MemberError("argv", fmt.Sprintf("string %d holds a NUL byte", i))
		}
	}
	for i, name := range p.EnvNames {
		if !envName(name) {
			return driver.MemberError("envNames", fmt.Sprintf("name %d is no variable name (letters, digits, _; at most %d bytes)", i, MaxEnvName))
		}
	}
	return nil
}

// envName reports whether s is a portable name of a variable.
func envName(s string) bool {
	if s == "" || len(s) > MaxEnvName {
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
