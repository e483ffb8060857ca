package redact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// errPayload means that the text is no JSON value.
var errPayload = errors.New("redact: payload is not one JSON value")

// JSON replaces in the strings, member names and numbers of one JSON value. A
// string is judged by the text it stands for, whatever its escapes. Everything
// else keeps its exact bytes; payload itself is returned when nothing was
// found. A number that holds a secret becomes a string.
func (r *Redactor) JSON(payload json.RawMessage) (json.RawMessage, error) {
	if r.Empty() {
		return payload, nil
	}
	if !json.Valid(payload) {
		return nil, errPayload
	}
	out := make([]byte, 0, len(payload))
	names := 0 // member names replaced so far
	for i := 0; i < len(payload); {
		end := tokenEnd(payload, i)
		token := payload[i:end]
		i = end
		if token[0] != '"' && token[0] != '-' && (token[0] < '0' || token[0] > '9') {
			out = append(out, token...)
			continue
		}
		clean, found, err := r.token(token)
		if err != nil {
			return nil, err
		}
		if !found {
			out = append(out, token...)
			continue
		}
		if token[0] == '"' && isName(payload, end) {
			// Two replaced names in one object must not become duplicates.
			if names++; names > 1 {
				clean += "#" + strconv.Itoa(names)
			}
		}
		out, err = appendString(out, clean)
		if err != nil {
			return nil, err
		}
	}
	if len(out) == len(payload) && bytes.Equal(out, payload) {
		return payload, nil
	}
	return out, nil
}

// token redacts one string or number token.
func (r *Redactor) token(token []byte) (clean string, found bool, err error) {
	text := token
	if token[0] == '"' && bytes.IndexByte(token, '\\') < 0 {
		text = token[1 : len(token)-1]
	} else if token[0] == '"' {
		var s string
		if err := json.Unmarshal(token, &s); err != nil {
			return "", false, fmt.Errorf("redact: %w", err)
		}
		text = []byte(s)
	}
	if !r.machine.matches(text) {
		return "", false, nil
	}
	return string(r.Bytes(text)), true, nil
}

// tokenEnd is the end of the token at i: a string, a number, or one other byte.
func tokenEnd(b []byte, i int) int {
	switch c := b[i]; {
	case c == '"':
		for i++; b[i] != '"'; i++ {
			if b[i] == '\\' {
				i++
			}
		}
		return i + 1
	case c == '-' || c >= '0' && c <= '9':
		for i++; i < len(b) && bytes.IndexByte([]byte("+-.eE0123456789"), b[i]) >= 0; i++ {
			continue
		}
		return i
	}
	return i + 1
}

// isName reports whether the string that ended before i is a member's name.
func isName(b []byte, i int) bool {
	for ; i < len(b); i++ {
		switch b[i] {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return b[i] == ':'
	}
	return false
}

// appendString appends s as a JSON string without the escapes for HTML.
func appendString(out []byte, s string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return nil, fmt.Errorf("redact: %w", err)
	}
	return append(out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...), nil
}
