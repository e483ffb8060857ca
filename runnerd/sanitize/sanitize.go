// Package sanitize is the storage redactor of the paperclip.runner protocol
// (prp.md 14.4): what a runner in PRP use does to every event payload, command
// result and diagnostic before it is durable. It recognises secrets by the name
// of their member and by their shape. It shares no code with the digest redactor
// (prp.md 7.4, 14.5), which an authority must reproduce byte for byte, and none
// with package redact, which removes exact values in every use.
//
// What a command printed is not touched: its bytes are promised exact, and a
// shape that is split over chunks could not be seen anyway. Strings are not cut.
//
// Concurrency: a [Sanitizer] may be used from any goroutine.
package sanitize

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"bowline/wire/canonjson"
)

// Mark replaces what was removed.
const Mark = "[REDACTED]"

// RefusedError says that a member which identifies or types something would have
// been changed: what carries it is refused rather than altered.
type RefusedError struct{ Member string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("sanitize: member %q holds what looks like a secret", e.Member)
}

// Sanitizer holds the compiled shapes.
type Sanitizer struct{ shapes []shape }

type shape struct {
	pattern *regexp.Regexp
	with    string
}

// sensitive are the parts of a member's name, in lower case without "-" and "_",
// whose value is removed whole.
func sensitive() []string {
	return []string{
		"authorization", "bearer", "browsercode", "cookie", "connectionstring", "jwt", "loginurl",
		"password", "passwd", "privatekey", "secret", "token", "ticket", "apikey", "credential",
	}
}

// New compiles the shapes.
func New() *Sanitizer {
	var keys []string
	for _, k := range sensitive() {
		keys = append(keys, strings.Join(strings.Split(k, ""), "[-_]?"))
	}
	return &Sanitizer{shapes: []shape{
		{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`), Mark},
		{regexp.MustCompile(`\bsk-[A-Za-z0-9_-]{12,}`), Mark},
		{regexp.MustCompile(`\b(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,}`), Mark},
		// A JWT begins with the Base64 of `{"`; without that, names with dots in
		// them would be taken for one.
		{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]{8,}){2,3}`), Mark},
		{regexp.MustCompile(`(?i)\b(bearer)(\s+)[A-Za-z0-9._~+/=-]+`), "${1}${2}" + Mark},
		{regexp.MustCompile(`(?i)([A-Za-z0-9_.-]*(?:` + strings.Join(keys, "|") + `)[A-Za-z0-9_.-]*=)(?:"[^"]*"|'[^']*'|[^\s"'&,;]+)`), "${1}" + Mark},
	}}
}

// String removes the shapes from a text.
func (s *Sanitizer) String(text string) string {
	for _, sh := range s.shapes {
		text = sh.pattern.ReplaceAllString(text, sh.with)
	}
	return text
}

// Payload cleans one JSON object. It returns raw itself when nothing was found,
// and a [*RefusedError] when a member that identifies something would change.
func (s *Sanitizer) Payload(raw json.RawMessage) (json.RawMessage, error) {
	v, err := canonjson.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("sanitize: %w", err)
	}
	clean, changed, err := s.value("", v)
	if err != nil || !changed {
		return raw, err
	}
	return clean.JSON(), nil
}

func (s *Sanitizer) value(name string, v canonjson.Value) (canonjson.Value, bool, error) {
	switch {
	case v.IsString():
		text := v.Str()
		clean := s.String(text)
		if clean == text {
			return v, false, nil
		}
		if identifies(name) {
			return v, false, &RefusedError{name}
		}
		return canonjson.StringValue(clean), true, nil
	case v.IsArray():
		return s.array(name, v)
	case v.IsObject():
		return s.object(v)
	}
	return v, false, nil
}

func (s *Sanitizer) array(name string, v canonjson.Value) (canonjson.Value, bool, error) {
	elements := slices.Clone(v.Elements())
	changed := false
	for i, e := range elements {
		clean, c, err := s.value(name, e)
		if err != nil {
			return v, false, err
		}
		elements[i], changed = clean, changed || c
	}
	if !changed {
		return v, false, nil
	}
	return canonjson.ArrayValue(elements...), true, nil
}

func (s *Sanitizer) object(v canonjson.Value) (canonjson.Value, bool, error) {
	printed := slices.Contains([]string{"stdout", "stderr", "pty"}, v.Get("stream").Str())
	members := slices.Clone(v.Members())
	changed := false
	for i, m := range members {
		switch {
		case printed && (m.Key == "text" || m.Key == "data"):
		case secretName(m.Key) && !exempt(m.Key, m.Value):
			if identifies(m.Key) {
				return v, false, &RefusedError{m.Key}
			}
			members[i].Value, changed = canonjson.StringValue(Mark), true
		default:
			clean, c, err := s.value(m.Key, m.Value)
			if err != nil {
				return v, false, err
			}
			members[i].Value, changed = clean, changed || c
		}
	}
	if !changed {
		return v, false, nil
	}
	return canonjson.ObjectValue(members...), true, nil
}

// fold brings a member's name to the form the list of names has.
func fold(name string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name))
}

func secretName(name string) bool {
	folded := fold(name)
	return slices.ContainsFunc(sensitive(), func(part string) bool { return strings.Contains(folded, part) })
}

// exempt tells which values under a sensitive name are none: counters of tokens,
// the goal's budget, the boundary an authorisation has.
func exempt(name string, v canonjson.Value) bool {
	_, number := v.AsNumber()
	_, boolean := v.AsBool()
	folded := fold(name)
	switch {
	case folded == "tokenbudget":
		return number || v.IsNull()
	case folded == "tokenbudgetcontrol":
		return boolean
	case folded == "authorizationboundary":
		return slices.Contains([]string{"company", "actor", "active_task", "grant", "governed_action", "lock", "revision"}, v.Str())
	case strings.HasSuffix(folded, "tokens"), strings.HasSuffix(folded, "tokensused"), strings.HasSuffix(folded, "tokencount"):
		return number || v.IsNull()
	case folded == "tokenusage":
		return v.IsObject()
	}
	return false
}

// identifies tells whether a member names or types something, so that a changed
// value would be another thing.
func identifies(name string) bool {
	switch name {
	case "id", "ref", "schema", "type", "kind", "status", "state", "outcome", "eventType", "code":
		return true
	}
	return strings.HasSuffix(name, "Id") || strings.HasSuffix(name, "Ref") || strings.HasSuffix(name, "Status") || strings.HasSuffix(name, "Type")
}
