package prp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"bowline/wire/canonjson"
)

// bounded is what the digest is taken of, as text.
func bounded(t testing.TB, input string) string {
	t.Helper()
	v, err := canonjson.ParseText(input)
	if err != nil {
		t.Fatal(err)
	}
	w := digestWalk{ordered: countNodes(v, 0) > digestMaxNodes}
	out, err := canonjson.CanonicalUnlimited(w.visit(v, "", 0))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestDigestRedaction(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, out string }{
		{`{"a":1}`, `{"a":1}`},
		{
			`{"tokenBudget":5,"TOKEN":1,"xsecretx":{"a":1},"Cookies":[],"passwd":null}`,
			`{"Cookies":"[REDACTED]","TOKEN":"[REDACTED]","passwd":"[REDACTED]","tokenBudget":"[REDACTED]","xsecretx":"[REDACTED]"}`,
		},
		{
			`{"privatekey":1,"private key":1,"private_KEY":1,"private  key":1,"private\nkey":1,"privat\u0065\u2028key":1}`,
			`{"private\nkey":1,"private  key":1,"private key":"[REDACTED]","private_KEY":"[REDACTED]","privatekey":"[REDACTED]","private` + "\u2028" + `key":1}`,
		},
		{
			`{"private🌀key":1,"private\ud83ckey":1,"private\ud83c\ud83ckey":1}`,
			`{"private\ud83ckey":"[REDACTED]","private\ud83c\ud83ckey":1,"private🌀key":1}`,
		},
		{
			`{"api-key":1,"apikey":1,"connection.string":1,"connect string":1}`,
			`{"api-key":"[REDACTED]","apikey":"[REDACTED]","connect string":1,"connection.string":"[REDACTED]"}`,
		},
		// Kelvin sign and long s are not k and s to JavaScript.
		{`{"to\u212aen":1,"\u017fecret":1}`, `{"to` + "\u212a" + `en":1,"` + "\u017f" + `ecret":1}`},
		{`"Bearer 01234567"`, `"[REDACTED]"`},
		{`"bearer\u00a0\ufeff01234567!"`, `"[REDACTED]!"`},
		{`"Bearer\u000b01234567"`, `"[REDACTED]"`},
		{`"Bearer 0123456"`, `"Bearer 0123456"`},
		{`"xBearer 01234567"`, `"xBearer 01234567"`},
		{`"ßBearer 01234567"`, `"ß[REDACTED]"`},
		{`"Bearer 0123456789 sk_abcdefgh"`, `"[REDACTED] [REDACTED]"`},
		{
			`"SK_abcdefgh pk_abcdefg_ pcgw_12345678 ghp_12345678 github_pat_12345678 sk-12345678"`,
			`"[REDACTED] [REDACTED] [REDACTED] [REDACTED] [REDACTED] sk-12345678"`,
		},
		{`"eyJ12345678.12345678.12345678."`, `"[REDACTED]."`},
		{`"EYJ12345678.12345678.1234567"`, `"EYJ12345678.12345678.1234567"`},
		{
			`"http://x/?code=a&KEY=b#c&secret=&state=d e&token=f&api_key=g&api-key=h&apikey=i&access_token=j&other=k"`,
			`"http://x/?code=[REDACTED]&KEY=[REDACTED]#c&secret=&state=[REDACTED] e&token=[REDACTED]&api_key=[REDACTED]&api-key=[REDACTED]&apikey=[REDACTED]&access_token=[REDACTED]&other=k"`,
		},
		{`"code=a"`, `"code=a"`},
		{`"?token=a\u00a0b"`, `"?token=[REDACTED]` + "\u00a0" + `b"`},
		{`[1e999]`, `["[TRUNCATED]"]`},
		{`{"__proto__":{"token":1}}`, `{"__proto__":{"token":"[REDACTED]"}}`},
	} {
		if got := bounded(t, c.in); got != c.out {
			t.Errorf("%s\nbecomes %s\nwant    %s", c.in, got, c.out)
		}
	}
}

func TestDigestBounds(t *testing.T) {
	t.Parallel()
	repeat := func(s string, n int) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	nest := func(n int) string { return strings.Repeat("[", n) + "1" + strings.Repeat("]", n) }
	keys := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"k%04d":0,`, i)
		}
		return "{" + strings.TrimSuffix(b.String(), ",") + "}"
	}
	for _, c := range []struct{ name, in, out string }{
		{"depth 16", nest(16), nest(16)},
		{"depth 17", nest(17), strings.Replace(nest(17), "1", `"[TRUNCATED]"`, 1)},
		{"512 items", "[" + repeat("1", 512) + "]", "[" + repeat("1", 512) + "]"},
		{"513 items", "[" + repeat("1", 513) + "]", "[" + repeat("1", 512) + `,"[TRUNCATED]"]`},
		{"512 members", keys(512), keys(512)},
		{"513 members", keys(513), `{"__paperclip_truncated__":"[TRUNCATED]",` + keys(512)[1:]},
		{"string at the limit", `"` + strings.Repeat("y", 200_000) + `"`, `"` + strings.Repeat("y", 200_000) + `"`},
		{"string beyond", `"` + strings.Repeat("y", 200_001) + `"`, `"` + strings.Repeat("y", 200_000) + `[TRUNCATED]"`},
		{"string cut in a pair", `"y` + strings.Repeat("🌀", 100_000) + `"`, `"y` + strings.Repeat("🌀", 99_999) + `\ud83c[TRUNCATED]"`},
		{"long in bytes only", `"` + strings.Repeat("é", 200_000) + `"`, `"` + strings.Repeat("é", 200_000) + `"`},
		{"10000 nodes", "[" + repeat("["+repeat("1", 399)+"]", 24) + ",[" + repeat("1", 398) + "]]", "[" + repeat("["+repeat("1", 399)+"]", 24) + ",[" + repeat("1", 398) + "]]"},
		{"10001 nodes", "[" + repeat("["+repeat("1", 399)+"]", 25) + "]", "[" + repeat("["+repeat("1", 399)+"]", 24) + ",[" + repeat("1", 398) + `,"[TRUNCATED]"]]`},
	} {
		if got := bounded(t, c.in); got != c.out {
			t.Errorf("%s: becomes %.300s…\nwant %.300s…", c.name, got, c.out)
		}
	}
}

// digestScript is prp.md 7.4 in JavaScript, whose regular expressions and
// collation are the yardstick.
const digestScript = `
const crypto = require("crypto");
const keyLike = new RegExp(["authorization", "cookie", "credential", "password", "passwd", "private.?key", "secret", "token", "api.?key", "connection.?string"].join("|"), "i");
const tail = "[A-Za-z0-9_-]{8,}";
const values = new RegExp(["\\bBearer\\s+[A-Za-z0-9._~+/=-]{8,}", "\\b(?:sk|pk|pcgw|ghp|github_pat)_" + tail, "\\beyJ" + tail + "\\." + tail + "\\." + tail].join("|"), "gi");
const query = /([?&](?:code|key|secret|state|token|api[_-]?key|access[_-]?token)=)[^&#\s]+/gi;
let count;
function walk(v, key, depth) {
  if (++count > 10000 || depth > 16) return "[TRUNCATED]";
  if (keyLike.test(key)) return "[REDACTED]";
  if (typeof v === "string") {
    const s = v.replace(values, "[REDACTED]").replace(query, (_, head) => head + "[REDACTED]");
    return s.length > 200000 ? s.slice(0, 200000) + "[TRUNCATED]" : s;
  }
  if (v === null || typeof v === "boolean") return v;
  if (typeof v === "number") return Number.isFinite(v) ? v : "[TRUNCATED]";
  if (Array.isArray(v)) {
    const out = [];
    for (const e of v.slice(0, 512)) out.push(walk(e, "", depth + 1));
    if (v.length > 512) out.push("[TRUNCATED]");
    return out;
  }
  const keys = Object.keys(v);
  const pairs = [...keys].sort((a, b) => a.localeCompare(b)).slice(0, 512).map(k => [k, walk(v[k], k, depth + 1)]);
  const out = Object.fromEntries(pairs);
  if (keys.length > 512) out.__paperclip_truncated__ = "[TRUNCATED]";
  return out;
}
const canon = v => v === null || typeof v !== "object" ? JSON.stringify(v)
  : Array.isArray(v) ? "[" + v.map(canon).join(",") + "]"
  : "{" + Object.keys(v).sort().map(k => JSON.stringify(k) + ":" + canon(v[k])).join(",") + "}";
const lines = require("fs").readFileSync(0, "utf8").split("\n");
lines.pop();
for (const l of lines) { count = 0; console.log("sha256:" + crypto.createHash("sha256").update(canon(walk(JSON.parse(l), "", 0))).digest("hex")); }
`

func randomInput(r *rand.Rand, depth int) canonjson.Value {
	pieces := []string{
		"a", "Z", "é", "🌀", "\u2028", "token", "Bearer ", "bearer\u00a0", "sk_", "12345678", "eyJ12345678", ".12345678", "?code=", "&state=", "#", " ",
		"private", "key", "\xed\xa0\xbc", "\u212a", "\u017f", "api", "_", "-", "K", "pk_abcdefghi", "connection", "string", "\n",
	}
	word := func() string {
		var b strings.Builder
		for range r.IntN(6) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		return b.String()
	}
	switch n := r.IntN(7); {
	case depth == 0 || n < 3:
		return canonjson.StringValue(word())
	case n == 3:
		return canonjson.NumberValue(float64(r.IntN(100)) / 8)
	case n == 4:
		e := make([]canonjson.Value, r.IntN(5))
		for i := range e {
			e[i] = randomInput(r, depth-1)
		}
		return canonjson.ArrayValue(e...)
	default:
		v := canonjson.ObjectValue()
		for range r.IntN(6) {
			v.Set(word(), randomInput(r, depth-1))
		}
		return v
	}
}

// wideInput has more members than are kept, so their order decides.
func wideInput(r *rand.Rand) canonjson.Value {
	const letters = "aAbBzZ019_-. éÉöñßæøåÅçœαβя中日한あア!?*@#$%&+=~`'\"/\\|()[]{}<>:;,"
	runes := []rune(letters)
	v := canonjson.ObjectValue()
	for v.Len() < 520+r.IntN(300) {
		var b strings.Builder
		for range 1 + r.IntN(5) {
			b.WriteRune(runes[r.IntN(len(runes))])
		}
		v.Set(b.String(), canonjson.IntValue(int64(v.Len())))
	}
	return v
}

func TestDigestAgainstNode(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node on this machine")
	}
	r := rand.New(rand.NewPCG(9, 10))
	var inputs []canonjson.Value
	for range 3_000 {
		inputs = append(inputs, randomInput(r, 5))
	}
	for range 30 {
		inputs = append(inputs, wideInput(r))
	}
	// More nodes than the budget, in objects whose order decides what is cut.
	for range 3 {
		v := canonjson.ObjectValue()
		for range 20 {
			v.Set(fmt.Sprint(r.IntN(1000), "x"), wideInput(r))
		}
		inputs = append(inputs, v)
	}
	var in strings.Builder
	for _, v := range inputs {
		in.Write(v.JSON())
		in.WriteByte('\n')
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "-e", digestScript)
	cmd.Stdin = strings.NewReader(in.String())
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("node does not run here: %v", err)
	}
	want := strings.Fields(string(out))
	if len(want) != len(inputs) {
		t.Fatalf("%d answers to %d inputs", len(want), len(inputs))
	}
	wrong := 0
	for i, v := range inputs {
		if got := SemanticDigest(v); got != want[i] {
			if wrong++; wrong < 5 {
				t.Errorf("input %d: digest %s, node says %s\n%.300s", i, got, want[i], v.JSON())
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d digests differ", wrong, len(inputs))
	}
}

func FuzzSemanticDigest(f *testing.F) {
	f.Add([]byte(`{"token":1,"a":["Bearer 12345678"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := canonjson.Parse(b)
		if err != nil {
			return
		}
		before := string(v.JSON())
		digest := SemanticDigest(v)
		if hexOf("sha256:", 64)(canonjson.StringValue(digest)) != nil {
			t.Fatalf("digest %q", digest)
		}
		if string(v.JSON()) != before {
			t.Fatal("the digest changed its input")
		}
	})
}
