package prp

import (
	"math"
	"strconv"
	"strings"

	"bowline/wire/canonjson"
)

// A rule checks one value the way a JSON Schema keyword group would; nil means
// it fits. It sees only the value: the place is added on the way out.
type rule func(canonjson.Value) *mismatch

// mismatch is where and why a value does not fit. It never holds the value.
type mismatch struct {
	path   string
	reason string
}

func (m *mismatch) under(name string) *mismatch {
	if m == nil {
		return nil
	}
	if m.path == "" || m.path[0] == '[' {
		m.path = name + m.path
	} else {
		m.path = name + "." + m.path
	}
	return m
}

func wrong(reason string) *mismatch { return &mismatch{reason: reason} }

// field is one member of an object rule.
type field struct {
	name     string
	required bool
	rule     rule
}

func must(name string, r rule) field { return field{name, true, r} }
func may(name string, r rule) field  { return field{name, false, r} }

// open and closed say what happens to members nobody named.
const (
	open   = false
	closed = true
)

func object(isClosed bool, fields ...field) rule {
	known := make(map[string]bool, len(fields))
	for _, f := range fields {
		known[f.name] = true
	}
	return func(v canonjson.Value) *mismatch {
		if !v.IsObject() {
			return wrong("is not an object")
		}
		for i := range fields {
			f := &fields[i]
			m := v.Get(f.name)
			if !m.Exists() {
				if f.required {
					return wrong("is missing").under(f.name)
				}
				continue
			}
			if bad := f.rule(m); bad != nil {
				return bad.under(f.name)
			}
		}
		if isClosed {
			for _, m := range v.Members() {
				if !known[m.Key] {
					return wrong("has a member the schema does not know")
				}
			}
		}
		return nil
	}
}

func all(rules ...rule) rule {
	return func(v canonjson.Value) *mismatch {
		for _, r := range rules {
			if bad := r(v); bad != nil {
				return bad
			}
		}
		return nil
	}
}

func anyOf(reason string, rules ...rule) rule {
	return func(v canonjson.Value) *mismatch {
		for _, r := range rules {
			if r(v) == nil {
				return nil
			}
		}
		return wrong(reason)
	}
}

func nullable(r rule) rule {
	return func(v canonjson.Value) *mismatch {
		if v.IsNull() {
			return nil
		}
		return r(v)
	}
}

// text is a string of shortest to longest code points.
func text(shortest, longest int) rule {
	return func(v canonjson.Value) *mismatch {
		s, ok := v.AsString()
		if !ok {
			return wrong("is not a string")
		}
		if len(s) < shortest {
			return wrong("is shorter than " + strconv.Itoa(shortest) + " characters")
		}
		if len(s) > longest && canonjson.CodePoints(s) > longest {
			return wrong("is longer than " + strconv.Itoa(longest) + " characters")
		}
		return nil
	}
}

func anyText(v canonjson.Value) *mismatch {
	if !v.IsString() {
		return wrong("is not a string")
	}
	return nil
}

func anyObject(v canonjson.Value) *mismatch {
	if !v.IsObject() {
		return wrong("is not an object")
	}
	return nil
}

func boolean(v canonjson.Value) *mismatch {
	if !v.IsBool() {
		return wrong("is not a boolean")
	}
	return nil
}

func isTrue(v canonjson.Value) *mismatch {
	if b, ok := v.AsBool(); !ok || !b {
		return wrong("is not true")
	}
	return nil
}

// integer is a number without a fraction of at least lowest.
func integer(lowest float64) rule {
	return func(v canonjson.Value) *mismatch {
		f, ok := v.AsNumber()
		if !ok || f != math.Trunc(f) || math.IsInf(f, 0) {
			return wrong("is not an integer")
		}
		if f < lowest {
			return wrong("is less than " + strconv.FormatFloat(lowest, 'f', -1, 64))
		}
		return nil
	}
}

func number(v canonjson.Value) *mismatch {
	if !v.IsNumber() {
		return wrong("is not a number")
	}
	return nil
}

// exactly is one fixed text.
func exactly(want string) rule {
	return func(v canonjson.Value) *mismatch {
		if !v.IsString() || v.Str() != want {
			return wrong("is not " + strconv.Quote(want))
		}
		return nil
	}
}

func exactNumber(want int64) rule {
	return func(v canonjson.Value) *mismatch {
		if !isInt(v, want) {
			return wrong("is not " + strconv.FormatInt(want, 10))
		}
		return nil
	}
}

// oneOf is one of some texts, given separated by blanks.
func oneOf(list string) rule {
	allowed := strings.Fields(list)
	return func(v canonjson.Value) *mismatch {
		if s, ok := v.AsString(); ok {
			for _, a := range allowed {
				if s == a {
					return nil
				}
			}
		}
		return wrong("is none of " + strings.Join(allowed, ", "))
	}
}

// list is an array of at most longest items.
func list(longest int, item rule) rule {
	return func(v canonjson.Value) *mismatch {
		if !v.IsArray() {
			return wrong("is not an array")
		}
		if v.Len() > longest {
			return wrong("has more than " + strconv.Itoa(longest) + " items")
		}
		for i, e := range v.Elements() {
			if bad := item(e); bad != nil {
				return bad.under("[" + strconv.Itoa(i) + "]")
			}
		}
		return nil
	}
}

// unique is an array without two equal items.
func unique(v canonjson.Value) *mismatch {
	seen := make(map[string]bool, v.Len())
	for _, e := range v.Elements() {
		key, err := canonjson.CanonicalUnlimited(e)
		if err != nil {
			return wrong("holds a number that is not finite")
		}
		if seen[string(key)] {
			return wrong("holds the same item twice")
		}
		seen[string(key)] = true
	}
	return nil
}

// stableID is a text of the stable id pattern.
func stableID(longest int) rule {
	return func(v canonjson.Value) *mismatch {
		if s, ok := v.AsString(); !ok || !IsStableID(s, longest) {
			return wrong("is not a stable id of at most " + strconv.Itoa(longest) + " characters")
		}
		return nil
	}
}

// stableCode is ^[a-z][a-z0-9_.:-]*$ of at most 160 characters.
func stableCode(v canonjson.Value) *mismatch {
	s := v.Str()
	ok := s != "" && len(s) <= MaxShortIDLen && s[0] >= 'a' && s[0] <= 'z'
	for i := 1; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == ':' || c == '-'
	}
	if !ok {
		return wrong("is not a stable code")
	}
	return nil
}

// relativePath is a path without a leading slash, a ".." segment or a line
// terminator, of at most longest characters.
func relativePath(shortest, longest int) rule {
	length := text(shortest, longest)
	return func(v canonjson.Value) *mismatch {
		if bad := length(v); bad != nil {
			return bad
		}
		s := v.Str()
		if strings.HasPrefix(s, "/") || strings.ContainsAny(s, "\n\r\u2028\u2029") {
			return wrong("is not a relative path")
		}
		for segment := range strings.SplitSeq(s, "/") {
			if segment == ".." {
				return wrong("leaves the workspace")
			}
		}
		return nil
	}
}

func webURL(v canonjson.Value) *mismatch {
	s := v.Str()
	if !strings.HasPrefix(s, "http://") && !strings.HasPrefix(s, "https://") || canonjson.CodePoints(s) > 8192 {
		return wrong("is not an http or https URL of at most 8192 characters")
	}
	return nil
}

// hexOf is a text of prefix and n lower-case hex digits.
func hexOf(prefix string, n int) rule {
	return func(v canonjson.Value) *mismatch {
		s, ok := strings.CutPrefix(v.Str(), prefix)
		ok = ok && v.IsString() && len(s) == n
		for i := 0; ok && i < len(s); i++ {
			ok = s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
		}
		if !ok {
			return wrong("is not " + strconv.Quote(prefix) + " and " + strconv.Itoa(n) + " lower-case hex digits")
		}
		return nil
	}
}

// decimal is a text of 1 to 7 decimal digits without a leading zero; "0" itself
// only when zero is allowed.
func decimal(zero bool) rule {
	return func(v canonjson.Value) *mismatch {
		s := v.Str()
		ok := s != "" && len(s) <= 7 && (s[0] != '0' || zero && s == "0")
		for i := 0; ok && i < len(s); i++ {
			ok = s[i] >= '0' && s[i] <= '9'
		}
		if !ok {
			return wrong("is not a decimal of at most 7 digits")
		}
		return nil
	}
}

// uuidV4 is a lower-case UUID of version 4.
func uuidV4(v canonjson.Value) *mismatch {
	s := v.Str()
	ok := len(s) == 36
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			ok = c == '-'
		case 14:
			ok = c == '4'
		case 19:
			ok = c == '8' || c == '9' || c == 'a' || c == 'b'
		default:
			ok = c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		}
	}
	if !ok {
		return wrong("is not a lower-case UUID of version 4")
	}
	return nil
}

func dateTime(v canonjson.Value) *mismatch {
	if !v.IsString() || !isDateTime(v.Str()) {
		return wrong("is not a date-time")
	}
	return nil
}

// isDateTime tells whether s is an RFC 3339 date-time. The letters may be of
// either case and the colon of the offset may be missing, as in the existing
// validator.
func isDateTime(s string) bool {
	// 2026-11-30T19:40:00 and at least one character of zone
	if len(s) < 20 || s[4] != '-' || s[7] != '-' || s[10] != 'T' && s[10] != 't' || s[13] != ':' || s[16] != ':' {
		return false
	}
	part := func(from, to, lowest, highest int) bool {
		n := 0
		for _, c := range []byte(s[from:to]) {
			if c < '0' || c > '9' {
				return false
			}
			n = n*10 + int(c-'0')
		}
		return n >= lowest && n <= highest
	}
	leap := s[11:19] == "23:59:60"
	if !part(0, 4, 0, 9999) || !part(5, 7, 1, 12) || !part(8, 10, 1, 31) || !leap &&
		(!part(11, 13, 0, 23) || !part(14, 16, 0, 59) || !part(17, 19, 0, 59)) {
		return false
	}
	rest := s[19:]
	if rest[0] == '.' {
		n := 1
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		if n == 1 {
			return false
		}
		rest = rest[n:]
	}
	switch {
	case rest == "Z" || rest == "z":
		return true
	case rest == "" || rest[0] != '+' && rest[0] != '-':
		return false
	}
	zone := strings.Replace(rest[1:], ":", "", 1)
	if len(zone) != 2 && len(zone) != 4 || len(rest) > 3 && strings.Contains(rest, ":") && rest[3] != ':' || strings.HasSuffix(rest, ":") {
		return false
	}
	for i := range len(zone) {
		if zone[i] < '0' || zone[i] > '9' {
			return false
		}
	}
	return true
}
