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

// runnerNames is what a runnerd inherits from its launcher: prp.md 11.6, the
// platform part.
func runnerNames() []string {
	return []string{
		"PATH", "HOME", "CODEX_HOME", "SystemRoot", "WINDIR", "PATHEXT",
		"LANG", "LC_ALL", "LC_CTYPE", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "RUST_BACKTRACE",
	}
}

// BaseEnv is the environment of a provider: from environ ("NAME=value") the
// names of prp.md 11.10 and extraNames, nothing else. The last of several
// values of one name wins. TreeVariable is never handed on: a process gets its
// own.
func BaseEnv(environ, extraNames []string) []string {
	return selectEnv(environ, append(providerNames(), extraNames...))
}

// RunnerEnv is the environment of a runnerd: the platform names of prp.md 11.6
// and extraNames.
func RunnerEnv(environ, extraNames []string) []string {
	return selectEnv(environ, append(runnerNames(), extraNames...))
}

func selectEnv(environ, names []string) []string {
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
