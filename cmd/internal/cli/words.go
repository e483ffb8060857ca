package cli

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bowline/wire"
)

// errnoText is an error without the path it repeats.
func errnoText(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// withReason is an error's message and, when it does not say so itself, the
// reason at the bottom of its causes, without the paths in between.
func withReason(we *wire.Error) string {
	bottom := we.Cause
	for next := bottom; next != nil; next = errors.Unwrap(next) {
		bottom = next
	}
	if bottom == nil || strings.Contains(we.Message, bottom.Error()) {
		return we.Message
	}
	return we.Message + ": " + bottom.Error()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// setEnv replaces or adds a variable of a "NAME=value" list.
func setEnv(env []string, name, value string) []string {
	env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(env, name+"="+value)
}

// lookPath finds a program as a child with that environment would; a relative
// path counts from dir. "" = there is none that can be executed.
func lookPath(env []string, dir, name string) string {
	executable := func(path string) bool {
		st, err := os.Stat(path)
		return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
	}
	if strings.ContainsRune(name, '/') {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if executable(name) {
			return name
		}
		return ""
	}
	list := ""
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			list = value // the last one counts
		}
	}
	for _, folder := range filepath.SplitList(list) {
		if path := filepath.Join(folder, name); filepath.IsAbs(path) && executable(path) {
			return path
		}
	}
	return ""
}
