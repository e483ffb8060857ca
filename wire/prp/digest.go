package prp

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/collate"
	"golang.org/x/text/language"

	"bowline/wire/canonjson"
)

// Bounds of the walk that precedes the digest of a host tool's input (prp.md
// 7.4). They are part of the digest: another value gives other digests.
const (
	digestMaxDepth   = 16      // root is 0
	digestMaxNodes   = 10_000  // every value visited
	digestMaxArray   = 512     // items
	digestMaxMembers = 512     // members of an object
	digestMaxString  = 200_000 // UTF-16 code units
)

const (
	markRedacted      = "[REDACTED]"
	markTruncated     = "[TRUNCATED]"
	markTruncatedName = "__paperclip_truncated__"
)

// SemanticDigest is the digest of a host tool's input, "sha256:" and 64 hex
// digits: the hash of the canonical JSON of the input after secrets were taken
// out and it was cut to bounds (prp.md 7.4). It is not the redaction of what is
// stored (14.5): that one may change, this one is agreed between two parties.
func SemanticDigest(input canonjson.Value) string {
	w := digestWalk{ordered: countNodes(input, 0) > digestMaxNodes}
	text, err := canonjson.CanonicalUnlimited(w.visit(input, "", 0))
	if err != nil {
		panic("bug: prp: a bounded input has no canonical form: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// countNodes counts values, giving up once the budget is exceeded.
func countNodes(v canonjson.Value, n int) int {
	n++
	if n > digestMaxNodes {
		return n
	}
	switch v.Kind() {
	case canonjson.Array:
		for _, e := range v.Elements() {
			if n = countNodes(e, n); n > digestMaxNodes {
				return n
			}
		}
	case canonjson.Object:
		for _, m := range v.Members() {
			if n = countNodes(m.Value, n); n > digestMaxNodes {
				return n
			}
		}
	}
	return n
}

type digestWalk struct {
	nodes int
	// ordered: the node budget will run out, so the order of the visit decides
	// what is cut.
	ordered  bool
	collator *collate.Collator
}

func (w *digestWalk) visit(v canonjson.Value, key string, depth int) canonjson.Value {
	w.nodes++
	if w.nodes > digestMaxNodes || depth > digestMaxDepth {
		return canonjson.StringValue(markTruncated)
	}
	if isSecretKey(key) {
		return canonjson.StringValue(markRedacted)
	}
	switch v.Kind() {
	case canonjson.String:
		return canonjson.StringValue(boundText(v.Str()))
	case canonjson.Array:
		return w.array(v, depth)
	case canonjson.Object:
		return w.object(v, depth)
	case canonjson.Number:
		if f, _ := v.AsNumber(); math.IsInf(f, 0) || math.IsNaN(f) {
			return canonjson.StringValue(markTruncated)
		}
	case canonjson.Undefined:
		return canonjson.StringValue(markTruncated)
	}
	return v
}

func (w *digestWalk) array(v canonjson.Value, depth int) canonjson.Value {
	items := v.Elements()
	out := make([]canonjson.Value, 0, min(len(items), digestMaxArray+1))
	for _, item := range items[:min(len(items), digestMaxArray)] {
		out = append(out, w.visit(item, "", depth+1))
	}
	if len(items) > digestMaxArray {
		out = append(out, canonjson.StringValue(markTruncated))
	}
	return canonjson.ArrayValue(out...)
}

func (w *digestWalk) object(v canonjson.Value, depth int) canonjson.Value {
	members := v.Members()
	cut := len(members) > digestMaxMembers
	if cut || w.ordered {
		members = w.sort(members)
	}
	out := make([]canonjson.Member, 0, min(len(members), digestMaxMembers+1))
	for _, m := range members[:min(len(members), digestMaxMembers)] {
		out = append(out, member(m.Key, w.visit(m.Value, m.Key, depth+1)))
	}
	result := canonjson.ObjectValue(out...)
	if cut {
		result.Set(markTruncatedName, canonjson.StringValue(markTruncated))
	}
	return result
}

// sort orders members as JavaScript's localeCompare does without a locale:
// CLDR's root collation, three levels, punctuation not ignored. Keys it finds
// equal keep their order of enumeration.
func (w *digestWalk) sort(members []canonjson.Member) []canonjson.Member {
	if w.collator == nil {
		w.collator = collate.New(language.Und)
	}
	// Sort by collation keys: comparing strings anew each time would cost a
	// hostile input's author little and us much.
	var buf collate.Buffer
	type keyed struct {
		key    []byte
		member canonjson.Member
	}
	list := make([]keyed, len(members))
	for i, m := range members {
		list[i] = keyed{slices.Clone(w.collator.KeyFromString(&buf, m.Key)), m}
		buf.Reset()
	}
	slices.SortStableFunc(list, func(a, b keyed) int { return slices.Compare(a.key, b.key) })
	out := make([]canonjson.Member, len(list))
	for i := range list {
		out[i] = list[i].member
	}
	return out
}

func boundText(s string) string {
	s = secretValue.ReplaceAllLiteralString(s, markRedacted)
	s = secretQuery.ReplaceAllString(s, "${1}"+markRedacted)
	// A text has at most as many UTF-16 units as bytes.
	if len(s) > digestMaxString && canonjson.UTF16Len(s) > digestMaxString {
		return canonjson.CutUTF16(s, digestMaxString) + markTruncated
	}
	return s
}

func isSecretKey(key string) bool {
	if len(key) < len("token") {
		return false
	}
	return secretKey.MatchString(loneSurrogatesAsOne(key))
}

// loneSurrogatesAsOne keeps a lone surrogate one character for the pattern: to
// package regexp its three bytes would be three.
func loneSurrogatesAsOne(key string) string {
	if utf8.ValidString(key) {
		return key
	}
	var b strings.Builder
	for i := 0; i < len(key); {
		r, size := utf8.DecodeRuneInString(key[i:])
		if r == utf8.RuneError && size == 1 {
			r, size = '\uE000', min(3, len(key)-i) // a Value holds WTF-8: this is a surrogate
		}
		b.WriteRune(r)
		i += size
	}
	return b.String()
}

// The patterns of prp.md 7.4. They must find exactly what the JavaScript
// originals find, so three of Go's shorthands cannot be used: (?i) also folds
// U+017F and U+212A onto s and k, \s is ASCII only, and a dot is a whole
// character where JavaScript takes one UTF-16 unit and no line terminator.
var (
	secretKey = regexp.MustCompile(fold("authorization|cookie|credential|password|passwd|private") + anyUnit + fold("key|secret|token|api") +
		anyUnit + fold("key|connection") + anyUnit + fold("string"))
	secretValue = regexp.MustCompile(`\b` + fold("bearer") + space + `+[A-Za-z0-9._~+/=-]{8,}` +
		`|\b(?:` + fold("sk|pk|pcgw|ghp|github_pat") + `)_[A-Za-z0-9_-]{8,}` +
		`|\b` + fold("eyj") + `[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`)
	secretQuery = regexp.MustCompile(`([?&](?:` + fold("code|key|secret|state|token|api") + `[_-]?` + fold("key|access") + `[_-]?` + fold("token") +
		`)=)[^&#` + spaces + `]+`)
)

const (
	anyUnit = `[^\n\r\x{2028}\x{2029}\x{10000}-\x{10FFFF}]?`
	spaces  = `\t\n\x{0B}\f\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}`
	space   = `[` + spaces + `]`
)

// fold makes a pattern of ASCII letters match both cases and nothing else.
func fold(pattern string) string {
	var b strings.Builder
	for _, c := range pattern {
		if c >= 'a' && c <= 'z' {
			b.WriteString("[" + strings.ToUpper(string(c)) + string(c) + "]")
		} else {
			b.WriteRune(c)
		}
	}
	return b.String()
}
