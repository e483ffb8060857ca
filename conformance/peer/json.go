package peer

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// M is a JSON object as [Parse] returns it.
type M = map[string]any

// A is a JSON array as [Parse] returns it.
type A = []any

// Num is a JSON number as it was spelled in the text.
type Num string

// Raw is JSON text that [Write] copies as it is, valid or not.
type Raw string

// Float returns the number as JavaScript would hold it.
func (n Num) Float() float64 {
	f, err := strconv.ParseFloat(string(n), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		panic("bug: number text was not checked: " + string(n))
	}
	return f
}

type parser struct {
	text []byte
	pos  int
}

// Parse reads one JSON text the way JSON.parse does: of duplicate members the
// last one wins, numbers keep their spelling, and an escaped lone surrogate
// stays one (as three bytes of generalised UTF-8, which the writers escape
// again).
func Parse(text []byte) (any, error) {
	p := &parser{text: text}
	p.space()
	v, err := p.value()
	if err != nil {
		return nil, err
	}
	p.space()
	if p.pos != len(p.text) {
		return nil, p.bad("text after the value")
	}
	return v, nil
}

// ParseObject is [Parse] for texts that must be objects.
func ParseObject(text []byte) (M, error) {
	v, err := Parse(text)
	if err != nil {
		return nil, err
	}
	m, ok := v.(M)
	if !ok {
		return nil, errors.New("json: not an object")
	}
	return m, nil
}

func (p *parser) bad(what string) error {
	return fmt.Errorf("json: %s at byte %d", what, p.pos)
}

func (p *parser) space() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

func (p *parser) literal(word string) bool {
	if strings.HasPrefix(string(p.text[p.pos:min(len(p.text), p.pos+len(word))]), word) {
		p.pos += len(word)
		return true
	}
	return false
}

func (p *parser) value() (any, error) {
	if p.pos >= len(p.text) {
		return nil, p.bad("unexpected end")
	}
	switch c := p.text[p.pos]; {
	case c == '{':
		return p.object()
	case c == '[':
		return p.array()
	case c == '"':
		return p.str()
	case c == 't' && p.literal("true"):
		return true, nil
	case c == 'f' && p.literal("false"):
		return false, nil
	case c == 'n' && p.literal("null"):
		return nil, nil
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	return nil, p.bad("unexpected character")
}

func (p *parser) object() (any, error) {
	p.pos++
	m := M{}
	p.space()
	if p.pos < len(p.text) && p.text[p.pos] == '}' {
		p.pos++
		return m, nil
	}
	for {
		p.space()
		if p.pos >= len(p.text) || p.text[p.pos] != '"' {
			return nil, p.bad("member name expected")
		}
		key, err := p.str()
		if err != nil {
			return nil, err
		}
		p.space()
		if p.pos >= len(p.text) || p.text[p.pos] != ':' {
			return nil, p.bad("colon expected")
		}
		p.pos++
		p.space()
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		m[key] = v
		more, err := p.next('}')
		if err != nil {
			return nil, err
		}
		if !more {
			return m, nil
		}
	}
}

func (p *parser) array() (any, error) {
	p.pos++
	a := A{}
	p.space()
	if p.pos < len(p.text) && p.text[p.pos] == ']' {
		p.pos++
		return a, nil
	}
	for {
		p.space()
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		a = append(a, v)
		more, err := p.next(']')
		if err != nil {
			return nil, err
		}
		if !more {
			return a, nil
		}
	}
}

func (p *parser) next(end byte) (bool, error) {
	p.space()
	if p.pos >= len(p.text) {
		return false, p.bad("unexpected end")
	}
	c := p.text[p.pos]
	p.pos++
	switch c {
	case ',':
		return true, nil
	case end:
		return false, nil
	}
	return false, p.bad("comma expected")
}

func (p *parser) digits() bool {
	start := p.pos
	for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
		p.pos++
	}
	return p.pos > start
}

func (p *parser) number() (any, error) {
	start := p.pos
	if p.text[p.pos] == '-' {
		p.pos++
	}
	if p.pos < len(p.text) && p.text[p.pos] == '0' {
		p.pos++
	} else if !p.digits() {
		return nil, p.bad("digits expected")
	}
	if p.pos < len(p.text) && p.text[p.pos] == '.' {
		p.pos++
		if !p.digits() {
			return nil, p.bad("digits expected")
		}
	}
	if p.pos < len(p.text) && (p.text[p.pos] == 'e' || p.text[p.pos] == 'E') {
		p.pos++
		if p.pos < len(p.text) && (p.text[p.pos] == '+' || p.text[p.pos] == '-') {
			p.pos++
		}
		if !p.digits() {
			return nil, p.bad("digits expected")
		}
	}
	return Num(p.text[start:p.pos]), nil
}

func (p *parser) str() (string, error) {
	p.pos++
	var b strings.Builder
	for p.pos < len(p.text) {
		c := p.text[p.pos]
		switch {
		case c == '"':
			p.pos++
			return b.String(), nil
		case c < 0x20:
			return "", p.bad("control character in a string")
		case c != '\\':
			r, n := utf8.DecodeRune(p.text[p.pos:])
			b.WriteRune(r)
			p.pos += n
		default:
			if err := p.escape(&b); err != nil {
				return "", err
			}
		}
	}
	return "", p.bad("string not ended")
}

func (p *parser) escape(b *strings.Builder) error {
	p.pos++
	if p.pos >= len(p.text) {
		return p.bad("unexpected end")
	}
	c := p.text[p.pos]
	p.pos++
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		b.WriteByte("\"\\/\b\f\n\r\t"[i])
		return nil
	}
	if c != 'u' {
		return p.bad("unknown escape")
	}
	u, err := p.hex4()
	if err != nil {
		return err
	}
	if utf16.IsSurrogate(u) && p.pos+1 < len(p.text) && p.text[p.pos] == '\\' && p.text[p.pos+1] == 'u' {
		back := p.pos
		p.pos += 2
		low, err := p.hex4()
		if err != nil {
			return err
		}
		if r := utf16.DecodeRune(u, low); r != utf8.RuneError {
			b.WriteRune(r)
			return nil
		}
		p.pos = back
	}
	if utf16.IsSurrogate(u) {
		b.Write(loneSurrogate(u))
		return nil
	}
	b.WriteRune(u)
	return nil
}

func (p *parser) hex4() (rune, error) {
	if p.pos+4 > len(p.text) {
		return 0, p.bad("unexpected end")
	}
	n, err := strconv.ParseUint(string(p.text[p.pos:p.pos+4]), 16, 16)
	if err != nil {
		return 0, p.bad("four hex digits expected")
	}
	p.pos += 4
	return rune(n), nil
}

func loneSurrogate(u rune) []byte {
	return []byte{0xe0 | byte(u>>12), 0x80 | byte(u>>6)&0x3f, 0x80 | byte(u)&0x3f}
}

// units returns the UTF-16 code units of a string as [Parse] makes them.
func units(s string) []uint16 {
	out := make([]uint16, 0, len(s))
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 && i+2 < len(s) && s[i] == 0xed && s[i+1] >= 0xa0 {
			out = append(out, uint16(s[i]&0xf)<<12|uint16(s[i+1]&0x3f)<<6|uint16(s[i+2]&0x3f))
			i += 3
			continue
		}
		out = utf16.AppendRune(out, r)
		i += n
	}
	return out
}

func lessUnits(a, b string) bool {
	x, y := units(a), units(b)
	for i := 0; i < len(x) && i < len(y); i++ {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return len(x) < len(y)
}

func sortedKeys(m M) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return lessUnits(keys[i], keys[j]) })
	return keys
}

func writeString(b *strings.Builder, s string) {
	const hex = "0123456789abcdef"
	b.WriteByte('"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			i++
			if j := strings.IndexByte("\"\\\b\f\n\r\t", c); j >= 0 {
				b.WriteByte('\\')
				b.WriteByte(`"\bfnrt`[j])
			} else if c < 0x20 {
				b.WriteString(`\u00`)
				b.WriteByte(hex[c>>4])
				b.WriteByte(hex[c&15])
			} else {
				b.WriteByte(c)
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 && i+2 < len(s) && c == 0xed {
			fmt.Fprintf(b, `\u%04x`, uint16(c&0xf)<<12|uint16(s[i+1]&0x3f)<<6|uint16(s[i+2]&0x3f))
			i += 3
			continue
		}
		b.WriteRune(r)
		i += n
	}
	b.WriteByte('"')
}

// ecmaNumber prints a number as ECMAScript's Number::toString does (3.9).
func ecmaNumber(f float64) string {
	if f == 0 {
		return "0"
	}
	sign := ""
	if f < 0 {
		sign, f = "-", -f
	}
	text := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exp, _ := strings.Cut(text, "e")
	e, err := strconv.Atoi(exp)
	if err != nil {
		panic("bug: exponent of " + text)
	}
	digits := strings.Replace(mantissa, ".", "", 1)
	k, n := len(digits), e+1
	switch {
	case k <= n && n <= 21:
		return sign + digits + strings.Repeat("0", n-k)
	case 0 < n && n <= 21:
		return sign + digits[:n] + "." + digits[n:]
	case -6 < n && n <= 0:
		return sign + "0." + strings.Repeat("0", -n) + digits
	}
	tail := ""
	if k > 1 {
		tail = "." + digits[1:]
	}
	return fmt.Sprintf("%s%s%se%+d", sign, digits[:1], tail, n-1)
}

// Write returns compact JSON text of a value made of the types of [Parse], Go
// strings, integers, floats, slices of strings, [Raw] and [Num]. Members come
// in sorted order; the protocol leaves their order free.
func Write(v any) []byte {
	var b strings.Builder
	write(&b, v)
	return []byte(b.String())
}

func write(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case string:
		writeString(b, v)
	case Raw:
		b.WriteString(string(v))
	case Num:
		b.WriteString(string(v))
	case int:
		b.WriteString(strconv.Itoa(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case uint64:
		b.WriteString(strconv.FormatUint(v, 10))
	case float64:
		b.WriteString(ecmaNumber(v))
	case []string:
		b.WriteByte('[')
		for i, s := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeString(b, s)
		}
		b.WriteByte(']')
	case A:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			write(b, e)
		}
		b.WriteByte(']')
	case M:
		b.WriteByte('{')
		for i, k := range sortedKeys(v) {
			if i > 0 {
				b.WriteByte(',')
			}
			writeString(b, k)
			b.WriteByte(':')
			write(b, v[k])
		}
		b.WriteByte('}')
	default:
		panic(fmt.Sprintf("bug: cannot write %T as JSON", v))
	}
}

// Clone returns a deep copy in the types of [Parse].
func Clone(v any) any {
	out, err := Parse(Write(v))
	if err != nil {
		panic("bug: clone: " + err.Error())
	}
	return out
}

// CloneM is [Clone] for objects.
func CloneM(m M) M {
	out, ok := Clone(m).(M)
	if !ok {
		panic("bug: clone of an object is none")
	}
	return out
}
