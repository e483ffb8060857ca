package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// maxIDLength bounds the id of a request of the other side, in bytes of JSON
// text (ours: an id is echoed, so an endless one would be too).
const maxIDLength = 512

// Error codes of JSON-RPC 2.0, section 5.1.
const (
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// RPCError is the other side's answer "error" to a call.
type RPCError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *RPCError) Error() string { return fmt.Sprintf("jsonrpc: error %d: %s", e.Code, e.Message) }

// ClosedError is why a call got no answer: the conversation has ended.
type ClosedError struct {
	Err error // io.EOF when the stream ended, else what reading or writing failed with
}

func (e *ClosedError) Error() string { return "jsonrpc: closed: " + e.Err.Error() }

// Unwrap gives the reason.
func (e *ClosedError) Unwrap() error { return e.Err }

// TooLongError is why a call got no answer: the response was a line beyond the
// limit and was skipped.
type TooLongError struct {
	Size int64 // bytes
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("jsonrpc: the response is a line of %d bytes, more than the limit", e.Size)
}

// NoiseKind says what a line was that is not a message.
type NoiseKind string

// The kinds of noise.
const (
	NoiseGarbage   NoiseKind = "garbage"   // not a JSON object
	NoiseMalformed NoiseKind = "malformed" // a JSON object, but no request, notification or response
	NoiseUnmatched NoiseKind = "unmatched" // a response nobody waits for (any more)
	NoiseTooLong   NoiseKind = "too_long"  // beyond the line limit, skipped
	NoisePartial   NoiseKind = "partial"   // the stream ended within this line and it is no message
)

// Noise is one line that was not handled.
type Noise struct {
	Kind   NoiseKind
	Size   int64  // bytes without the newline
	SHA256 string // of those bytes, hex
	// Method and ID are what could be read of a line that was skipped, empty
	// when its beginning does not tell.
	Method string
	ID     string // JSON text
	// Head is the beginning of a skipped line, at most [HeadLength] bytes; it
	// is the provider's text and not for logs.
	Head []byte
}

type message struct {
	ID     json.RawMessage `json:"id"`
	Method *string         `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// failure is the error of a response, nil when it has none. An error of a form
// we do not know is still an error.
func (m *message) failure() *RPCError {
	if isNull(m.Error) {
		return nil
	}
	var e RPCError
	if err := json.Unmarshal(m.Error, &e); err != nil {
		return &RPCError{Code: CodeInternal, Message: "an error of unknown form", Data: m.Error}
	}
	return &e
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || bytes.Equal(raw, []byte("null")) }

func (m *message) hasID() bool { return !isNull(m.ID) }

// validID tells whether an id is an integer or a string of bearable length.
func validID(id json.RawMessage) bool {
	if len(id) == 0 || len(id) > maxIDLength {
		return false
	}
	if id[0] == '"' {
		return true // the JSON of the line was valid, so this is a whole string
	}
	_, err := strconv.ParseInt(string(id), 10, 64)
	return err == nil
}

// decode reads one line; kind says why it is no message, "" when it is one.
func decode(text []byte) (m message, kind NoiseKind) {
	if text[0] != '{' {
		return m, NoiseGarbage
	}
	err := json.Unmarshal(text, &m)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return m, NoiseGarbage
	case err != nil: // a member of another type
		return m, NoiseMalformed
	}
	return m, ""
}

// envelope is what we write. The member order is that of the providers'
// samples, for readers of captures.
type envelope struct {
	JSONRPC string          `json:"jsonrpc,omitempty"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *RPCError       `json:"error,omitempty"`
}

func encode(e envelope) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf) // ends with the newline
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return nil, fmt.Errorf("jsonrpc: encode %s: %w", e.Method, err)
	}
	return buf.Bytes(), nil
}

// sniffed is what the beginning of a message tells.
type sniffed struct {
	method   string
	id       string // JSON text
	response bool   // its result or error has begun
}

// sniff reads the beginning of a message. It stops at the first value that is
// not complete there.
func sniff(head []byte) (s sniffed) {
	dec := json.NewDecoder(bytes.NewReader(trim(head)))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return s
	}
	for {
		key, err := dec.Token()
		if err != nil {
			return s
		}
		if key == "result" || key == "error" {
			s.response = true
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return s
		}
		switch key {
		case "method":
			if err := json.Unmarshal(value, &s.method); err != nil {
				return s
			}
		case "id":
			if validID(value) {
				s.id = string(value)
			}
		}
	}
}
