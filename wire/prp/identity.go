package prp

import "bowline/wire/canonjson"

// Identity is the six ids every credential, connection and envelope is bound
// to. The order of its fields is the order they are written in.
type Identity struct {
	RunnerInstanceID    string `json:"runnerInstanceId"`
	EnvironmentLeaseID  string `json:"environmentLeaseId"`
	RunID               string `json:"runId"`
	NormalizedSessionID string `json:"normalizedSessionId"`
	TurnID              string `json:"turnId"`
	ItemID              string `json:"itemId"`
}

type identityMember struct {
	name  string
	value *string
}

func (id *Identity) members() [6]identityMember {
	return [6]identityMember{
		{"runnerInstanceId", &id.RunnerInstanceID},
		{"environmentLeaseId", &id.EnvironmentLeaseID},
		{"runId", &id.RunID},
		{"normalizedSessionId", &id.NormalizedSessionID},
		{"turnId", &id.TurnID},
		{"itemId", &id.ItemID},
	}
}

// IsStableID tells whether s matches ^[A-Za-z0-9][A-Za-z0-9._:-]*$ and is at
// most limit characters long.
func IsStableID(s string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == ':' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// Validate checks the rule of an authority: each id a stable id of at most
// [MaxIdentityLen] (prp.md 3.1).
func (id Identity) Validate() error {
	for _, m := range id.members() {
		if !IsStableID(*m.value, MaxIdentityLen) {
			return violation("%s is not a stable id of 1 to %d characters", m.name, MaxIdentityLen)
		}
	}
	return nil
}

// maxRunnerInstanceIDLen keeps "event_<runner>_<16 digits>" within
// [MaxShortIDLen]: with a longer id no event of the runner would be valid.
const maxRunnerInstanceIDLen = MaxShortIDLen - len("event_") - len("_0000000000000000")

// ValidateRunner is [Identity.Validate] plus the narrower rules of a runner,
// which come from the event schema.
func (id Identity) ValidateRunner() error {
	if err := id.Validate(); err != nil {
		return err
	}
	switch {
	case len(id.RunID) > MaxShortIDLen:
		return violation("runId is longer than %d characters", MaxShortIDLen)
	case len(id.NormalizedSessionID) > MaxShortIDLen:
		return violation("normalizedSessionId is longer than %d characters", MaxShortIDLen)
	case len(id.RunnerInstanceID) > maxRunnerInstanceIDLen:
		return violation("runnerInstanceId is longer than %d characters", maxRunnerInstanceIDLen)
	}
	return nil
}

// IdentityOf reads the six members of an object. It fails when one is not a
// string; their form is not checked, because they are compared next.
func IdentityOf(v canonjson.Value) (Identity, error) {
	var id Identity
	for _, m := range id.members() {
		s, ok := v.Get(m.name).AsString()
		if !ok {
			return Identity{}, violation("%s is not a string", m.name)
		}
		*m.value = s
	}
	return id, nil
}

// Value is the identity as a JSON object of six members.
func (id Identity) Value() canonjson.Value {
	v := canonjson.ObjectValue()
	id.setIn(v)
	return v
}

func (id Identity) setIn(v canonjson.Value) {
	for _, m := range id.members() {
		v.Set(m.name, canonjson.StringValue(*m.value))
	}
}

// appendMembers appends the six members without braces.
func (id Identity) appendMembers(dst []byte) []byte {
	for i, m := range id.members() {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendKey(dst, m.name)
		dst = canonjson.AppendString(dst, *m.value)
	}
	return dst
}

// appendKey appends `"name":` for a name that needs no escape.
func appendKey(dst []byte, name string) []byte {
	dst = append(dst, '"')
	dst = append(dst, name...)
	return append(dst, '"', ':')
}
