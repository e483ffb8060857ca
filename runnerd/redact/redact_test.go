package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bowline/driver"
)

const secret = "hunter2-tok\"en/<&>+"

// naive is the oracle: mark every byte of every occurrence of every form, then
// replace each stretch whose occurrences overlap.
func naive(text []byte, forms [][]byte) []byte {
	type stretch struct{ start, end int }
	var found []stretch
	for i := range text {
		for _, f := range forms {
			if bytes.HasPrefix(text[i:], f) {
				found = append(found, stretch{i, i + len(f)})
			}
		}
	}
	var merged []stretch
	for _, s := range found { // sorted by start
		if n := len(merged); n > 0 && merged[n-1].end > s.start {
			merged[n-1].end = max(merged[n-1].end, s.end)
			continue
		}
		merged = append(merged, s)
	}
	var out []byte
	at := 0
	for _, s := range merged {
		out = append(append(out, text[at:s.start]...), Marker...)
		at = s.end
	}
	return append(out, text[at:]...)
}

// streamed redacts text cut at the given places.
func streamed(r *Redactor, text []byte, cuts ...int) []byte {
	s := r.Stream()
	var out []byte
	at := 0
	for _, c := range cuts {
		out = append(out, s.Write(text[at:c])...)
		at = c
	}
	out = append(out, s.Write(text[at:])...)
	return append(out, s.Flush()...)
}

func TestEveryFormIsReplaced(t *testing.T) {
	t.Parallel()
	r := New(secret, "short", "multi\nline-secret\n")
	for name, text := range map[string]string{
		"plain":            secret,
		"escaped":          `hunter2-tok\"en/<&>+`,
		"escaped for HTML": `hunter2-tok\"en/\u003c\u0026\u003e+`,
		"terminal":         "multi\r\nline-secret",
		"newline":          "multi\nline-secret\n",
		"trimmed":          "multi\nline-secret",
	} {
		got := r.String("before " + text + " after")
		if got != "before "+Marker+" after" {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := r.String("a short text"); got != "a short text" {
		t.Errorf("a value below the minimum was replaced: %q", got)
	}
}

func TestBase64AtEveryAlignment(t *testing.T) {
	t.Parallel()
	r := New(secret)
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding} {
		for lead := range 7 {
			for tail := range 4 {
				text := enc.EncodeToString([]byte(strings.Repeat("x", lead) + secret + strings.Repeat("y", tail)))
				got := r.String(text)
				rest := strings.Replace(got, Marker, "", 1)
				// At most two characters of each end also encode neighbours.
				if !strings.Contains(got, Marker) || len(rest) > len(enc.EncodeToString(make([]byte, lead)))+len(enc.EncodeToString(make([]byte, tail)))+2*4 {
					t.Errorf("lead %d, tail %d: %q became %q", lead, tail, text, got)
				}
			}
		}
	}
}

func TestEverySplitOfEverySecret(t *testing.T) {
	t.Parallel()
	secrets := []string{secret, "zweites Geheimnis ü", "aaaaaaaa", "overlap-12345678", "12345678-overlap"}
	r := New(secrets...)
	var forms [][]byte
	for _, v := range secrets {
		addForms(v, func(f string) {
			if len(f) >= MinSecret {
				forms = append(forms, []byte(f))
			}
		})
	}
	for _, form := range append(forms, []byte("overlap-12345678-overlap"), []byte("aaaaaaaaaaaaa")) {
		text := []byte("pre " + string(form) + " post")
		want := naive(text, forms)
		if bytes.Contains(want, form) || !bytes.Contains(want, []byte(Marker)) {
			t.Fatalf("oracle leaves %q", want)
		}
		for i := range len(text) + 1 {
			if got := streamed(r, text, i); !bytes.Equal(got, want) {
				t.Fatalf("%q cut at %d: %q, want %q", text, i, got, want)
			}
			for j := i; j <= len(text); j += 3 {
				if got := streamed(r, text, i, j); !bytes.Equal(got, want) {
					t.Fatalf("%q cut at %d and %d: %q, want %q", text, i, j, got, want)
				}
			}
		}
		// Without anything after it: the end of the stream.
		if got := streamed(r, form, len(form)/2); bytes.Contains(got, form) {
			t.Errorf("%q at the end of a stream: %q", form, got)
		}
	}
}

func TestStreamEqualsOracle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 8, 12, -1)
		secrets := rapid.SliceOfN(letters, 1, 3).Draw(t, "secrets")
		r := New(secrets...)
		var forms [][]byte
		for _, v := range secrets {
			forms = append(forms, []byte(v))
		}
		chunks := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 30, -1), 0, 8).Draw(t, "chunks")
		text := []byte(strings.Join(chunks, ""))
		s := r.Stream()
		var got []byte
		for _, c := range chunks {
			got = append(got, s.Write([]byte(c))...)
			if s.Held() >= 20 {
				t.Fatalf("%d bytes held back, the longest form has fewer", s.Held())
			}
		}
		got = append(got, s.Flush()...)
		if want := naive(text, forms); !bytes.Equal(got, want) {
			t.Fatalf("%q in %q: %q, want %q", secrets, text, got, want)
		}
		if whole := r.Bytes(text); !bytes.Equal(whole, got) {
			t.Fatalf("whole %q, streamed %q", whole, got)
		}
	})
}

func TestNothingIsHeldForNothing(t *testing.T) {
	t.Parallel()
	s := New(secret).Stream()
	if got := s.Write([]byte("ordinary output\n")); string(got) != "ordinary output\n" {
		t.Errorf("held back: %q", got)
	}
	if got := s.Write([]byte("hunter")); len(got) != 0 || s.Held() != 6 {
		t.Errorf("a beginning came out: %q", got)
	}
	if got := s.Write([]byte(" is his name")); string(got) != "hunter is his name" {
		t.Errorf("got %q", got)
	}
	if got := s.Flush(); len(got) != 0 {
		t.Errorf("flush %q", got)
	}
}

// A text that is one long overlap needs no memory.
func TestEndlessOverlapIsBounded(t *testing.T) {
	t.Parallel()
	s := New("aaaaaaaa").Stream()
	chunk := bytes.Repeat([]byte("a"), 1<<20)
	for range 4 {
		if got := s.Write(chunk); len(got) != 0 {
			t.Fatalf("came out: %d bytes", len(got))
		}
		if s.Held() > 64 || cap(s.tail) > 2*flushEvery {
			t.Fatalf("held %d, capacity %d", s.Held(), cap(s.tail))
		}
	}
	if got := s.Flush(); string(got) != Marker {
		t.Errorf("flush %q", got)
	}
}

func TestEmptyChangesNothing(t *testing.T) {
	t.Parallel()
	for _, r := range []*Redactor{nil, {}, New(), New("", "short")} {
		if !r.Empty() {
			t.Error("not empty")
		}
		if got := streamed(r, []byte("some text"), 3); string(got) != "some text" {
			t.Errorf("got %q", got)
		}
		raw := json.RawMessage(` {"a" : 1} `)
		if got, err := r.JSON(raw); err != nil || !bytes.Equal(got, raw) {
			t.Errorf("got %q %v", got, err)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	r := New(secret, "12345678")
	for in, want := range map[string]string{
		`{"a":"x"}`: `{"a":"x"}`,
		` { "a" : [ 1 , "hunter2-tok\"en/<&>+" ] } `: ` { "a" : [ 1 , "[REDACTED]" ] } `,
		`{"a":"\u0068unter2-tok\"en\/<&>+!"}`:        `{"a":"[REDACTED]!"}`,
		`{"hunter2-tok\"en/<&>+" : 1}`:               `{"[REDACTED]" : 1}`,
		`{"12345678":1,"12345678x":2}`:               `{"[REDACTED]":1,"[REDACTED]x#2":2}`,
		`[12345678,-1234567.8e1,true,null]`:          `["[REDACTED]",-1234567.8e1,true,null]`,
		`"a\\\"b"`:                                   `"a\\\"b"`,
		// A JSON text inside a string: the escaped form.
		`{"a":"{\"k\":\"hunter2-tok\\\"en/<&>+\"}"}`: `{"a":"{\"k\":\"[REDACTED]\"}"}`,
	} {
		got, err := r.JSON(json.RawMessage(in))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s %v, want %s", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "{", `{"a":`, `{} {}`, `"a`} {
		if _, err := r.JSON(json.RawMessage(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func deltaEvent(t *testing.T, payload any) driver.Event {
	t.Helper()
	raw, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	return driver.Event{Type: "item.delta", Priority: 2, Payload: raw}
}

// content concatenates what the deltas of each stream carry.
func content(t *testing.T, events []driver.Event) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, ev := range events {
		if ev.Type != "item.delta" {
			continue
		}
		var p struct {
			Stream, Text string
			Data         []byte
		}
		if err := json.Unmarshal(ev.Payload, &p); err != nil {
			t.Fatal(err)
		}
		all[p.Stream] += p.Text + string(p.Data)
	}
	return all
}

func TestFilterJoinsDeltasOfOneStream(t *testing.T) {
	t.Parallel()
	for cut := range len(secret) + 1 {
		f := NewFilter(New(secret))
		var out []driver.Event
		feed := func(ev driver.Event) {
			got, err := f.Event(ev)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, got...)
		}
		feed(deltaEvent(t, map[string]any{"itemId": "i", "kind": "k", "channel": "detail", "stream": "stdout", "text": "a" + secret[:cut]}))
		feed(deltaEvent(t, map[string]any{"itemId": "i", "kind": "k", "channel": "detail", "stream": "stderr", "text": "other"}))
		feed(deltaEvent(t, map[string]any{"itemId": "i", "kind": "k", "channel": "detail", "stream": "stdout", "encoding": "base64", "data": []byte(secret[cut:] + "\xff" + secret[:5])}))
		feed(driver.Event{Type: "item.completed", Priority: 1, Payload: json.RawMessage(`{"itemId":"i","note":"` + secret[:7] + `"}`)})
		got := content(t, out)
		if got["stdout"] != "a"+Marker+"\xff"+secret[:5] || got["stderr"] != "other" {
			t.Errorf("cut at %d: %q", cut, got)
		}
		if last := out[len(out)-1]; last.Type != "item.completed" {
			t.Errorf("cut at %d: held bytes came after the item: %s", cut, last.Type)
		}
		for _, ev := range out {
			if ev.Type == "item.delta" && (!bytes.Contains(ev.Payload, []byte(`"kind":"k"`)) || !bytes.Contains(ev.Payload, []byte(`"channel":"detail"`))) {
				t.Errorf("members are missing: %s", ev.Payload)
			}
		}
	}
}

func TestFilterKeepsResumeStates(t *testing.T) {
	t.Parallel()
	f := NewFilter(New(secret))
	ev := deltaEvent(t, map[string]any{"itemId": "i", "text": secret[:6]})
	if got, err := f.Event(ev); err != nil || len(got) != 0 {
		t.Fatalf("%v %v", got, err)
	}
	ev.Resume = json.RawMessage(`{"n":1}`)
	got, err := f.Event(ev)
	if err != nil || len(got) != 1 || string(got[0].Resume) != `{"n":1}` {
		t.Fatalf("%v %v", got, err)
	}
	end := driver.Event{Type: "turn.completed", Terminal: true, Payload: json.RawMessage(`{}`)}
	if got, err = f.Event(end); err != nil || len(got) != 2 || !got[1].Terminal {
		t.Fatalf("%v %v", got, err)
	}
	if c := content(t, got); c[""] != secret[:6] {
		t.Errorf("held bytes %q", c)
	}
	if got, err = f.Event(end); err != nil || len(got) != 1 {
		t.Errorf("held bytes came twice: %v %v", got, err)
	}
}

func TestFilterRefusesBrokenPayloads(t *testing.T) {
	t.Parallel()
	f := NewFilter(New(secret))
	for _, ev := range []driver.Event{
		{Type: "item.delta", Payload: json.RawMessage(`[]`)},
		{Type: "item.delta", Payload: json.RawMessage(`{"data":"%"}`)},
		{Type: "item.completed", Payload: json.RawMessage(`{`)},
		{Type: "turn.started", Payload: json.RawMessage(`{`)},
	} {
		if _, err := f.Event(ev); err == nil {
			t.Errorf("%s %s was accepted", ev.Type, ev.Payload)
		}
	}
}

// The automaton grows with the secrets, not with their square.
func TestMemoryIsLinear(t *testing.T) {
	t.Parallel()
	value := strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\n", 64)
	r := New(value)
	if n := len(r.machine.nodes); n > 12*len(value)+1 {
		t.Errorf("%d states for a value of %d bytes", n, len(value))
	}
}

func BenchmarkStream(b *testing.B) {
	r := New("sk-0123456789abcdef", "ghp_abcdefghijklmnop", strings.Repeat("k", 4096))
	chunk := bytes.Repeat([]byte("some ordinary output of a program, kkkk sk-01234\n"), 1000)
	s := r.Stream()
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		s.Write(chunk)
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("xx"+secret+"yy"), uint8(5))
	f.Fuzz(func(t *testing.T, text []byte, cut uint8) {
		r := New(secret)
		at := min(int(cut), len(text))
		if got, want := streamed(r, text, at), r.Bytes(text); !bytes.Equal(got, want) {
			t.Errorf("cut at %d: %q, want %q", at, got, want)
		}
	})
}
