package codex

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// assemble puts streamed and missing text together.
func assemble(sent string, r settled) string {
	text := []byte(sent)
	if r.restart {
		text = nil
	}
	for _, p := range r.missing {
		text = slices.Insert(text, int(p.offset), []byte(p.text)...)
	}
	return string(text)
}

func streamOf(parts ...string) *streamed {
	s := newStreamed()
	for _, p := range parts {
		s.add(p)
	}
	return s
}

func TestSettle(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		sent, final string
		missing     int
		restart     bool
	}{
		{"", "", 0, false},
		{"", "all", 3, false},
		{"all", "all", 0, false},
		{"be", "begin", 3, false},
		{"in", "begin", 3, false},
		{"begn", "begin", 1, false},
		{"ñx", "añxb漢", 5, false},
		{"a漢c", "aé漢c", 2, false},
		{"other", "begin", 5, true},
		{"longer than it", "long", 4, true},
		{"gone", "", 0, true},
		{"aa", "aaaa", 2, false},
	} {
		r := settle(streamOf(tc.sent), tc.final, false)
		n := 0
		for _, p := range r.missing {
			n += len(p.text)
		}
		if got := assemble(tc.sent, r); got != tc.final || n != tc.missing || r.restart != tc.restart {
			t.Errorf("sent %q, final %q: %+v makes %q", tc.sent, tc.final, r, got)
		}
		if r.bytes != int64(len(tc.final)) || r.sha256 != digest(tc.final) {
			t.Errorf("sent %q, final %q: bytes %d", tc.sent, tc.final, r.bytes)
		}
	}
}

// A hole anywhere is filled, and nothing is sent twice.
func TestSettleProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "ab", "ñ", "漢", "\n", ""}), 0, 12)
		before, hole, after := strings.Join(words.Draw(t, "before"), ""), strings.Join(words.Draw(t, "hole"), ""), strings.Join(words.Draw(t, "after"), "")
		final := before + hole + after
		r := settle(streamOf(before, after), final, false)
		n := 0
		for _, p := range r.missing {
			n += len(p.text)
			if !utf8.ValidString(p.text) {
				t.Fatalf("a piece splits a rune: %q", p.text)
			}
		}
		if got := assemble(before+after, r); got != final || r.restart || n != len(hole) {
			t.Fatalf("%q without %q: %+v makes %q", final, hole, r, got)
		}
	})
}

func TestSettleCut(t *testing.T) {
	t.Parallel()
	whole := ""
	for i := range 1000 {
		whole += fmt.Sprintln("line", i)
	}
	const keep = 2000
	final := whole[:keep] + fmt.Sprintf("\n... %d bytes omitted ...\n", len(whole)-2*keep) + whole[len(whole)-keep:]
	for missing, ok := range map[int]bool{0: true, 1: true, 500: true, keep: true, keep + 1: false, keep + 300: false} {
		r := settle(streamOf(whole[missing:]), final, true)
		if r.restart || r.bytes != int64(len(whole)) || r.cut == ok {
			t.Errorf("missing %d: %+v", missing, r)
			continue
		}
		got := assemble(whole[missing:], r)
		if ok && got != whole || !ok && (r.lost != int64(missing-keep) || len(got) != len(whole)-int(r.lost)) {
			t.Errorf("missing %d: %d bytes of %d, lost %d", missing, len(got), len(whole), r.lost)
		}
	}
	// A command that prints such a mark itself.
	own := "x\n... 5 bytes omitted ...\ny"
	if r := settle(streamOf(own), own, true); len(r.missing) != 0 || r.cut || r.sha256 != digest(own) {
		t.Errorf("own mark: %+v", r)
	}
}

func TestStreamedKeepsBothEnds(t *testing.T) {
	t.Parallel()
	s := newStreamed()
	var all strings.Builder
	for i := range 400 {
		part := strings.Repeat(string(rune('a'+i%26)), 9999)
		s.add(part)
		all.WriteString(part)
	}
	text := all.String()
	if s.n != int64(len(text)) || s.digest() != digest(text) || string(s.head) != text[:keepText] ||
		!strings.HasSuffix(text, string(s.tail)) || len(s.tail) < keepText || len(s.tail) > 2*keepText {
		t.Errorf("n %d, head %d, tail %d", s.n, len(s.head), len(s.tail))
	}
}

func TestChunks(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("a漢", deltaText)
	parts := chunks(text)
	for _, p := range parts {
		if len(p) > deltaText || !utf8.ValidString(p) {
			t.Errorf("a chunk of %d bytes", len(p))
		}
	}
	if strings.Join(parts, "") != text || len(chunks("")) != 0 {
		t.Error("chunks lose text")
	}
}

func TestBound(t *testing.T) {
	t.Parallel()
	if got := bound("漢字漢字", 3); got != "漢字…" {
		t.Errorf("bound = %q", got)
	}
	if got := bound("漢字", 2); got != "漢字" {
		t.Errorf("bound = %q", got)
	}
}

func TestSnake(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"rateLimitExceeded": "rate_limit_exceeded", "other": "other", "a b": "other", "naïve": "other",
		strings.Repeat("x", 100): "other", "webSearch": "web_search", "": "other",
	} {
		if got := snake(in); got != want {
			t.Errorf("snake(%q) = %q", in, got)
		}
	}
}
