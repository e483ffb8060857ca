package canonjson

import (
	"math"
	"slices"
)

// Kind is the JSON type of a [Value].
type Kind uint8

// The kinds. Undefined is the zero Value: what [Value.Get] gives for a member
// that is not there. It is distinct from Null.
const (
	Undefined Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

func (k Kind) String() string {
	switch k {
	case Undefined:
		return "undefined"
	case Null:
		return "null"
	case Bool:
		return "boolean"
	case Number:
		return "number"
	case String:
		return "string"
	case Array:
		return "array"
	case Object:
		return "object"
	}
	return "invalid"
}

// MaxSafeInteger is JavaScript's Number.MAX_SAFE_INTEGER.
const MaxSafeInteger = 1<<53 - 1

// Value is any JSON value. Copies of an array or object share their content.
// The zero Value is Undefined.
type Value struct {
	kind Kind
	num  float64 // Number; Bool as 0 or 1
	str  string  // String
	arr  []Value // Array
	obj  *object // Object
}

// Member is one key and value of an object.
type Member struct {
	Key   string
	Value Value
}

// object keeps members in the order they were first set. Above smallObject it
// keeps an index, so that hostile objects do not cost quadratic time.
type object struct {
	members []Member
	index   map[string]int
	integer bool // some key is an array index, so the order of enumeration differs
}

// smallObject is up to how many members a linear search is used.
const smallObject = 24

// firstMembers is the room an object begins with.
const firstMembers = 4

func (o *object) find(key string) int {
	if o.index != nil {
		if i, ok := o.index[key]; ok {
			return i
		}
		return -1
	}
	for i := range o.members {
		if o.members[i].Key == key {
			return i
		}
	}
	return -1
}

func (o *object) set(key string, v Value) {
	if i := o.find(key); i >= 0 {
		o.members[i].Value = v
		return
	}
	if o.members == nil {
		o.members = make([]Member, 0, firstMembers)
	}
	o.members = append(o.members, Member{key, v})
	if _, ok := arrayIndex(key); ok {
		o.integer = true
	}
	switch {
	case o.index != nil:
		o.index[key] = len(o.members) - 1
	case len(o.members) > smallObject:
		o.index = make(map[string]int, 2*len(o.members))
		for i := range o.members {
			o.index[o.members[i].Key] = i
		}
	}
}

// enumerate gives the members as JavaScript enumerates them: array indices
// ascending, then the others in the order they were first set.
func (o *object) enumerate() []Member {
	if !o.integer {
		return o.members
	}
	out := slices.Clone(o.members)
	slices.SortStableFunc(out, func(a, b Member) int {
		x, xok := arrayIndex(a.Key)
		y, yok := arrayIndex(b.Key)
		switch {
		case xok && yok:
			if x < y {
				return -1
			}
			return 1 // keys are unique, so x > y
		case xok:
			return -1
		case yok:
			return 1
		}
		return 0
	})
	return out
}

// arrayIndex tells whether a key is an ECMAScript array index: the canonical
// decimal form of 0 … 2^32-2.
func arrayIndex(key string) (uint64, bool) {
	if key == "" || len(key) > 10 || key[0] == '0' && len(key) > 1 {
		return 0, false
	}
	var n uint64
	for i := range len(key) {
		c := key[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, n <= math.MaxUint32-1
}

// Constructors.

// NullValue is JSON null.
func NullValue() Value { return Value{kind: Null} }

// BoolValue is JSON true or false.
func BoolValue(b bool) Value {
	if b {
		return Value{kind: Bool, num: 1}
	}
	return Value{kind: Bool}
}

// NumberValue is a JSON number; NaN and infinities are written as null by
// [Value.AppendJSON] and refused by [Canonical].
func NumberValue(f float64) Value { return Value{kind: Number, num: f} }

// IntValue is a JSON number. Beyond ±[MaxSafeInteger] it loses precision, as it
// would in JavaScript.
func IntValue(i int64) Value { return Value{kind: Number, num: float64(i)} }

// StringValue is a JSON string. Bytes of s that are not WTF-8 become U+FFFD.
func StringValue(s string) Value { return Value{kind: String, str: cleanWTF8(s)} }

// ArrayValue is a JSON array of the given elements; Undefined ones become null.
func ArrayValue(elements ...Value) Value {
	arr := make([]Value, len(elements))
	for i, e := range elements {
		if e.kind == Undefined {
			e = NullValue()
		}
		arr[i] = e
	}
	return Value{kind: Array, arr: arr}
}

// ObjectValue is a JSON object with the given members in order; members whose
// value is Undefined are left out, as JSON.stringify does.
func ObjectValue(members ...Member) Value {
	o := &object{members: make([]Member, 0, len(members))}
	for _, m := range members {
		if m.Value.kind != Undefined {
			o.set(cleanWTF8(m.Key), m.Value)
		}
	}
	return Value{kind: Object, obj: o}
}

// Readers. None fails: what is not there or of another kind gives the zero
// value, and those with a second result say so.

// Kind of v.
func (v Value) Kind() Kind { return v.kind }

// Exists tells whether v is a value at all (null is one).
func (v Value) Exists() bool { return v.kind != Undefined }

// IsNull tells whether v is JSON null.
func (v Value) IsNull() bool { return v.kind == Null }

// IsObject tells whether v is a JSON object.
func (v Value) IsObject() bool { return v.kind == Object }

// IsArray tells whether v is a JSON array.
func (v Value) IsArray() bool { return v.kind == Array }

// IsString tells whether v is a JSON string.
func (v Value) IsString() bool { return v.kind == String }

// IsNumber tells whether v is a JSON number.
func (v Value) IsNumber() bool { return v.kind == Number }

// IsBool tells whether v is a JSON boolean.
func (v Value) IsBool() bool { return v.kind == Bool }

// Str is the string, or "" when v is none. (It is not called String so that
// printing a Value does not print peer data by accident.)
func (v Value) Str() string {
	if v.kind != String {
		return ""
	}
	return v.str
}

// AsString is the string and whether v is one.
func (v Value) AsString() (string, bool) { return v.str, v.kind == String }

// AsBool is the boolean and whether v is one.
func (v Value) AsBool() (value, ok bool) { return v.kind == Bool && v.num != 0, v.kind == Bool }

// AsNumber is the number and whether v is one.
func (v Value) AsNumber() (float64, bool) {
	if v.kind != Number {
		return 0, false
	}
	return v.num, true
}

// SafeInt is the number as an integer and whether v is one JavaScript's
// Number.isSafeInteger accepts.
func (v Value) SafeInt() (int64, bool) {
	if v.kind != Number || v.num != math.Trunc(v.num) || math.Abs(v.num) > MaxSafeInteger {
		return 0, false
	}
	return int64(v.num), true
}

// Len is the number of elements or members, 0 for other kinds.
func (v Value) Len() int {
	switch v.kind {
	case Array:
		return len(v.arr)
	case Object:
		return len(v.obj.members)
	default:
		return 0
	}
}

// At is element i of an array, Undefined when there is none.
func (v Value) At(i int) Value {
	if v.kind != Array || i < 0 || i >= len(v.arr) {
		return Value{}
	}
	return v.arr[i]
}

// Elements are the elements of an array; the slice must not be changed.
func (v Value) Elements() []Value {
	if v.kind != Array {
		return nil
	}
	return v.arr
}

// Get is a member of an object, Undefined when there is none. With several
// keys it descends: Get("payload", "schema").
func (v Value) Get(keys ...string) Value {
	for _, key := range keys {
		if v.kind != Object {
			return Value{}
		}
		i := v.obj.find(key)
		if i < 0 {
			return Value{}
		}
		v = v.obj.members[i].Value
	}
	return v
}

// Has tells whether an object has a member, null included.
func (v Value) Has(key string) bool { return v.kind == Object && v.obj.find(key) >= 0 }

// Members are the members of an object in JavaScript's order of enumeration;
// the slice must not be changed.
func (v Value) Members() []Member {
	if v.kind != Object {
		return nil
	}
	return v.obj.enumerate()
}

// Set sets a member of an object, in place for every copy of v. An Undefined
// value deletes the member. It panics when v is no object.
func (v Value) Set(key string, value Value) {
	if v.kind != Object {
		panic("bug: canonjson: Set on " + v.kind.String())
	}
	if value.kind == Undefined {
		v.Delete(key)
		return
	}
	v.obj.set(cleanWTF8(key), value)
}

// Delete removes a member of an object, in place for every copy of v.
func (v Value) Delete(key string) {
	if v.kind != Object {
		panic("bug: canonjson: Delete on " + v.kind.String())
	}
	i := v.obj.find(key)
	if i < 0 {
		return
	}
	v.obj.members = slices.Delete(v.obj.members, i, i+1)
	if v.obj.index != nil {
		clear(v.obj.index)
		for i := range v.obj.members {
			v.obj.index[v.obj.members[i].Key] = i
		}
	}
}

// With is a shallow copy of an object with one member set (or, for Undefined,
// removed); v itself stays as it is.
func (v Value) With(key string, value Value) Value {
	if v.kind != Object {
		panic("bug: canonjson: With on " + v.kind.String())
	}
	c := &object{members: slices.Clone(v.obj.members), integer: v.obj.integer}
	if v.obj.index != nil {
		c.index = make(map[string]int, len(v.obj.index)+1)
		for i := range c.members {
			c.index[c.members[i].Key] = i
		}
	}
	out := Value{kind: Object, obj: c}
	out.Set(key, value)
	return out
}
