package cli

import (
	"io"
	"sync"
)

// talk is what goes to stderr besides a command's own: lines for the person
// and, on a terminal, one status line at the bottom that is rewritten in place.
// It may be used from any goroutine.
type talk struct {
	mu sync.Mutex
	w  io.Writer
	// live shows the status line; color dims it.
	live, color bool
	shown       bool
	// midLine: output has not ended its line, so the status line has no place.
	midLine bool
}

// line writes one line.
func (t *talk) line(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clear()
	if t.live && t.midLine {
		text = "\n" + text
	}
	t.midLine = false
	// A closed stderr has nobody to tell.
	if _, err := io.WriteString(t.w, text+"\n"); err != nil {
		return
	}
}

// status shows a run's status. Without a terminal it does nothing.
func (t *talk) status(status string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clear()
	if !t.live || t.midLine {
		return
	}
	text := "bowline: " + status
	if t.color {
		text = "\x1b[2m" + text + "\x1b[0m"
	}
	if _, err := io.WriteString(t.w, text); err == nil {
		t.shown = true
	}
}

// before makes room for output: data is written next, by somebody else.
func (t *talk) before(data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clear()
	if len(data) > 0 {
		t.midLine = data[len(data)-1] != '\n'
	}
}

// hush removes the status line and shows none any more.
func (t *talk) hush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clear()
	t.live = false
}

// start lets the status line show.
func (t *talk) start(color bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live, t.color = true, color
}

// clear removes the status line.
func (t *talk) clear() {
	if !t.shown {
		return
	}
	if _, err := io.WriteString(t.w, "\r\x1b[K"); err == nil {
		t.shown = false
	}
}
