package codex

import (
	"strings"
	"sync"
)

const tailBytes = 1000 // of stderr, kept for the message of an unexpected exit (ours, within MaxMessage)

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte

	ended chan struct{} // closed when nothing more will come
}

func newTail() *tail { return &tail{ended: make(chan struct{})} }

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > tailBytes {
		p = p[len(p)-tailBytes:]
	}
	t.buf = append(t.buf, p...)
	if len(t.buf) > tailBytes {
		t.buf = append([]byte(nil), t.buf[len(t.buf)-tailBytes:]...)
	}
	return n, nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.buf), ""))
}
