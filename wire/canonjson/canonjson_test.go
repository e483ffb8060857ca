package canonjson

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

func parse(t testing.TB, text string) Value {
	t.Helper()
	v, err := ParseText(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func TestStringify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, out string }{
		{` [ ] `, `[]`},
		{"\t{\n}\r ", `{}`},
		{`{"b":1,"a":2}`, `{"b":1,"a":2}`},
		{`{"b":1,"2":0,"a":2,"10":0,"01":0,"4294967294":1,"4294967295":2}`, `{"2":0,"10":0,"4294967294":1,"b":1,"a":2,"01":0,"4294967295":2}`},
		{`{"a":1,"b":2,"a":3}`, `{"a":3,"b":2}`},
		{`{"__proto__":{"x":1},"constructor":1,"__proto__":2}`, `{"__proto__":2,"constructor":1}`},
		{`"\u003c\u0026\u2028\u2029\u007f\/"`, "\"<&\u2028\u2029\x7f/\""},
		{`"\b\t\n\f\r\u0000\u001f\"\\"`, `"\b\t\n\f\r\u0000\u001f\"\\"`},
		{`"\ud83c\udf00"`, `"🌀"`},
		{`"\uD83C lone"`, `"\ud83c lone"`},
		{`"\udf00\ud83c"`, `"\udf00\ud83c"`},
		{`"\ud83c\ud83c\udf00\udf00"`, `"\ud83c🌀\udf00"`},
		{`"é\u00e9"`, `"éé"`},
		{`[true,false,null]`, `[true,false,null]`},
		{`1e999`, `null`},
		{`-1e999`, `null`},
		{`-0`, `0`},
		{`-0.0e5`, `0`},
	} {
		v := parse(t, c.in)
		if got := string(v.JSON()); got != c.out {
			t.Errorf("%s is written %s, want %s", c.in, got, c.out)
		}
	}
}

func TestRefusedText(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		``, ` `, `{`, `}`, `[`, `]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `[1,]`, `[,1]`, `[1 2]`, `{"a":1 "b":2}`, `{a:1}`, `{'a':1}`,
		`1 2`, `nul`, `nulll`, `True`, `NaN`, `Infinity`, `-`, `+1`, `01`, `-01`, `1.`, `.5`, `1e`, `1e+`, `0x10`, `1_000`, `--1`, `- 1`,
		`"`, `"\`, `"\u`, `"\u12`, `"\u12g4"`, `"\x41"`, `"\'"`, "\"\t\"", "\"\n\"", "\"\\n\t\"", "\"\x00\"", `"a`, `"a\`, `"\ud83c\u"`,
		"\xef\xbb\xbf{}", "{}\x00", "\u00a0{}", "\u2028{}", "\v{}", `{} {}`, `/**/{}`, `{}//`,
	} {
		var syntax *SyntaxError
		if v, err := ParseText(in); !errors.As(err, &syntax) {
			t.Errorf("%q parses as %s (%v)", in, v.JSON(), err)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, out string }{
		{"0", "0"},
		{"1.0", "1"},
		{"100e-2", "1"},
		{"1e21", "1e+21"},
		{"1e20", "100000000000000000000"},
		{"123456789012345678901234567890", "1.2345678901234568e+29"},
		{"1e-6", "0.000001"},
		{"1e-7", "1e-7"},
		{"1.5e-7", "1.5e-7"},
		{"0.1", "0.1"},
		{"-1.5", "-1.5"},
		{"9007199254740993", "9007199254740992"},
		{"9007199254740991", "9007199254740991"},
		{"5e-324", "5e-324"},
		{"1e-400", "0"},
		{"1.7976931348623157e308", "1.7976931348623157e+308"},
		{"-1e-7", "-1e-7"},
		{"1e-10", "1e-10"},
		{"1.25e+100", "1.25e+100"},
		{"999999999999999900000", "999999999999999900000"},
		{"0.3", "0.3"},
		{"4.35", "4.35"},
		{"1e9", "1000000000"},
		{"18446744073709551616", "18446744073709552000"},
	} {
		if got := string(parse(t, c.in).JSON()); got != c.out {
			t.Errorf("%s is written %s, want %s", c.in, got, c.out)
		}
	}
}

func TestBrokenUTF8(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, out string }{
		{"\xff", "\ufffd"},
		{"a\xf0\x9f\x8cb", "a\ufffdb"},         // one cut sequence is one mistake
		{"\xed\xa0\x80", "\ufffd\ufffd\ufffd"}, // a surrogate in UTF-8 is three
		{"\xc0\x80", "\ufffd\ufffd"},
		{"\xe0\x80\x80", "\ufffd\ufffd\ufffd"},
		{"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
		{"\xe2\x82", "\ufffd"},
		{"\xe2\x82\xff", "\ufffd\ufffd"},
		{"\xf0\x9f\xe2\x82\xac", "\ufffd€"},
		{"\x80", "\ufffd"},
		{"\xc3", "\ufffd"},
	} {
		if got := DecodeUTF8([]byte(c.in)); got != c.out {
			t.Errorf("%x decodes to %q, want %q", c.in, got, c.out)
		}
		v, err := Parse([]byte(`"` + c.in + `"`))
		if err != nil || v.Str() != c.out {
			t.Errorf("%x parses to %q, want %q (%v)", c.in, v.Str(), c.out, err)
		}
	}
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, out string }{
		{`{"b":[1.0,-0,1e21,1e-7],"a":"<&>\u2028\u00e9"}`, "{\"a\":\"<&>\u2028é\",\"b\":[1,0,1e+21,1e-7]}"},
		{`{"\uff61":1,"\ud83c\udf00":2,"z":3}`, `{"z":3,"🌀":2,"｡":1}`},
		{`{"10":1,"9":2,"1":3}`, `{"1":3,"10":1,"9":2}`},
		{`{"a":1,"":2,"aa":3,"A":4}`, `{"":2,"A":4,"a":1,"aa":3}`},
		{`{"\ud83c":1,"\ud83c\udf00":2,"\ud83b":3,"\ue000":4}`, `{"\ud83b":3,"\ud83c":1,"🌀":2,"` + "\ue000" + `":4}`},
	} {
		got, err := Canonical(parse(t, c.in))
		if err != nil || string(got) != c.out {
			t.Errorf("%s: %s, want %s (%v)", c.in, got, c.out, err)
		}
	}
}

func nested(depth int) Value {
	v := NullValue()
	for i := range depth {
		if i%2 == 0 {
			v = ArrayValue(v)
		} else {
			v = ObjectValue(Member{"a", v})
		}
	}
	return v
}

func TestCanonicalLimits(t *testing.T) {
	t.Parallel()
	wide := func(n int) Value {
		e := make([]Value, n)
		for i := range e {
			e[i] = IntValue(int64(i))
		}
		return ArrayValue(e...)
	}
	for _, c := range []struct {
		name string
		v    Value
		want error
	}{
		{"depth 64", nested(64), nil},
		{"depth 65", nested(65), ErrTooLarge},
		{"10000 nodes", wide(9_999), nil},
		{"10001 nodes", wide(10_000), ErrTooLarge},
		{"infinite", NumberValue(math.Inf(-1)), ErrInvalid},
		{"not a number", ArrayValue(NumberValue(math.NaN())), ErrInvalid},
		{"undefined", Value{}, ErrInvalid},
	} {
		_, err := Canonical(c.v)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if _, err := Equal(NullValue(), c.v); !errors.Is(err, c.want) {
			t.Errorf("%s compared with null: %v, want %v", c.name, err, c.want)
		}
		if _, err := CanonicalUnlimited(c.v); errors.Is(c.want, ErrTooLarge) && err != nil {
			t.Errorf("%s without limits: %v", c.name, err)
		}
	}
	if ErrInvalid.Error() != "durable_prp_canonical_json_invalid" || ErrTooLarge.Error() != "durable_prp_canonical_json_too_large" {
		t.Error("the codes of the errors changed")
	}
}

func TestParseDepth(t *testing.T) {
	t.Parallel()
	at := func(n int) string { return strings.Repeat("[", n) + "1" + strings.Repeat("]", n) }
	if _, err := ParseText(at(MaxParseDepth)); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if _, err := ParseText(at(MaxParseDepth + 1)); err == nil {
		t.Error("one beyond the limit parses")
	}
	if _, err := ParseText(strings.Repeat(`{"a":`, 1_000_000)); err == nil {
		t.Error("a million open objects parse")
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":2}`, `{"b":2.0,"a":1}`, true},
		{`{"a":1}`, `{"a":1,"b":null}`, false},
		{`[1,2]`, `[2,1]`, false},
		{`0`, `-0`, true},
		{`"\u00e9"`, `"é"`, true},
		{`"e\u0301"`, `"é"`, false},
		{`{"a":1,"a":2}`, `{"a":2}`, true},
		{`1`, `"1"`, false},
		{`{}`, `[]`, false},
		{`9007199254740993`, `9007199254740992`, true},
	} {
		if got, err := Equal(parse(t, c.a), parse(t, c.b)); err != nil || got != c.want {
			t.Errorf("%s and %s: %v, %v", c.a, c.b, got, err)
		}
	}
}

func TestGetters(t *testing.T) {
	t.Parallel()
	v := parse(t, `{"s":"x","n":1,"f":1.5,"big":9007199254740992,"b":true,"no":false,"z":null,"o":{"i":{"n":-3}},"a":[1,2]}`)
	check := func(ok bool, what string) {
		t.Helper()
		if !ok {
			t.Error(what)
		}
	}
	check(v.Get("s").Str() == "x" && v.Get("n").Str() == "", "Str")
	n, ok := v.Get("o", "i", "n").SafeInt()
	check(ok && n == -3, "SafeInt of a nested member")
	for _, name := range []string{"f", "big", "s", "z", "missing"} {
		_, ok := v.Get(name).SafeInt()
		check(!ok, "SafeInt of "+name)
	}
	b, ok := v.Get("b").AsBool()
	check(b && ok, "AsBool of true")
	b, ok = v.Get("no").AsBool()
	check(!b && ok, "AsBool of false")
	_, ok = v.Get("z").AsBool()
	check(!ok, "AsBool of null")
	check(v.Get("z").IsNull() && v.Get("z").Exists() && v.Has("z"), "null exists")
	check(!v.Get("missing").Exists() && !v.Get("missing").IsNull() && !v.Has("missing"), "missing does not exist")
	check(!v.Get("s", "t").Exists(), "member of a string")
	check(v.Get("a").Len() == 2 && v.Get("a").At(1).Exists() && !v.Get("a").At(2).Exists() && !v.Get("a").At(-1).Exists(), "At")
	check(v.Get("o").IsObject() && v.Get("a").IsArray() && !v.Get("a").IsObject(), "kinds")
	check(len(v.Get("a").Elements()) == 2 && v.Get("o").Elements() == nil && v.Get("a").Members() == nil, "Elements, Members")
}

func TestSetAndWith(t *testing.T) {
	t.Parallel()
	v := ObjectValue()
	for i := range 40 { // beyond the size at which an index is kept
		v.Set(string(rune('a'+i%26))+strings.Repeat("x", i/26), IntValue(int64(i)))
	}
	w := v.With("a", StringValue("new")).With("zz", BoolValue(true))
	if n, _ := v.Get("a").SafeInt(); n != 0 || v.Has("zz") || v.Len() != 40 {
		t.Error("With changed the original")
	}
	if w.Get("a").Str() != "new" || w.Len() != 41 {
		t.Error("With did not set")
	}
	v.Delete("b")
	v.Delete("b")
	if v.Has("b") || v.Len() != 39 || !v.Get("c").Exists() || !v.Get("bx").Exists() {
		t.Error("Delete removed something else")
	}
	v.Set("c", Value{})
	if v.Has("c") {
		t.Error("setting Undefined does not delete")
	}
	if string(ObjectValue(Member{"a", Value{}}, Member{"b", NullValue()}).JSON()) != `{"b":null}` {
		t.Error("an Undefined member is written")
	}
}

func TestMarshal(t *testing.T) {
	t.Parallel()
	got, err := Marshal(struct {
		B   string          `json:"b"`
		A   float64         `json:"a"`
		Opt *int            `json:"opt,omitempty"`
		Raw json.RawMessage `json:"raw"`
		V   Value           `json:"v"`
	}{"<&>\u2028\x01", 1e21, nil, json.RawMessage(`{"z":1,"a":[ ]}`), ObjectValue(Member{"k", StringValue("\xed\xa0\xbc")})})
	want := "{\"b\":\"<&>\u2028\\u0001\",\"a\":1e+21,\"raw\":{\"z\":1,\"a\":[]},\"v\":{\"k\":\"\\ud83c\"}}"
	if err != nil || string(got) != want {
		t.Errorf("got %s, want %s (%v)", got, want, err)
	}
	if _, err := Marshal(func() {}); err == nil {
		t.Error("a function marshals")
	}
	var back struct{ V Value }
	if err := json.Unmarshal([]byte(`{"V":{"a":[1]}}`), &back); err != nil || string(back.V.JSON()) != `{"a":[1]}` {
		t.Errorf("unmarshal: %s, %v", back.V.JSON(), err)
	}
}

func TestLengthsAndCuts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s             string
		units, points int
	}{
		{"", 0, 0}, {"abc", 3, 3}, {"é", 1, 1}, {"🌀", 2, 1}, {"a🌀b", 4, 3}, {"\xed\xa0\xbc", 1, 1}, {"\xed\xa0\xbc\xed\xa0\xbc", 2, 2},
	} {
		if u, p := UTF16Len(c.s), CodePoints(c.s); u != c.units || p != c.points {
			t.Errorf("%q: %d units, %d points", c.s, u, p)
		}
	}
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{
		{"abc", 2, "ab"}, {"abc", 9, "abc"}, {"a🌀", 2, "a\xed\xa0\xbc"}, {"a🌀", 3, "a🌀"}, {"a🌀", 1, "a"}, {"", 1, ""}, {"é", 0, ""},
	} {
		if got := CutUTF16(c.s, c.n); got != c.want {
			t.Errorf("first %d of %q: %q, want %q", c.n, c.s, got, c.want)
		}
	}
}

// randomText makes strings of what is easily got wrong.
func randomText(r *rand.Rand) string {
	pieces := []string{"a", "Z", "0", "é", "｡", "🌀", "\u2028", "\"", "\\", "\n", "\x00", "\x7f", "\xed\xa0\xbc", "\xed\xbc\x80", "\ue000", "\uffff", "\ud7ff", "𐀀"}
	var b strings.Builder
	for range r.IntN(5) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	return cleanWTF8(b.String())
}

func toUnits(s string) []uint16 {
	var out []uint16
	for len(s) > 0 {
		r, size, _ := decodeWTF8(s, true)
		if isSurrogateRune(r) {
			out = append(out, uint16(r))
		} else {
			out = utf16.AppendRune(out, r)
		}
		s = s[size:]
	}
	return out
}

func TestCompareUTF16(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		a, b := randomText(r), randomText(r)
		want, got := slices.Compare(toUnits(a), toUnits(b)), CompareUTF16(a, b)
		if want < 0 != (got < 0) || want > 0 != (got > 0) {
			t.Fatalf("%q against %q: %d, want %d", a, b, got, want)
		}
	}
}

func randomValue(r *rand.Rand, depth int) Value {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch r.IntN(kinds) {
	case 0:
		return []Value{NullValue(), BoolValue(true), BoolValue(false)}[r.IntN(3)]
	case 1:
		return StringValue(randomText(r))
	case 2:
		f := math.Float64frombits(r.Uint64())
		if math.IsNaN(f) || math.IsInf(f, 0) {
			f = 0.1
		}
		return NumberValue(f)
	case 3:
		return IntValue(r.Int64N(1<<54) - 1<<53)
	case 4:
		e := make([]Value, r.IntN(4))
		for i := range e {
			e[i] = randomValue(r, depth-1)
		}
		return ArrayValue(e...)
	default:
		v := ObjectValue()
		for range r.IntN(20) {
			key := randomText(r)
			if r.IntN(3) == 0 {
				key = []string{"0", "1", "10", "9", "-1", "4294967295", "__proto__", "toString"}[r.IntN(8)]
			}
			v.Set(key, randomValue(r, depth-1))
		}
		return v
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 3_000 {
		v := randomValue(r, 3)
		text := v.JSON()
		if !utf8.Valid(text) {
			t.Fatalf("%q is not UTF-8", text)
		}
		back := parse(t, string(text))
		if got := back.JSON(); string(got) != string(text) {
			t.Fatalf("%s becomes %s", text, got)
		}
		a, err := CanonicalUnlimited(v)
		if err != nil {
			t.Fatal(err)
		}
		b, err := CanonicalUnlimited(parse(t, string(a)))
		if err != nil || string(a) != string(b) {
			t.Fatalf("the canonical form is not a fixed point: %s and %s (%v)", a, b, err)
		}
		var std any
		if err := json.Unmarshal(text, &std); err != nil {
			t.Fatalf("encoding/json refuses %s: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.5e3,"\ud83c\udf00"],"a":null}`, `"\ud83c"`, "\"\xff\"", `[[[[]]]]`, `1e999`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := Parse(b)
		// What encoding/json calls valid JSON and what we do must be the same,
		// depth apart (it stops at 10 000 too) and broken UTF-8 apart.
		if utf8.Valid(b) && json.Valid(b) != (err == nil) {
			t.Fatalf("%q: encoding/json valid=%v, we say %v", b, json.Valid(b), err)
		}
		if err != nil {
			return
		}
		text := v.JSON()
		back, err := Parse(text)
		if err != nil {
			t.Fatalf("our own text %q does not parse: %v", text, err)
		}
		if string(back.JSON()) != string(text) {
			t.Fatalf("%q becomes %q", text, back.JSON())
		}
	})
}

func BenchmarkParse1K(b *testing.B) {
	text := []byte(`{"protocol":"paperclip.runner","version":1,"kind":"event","payload":{"text":"` + strings.Repeat("x", 700) + `","n":[1,2,3.5],"ok":true}}`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
