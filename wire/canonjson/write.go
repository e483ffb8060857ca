package canonjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Limits of the canonical form (prp.md 3.9). They hold wherever an authority
// compares or signs, and nowhere else.
const (
	// MaxDepth is the deepest nesting; the root is at depth 0.
	MaxDepth = 64
	// MaxNodes is how many values there may be; keys do not count.
	MaxNodes = 10_000
)

// Error is a value that has no canonical form. Compare with errors.Is.
type Error struct {
	Code string // stable, prp.md 3.9
}

func (e *Error) Error() string { return e.Code }

// The errors of the canonical form.
var (
	// ErrInvalid: a number is not finite, or a value is undefined.
	ErrInvalid = &Error{Code: "durable_prp_canonical_json_invalid"}
	// ErrTooLarge: [MaxDepth] or [MaxNodes] is exceeded.
	ErrTooLarge = &Error{Code: "durable_prp_canonical_json_too_large"}
)

// Canonical gives the canonical JSON of v. It fails with [ErrInvalid] or
// [ErrTooLarge].
func Canonical(v Value) ([]byte, error) { return AppendCanonical(nil, v) }

// AppendCanonical is [Canonical] into dst.
func AppendCanonical(dst []byte, v Value) ([]byte, error) {
	w := writer{dst: dst, canonical: true, strict: true, maxDepth: MaxDepth, maxNodes: MaxNodes}
	if err := w.value(v, 0); err != nil {
		return dst, err
	}
	return w.dst, nil
}

// CanonicalUnlimited is [Canonical] without limits, for digests and
// fingerprints (prp.md 7.4, 9.7). It fails only with [ErrInvalid].
func CanonicalUnlimited(v Value) ([]byte, error) {
	w := writer{canonical: true, strict: true, maxDepth: math.MaxInt, maxNodes: math.MaxInt}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	return w.dst, nil
}

// Equal tells whether two values are canonically equal. A value without a
// canonical form gives an error even when the other differs anyway: that is
// what an authority does with it (prp.md 3.9).
func Equal(a, b Value) (bool, error) {
	x, err := Canonical(a)
	if err != nil {
		return false, err
	}
	y, err := Canonical(b)
	if err != nil {
		return false, err
	}
	return bytes.Equal(x, y), nil
}

// AppendJSON appends v as JSON.stringify writes it. Undefined gives null.
func (v Value) AppendJSON(dst []byte) []byte {
	w := writer{dst: dst, maxDepth: math.MaxInt, maxNodes: math.MaxInt}
	if err := w.value(v, 0); err != nil {
		panic("bug: canonjson: " + err.Error()) // lenient and without limits: cannot fail
	}
	return w.dst
}

// JSON is [Value.AppendJSON] into a new slice.
func (v Value) JSON() []byte { return v.AppendJSON(nil) }

// MarshalJSON lets a Value stand inside Go structs given to encoding/json.
func (v Value) MarshalJSON() ([]byte, error) { return v.JSON(), nil }

// UnmarshalJSON lets a Value stand inside Go structs read by encoding/json.
func (v *Value) UnmarshalJSON(b []byte) error {
	parsed, err := Parse(b)
	if err != nil {
		return err
	}
	*v = parsed
	return nil
}

type writer struct {
	dst       []byte
	canonical bool // sort keys
	strict    bool // refuse what has no JSON form
	maxDepth  int
	maxNodes  int
	nodes     int
}

func (w *writer) value(v Value, depth int) error {
	if w.nodes++; w.nodes > w.maxNodes || depth > w.maxDepth {
		return ErrTooLarge
	}
	switch v.kind {
	case Undefined:
		if w.strict {
			return ErrInvalid
		}
		w.dst = append(w.dst, "null"...)
	case Null:
		w.dst = append(w.dst, "null"...)
	case Bool:
		if v.num != 0 {
			w.dst = append(w.dst, "true"...)
		} else {
			w.dst = append(w.dst, "false"...)
		}
	case Number:
		if w.strict && (math.IsNaN(v.num) || math.IsInf(v.num, 0)) {
			return ErrInvalid
		}
		w.dst = AppendNumber(w.dst, v.num)
	case String:
		w.dst = AppendString(w.dst, v.str)
	case Array:
		w.dst = append(w.dst, '[')
		for i, e := range v.arr {
			if i > 0 {
				w.dst = append(w.dst, ',')
			}
			if err := w.value(e, depth+1); err != nil {
				return err
			}
		}
		w.dst = append(w.dst, ']')
	case Object:
		return w.object(v.obj, depth)
	}
	return nil
}

func (w *writer) object(o *object, depth int) error {
	var members []Member
	if w.canonical {
		members = sorted(o.members)
	} else {
		members = o.enumerate()
	}
	w.dst = append(w.dst, '{')
	for i := range members {
		if i > 0 {
			w.dst = append(w.dst, ',')
		}
		w.dst = AppendString(w.dst, members[i].Key)
		w.dst = append(w.dst, ':')
		if err := w.value(members[i].Value, depth+1); err != nil {
			return err
		}
	}
	w.dst = append(w.dst, '}')
	return nil
}

func sorted(members []Member) []Member {
	byKey := func(a, b Member) int { return CompareUTF16(a.Key, b.Key) }
	if slices.IsSortedFunc(members, byKey) {
		return members
	}
	out := slices.Clone(members)
	slices.SortFunc(out, byKey)
	return out
}

// Marshal gives the JSON of a Go value (struct tags as in encoding/json, struct
// fields in their order) in JSON.stringify's spelling: nothing escaped for
// HTML, ECMAScript numbers. Values and json.RawMessage may stand inside it.
func Marshal(v any) ([]byte, error) {
	value, err := FromGo(v)
	if err != nil {
		return nil, err
	}
	return value.JSON(), nil
}

// FromGo gives a Go value as a [Value], by way of encoding/json.
func FromGo(v any) (Value, error) {
	if value, ok := v.(Value); ok {
		return value, nil
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return Value{}, fmt.Errorf("canonjson: %w", err)
	}
	return ParseText(b.String())
}
