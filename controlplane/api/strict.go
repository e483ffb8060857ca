package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"unicode/utf8"

	"bowline/controlplane/resource"
	"bowline/wire"
)

// maxDepth of JSON (architecture, "Limits").
const maxDepth = 64

// encode writes our JSON: no HTML escapes, one trailing newline.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// readBody reads and checks the body of a request into a fresh value of the
// route's input type; nil for a route without one.
func (s *Server) readBody(rt *route, w http.ResponseWriter, r *http.Request) (any, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, wire.Errorf(wire.CodeTooLarge, "the request's body is larger than %d bytes", MaxBodyBytes).With("limit", MaxBodyBytes)
		}
		return nil, wire.Errorf(wire.CodeBadRequest, "the request's body could not be read to its end")
	}
	if rt.input == nil {
		if len(bytes.TrimSpace(raw)) > 0 {
			return nil, wire.Errorf(wire.CodeBadRequest, "this route takes no body").With("size", len(raw))
		}
		return nil, nil
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != resource.MediaJSON {
		return nil, wire.Errorf(wire.CodeUnsupportedMedia, "the body must be sent as Content-Type: %s", resource.MediaJSON)
	}
	tree, err := parseStrict(raw)
	if err != nil {
		return nil, err
	}
	if err := rt.check(tree); err != nil {
		return nil, err
	}
	v := rt.input()
	if err := json.Unmarshal(raw, v); err != nil {
		// The schema was met, so only numbers out of range come here.
		return nil, wire.Errorf(wire.CodeBadRequest, "the body does not fit the types of this route")
	}
	return v, nil
}

// parseStrict reads one JSON value: valid UTF-8, no member twice, at most
// maxDepth deep, nothing behind it.
func parseStrict(raw []byte) (any, error) {
	if !utf8.Valid(raw) {
		return nil, wire.Errorf(wire.CodeBadRequest, "the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	v, err := parseValue(d, 0)
	if err != nil {
		var e *wire.Error
		if errors.As(err, &e) {
			return nil, err
		}
		return nil, wire.Errorf(wire.CodeBadRequest, "the body is not JSON (near byte %d)", d.InputOffset()).With("offset", d.InputOffset())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, wire.Errorf(wire.CodeBadRequest, "there is something behind the body's JSON value (byte %d)", d.InputOffset()).With("offset", d.InputOffset())
	}
	return v, nil
}

func parseValue(d *json.Decoder, depth int) (any, error) {
	tok, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return tok, nil
	}
	if depth == maxDepth {
		return nil, wire.Errorf(wire.CodeBadRequest, "the body is nested deeper than %d", maxDepth).With("limit", maxDepth)
	}
	if delim == '[' {
		list := []any{}
		for d.More() {
			v, err := parseValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	}
	obj := map[string]any{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, ok := tok.(string)
		if !ok {
			return nil, wire.Errorf(wire.CodeBadRequest, "a member has no name")
		}
		if _, twice := obj[name]; twice {
			return nil, wire.Errorf(wire.CodeBadRequest, "a member of the body is given twice (near byte %d)", d.InputOffset()).With("offset", d.InputOffset())
		}
		v, err := parseValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		obj[name] = v
	}
	_, err = d.Token()
	return obj, err
}
