package canonjson

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// MaxParseDepth is how deep a text may nest (a scalar at the top is depth 0).
// Ours: JSON.parse has no such limit, but no stack is endless. It lies far
// above [MaxDepth], because an authority must accept an event beyond that once,
// and well below the 10 000 at which encoding/json gives up: what was accepted
// from a peer is handed on inside JSON of ours and has to stay readable there.
const MaxParseDepth = 9_000

// SyntaxError is JSON text that does not parse. It names the place and never
// the text.
type SyntaxError struct {
	Offset int // in bytes, after broken UTF-8 was replaced
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("json: %s at byte %d", e.Reason, e.Offset)
}

// Parse reads one JSON text. It fails with *[SyntaxError]. b is not kept.
func Parse(b []byte) (Value, error) { return ParseText(DecodeUTF8(b)) }

// ParseBounded is [Parse] of a text with at most maxNodes values, keys not
// counted. A Value is many times larger than the "{}," it was read from: who
// has not said yet who he is must not make us pay for that.
func ParseBounded(b []byte, maxNodes int) (Value, error) {
	p := parser{s: DecodeUTF8(b), left: maxNodes, bounded: true}
	return p.whole()
}

// ParseText is [Parse] of a Go string, whose broken UTF-8 is replaced as well.
// The Value shares memory with s.
func ParseText(s string) (Value, error) {
	if !utf8.ValidString(s) {
		s = string(appendClean(nil, s, false))
	}
	p := parser{s: s}
	return p.whole()
}

func (p *parser) whole() (Value, error) {
	p.space()
	v, err := p.value(0)
	if err != nil {
		return Value{}, err
	}
	p.space()
	if p.i != len(p.s) {
		return Value{}, p.fail("text after the value")
	}
	return v, nil
}

type parser struct {
	s   string
	i   int
	buf []byte

	bounded bool
	left    int // values that may still come, when bounded
}

func (p *parser) fail(reason string) error { return &SyntaxError{Offset: p.i, Reason: reason} }

func (p *parser) space() {
	for p.i < len(p.s) {
		switch p.s[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

func (p *parser) value(depth int) (Value, error) {
	if depth > MaxParseDepth {
		return Value{}, p.fail("nested too deeply")
	}
	if p.bounded {
		if p.left--; p.left < 0 {
			return Value{}, p.fail("too many values")
		}
	}
	if p.i >= len(p.s) {
		return Value{}, p.fail("text ends early")
	}
	switch c := p.s[p.i]; c {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		s, err := p.string()
		return Value{kind: String, str: s}, err
	case 't':
		return p.word("true", BoolValue(true))
	case 'f':
		return p.word("false", BoolValue(false))
	case 'n':
		return p.word("null", NullValue())
	default:
		if c == '-' || c >= '0' && c <= '9' {
			return p.number()
		}
		return Value{}, p.fail("unexpected character")
	}
}

func (p *parser) word(word string, v Value) (Value, error) {
	if len(p.s)-p.i < len(word) || p.s[p.i:p.i+len(word)] != word {
		return Value{}, p.fail("unknown word")
	}
	p.i += len(word)
	return v, nil
}

func (p *parser) object(depth int) (Value, error) {
	p.i++
	o := new(object)
	p.space()
	if p.i < len(p.s) && p.s[p.i] == '}' {
		p.i++
		return Value{kind: Object, obj: o}, nil
	}
	for {
		p.space()
		if p.i >= len(p.s) || p.s[p.i] != '"' {
			return Value{}, p.fail("expected a key")
		}
		key, err := p.string()
		if err != nil {
			return Value{}, err
		}
		p.space()
		if p.i >= len(p.s) || p.s[p.i] != ':' {
			return Value{}, p.fail("expected a colon")
		}
		p.i++
		p.space()
		v, err := p.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		o.set(key, v)
		p.space()
		if done, err := p.separator('}'); done || err != nil {
			return Value{kind: Object, obj: o}, err
		}
	}
}

func (p *parser) array(depth int) (Value, error) {
	p.i++
	arr := []Value{}
	p.space()
	if p.i < len(p.s) && p.s[p.i] == ']' {
		p.i++
		return Value{kind: Array, arr: arr}, nil
	}
	for {
		p.space()
		v, err := p.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		arr = append(arr, v)
		p.space()
		if done, err := p.separator(']'); done || err != nil {
			return Value{kind: Array, arr: arr}, err
		}
	}
}

// separator reads a comma, or the end of the object or array.
func (p *parser) separator(end byte) (done bool, err error) {
	if p.i >= len(p.s) {
		return false, p.fail("text ends early")
	}
	switch p.s[p.i] {
	case ',':
		p.i++
		return false, nil
	case end:
		p.i++
		return true, nil
	}
	return false, p.fail("expected a comma or the end")
}

func (p *parser) number() (Value, error) {
	start := p.i
	if p.s[p.i] == '-' {
		p.i++
	}
	switch {
	case p.i < len(p.s) && p.s[p.i] == '0':
		p.i++
	case !p.digits():
		return Value{}, p.fail("expected a digit")
	}
	if p.i < len(p.s) && p.s[p.i] == '.' {
		p.i++
		if !p.digits() {
			return Value{}, p.fail("expected a digit")
		}
	}
	if p.i < len(p.s) && (p.s[p.i] == 'e' || p.s[p.i] == 'E') {
		p.i++
		if p.i < len(p.s) && (p.s[p.i] == '+' || p.s[p.i] == '-') {
			p.i++
		}
		if !p.digits() {
			return Value{}, p.fail("expected a digit")
		}
	}
	// Out of range gives an infinity, which is also what JSON.parse gives; the
	// grammar was checked above, so there is no other error.
	f, err := strconv.ParseFloat(p.s[start:p.i], 64)
	if err != nil && f == 0 {
		return Value{}, p.fail("not a number")
	}
	return Value{kind: Number, num: f}, nil
}

func (p *parser) digits() bool {
	start := p.i
	for p.i < len(p.s) && p.s[p.i] >= '0' && p.s[p.i] <= '9' {
		p.i++
	}
	return p.i > start
}

func (p *parser) string() (string, error) {
	p.i++
	start := p.i
	for p.i < len(p.s) {
		switch c := p.s[p.i]; {
		case c == '"':
			p.i++
			return p.s[start : p.i-1], nil
		case c == '\\':
			return p.escaped(start)
		case c < 0x20:
			return "", p.fail("control character in a string")
		}
		p.i++
	}
	return "", p.fail("text ends early")
}

// escaped reads on from the first escape of a string that began at start.
func (p *parser) escaped(start int) (string, error) {
	buf := append(p.buf[:0], p.s[start:p.i]...)
	for p.i < len(p.s) {
		c := p.s[p.i]
		switch {
		case c == '"':
			p.i++
			p.buf = buf
			return string(buf), nil
		case c < 0x20:
			return "", p.fail("control character in a string")
		case c != '\\':
			buf = append(buf, c)
			p.i++
			continue
		}
		p.i++
		if p.i >= len(p.s) {
			break
		}
		switch e := p.s[p.i]; e {
		case '"', '\\', '/':
			buf = append(buf, e)
		case 'b':
			buf = append(buf, '\b')
		case 'f':
			buf = append(buf, '\f')
		case 'n':
			buf = append(buf, '\n')
		case 'r':
			buf = append(buf, '\r')
		case 't':
			buf = append(buf, '\t')
		case 'u':
			unit, ok := p.hex4()
			if !ok {
				return "", p.fail("expected four hex digits")
			}
			buf = appendUnit(buf, unit)
			continue
		default:
			return "", p.fail("unknown escape")
		}
		p.i++
	}
	return "", p.fail("text ends early")
}

// hex4 reads the digits behind \u and leaves p.i behind them.
func (p *parser) hex4() (rune, bool) {
	if len(p.s)-p.i < 5 {
		return 0, false
	}
	var unit rune
	for _, c := range []byte(p.s[p.i+1 : p.i+5]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		unit = unit<<4 | rune(c)
	}
	p.i += 5
	return unit, true
}
