package cli

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"bowline/wire"
)

// asTyped finds the typed error in err.
func asTyped(err error, target **wire.Error) bool { return err != nil && errors.As(err, target) }

// errnoText is an error without the path it repeats.
func errnoText(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// setEnv replaces or adds a variable of a "NAME=value" list.
func setEnv(env []string, name, value string) []string {
	env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(env, name+"="+value)
}
