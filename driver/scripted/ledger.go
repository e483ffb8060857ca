package scripted

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ledger is the driver's own list of what it did. A nil ledger writes nothing.
type ledger struct {
	mu   sync.Mutex
	file *os.File
}

// openLedger opens the script's ledger; nil when it names none.
func openLedger(s *Script) (*ledger, error) {
	if s == nil || s.Ledger == "" {
		return nil, nil //nolint:nilnil // no ledger is a usable one
	}
	const private = 0o600
	f, err := os.OpenFile(s.Ledger, os.O_WRONLY|os.O_APPEND|os.O_CREATE, private)
	if err != nil {
		return nil, fmt.Errorf("scripted: ledger: %w", err)
	}
	return &ledger{file: f}, nil
}

func (l *ledger) effect(name, turn string) error {
	return l.write(map[string]any{"effect": name, "turn": turn})
}

func (l *ledger) event(index int, turn, eventType string, payload []byte) error {
	sum := sha256.Sum256(payload)
	return l.write(map[string]any{
		"event": index, "turn": turn, "type": eventType, "sha256": hex.EncodeToString(sum[:]),
	})
}

// write appends one line and returns when it is on the disk.
func (l *ledger) write(line map[string]any) error {
	if l == nil {
		return nil
	}
	b, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("scripted: ledger: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("scripted: ledger: %w", err)
	}
	for {
		err := unix.Fdatasync(int(l.file.Fd())) //nolint:gosec // a descriptor fits
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("scripted: ledger: %w", err)
		}
	}
}

// close is for the last user.
func (l *ledger) close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("scripted: ledger: %w", err)
	}
	return nil
}
