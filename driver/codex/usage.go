package codex

import "time"

// usage turns Codex's running sums into usage.reported (prp.md 7.3). Codex
// sums over the thread; runDelta is what this process has added.
type usage struct {
	known    bool
	base     tokens // the thread's sum before this process asked for anything
	requests int64
	began    time.Time // the running turn, or the last one
}

func (u *usage) beginTurn(now time.Time) { u.began = now }

// requests and activeSeconds count from this process on in both measurements:
// Codex does not keep them.
func measurement(t tokens, requests int64, active time.Duration) object {
	return object{
		"inputTokens": t.Input, "outputTokens": t.Output, "cacheReadTokens": t.Cached, "cacheWriteTokens": t.CacheWrite,
		"reasoningOutputTokens": t.Reasoning, "totalTokens": t.Total,
		"requests": requests, "activeSeconds": active.Seconds(), "providerCostUsd": nil,
	}
}

func (s *session) usageReported(n notification) {
	u := &s.usage
	if !u.known {
		u.known, u.base = true, n.TokenUsage.Total.minus(n.TokenUsage.Last)
	}
	u.requests++
	var active time.Duration
	if !u.began.IsZero() {
		active = max(0, s.host.Now().Sub(u.began))
	}
	payload := object{
		"provider": Kind, "model": bound(s.model, maxShown), "providerSessionId": s.threadID,
		"cumulative":        measurement(n.TokenUsage.Total, u.requests, active),
		"runDeltaAvailable": true,
		"runDelta":          measurement(n.TokenUsage.Total.minus(u.base), u.requests, active),
	}
	s.mark(payload, n.TurnID)
	s.emit("usage.reported", priorityTerminal, payload)
}
