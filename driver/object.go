package driver

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"bowline/wire"
)

// Object splits a provider object into its members. It refuses anything that
// is not one object, a member outside allowed (names are compared exactly) and
// a repeated member, as a *wire.Error with wire.CodeInputInvalid that names
// the member and never shows a value.
func Object(provider json.RawMessage, allowed ...string) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(provider))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return nil, wire.Errorf(wire.CodeInputInvalid, "provider is not a JSON object")
	}
	members := make(map[string]json.RawMessage)
	for d.More() {
		token, err := d.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, wire.Errorf(wire.CodeInputInvalid, "provider is not a JSON object")
		}
		if !slices.Contains(allowed, name) {
			return nil, MemberError(shortName(name), "is unknown; known are "+strings.Join(allowed, ", "))
		}
		if _, ok := members[name]; ok {
			return nil, MemberError(name, "is given twice")
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, MemberError(name, "is not JSON")
		}
		members[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, wire.Errorf(wire.CodeInputInvalid, "provider is not a JSON object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, wire.Errorf(wire.CodeInputInvalid, "provider is followed by more data")
	}
	return members, nil
}

// MemberError refuses one member of a provider object.
func MemberError(member, what string) *wire.Error {
	return wire.Errorf(wire.CodeInputInvalid, "provider.%s %s", member, what).With("member", member)
}

// shortName keeps an unknown name from becoming a message of its own.
func shortName(name string) string {
	const maxShown = 64 // bytes
	if len(name) > maxShown {
		name = strings.ToValidUTF8(name[:maxShown], "") + "…"
	}
	return name
}
