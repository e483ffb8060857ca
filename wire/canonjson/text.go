package canonjson

import (
	"math"
	"strconv"
	"unicode/utf8"
)

const replacement = "\uFFFD"

// decodeWTF8 reads one code point of s, lone surrogates included. Like
// TextDecoder it takes the longest prefix of a broken sequence that could have
// become a character as one error, so "F0 9F 8C" is one U+FFFD and "ED A0 80",
// when surrogates are not wanted, three.
func decodeWTF8(s string, surrogates bool) (r rune, size int, ok bool) {
	r, size = utf8.DecodeRuneInString(s)
	if r != utf8.RuneError || size != 1 {
		return r, size, true
	}
	if surrogates && len(s) >= 3 && isSurrogate(s[0], s[1], s[2]) {
		return rune(s[0]&0x0f)<<12 | rune(s[1]&0x3f)<<6 | rune(s[2]&0x3f), 3, true
	}
	return utf8.RuneError, brokenLength(s), false
}

func isSurrogate(a, b, c byte) bool {
	return a == 0xED && b >= 0xA0 && b <= 0xBF && c >= 0x80 && c <= 0xBF
}

// brokenLength is the length of the broken sequence at the start of s
// (WHATWG Encoding, "UTF-8 decoder": the bounds of the second byte depend on
// the first).
func brokenLength(s string) int {
	need, low, high := 0, byte(0x80), byte(0xBF)
	switch c := s[0]; {
	case c >= 0xC2 && c <= 0xDF:
		need = 1
	case c >= 0xE0 && c <= 0xEF:
		need = 2
		if c == 0xE0 {
			low = 0xA0
		}
		if c == 0xED {
			high = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		need = 3
		if c == 0xF0 {
			low = 0x90
		}
		if c == 0xF4 {
			high = 0x8F
		}
	}
	n := 1
	for ; n <= need && n < len(s); n++ {
		if s[n] < low || s[n] > high {
			break
		}
		low, high = 0x80, 0xBF
	}
	return n
}

// cleanWTF8 gives s with everything that is not WTF-8 replaced. A high and a
// low surrogate that stand beside each other become the character they make,
// which is what a JavaScript string cannot tell apart.
func cleanWTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string(appendClean(nil, s, true))
}

// DecodeUTF8 gives b as text the way TextDecoder (without its BOM handling)
// does: each broken sequence becomes U+FFFD.
func DecodeUTF8(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string(appendClean(nil, string(b), false))
}

func appendClean(dst []byte, s string, surrogates bool) []byte {
	for len(s) > 0 {
		r, size, ok := decodeWTF8(s, surrogates)
		switch {
		case !ok:
			dst = append(dst, replacement...)
		case isSurrogateRune(r):
			dst = appendUnit(dst, r)
		default:
			dst = append(dst, s[:size]...)
		}
		s = s[size:]
	}
	return dst
}

func isSurrogateRune(r rune) bool { return r >= 0xD800 && r <= 0xDFFF }

// appendUnit appends a UTF-16 code unit. A low surrogate behind a high one
// completes it.
func appendUnit(dst []byte, unit rune) []byte {
	if unit >= 0xDC00 && unit <= 0xDFFF {
		if n := len(dst); n >= 3 && isSurrogate(dst[n-3], dst[n-2], dst[n-1]) && dst[n-2] < 0xB0 {
			high := 0xD000 | rune(dst[n-2]&0x3f)<<6 | rune(dst[n-1]&0x3f)
			return utf8.AppendRune(dst[:n-3], (high-0xD800)<<10|(unit-0xDC00)+0x10000)
		}
	}
	if isSurrogateRune(unit) {
		return append(dst, 0xED, byte(0x80|unit>>6&0x3f), byte(0x80|unit&0x3f))
	}
	return utf8.AppendRune(dst, unit)
}

// UTF16Len is the length of s as JavaScript counts it.
func UTF16Len(s string) int {
	n := 0
	for len(s) > 0 {
		if s[0] < utf8.RuneSelf {
			n++
			s = s[1:]
			continue
		}
		r, size, _ := decodeWTF8(s, true)
		if n++; r > 0xFFFF {
			n++
		}
		s = s[size:]
	}
	return n
}

// CodePoints is the number of Unicode code points of s, a lone surrogate
// counting as one: how JSON Schema counts lengths.
func CodePoints(s string) int {
	n := 0
	for len(s) > 0 {
		size := 1
		if s[0] >= utf8.RuneSelf {
			_, size, _ = decodeWTF8(s, true)
		}
		s = s[size:]
		n++
	}
	return n
}

// CutUTF16 gives the first units UTF-16 code units of s, like slice(0, units):
// a character may be cut in two, leaving a lone high surrogate.
func CutUTF16(s string, units int) string {
	at := 0
	for at < len(s) && units > 0 {
		r, size, _ := decodeWTF8(s[at:], true)
		if r > 0xFFFF {
			if units == 1 {
				return string(appendUnit([]byte(s[:at]), 0xD800+(r-0x10000)>>10))
			}
			units--
		}
		units--
		at += size
	}
	return s[:at]
}

// CompareUTF16 orders strings by UTF-16 code units, as JavaScript's < does.
func CompareUTF16(a, b string) int {
	// Skip what is equal, then look at the first difference: UTF-8 orders by
	// code point, and only U+E000…U+FFFF against U+10000… are the other way.
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	if i == len(a) || i == len(b) {
		return len(a) - len(b)
	}
	x, y := a[i], b[i]
	// Lead bytes 0xF0… (two surrogates, D800…DFFF) against 0xEE, 0xEF (E000…).
	// Inside a character the lead bytes were equal and byte order is right.
	if x >= 0xF0 != (y >= 0xF0) {
		switch {
		case x >= 0xF0 && y >= 0xEE:
			return -1
		case y >= 0xF0 && x >= 0xEE:
			return 1
		case x == 0xED || y == 0xED:
			return compareUnits(a[i:], b[i:])
		}
	}
	return int(x) - int(y)
}

// compareUnits decides the rare case of a lone surrogate against a pair.
func compareUnits(a, b string) int {
	x, _, _ := decodeWTF8(a, true)
	y, _, _ := decodeWTF8(b, true)
	xs, ys := units(x), units(y)
	if xs[0] != ys[0] {
		return int(xs[0]) - int(ys[0])
	}
	// The same high surrogate: the lone one is followed by something that is
	// no low surrogate, or by the end.
	next := func(s string, r rune, u [2]rune) rune {
		if r > 0xFFFF {
			return u[1]
		}
		if len(s) <= 3 {
			return -1
		}
		n, _, _ := decodeWTF8(s[3:], true)
		return units(n)[0]
	}
	return int(next(a, x, xs)) - int(next(b, y, ys))
}

func units(r rune) [2]rune {
	if r > 0xFFFF {
		r -= 0x10000
		return [2]rune{0xD800 + r>>10, 0xDC00 + r&0x3FF}
	}
	return [2]rune{r}
}

const hexDigits = "0123456789abcdef"

// AppendString appends s as JSON.stringify writes it.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			if c != 0xED {
				i++
				continue
			}
			if i+2 < len(s) && isSurrogate(c, s[i+1], s[i+2]) {
				unit := 0xD000 | uint16(s[i+1]&0x3f)<<6 | uint16(s[i+2]&0x3f)
				dst = append(dst, s[start:i]...)
				dst = append(dst, '\\', 'u', hexDigits[unit>>12], hexDigits[unit>>8&15], hexDigits[unit>>4&15], hexDigits[unit&15])
				i += 3
				start = i
				continue
			}
			i++
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// AppendNumber appends f in ECMAScript's shortest form (Number::toString, radix
// 10); minus zero is 0. NaN and infinities are null, as JSON.stringify has it.
func AppendNumber(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	if f == math.Trunc(f) && math.Abs(f) <= MaxSafeInteger {
		return strconv.AppendInt(dst, int64(f), 10)
	}
	abs := math.Abs(f)
	if abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	// strconv writes at least two digits of exponent, ECMAScript as few as
	// there are.
	mark := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	for i := len(dst) - 1; i > mark; i-- {
		if dst[i] == 'e' {
			if i+3 < len(dst) && dst[i+2] == '0' {
				dst = append(dst[:i+2], dst[i+3:]...)
			}
			break
		}
	}
	return dst
}
