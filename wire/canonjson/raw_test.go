package canonjson

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestRaw(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		keys []string
		want string
	}{
		{`{"a":{"b": [1, 2.0 , {"c":"}"}] ,"d":1}}`, []string{"a", "b"}, `[1, 2.0 , {"c":"}"}]`},
		{`{"a":1,"a":{"x":"\\\""},"A":3}`, []string{"a"}, `{"x":"\\\""}`},
		{`{"a":{"b":1},"a":{"c":2}}`, []string{"a", "b"}, ``},
		{`{"payload":{"payload":"judged"},"Payload":{"payload":"other"},"PAYLOAD":0}`, []string{"payload", "payload"}, `"judged"`},
		{`{"\u0061":7}`, []string{"a"}, `7`},
		{` {"a" : null } `, []string{"a"}, `null`},
		{`{"a":12345678901234567890}`, []string{"a"}, `12345678901234567890`},
		{`[1]`, []string{"a"}, ``},
		{`{}`, []string{"a"}, ``},
		{`"x"`, nil, `"x"`},
	} {
		got, err := Raw(c.text, c.keys...)
		if err != nil || got != c.want {
			t.Errorf("%s at %v: %q, %v; want %q", c.text, c.keys, got, err, c.want)
		}
	}
	for _, text := range []string{``, `{`, `{"a"`, `{"a":`, `{"a":}`, `{"a":[`, `{"a":"`, `{"a":"\\`, `{"a":1`, `{"a":1 2}`, `{a:1}`, `]`} {
		if got, err := Raw(text, "a"); err == nil && got != "" {
			t.Errorf("%q: gave %q", text, got)
		}
	}
}

// What Parse takes at its deepest must still fit encoding/json inside a few
// more levels: it is handed on inside our own JSON.
func TestParsedDepthStaysReadable(t *testing.T) {
	t.Parallel()
	deepest := strings.Repeat("[", MaxParseDepth) + "0" + strings.Repeat("]", MaxParseDepth)
	if _, err := Parse([]byte(deepest)); err != nil {
		t.Fatalf("at the limit: %v", err)
	}
	if _, err := Parse([]byte("[" + deepest + "]")); err == nil {
		t.Fatal("one past the limit is taken")
	}
	wrapped, err := json.Marshal(map[string]any{"a": []any{map[string]any{"b": json.RawMessage(deepest)}}})
	if err != nil {
		t.Fatalf("cannot be handed on: %v", err)
	}
	var back map[string]json.RawMessage
	if err := json.Unmarshal(wrapped, &back); err != nil {
		t.Fatalf("cannot be read by a host: %v", err)
	}
}

// Raw finds what Parse and Get find.
func FuzzRaw(f *testing.F) {
	f.Add(`{"a":{"b":[1,"]"]},"a":{"b":{}}}`)
	f.Add(`{"a":{"\u0062":"\ud800"}}`)
	f.Fuzz(func(t *testing.T, in string) {
		text := DecodeUTF8([]byte(in))
		whole, err := ParseText(text)
		raw, rerr := Raw(text, "a", "b")
		if err != nil {
			return // any answer but a panic
		}
		if rerr != nil {
			t.Fatalf("%q: %v", text, rerr)
		}
		want := whole.Get("a", "b")
		if raw == "" {
			if want.Exists() {
				t.Fatalf("%q: nothing found", text)
			}
			return
		}
		got, err := ParseText(raw)
		if err != nil || !bytes.Equal(got.JSON(), want.JSON()) {
			t.Fatalf("%q: %q, want %s (%v)", text, raw, want.JSON(), err)
		}
	})
}

func TestParseBounded(t *testing.T) {
	t.Parallel()
	for text, nodes := range map[string]int{`1`: 1, `[1,{"a":2,"a":3}]`: 5, `{"a":[]}`: 2, `"x"`: 1} {
		if v, err := ParseBounded([]byte(text), nodes); err != nil || !v.Exists() {
			t.Errorf("%s with %d values: %v", text, nodes, err)
		}
		if _, err := ParseBounded([]byte(text), nodes-1); err == nil {
			t.Errorf("%s is taken with room for %d values", text, nodes-1)
		}
	}
}
