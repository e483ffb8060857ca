package codex

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"bowline/driver/jsonrpc"
)

const (
	maxPlanSteps = 256  // prp.md 7.3, plan.updated
	maxPlanStep  = 250  // characters of a step: 256 of them fit into one event however JSON spells them
	maxPlanIntro = 4000 // characters of the explanation (prp.md 7.3, short text)
)

// onNotification runs on the reading goroutine.
func (s *session) onNotification(_ context.Context, method string, params json.RawMessage) {
	if s.over {
		return
	}
	handle := s.handler(method)
	if handle == nil {
		return // there are many more than a driver needs
	}
	var n notification
	if err := json.Unmarshal(params, &n); err != nil {
		s.malformed(method)
		return
	}
	if n.ThreadID != "" && n.ThreadID != s.threadID { // only this goroutine writes threadID
		s.diagnose("thread_unknown", object{"method": method})
		return
	}
	handle(n)
}

func (s *session) handler(method string) func(notification) {
	switch method {
	case "turn/started":
		return s.turnStarted
	case "turn/completed":
		return s.turnCompleted
	case "item/started":
		return s.itemStarted
	case "item/completed":
		return s.itemCompleted
	case "item/agentMessage/delta":
		return s.delta(kindMessage, "")
	case "item/plan/delta":
		return s.delta(kindPlan, "")
	case "item/reasoning/summaryTextDelta":
		return s.delta(kindReasoning, channelSummary)
	case "item/reasoning/textDelta":
		return s.delta(kindReasoning, channelDetail)
	case "item/commandExecution/outputDelta":
		return s.delta(kindCommand, "")
	case "thread/tokenUsage/updated":
		return s.usageReported
	case "turn/plan/updated":
		return s.planUpdated
	case "error":
		return s.errorReported
	case "warning", "guardianWarning":
		return func(n notification) { s.notice("warning", "provider", "session", true, n.Message) }
	case "configWarning":
		return func(n notification) {
			s.notice("warning", "configuration", "environment", true, join(n.Summary, n.Details))
		}
	case "deprecationNotice":
		return func(n notification) { s.notice("info", "deprecation", "environment", true, join(n.Summary, n.Details)) }
	case "model/rerouted":
		return func(n notification) {
			s.notice("info", "model", "turn", true, fmt.Sprintf("model %s was replaced by %s", n.FromModel, n.ToModel))
		}
	}
	return nil
}

func (s *session) delta(wireType, channel string) func(notification) {
	return func(n notification) { s.itemDelta(n, wireType, channel) }
}

func join(summary, details string) string {
	if details == "" {
		return summary
	}
	return summary + ": " + details
}

// malformed is a notification we know by name and cannot read. When it was the
// end of a turn, the turn has ended all the same.
func (s *session) malformed(method string) {
	s.diagnose("notification_malformed", object{"method": method})
	if method != "turn/completed" {
		return
	}
	if t := s.current(""); t != nil {
		s.finish(t, failed("provider_protocol", "codex ended the turn in a form that is not known"))
	}
}

func (s *session) errorReported(n notification) {
	if n.Error == nil {
		return
	}
	if n.WillRetry {
		s.notice("warning", "retry", "turn", true, join(n.Error.Message, n.Error.AdditionalDetails))
		return
	}
	if t := s.current(n.TurnID); t != nil {
		t.lastErr = n.Error // the end of the turn says it
		return
	}
	s.notice("error", "provider", "session", false, join(n.Error.Message, n.Error.AdditionalDetails))
}

func (s *session) planUpdated(n notification) {
	steps := make([]object, 0, min(len(n.Plan), maxPlanSteps))
	complete := len(n.Plan) > 0
	for i, p := range n.Plan {
		status := snake(p.Status)
		complete = complete && status == "completed"
		if i < maxPlanSteps {
			steps = append(steps, object{"stepId": fmt.Sprintf("step-%d", i+1), "body": bound(p.Step, maxPlanStep), "status": status})
		}
	}
	s.plans++
	payload := object{
		"schema": "paperclip.plan.updated.v1", "planId": "plan-" + safeID(s.threadID), "revision": s.plans,
		"steps": steps, "complete": complete, "syncStatus": "not_applicable",
	}
	if n.Explanation != "" {
		payload["explanation"] = bound(n.Explanation, maxPlanIntro)
	}
	s.emit("plan.updated", priorityItem, payload) // a closed object: no turn, no late
}

// onNoise runs on the reading goroutine.
func (s *session) onNoise(n jsonrpc.Noise) {
	if s.over {
		return
	}
	payload := object{"line": n.Kind, "bytes": n.Size, "sha256": n.SHA256, "message": fmt.Sprintf("codex wrote a line of %d bytes that is no message (%s); it was skipped", n.Size, n.Kind)}
	if s.handler(n.Method) != nil {
		payload["method"] = n.Method
	}
	s.diagnose("line_skipped", payload)
	if n.Kind != jsonrpc.NoiseTooLong {
		return
	}
	switch {
	case n.Method == "turn/completed":
		if t := s.current(""); t != nil && mentions(n.Head, s.threadID) {
			s.finish(t, failed("provider_line_too_long", fmt.Sprintf("codex ended the turn with a line of %d bytes, more than the limit of %d", n.Size, jsonrpc.MaxLine)))
		}
	case n.Method == "" && n.ID == "":
		s.checkTurn()
	}
}

// mentions tells whether the beginning of a skipped line can be about our
// thread: it names it, or is too short to name any.
func mentions(head []byte, threadID string) bool {
	return strings.Contains(string(head), threadID) || !strings.Contains(string(head), `"threadId"`)
}

// checkTurn asks Codex whether the turn still runs, after a line that may have
// been its end.
func (s *session) checkTurn() {
	t := s.current("")
	if t == nil {
		return
	}
	_, err := s.peer.CallThen(s.ctx, methodThreadRead, threadRef{ThreadID: s.threadID}, func(raw json.RawMessage, err error) {
		var got threadResult
		if err != nil || json.Unmarshal(raw, &got) != nil || got.Thread.Status.Type == "active" || s.current(t.id) != t {
			return
		}
		s.finish(t, failed("provider_line_too_long", "codex ended the turn with a line beyond the limit"))
	})
	if err != nil {
		s.host.Diagnostic("codex: thread/read not sent: %v", err)
	}
}
