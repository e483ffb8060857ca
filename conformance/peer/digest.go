package peer

import (
	"regexp"
	"sort"
	"strings"
	"unicode/utf16"

	"golang.org/x/text/collate"
	"golang.org/x/text/language"
)

// Bounds of the walk of 7.4.
const (
	digestMaxNodes  = 10_000
	digestMaxDepth  = 16
	digestMaxItems  = 512
	digestMaxString = 200_000 // UTF-16 code units
)

const (
	redacted  = "[REDACTED]"
	truncated = "[TRUNCATED]"
)

// jsSpace is the white space of JavaScript's regular expressions.
const jsSpace = `[\t\n\v\f\r \x{00a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}]`

// anyCase spells out both cases of ASCII letters. The flag (?i) would also fold
// U+017F and U+212A, which JavaScript does not.
func anyCase(pattern string) string {
	var b strings.Builder
	for _, r := range pattern {
		if r >= 'a' && r <= 'z' {
			b.WriteString("[" + string(r) + string(r-32) + "]")
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

type digester struct {
	nodes     int
	collator  *collate.Collator
	secretKey *regexp.Regexp
	tokens    []*regexp.Regexp
	query     *regexp.Regexp
}

// SemanticDigest returns the digest of a semantic input (7.4).
func SemanticDigest(input any) (string, error) {
	d := &digester{
		collator:  collate.New(language.Und),
		secretKey: regexp.MustCompile(anyCase(`authorization|cookie|credential|password|passwd|private.?key|secret|token|api.?key|connection.?string`)),
		tokens: []*regexp.Regexp{
			regexp.MustCompile(`\b` + anyCase("bearer") + jsSpace + `+[A-Za-z0-9._~+/=-]{8,}`),
			regexp.MustCompile(`\b(?:` + anyCase("sk_|pk_|pcgw_|ghp_|github_pat_") + `)[A-Za-z0-9_-]{8,}`),
			regexp.MustCompile(`\b` + anyCase("eyj") + `[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`),
		},
		query: regexp.MustCompile(`([?&](?:` + anyCase("code|key|secret|state|token|api[_-]?key|access[_-]?token") + `)=)[^&#\s` + jsSpace[1:len(jsSpace)-1] + `]+`),
	}
	text, err := CanonicalUnbounded(d.walk(Clone(input), "", 0))
	if err != nil {
		return "", err
	}
	return "sha256:" + SHA256Hex(text), nil
}

func (d *digester) walk(v any, key string, depth int) any {
	d.nodes++
	if d.nodes > digestMaxNodes || depth > digestMaxDepth {
		return truncated
	}
	if d.secretKey.MatchString(key) {
		return redacted
	}
	switch v := v.(type) {
	case string:
		return d.text(v)
	case A:
		out := A{}
		for i, e := range v {
			if i == digestMaxItems {
				out = append(out, truncated)
				break
			}
			out = append(out, d.walk(e, "", depth+1))
		}
		return out
	case M:
		keys := sortedKeys(v)
		sort.SliceStable(keys, func(i, j int) bool { return d.collator.CompareString(keys[i], keys[j]) < 0 })
		out := M{}
		for i, k := range keys {
			if i == digestMaxItems {
				out["__paperclip_truncated__"] = truncated
				break
			}
			out[k] = d.walk(v[k], k, depth+1)
		}
		return out
	}
	return v
}

func (d *digester) text(s string) string {
	for _, re := range d.tokens {
		s = re.ReplaceAllString(s, redacted)
	}
	s = d.query.ReplaceAllString(s, "${1}"+redacted)
	if u := units(s); len(u) > digestMaxString {
		var b strings.Builder
		u = u[:digestMaxString]
		for i := 0; i < len(u); i++ {
			r := rune(u[i])
			switch {
			case utf16.IsSurrogate(r) && i+1 < len(u) && utf16.DecodeRune(r, rune(u[i+1])) != '\ufffd':
				b.WriteRune(utf16.DecodeRune(r, rune(u[i+1])))
				i++
			case utf16.IsSurrogate(r):
				b.Write(loneSurrogate(r))
			default:
				b.WriteRune(r)
			}
		}
		s = b.String() + truncated
	}
	return s
}
