package supervise

import (
	"slices"
	"strings"
)

// providerNames is what a provider process inherits: prp.md 11.10.
func providerNames() []string {
	return []string{
		"PATH", "PATHEXT", "SystemRoot", "WINDIR", "HOME", "USERPROFILE",
		"LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "TZ",
	}
}

// BaseEnv is the environment of a provider: from environ ("NAME=value") the
// names of prp.md 11.10 and extraNames, nothing else. The last of several
// values of one name wins. TreeVariable is never handed on: a process gets its
// own.
func BaseEnv(environ, extraNames []string) []string {
	names := append(providerNames(), extraNames...)
	allowed := make(map[string]bool, len(names))
	for _, n := range names {
		allowed[n] = n != TreeVariable
	}
	value := make(map[string]string)
	for _, kv := range environ {
		if name, _, ok := strings.Cut(kv, "="); ok && allowed[name] {
			value[name] = kv
		}
	}
	env := make([]string, 0, len(value))
	for _, kv := range value {
		env = append(env, kv)
	}
	slices.Sort(env)
	return env
}
