package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

// renderer turns a run's events into what a person expects on a terminal: the
// agent's words and a command's output on stdout as they arrive, a command's
// stderr and what was declined on stderr. What an agent's own commands print
// is the agent's business: it is in the log, not here. It belongs to one
// goroutine.
type renderer struct {
	stdout, stderr io.Writer
	// talk is where lines for the person go (the app's).
	talk *talk
	// tame keeps the agent's words from moving the cursor: stdout is a
	// terminal. A command's output is shown as it is, as a shell would.
	tame bool
	// provider is the kind of agent whose notices are shown under its own name;
	// "" = under ours.
	provider string
	// speeches are the open messages of the agent, by item.
	speeches map[string]*speech
	// last is the last byte of the agent's words, 0 before the first.
	last byte
}

// maxSpeech bounds what is kept of a message to correct it, in bytes (ours). A
// longer one is not corrected: it is in the log whole.
const maxSpeech = 4 << 20

// speech is one message as far as it was shown.
type speech struct {
	shown []byte // nil once longer than maxSpeech
	long  bool
	begun bool
	// whole is the corrected text; fixed tells that there is one.
	whole  []byte
	fixed  bool
	insert int // where the next delta of the same hole goes
}

// deltaPayload is what item.delta carries (driver packages).
type deltaPayload struct {
	ItemID   string  `json:"itemId"`
	Kind     string  `json:"kind"`
	Stream   string  `json:"stream"`
	Text     *string `json:"text"`
	Encoding string  `json:"encoding"`
	Data     string  `json:"data"`
	Offset   *int    `json:"offset"`
	Restart  bool    `json:"restart"`
	Late     bool    `json:"late"`
}

// Streams of a delta that do not follow what was shown (driver/codex).
const (
	streamMissing = "missing-"
	streamRestart = "restart"
)

// Kinds of items whose text is the agent speaking to the user.
func speaks(kind string) bool { return kind == "agentMessage" || kind == "plan" }

// event shows one event of the run. Its error is that of stdout or stderr.
func (r *renderer) event(typ string, payload json.RawMessage) error {
	switch typ {
	case "item.delta":
		return r.delta(payload)
	case "item.completed", "item.failed":
		return r.completed(payload)
	case "harness.diagnostic", "runner.diagnostic":
		r.diagnostic("bowline", payload)
	case "provider.notice.recorded":
		who := r.provider
		if who == "" {
			who = "bowline"
		}
		r.diagnostic(who, payload)
	case "run.status":
		var p struct {
			Status string `json:"status"`
		}
		if decoded(payload, &p) {
			r.talk.status(p.Status)
		}
	case "run.ended":
		return r.endLine()
	}
	return nil
}

func (r *renderer) delta(payload json.RawMessage) error {
	var p deltaPayload
	if !decoded(payload, &p) || p.Late {
		return nil // of a newer driver, or of a turn that was over: not shown here
	}
	data := p.bytes()
	if len(data) == 0 {
		return nil
	}
	switch {
	case p.Stream == "stderr":
		r.talk.before(data)
		return writeTo("stderr", r.stderr, data)
	case p.Stream == "stdout", p.Stream == "pty":
		return r.write(data)
	case speaks(p.Kind):
		return r.speak(&p, data)
	}
	return nil
}

// decoded tells whether a payload is what this version knows. One that is not
// comes from a newer driver: --json shows it, a person does not see it.
func decoded(payload json.RawMessage, into any) bool { return json.Unmarshal(payload, into) == nil }

// bytes are the delta's text; nil when it has none or its encoding is unknown.
func (p *deltaPayload) bytes() []byte {
	switch {
	case p.Text != nil:
		return []byte(*p.Text)
	case p.Encoding == "base64":
		raw, err := base64.StdEncoding.DecodeString(p.Data)
		if err == nil {
			return raw
		}
	}
	return nil
}

// speak shows the words of a message that follow what was shown, and keeps the
// others until the message is complete.
func (r *renderer) speak(p *deltaPayload, data []byte) error {
	s := r.speeches[p.ItemID]
	if s == nil {
		s = &speech{}
		if r.speeches == nil {
			r.speeches = make(map[string]*speech)
		}
		r.speeches[p.ItemID] = s
	}
	if p.Stream == streamRestart || strings.HasPrefix(p.Stream, streamMissing) {
		s.correct(p, data)
		return nil
	}
	s.keep(data)
	return r.say(data)
}

func (s *speech) keep(data []byte) {
	s.begun = true
	if s.long = s.long || len(s.shown)+len(data) > maxSpeech; s.long {
		s.shown = nil
		return
	}
	s.shown = append(s.shown, data...)
	if s.fixed {
		s.whole = append(s.whole, data...)
	}
}

// correct takes text that belongs before what was shown, or instead of it.
func (s *speech) correct(p *deltaPayload, data []byte) {
	if s.long = s.long || len(s.whole)+len(data) > 2*maxSpeech; s.long {
		s.fixed, s.whole = true, nil
		return
	}
	if p.Stream == streamRestart {
		if p.Restart || !s.fixed {
			s.whole, s.insert = nil, 0
		}
	} else {
		if !s.fixed {
			s.whole, s.insert = slices.Clone(s.shown), len(s.shown)
		}
		if p.Offset != nil { // counted in the final text; holes come in its order
			s.insert = min(max(*p.Offset, 0), len(s.whole))
		}
	}
	s.fixed = true
	s.whole = slices.Insert(s.whole, s.insert, data...)
	s.insert += len(data)
}

func (r *renderer) completed(payload json.RawMessage) error {
	var p struct {
		ItemID string  `json:"itemId"`
		Kind   string  `json:"kind"`
		Text   *string `json:"text"`
		Late   bool    `json:"late"`
	}
	if !decoded(payload, &p) || p.Late || !speaks(p.Kind) {
		return nil
	}
	s := r.speeches[p.ItemID]
	delete(r.speeches, p.ItemID)
	var rest []byte
	switch {
	case s == nil && p.Text != nil:
		rest = []byte(*p.Text)
	case s == nil:
	case s.long && s.fixed:
		r.talk.line("bowline: the agent corrected a long message; the log has it whole")
	case s.fixed && s.begun:
		if err := r.endLine(); err != nil {
			return err
		}
		r.talk.line("bowline: the agent's message was not what had arrived of it; this is it")
		rest = s.whole
	case s.fixed:
		rest = s.whole
	}
	if len(rest) > 0 {
		if err := r.say(rest); err != nil {
			return err
		}
	}
	return r.endLine()
}

// endLine ends the agent's words with a newline, once.
func (r *renderer) endLine() error {
	if r.last == 0 || r.last == '\n' {
		return nil
	}
	return r.say([]byte{'\n'})
}

func (r *renderer) say(data []byte) error {
	r.last = data[len(data)-1]
	if r.tame {
		data = []byte(tamed(string(data)))
	}
	return r.write(data)
}

func (r *renderer) write(data []byte) error {
	if r.tame {
		r.talk.before(data)
	} else {
		r.talk.before(nil)
	}
	return writeTo("stdout", r.stdout, data)
}

// writeTo writes data to the standard stream of that name.
func writeTo(name string, w io.Writer, data []byte) error {
	if _, err := w.Write(data); err != nil {
		return &stdioError{name, err}
	}
	return nil
}

// diagnostic shows a note under the name of who says it.
func (r *renderer) diagnostic(who string, payload json.RawMessage) {
	var p struct {
		Message string `json:"message"`
		Summary string `json:"summary"`
	}
	if !decoded(payload, &p) {
		return
	}
	text := p.Message
	if text == "" {
		text = p.Summary
	}
	if text != "" {
		r.talk.line(who + ": " + printable(text))
	}
}

// printable keeps a one-line note from moving the cursor of a terminal.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c == '\n' || c == '\t' {
			return ' '
		}
		if unicode.IsControl(c) {
			return -1
		}
		return c
	}, s)
}

// tamed removes control characters but for line feeds and tabs.
func tamed(s string) string {
	return strings.Map(func(c rune) rune {
		if c != '\n' && c != '\t' && unicode.IsControl(c) {
			return -1
		}
		return c
	}, s)
}

// warn writes one line of talk. A closed stderr has nobody to tell.
func (a *app) warn(format string, args ...any) { a.talk.line(fmt.Sprintf(format, args...)) }
