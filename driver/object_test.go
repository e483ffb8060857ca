package driver

import (
	"encoding/json"
	"strings"
	"testing"

	"bowline/wire"
)

func TestObject(t *testing.T) {
	t.Parallel()
	got, err := Object(json.RawMessage(` {"a": 1, "b":{"x":[2]} } `), "a", "b", "c")
	if err != nil || len(got) != 2 || string(got["a"]) != "1" || string(got["b"]) != `{"x":[2]}` {
		t.Errorf("%q %v", got, err)
	}
	long := strings.Repeat("ü", 100)
	for raw, want := range map[string]string{
		"":                   "not a JSON object",
		"null":               "not a JSON object",
		"[]":                 "not a JSON object",
		`{"a":1`:             "not a JSON object",
		`{"a":}`:             "provider.a is not JSON",
		`{"a":1,"a":1}`:      "provider.a is given twice",
		`{"A":1}`:            "provider.A is unknown; known are a, b",
		`{"a":1}{}`:          "followed by more data",
		`{"` + long + `":1}`: "…",
	} {
		_, err := Object(json.RawMessage(raw), "a", "b")
		if wire.CodeOf(err) != wire.CodeInputInvalid || !strings.Contains(err.Error(), want) || len(err.Error()) > 200 {
			t.Errorf("%q: %v, want %q", raw, err, want)
		}
	}
}
