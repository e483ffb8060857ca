// Package redact replaces the exact values of secrets in everything that
// leaves the runner.
//
// What it promises:
//
//   - Every byte that is part of an occurrence of a secret is replaced;
//     occurrences that overlap are replaced together by one [Marker].
//   - Besides the value itself its base64 forms (standard and URL alphabet, at
//     each of the three alignments inside a longer text), its form inside a
//     JSON string, and its form after a terminal turned "\n" into "\r\n" are
//     replaced. Of a base64 form the characters that also encode neighbouring
//     bytes stay.
//   - A [Stream] finds a value however it is cut into chunks: the output is the
//     same for every cutting. It holds back only what may be the beginning of
//     a value, and never more than the longest form.
//   - Work is linear in the input (Aho-Corasick), memory linear in the secrets.
//
// Values shorter than [MinSecret] bytes are not replaced: they would hit
// ordinary text.
//
// Concurrency: a [Redactor] is immutable and may be shared. A Stream and a
// [Filter] belong to one goroutine at a time.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
)

// Marker stands for what was replaced (prp.md 14.4).
const Marker = "[REDACTED]"

// MinSecret is the shortest value that is replaced, in bytes (issue 2).
const MinSecret = 8

// Redactor knows the values. The zero value and nil replace nothing.
type Redactor struct {
	machine *machine // nil: nothing to replace
}

// New prepares a Redactor for values; short ones and repeated ones are left
// out.
func New(values ...string) *Redactor {
	var forms [][]byte
	seen := make(map[string]bool)
	add := func(form string) {
		if len(form) >= MinSecret && !seen[form] {
			seen[form] = true
			forms = append(forms, []byte(form))
		}
	}
	for _, v := range values {
		if len(v) < MinSecret {
			continue
		}
		addForms(v, add)
		// A key file's value often ends with a newline the agent does not show.
		if t := strings.TrimSpace(v); len(t) >= MinSecret && t != v {
			addForms(t, add)
		}
	}
	if len(forms) == 0 {
		return &Redactor{}
	}
	return &Redactor{machine: newMachine(forms)}
}

// addForms hands every form of one value to add.
func addForms(v string, add func(string)) {
	add(v)
	if strings.Contains(v, "\n") {
		add(strings.ReplaceAll(v, "\n", "\r\n"))
	}
	for _, html := range []bool{true, false} {
		add(jsonForm(v, html))
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for lead := range 3 {
			add(base64Form(enc, v, lead))
		}
	}
}

// jsonForm is the value as it stands inside a JSON string.
func jsonForm(v string, html bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if err := e.Encode(v); err != nil {
		panic("bug: a string cannot be encoded: " + err.Error())
	}
	s := strings.TrimSuffix(b.String(), "\n")
	return s[1 : len(s)-1]
}

// base64Form is what of the encoding depends on v alone when lead bytes stand
// before it in its group of three.
func base64Form(enc *base64.Encoding, v string, lead int) string {
	const bitsPerByte, bitsPerChar = 8, 6
	raw := append(make([]byte, lead, lead+len(v)), v...)
	text := enc.EncodeToString(raw)
	first := (lead*bitsPerByte + bitsPerChar - 1) / bitsPerChar
	last := len(raw) * bitsPerByte / bitsPerChar
	return text[first:last]
}

// Empty reports whether nothing would ever be replaced.
func (r *Redactor) Empty() bool { return r == nil || r.machine == nil }

// Bytes replaces in a complete text. It returns b itself when nothing was
// found.
func (r *Redactor) Bytes(b []byte) []byte {
	if r.Empty() || !r.machine.matches(b) {
		return b
	}
	s := r.Stream()
	out := s.Write(b)
	return append(out, s.Flush()...)
}

// String is Bytes for strings.
func (r *Redactor) String(s string) string {
	if r.Empty() {
		return s
	}
	b := []byte(s)
	out := r.Bytes(b)
	if len(out) == len(b) && (len(b) == 0 || &out[0] == &b[0]) {
		return s
	}
	return string(out)
}
