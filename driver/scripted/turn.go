package scripted

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"bowline/driver"
)

// gateLook is how often a gate is looked for.
const gateLook = 2 * time.Millisecond

// turn plays one turn. The events of a turn have indexes: 0 turn.started,
// 1..N item.delta, N+1 item.completed, N+2 the terminal one.
type turn struct {
	s     *session
	id    string
	at    int // index of the next event; belongs to run
	reply string

	once sync.Once
	stop chan struct{} // closed by requestStop
	done chan struct{} // run has returned
}

func (t *turn) requestStop() { t.once.Do(func() { close(t.stop) }) }

// reply is the built-in answer to a prompt.
func reply(prompt string) string {
	const maxShown = 1000 // bytes of the prompt
	if len(prompt) > maxShown {
		prompt = prompt[:maxShown]
	}
	ascii := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, prompt)
	return "scripted: " + ascii
}

// errStopped means that the turn was interrupted.
var errStopped = errors.New("scripted: interrupted")

func (t *turn) run() {
	failed, err := t.play()
	t.s.ended(failed)
	if err != nil {
		t.s.host.Diagnostic("scripted: turn ends without a terminal event: %v", err)
	}
}

// play emits the rest of the turn; failed when the session is over with it.
func (t *turn) play() (failed bool, err error) {
	err = t.body()
	if errors.Is(err, errStopped) {
		return false, t.emit("turn.cancelled", 0, map[string]any{
			"providerTurnId": t.id, "status": "cancelled", "outcome": "cancelled",
		}, true)
	}
	if err != nil {
		return true, err
	}
	return t.end()
}

// body emits everything before the terminal event.
func (t *turn) body() error {
	deltas := 0
	if t.s.script != nil {
		deltas = t.s.script.Events
	}
	if t.at == 0 {
		// The turn must be open before it can be cancelled.
		if err := t.gate(); err != nil && !errors.Is(err, errStopped) {
			return err
		}
		if err := t.emit("turn.started", 0, map[string]any{"providerTurnId": t.id}, false); err != nil {
			return err
		}
	}
	item := "item_" + t.id
	for t.at <= deltas {
		if err := t.pause(); err != nil {
			return err
		}
		i := t.at - 1
		if err := t.emit("item.delta", 2, map[string]any{
			"itemId": item, "kind": "agentMessage", "channel": "progress", "index": i, "text": t.s.script.Text(i),
		}, false); err != nil {
			return err
		}
	}
	if t.at == deltas+1 {
		if err := t.pause(); err != nil {
			return err
		}
		if err := t.emit("item.completed", 1, t.item(item), false); err != nil {
			return err
		}
	}
	if err := t.pause(); err != nil {
		return err
	}
	if t.s.script != nil && t.s.script.End == EndHang {
		select {
		case <-t.stop:
			return errStopped
		case <-t.s.life.Done():
			return t.s.life.Err()
		}
	}
	return nil
}

// item is the completed message: the whole text where no delta carried it, else
// its size and digest only.
func (t *turn) item(id string) map[string]any {
	payload := map[string]any{"itemId": id, "kind": "agentMessage", "channel": "final", "providerPhase": "final_answer"}
	if t.s.script == nil || t.s.script.Events == 0 {
		payload["text"] = t.reply
		return payload
	}
	sum := sha256.New()
	for i := range t.s.script.Events {
		sum.Write([]byte(t.s.script.Text(i)))
	}
	payload["bytes"] = t.s.script.Events * t.s.script.TextBytes
	payload["sha256"] = hex.EncodeToString(sum.Sum(nil))
	return payload
}

// end emits the terminal event.
func (t *turn) end() (failed bool, err error) {
	how := EndCompleted
	if t.s.script != nil {
		how = t.s.script.End
	}
	if how == EndCompleted {
		return false, t.emit("turn.completed", 0, map[string]any{"providerTurnId": t.id, "status": "completed"}, true)
	}
	fault := map[string]any{"code": "scripted_failure", "message": "the script ends this turn as failed"}
	err = t.emit("turn.failed", 0, map[string]any{"providerTurnId": t.id, "status": "failed", "error": fault}, true)
	if err != nil || how == EndFailed {
		return false, err
	}
	return true, t.emit("session.failed", 0, map[string]any{"recoverable": false, "error": fault}, false)
}

// pause waits at the gate and looks for an interrupt.
func (t *turn) pause() error {
	if err := t.gate(); err != nil {
		return err
	}
	select {
	case <-t.stop:
		return errStopped
	default:
		return nil
	}
}

// gate waits until the script's gate exists, before the event it stands at.
func (t *turn) gate() error {
	s := t.s.script
	if s == nil || s.Gate == "" || t.at != s.GateAt {
		return nil
	}
	look := time.NewTicker(gateLook)
	defer look.Stop()
	for {
		_, err := os.Stat(s.Gate)
		if err == nil {
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("scripted: gate: %w", err)
		}
		select {
		case <-look.C:
		case <-t.stop:
			return errStopped
		case <-t.s.life.Done():
			return t.s.life.Err()
		}
	}
}

// emit writes the ledger and then emits, with the position after the event.
func (t *turn) emit(eventType string, priority int, payload map[string]any, terminal bool) error {
	t.s.mu.Lock()
	next := t.s.state
	t.s.mu.Unlock()
	if !terminal && eventType != "session.failed" {
		next.Turn = &turnState{ID: t.id, Next: t.at + 1, Reply: t.reply}
	} else {
		next.Turn = nil
	}
	ev, err := t.s.event(eventType, priority, payload, next)
	if err != nil {
		return err
	}
	ev.Terminal = terminal
	if err := t.s.ledger.event(t.at, t.id, eventType, ev.Payload); err != nil {
		return err
	}
	if err := t.s.host.Emit(t.s.life, ev); err != nil {
		return err
	}
	t.at++
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.s.state = next
	return nil
}

// event makes an event with canonical payload: encoding/json sorts a map's
// members, and everything here is printable ASCII without <, > and &.
func (s *session) event(eventType string, priority int, payload map[string]any, after state) (driver.Event, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(payload); err != nil {
		return driver.Event{}, fmt.Errorf("scripted: %s: %w", eventType, err)
	}
	resume, err := json.Marshal(after)
	if err != nil {
		return driver.Event{}, fmt.Errorf("scripted: %s: %w", eventType, err)
	}
	return driver.Event{
		Type: eventType, Priority: priority, Payload: json.RawMessage(strings.TrimSuffix(b.String(), "\n")), Resume: resume,
	}, nil
}
