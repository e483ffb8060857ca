package codex

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"unicode"

	"bowline/driver"
	"bowline/driver/jsonrpc"
)

// turn is the running turn. id and interrupt are guarded by session.mu and
// written by the reading goroutine (id) and by Interrupt; the rest belongs to
// the reading goroutine.
type turn struct {
	id        string        // empty until Codex has accepted it
	interrupt bool          // somebody wants it to end
	named     chan struct{} // closed when id is set
	done      chan struct{} // closed when the turn is over

	started bool      // turn.started is emitted
	held    *terminal // its end, waiting for its commands to end
	cleaned bool      // Codex was told to end the turn's commands and has answered
	lastErr *turnError
}

// terminal is a terminal event to be.
type terminal struct {
	typ     string
	payload object
}

func failed(code, message string) terminal {
	return terminal{typ: "turn.failed", payload: object{"status": "failed", "error": failure(code, message)}}
}

func (t *turn) interruptWanted(s *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.interrupt
}

// StartTurn begins a turn; see [driver.Session]. A turn Codex does not accept
// has no events and is a *driver.ProviderError (turn_refused, provider_exited).
func (s *session) StartTurn(ctx context.Context, in driver.Turn) (string, error) {
	t := &turn{named: make(chan struct{}), done: make(chan struct{})}
	s.mu.Lock()
	switch {
	case s.closing:
		s.mu.Unlock()
		return "", driver.ErrClosed
	case s.dead != nil:
		defer s.mu.Unlock()
		return "", s.dead
	case s.turn != nil:
		s.mu.Unlock()
		return "", driver.ErrTurnRunning
	}
	s.turn = t
	params := turnParams{ThreadID: s.threadID, Input: []userInput{{Type: "text", Text: in.Text}}}
	if s.provider.plan {
		params.CollaborationMode = &collaborationMode{Mode: "plan"}
		params.CollaborationMode.Settings.Model = s.model
	}
	s.mu.Unlock()

	accepted := make(chan error, 1)
	cancel, err := s.peer.CallThen(ctx, methodTurnStart, params, func(raw json.RawMessage, err error) {
		accepted <- s.accepted(t, raw, err)
	})
	if err == nil {
		select {
		case <-t.named:
		case err = <-accepted:
		case <-ctx.Done():
			err = ctx.Err()
			if !cancel() { // it is being answered right now
				select {
				case <-t.named:
				case err = <-accepted:
				}
			}
		}
	}
	s.mu.Lock()
	if t.id != "" { // also when it ended meanwhile: then its end was emitted
		id := t.id
		s.mu.Unlock()
		return id, nil
	}
	if s.turn == t {
		s.turn = nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		s.abandoned++ // it may still start: then it is interrupted
	}
	s.mu.Unlock()
	close(t.done)
	return "", s.callError("turn_refused", err)
}

// accepted runs on the reading goroutine, unless the conversation ended.
func (s *session) accepted(t *turn, raw json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	var got turnResult
	if err := json.Unmarshal(raw, &got); err != nil || got.Turn.ID == "" || len(got.Turn.ID) > maxID {
		s.stopSoon() // a turn runs that cannot be named
		return errors.New("the answer names no turn")
	}
	s.begin(t, got.Turn.ID)
	return nil
}

// begin gives the turn its id; the first of answer and notification does.
func (s *session) begin(t *turn, id string) {
	s.mu.Lock()
	if t.id != "" || s.turn != t {
		s.mu.Unlock()
		return
	}
	t.id = id
	close(t.named)
	interrupt := t.interrupt
	s.mu.Unlock()
	if s.unrequested == id {
		s.unrequested = "" // the prompt became a part of it (providers: turn/start steers a running turn)
	}
	t.started = true
	s.usage.beginTurn(s.host.Now())
	started := driver.Event{Type: "turn.started", Priority: priorityTerminal}
	if !s.used {
		s.used = true
		started.Resume = s.resumeState()
	}
	s.emitEvent(started, object{"providerTurnId": id, "status": "inProgress"})
	if interrupt {
		s.sendInterrupt(s.ctx, id)
	}
}

// current is the running turn if it is the one with this id.
func (s *session) current(id string) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn == nil || s.turn.id == "" || id != "" && s.turn.id != id {
		return nil
	}
	return s.turn
}

// waiting is a turn whose acceptance has not been read yet.
func (s *session) waiting() *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn != nil && s.turn.id == "" {
		return s.turn
	}
	return nil
}

func (s *session) turnStarted(n notification) {
	id := n.Turn.ID
	if id == "" || len(id) > maxID || s.current(id) != nil {
		return
	}
	if t := s.waiting(); t != nil { // the answer to turn/start is still to come
		s.begin(t, id)
		return
	}
	s.mu.Lock()
	abandoned := s.abandoned > 0
	if abandoned {
		s.abandoned--
	}
	s.mu.Unlock()
	s.unrequested = id
	s.diagnose("turn_unrequested", object{"providerTurnId": id, "abandoned": abandoned})
	if abandoned {
		s.sendInterrupt(s.ctx, id)
	}
}

func (s *session) turnCompleted(n notification) {
	id := n.Turn.ID
	if id == s.unrequested && id != "" {
		s.unrequested = ""
		s.failItems(id, "turn_ended")
		s.diagnose("turn_unrequested_ended", object{"providerTurnId": id})
		return
	}
	t := s.current(id)
	if t == nil || id == "" || t.held != nil {
		s.diagnose("turn_end_unexpected", object{"providerTurnId": safeID(id)})
		return
	}
	end := s.outcome(t, n.Turn)
	if end.typ == "turn.interrupted" {
		s.hold(t, end)
		return
	}
	s.finish(t, end)
}

func (s *session) outcome(t *turn, w wireTurn) terminal {
	end := terminal{payload: object{"status": w.Status}}
	if w.DurationMs != nil {
		end.payload["durationMs"] = *w.DurationMs
	}
	switch w.Status {
	case "completed":
		end.typ = "turn.completed"
	case "interrupted":
		end.typ = "turn.interrupted"
	case "failed":
		end.typ = "turn.failed"
		if w.Error == nil {
			w.Error = t.lastErr
		}
		end.payload["error"] = providerFailure(w.Error)
	default:
		return failed("provider_protocol", "codex ended the turn with a status that is not known")
	}
	return end
}

// providerFailure maps Codex's error. The code is its own, in our spelling.
func providerFailure(e *turnError) object {
	if e == nil {
		return failure("other", "codex reported a failure without a reason")
	}
	message := e.Message
	if e.AdditionalDetails != "" {
		message += ": " + e.AdditionalDetails
	}
	out := failure("other", message)
	var name string
	if json.Unmarshal(e.CodexErrorInfo, &name) == nil && name != "" {
		out["code"] = snake(name)
		return out
	}
	var nested map[string]struct {
		HTTPStatusCode *int `json:"httpStatusCode"`
	}
	if json.Unmarshal(e.CodexErrorInfo, &nested) == nil && len(nested) == 1 {
		for name, info := range nested {
			out["code"] = snake(name)
			if info.HTTPStatusCode != nil {
				out["httpStatus"] = *info.HTTPStatusCode
			}
		}
	}
	return out
}

// maxName bounds the names of Codex that become codes and kinds, in bytes (ours).
const maxName = 64

// plainName tells a name of ASCII letters and digits from the provider's text.
func plainName(name string) bool {
	for _, r := range name {
		if r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			return false
		}
	}
	return name != "" && len(name) <= maxName
}

// snake spells rateLimitExceeded as rate_limit_exceeded; what is no plain name
// is "other".
func snake(name string) string {
	if !plainName(name) {
		return "other"
	}
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) {
			if i > 0 {
				b.WriteByte('_')
			}
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// hold ends the commands of an interrupted turn first: Codex lets them run on
// in the background. If they do not end either, the grace of the interrupt
// does it. A turn that Codex interrupted by itself has no such grace and
// therefore gets one here.
func (s *session) hold(t *turn, end terminal) {
	if t.held != nil {
		return
	}
	t.held = &end
	s.mu.Lock()
	if !t.interrupt {
		t.interrupt = true
		if !s.closing {
			s.wg.Go(func() { s.escalate(t) })
		}
	}
	s.mu.Unlock()
	_, err := s.peer.CallThen(s.ctx, methodClean, threadRef{ThreadID: s.threadID}, func(_ json.RawMessage, err error) {
		var closed *jsonrpc.ClosedError
		if errors.As(err, &closed) {
			return // the end of the process ends the turn
		}
		if err != nil {
			s.diagnose("clean_refused", object{"providerTurnId": t.id})
		}
		t.cleaned = true
		s.release(t)
	})
	if err != nil {
		s.host.Diagnostic("codex: clean not sent: %v", err)
	}
}

// release emits the end of a held turn once its commands have ended.
func (s *session) release(t *turn) {
	if t == nil || t.held == nil || !t.cleaned {
		return
	}
	for _, it := range s.items {
		if it.turnID == t.id && it.kind == kindCommand {
			return
		}
	}
	s.finish(t, *t.held)
}

// finish emits the one terminal event of a turn. Items that cannot go on end
// before it.
func (s *session) finish(t *turn, end terminal) {
	s.mu.Lock()
	if s.turn != t || t.id == "" {
		s.mu.Unlock()
		return // ended already, or never accepted
	}
	s.mu.Unlock()
	s.failItems(t.id, "turn_ended")
	end.payload["providerTurnId"] = t.id
	// The next turn may be started as soon as the end of this one is known.
	s.mu.Lock()
	s.turn = nil
	s.mu.Unlock()
	close(t.done)
	s.emitEvent(driver.Event{Type: end.typ, Priority: priorityTerminal, Terminal: true}, end.payload)
}
