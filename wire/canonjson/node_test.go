package canonjson

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// nodeScript answers each line of JSON with JSON.stringify of what JSON.parse
// reads, and with the canonical form by the rule of prp.md 3.9.
const nodeScript = `
const canon = v => v === null || typeof v !== "object" ? JSON.stringify(v)
  : Array.isArray(v) ? "[" + v.map(canon).join(",") + "]"
  : "{" + Object.keys(v).sort().map(k => JSON.stringify(k) + ":" + canon(v[k])).join(",") + "}";
const lines = require("fs").readFileSync(0).toString("utf8").split("\n");
lines.pop();
process.stdout.write(lines.map(l => { try { const v = JSON.parse(l); return JSON.stringify(v) + "\n" + canon(v); } catch { return "refused\n"; } }).join("\n") + "\n");
`

// TestAgainstNode compares with a JavaScript engine where there is one.
func TestAgainstNode(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node on this machine")
	}
	var lines []string
	r := rand.New(rand.NewPCG(5, 6))
	for range 2_000 {
		text := string(randomValue(r, 3).JSON())
		lines = append(lines, text)
		if r.IntN(4) == 0 && len(text) > 2 { // a broken one, or one that is odd and good
			at := 1 + r.IntN(len(text)-1)
			lines = append(lines, text[:at]+string(`"\,:{}[]0e-. tu`[r.IntN(15)])+text[at:])
		}
	}
	lines = append(lines, "\"\xf0\x9f\x8c\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\xfe\"", "[1e999,-1e999]", `{"__proto__":1,"a":2,"__proto__":{"b":1}}`, "\ufeff{}", "\u00a01")
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], "\n", " ")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "-e", nodeScript)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("node does not run here: %v", err)
	}
	answers := bytes.Split(bytes.TrimSuffix(out, []byte("\n")), []byte("\n"))
	if len(answers) != 2*len(lines) {
		t.Fatalf("%d answers to %d lines", len(answers), len(lines))
	}
	for i, line := range lines {
		plain, canonical := string(answers[2*i]), string(answers[2*i+1])
		v, err := Parse([]byte(line))
		if (err != nil) != (plain == "refused") {
			t.Errorf("%q: node says %.200s, we say %v", line, plain, err)
			continue
		}
		if err != nil {
			continue
		}
		if got := string(v.JSON()); got != plain {
			t.Errorf("%q\nis written %s\nby node    %s", line, got, plain)
		}
		if got, err := CanonicalUnlimited(v); err == nil && string(got) != canonical {
			t.Errorf("%q\nis canonically %s\nby node        %s", line, got, canonical)
		}
	}
}
