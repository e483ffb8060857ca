package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// renderer turns a run's events into what a person expects on a terminal: the
// agent's words and a command's output on stdout as they arrive, a command's
// stderr and what was declined on stderr.
type renderer struct {
	stdout, stderr io.Writer
	// lastByte of each stream, to end an agent's message with a newline once.
	lastOut byte
	// spoke is the item whose deltas were printed, so that its completion,
	// which repeats nothing, only ends the line.
	spoke string
	// status shows the short line on a terminal; nil without one.
	status *statusLine
}

// deltaPayload is what item.delta carries (driver packages).
type deltaPayload struct {
	ItemID   string  `json:"itemId"`
	Kind     string  `json:"kind"`
	Stream   string  `json:"stream"`
	Text     *string `json:"text"`
	Encoding string  `json:"encoding"`
	Data     string  `json:"data"`
}

// Kinds of items whose text is the agent speaking to the user.
func speaks(kind string) bool { return kind == "agentMessage" || kind == "plan" }

// event shows one event of the run.
func (r *renderer) event(typ string, payload json.RawMessage) error {
	switch typ {
	case "item.delta":
		return r.delta(payload)
	case "item.completed":
		return r.completed(payload)
	case "harness.diagnostic", "runner.diagnostic", "provider.notice.recorded":
		return r.diagnostic(payload)
	case "run.status":
		var p struct {
			Status string `json:"status"`
		}
		if json.Unmarshal(payload, &p) == nil {
			r.status.set(p.Status)
		}
	}
	return nil
}

func (r *renderer) delta(payload json.RawMessage) error {
	var p deltaPayload
	if err := json.Unmarshal(payload, &p); err != nil {
		return nil // an event of a newer driver: shown by --json, not here
	}
	var data []byte
	switch {
	case p.Text != nil:
		data = []byte(*p.Text)
	case p.Encoding == "base64":
		raw, err := base64.StdEncoding.DecodeString(p.Data)
		if err != nil {
			return nil
		}
		data = raw
	}
	if len(data) == 0 {
		return nil
	}
	r.status.clear()
	switch {
	case p.Stream == "stderr":
		_, err := r.stderr.Write(data)
		return err
	case p.Stream == "stdout", p.Stream == "pty":
		_, err := r.stdout.Write(data)
		return err
	case speaks(p.Kind):
		r.spoke = p.ItemID
		return r.say(data)
	}
	return nil
}

func (r *renderer) completed(payload json.RawMessage) error {
	var p struct {
		ItemID string  `json:"itemId"`
		Kind   string  `json:"kind"`
		Text   *string `json:"text"`
	}
	if json.Unmarshal(payload, &p) != nil || !speaks(p.Kind) {
		return nil
	}
	if p.Text != nil && *p.Text != "" && r.spoke != p.ItemID {
		r.status.clear()
		if err := r.say([]byte(*p.Text)); err != nil {
			return err
		}
	}
	r.spoke = ""
	if r.lastOut != 0 && r.lastOut != '\n' {
		return r.say([]byte{'\n'})
	}
	return nil
}

func (r *renderer) say(data []byte) error {
	r.lastOut = data[len(data)-1]
	_, err := r.stdout.Write(data)
	return err
}

func (r *renderer) diagnostic(payload json.RawMessage) error {
	var p struct {
		Message string `json:"message"`
		Summary string `json:"summary"`
		Code    string `json:"code"`
	}
	if json.Unmarshal(payload, &p) != nil {
		return nil
	}
	text := p.Message
	if text == "" {
		text = p.Summary
	}
	if text == "" {
		return nil
	}
	r.status.clear()
	_, err := fmt.Fprintf(r.stderr, "bowline: %s\n", printable(text))
	return err
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

// statusLine is one line at the bottom of a terminal, rewritten in place. A nil
// statusLine does nothing.
type statusLine struct {
	w     io.Writer
	color bool
	shown bool
}

func (s *statusLine) set(status string) {
	if s == nil {
		return
	}
	s.clear()
	text := "bowline: " + status
	if s.color {
		text = "\x1b[2m" + text + "\x1b[0m"
	}
	if _, err := io.WriteString(s.w, text); err == nil {
		s.shown = true
	}
}

func (s *statusLine) clear() {
	if s == nil || !s.shown {
		return
	}
	if _, err := io.WriteString(s.w, "\r\x1b[K"); err == nil {
		s.shown = false
	}
}
