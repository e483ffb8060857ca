package codex

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// deltaText is the most text of one delta, in bytes. JSON may need six
	// bytes for one, and six times this fits into [MaxEvent].
	deltaText = 64 << 10
	// keepText is how much of each end of a streamed text is kept to compare
	// it with the final one, in bytes: Codex cuts a command's output to 512 KiB
	// of each end, so more than that is never needed.
	keepText = 1 << 20
)

// streamed is what the deltas of one item have carried.
type streamed struct {
	n    int64
	sum  hash.Hash
	head []byte // first keepText bytes
	tail []byte // last bytes, between keepText and 2*keepText when there are as many
}

func newStreamed() *streamed { return &streamed{sum: sha256.New()} }

func (s *streamed) add(text string) {
	s.n += int64(len(text))
	_, _ = s.sum.Write([]byte(text)) // hash.Hash never returns an error
	if room := keepText - len(s.head); room > 0 {
		s.head = append(s.head, text[:min(room, len(text))]...)
	}
	if len(text) > keepText {
		text = text[len(text)-keepText:]
	}
	s.tail = append(s.tail, text...)
	if len(s.tail) > 2*keepText {
		s.tail = append([]byte(nil), s.tail[len(s.tail)-keepText:]...)
	}
}

func (s *streamed) digest() string { return hex.EncodeToString(s.sum.Sum(nil)) }

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// piece is text that no delta has carried, and where it stands in the whole.
type piece struct {
	offset int64
	text   string
}

// settled is how an item's final text relates to what was streamed of it.
type settled struct {
	missing []piece
	restart bool // the streamed text was another one: missing is the whole
	bytes   int64
	sha256  string // empty when Codex cut the text
	cut     bool   // Codex cut the text
	lost    int64  // bytes neither streamed nor in the final text
}

// cutMark is what Codex puts into a command's output where it left out the
// middle (seen in 0.171.0).
var cutMark = regexp.MustCompile(`\n\.\.\. (\d{1,18}) bytes omitted \.\.\.\n`)

// settle compares the final text, which is the truth, with the streamed one.
// mayBeCut tells that the text is a command's output.
func settle(s *streamed, final string, mayBeCut bool) settled {
	if mayBeCut {
		if out, ok := settleCut(s, final); ok {
			return out
		}
	}
	out := settled{bytes: int64(len(final)), sha256: digest(final)}
	n := int(min(s.n, int64(len(final))+1))
	add := func(from, to int) {
		if from < to {
			out.missing = append(out.missing, piece{int64(from), final[from:to]})
		}
	}
	switch {
	case n <= len(final) && digest(final[:n]) == s.digest():
		add(n, len(final)) // the end is missing, or nothing
		return out
	case n <= len(final) && digest(final[len(final)-n:]) == s.digest():
		add(0, len(final)-n) // the beginning is missing
		return out
	}
	if whole := s.head; s.n == int64(len(whole)) && n <= len(final) {
		p := commonPrefix(string(whole), final)
		if strings.HasSuffix(final, string(whole[p:])) { // a hole
			add(p, len(final)-(len(whole)-p))
			return out
		}
		if at := strings.Index(final, string(whole)); at >= 0 { // both ends
			add(0, at)
			add(at+len(whole), len(final))
			return out
		}
	}
	out.restart = true
	add(0, len(final))
	return out
}

// commonPrefix counts the bytes a and b begin with alike, whole runes only.
func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	for n > 0 && n < len(a) && !utf8.RuneStart(a[n]) {
		n--
	}
	return n
}

// settleCut handles a final text whose middle Codex left out. What was
// streamed ends with its end; what is missing is at the beginning.
func settleCut(s *streamed, final string) (settled, bool) {
	at := cutMark.FindStringSubmatchIndex(final)
	if at == nil {
		return settled{}, false
	}
	omitted, err := strconv.ParseInt(final[at[2]:at[3]], 10, 64)
	if err != nil {
		return settled{}, false
	}
	begin, end := final[:at[0]], final[at[1]:]
	total := int64(len(begin)) + omitted + int64(len(end))
	out := settled{bytes: total, cut: true}
	missing := total - s.n
	switch {
	case missing < 0 || !bytes.HasSuffix(s.tail, []byte(end)):
		// The mark may be the command's own, or bytes that are no UTF-8 were
		// replaced and the counts are off.
		return settled{}, false
	case missing > int64(len(begin)):
		out.missing, out.lost = []piece{{0, begin}}, missing-int64(len(begin))
		return out, true
	case !bytes.HasPrefix(s.head, []byte(begin[missing:])):
		return settled{}, false
	}
	if missing > 0 {
		out.missing = []piece{{0, begin[:missing]}}
	}
	out.cut = false // everything was seen, only its digest is not known
	return out, true
}

// chunks cuts text into what one delta may carry, at rune boundaries.
func chunks(text string) []string {
	var out []string
	for len(text) > deltaText {
		n := deltaText
		for n > deltaText-utf8.UTFMax && !utf8.RuneStart(text[n]) {
			n--
		}
		out = append(out, text[:n])
		text = text[n:]
	}
	if text != "" {
		out = append(out, text)
	}
	return out
}

// bound cuts a text to n runes and marks the cut.
func bound(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	count := 0
	for i := range text {
		if count == n-1 {
			return text[:i] + "…"
		}
		count++
	}
	return text
}
