package codex

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	maxOpenItems = 4096     // open at once; more are not followed (ours)
	maxCommand   = 16 << 10 // bytes of a command shown with its item (ours)
	maxInline    = 16 << 10 // bytes of an item of another kind shown whole (ours)
	maxPaths     = 200      // files named with one file_change item (ours)
)

// Kinds of items are Codex's own names of their types; these are the ones that
// are treated each in its own way.
const (
	kindMessage     = "agentMessage"
	kindUserMessage = "userMessage"
	kindReasoning   = "reasoning"
	kindPlan        = "plan"
	kindCommand     = "commandExecution"
	kindFileChange  = "fileChange"
)

// Channels of prp.md 7.1.
const (
	channelProgress = "progress"
	channelFinal    = "final"
	channelSummary  = "summary"
	channelDetail   = "detail"
	channelUnknown  = "unknown"
)

// item is one that has started and not ended.
type item struct {
	id      string // as in payloads
	kind    string
	channel string
	turnID  string
	body    *streamed // nil until something was streamed
	detail  *streamed // reasoning has two bodies: summary and detail
	part    int       // last summary part streamed
}

// kindOf is the type unless it is no plain name.
func kindOf(wireType string) string {
	if !plainName(wireType) {
		return "other"
	}
	return wireType
}

func messageChannel(phase string) string {
	switch phase {
	case "final_answer":
		return channelFinal
	case "commentary", "partial_answer":
		return channelProgress
	}
	return channelUnknown
}

// mark adds the turn an event belongs to, and says so when it is not the
// running one.
func (s *session) mark(payload object, turnID string) {
	if turnID == "" {
		return
	}
	payload["providerTurnId"] = safeID(turnID)
	if s.current(turnID) != nil {
		return
	}
	payload["late"] = true
	if turnID == s.unrequested {
		payload["unrequested"] = true
	}
}

// decodeItem reads only what the type is known to carry: members of the same
// name have other forms elsewhere.
func decodeItem(raw json.RawMessage) (wireItem, bool) {
	var head struct {
		ID   string `json:"id"`
		Type string `json:"type"`
	}
	if json.Unmarshal(raw, &head) != nil || head.ID == "" || head.Type == "" {
		return wireItem{}, false
	}
	it := wireItem{ID: head.ID, Type: head.Type}
	switch head.Type {
	case kindMessage, kindPlan, kindReasoning, kindCommand, kindFileChange:
		if json.Unmarshal(raw, &it) != nil {
			return wireItem{}, false
		}
	}
	return it, true
}

func (s *session) itemStarted(n notification) {
	w, ok := decodeItem(n.Item)
	if !ok {
		s.diagnose("item_malformed", object{})
		return
	}
	if w.Type == kindUserMessage {
		return // the host knows what it said
	}
	s.openItem(w, n.TurnID)
}

// openItem returns the item, started now or before; nil when too many are open.
func (s *session) openItem(w wireItem, turnID string) *item {
	if it := s.items[w.ID]; it != nil {
		return it
	}
	if len(s.items) >= maxOpenItems {
		s.diagnose("items_open", object{"limit": maxOpenItems})
		return nil
	}
	it := &item{id: safeID(w.ID), kind: kindOf(w.Type), channel: channelDetail, turnID: turnID}
	switch it.kind {
	case kindMessage:
		it.channel = messageChannel(w.Phase)
	case kindReasoning:
		it.channel = channelSummary
	case kindPlan:
		it.channel = channelProgress
	}
	s.items[w.ID] = it
	payload := s.itemPayload(it)
	describe(payload, w)
	s.emit("item.started", priorityDelta, payload)
	return it
}

func (s *session) itemPayload(it *item) object {
	payload := object{"itemId": it.id, "kind": it.kind, "channel": it.channel}
	s.mark(payload, it.turnID)
	return payload
}

// describe adds what is known of an item besides its text.
func describe(payload object, w wireItem) {
	switch w.Type {
	case kindMessage:
		if w.Phase != "" {
			payload["providerPhase"] = bound(w.Phase, maxShown)
		}
	case kindCommand:
		payload["command"] = cut(w.Command, maxCommand)
		if len(w.Command) > maxCommand {
			payload["commandTruncated"] = true
		}
		payload["cwd"] = bound(w.Cwd, maxShown)
		payload["source"] = bound(w.Source, maxShown)
	case kindFileChange:
		files := make([]object, 0, min(len(w.Changes), maxPaths))
		for _, c := range w.Changes[:min(len(w.Changes), maxPaths)] {
			files = append(files, object{"path": bound(c.Path, maxShown/8), "change": bound(c.Kind.Type, maxID)})
		}
		payload["files"], payload["fileCount"] = files, len(w.Changes)
	}
}

// cut shortens text to at most n bytes at a rune boundary.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// itemDelta handles the streamed text of an item; wireType is the type the
// notification implies, for an item whose start was lost.
func (s *session) itemDelta(n notification, wireType, channel string) {
	if n.ItemID == "" || n.Delta == "" {
		return
	}
	it := s.openItem(wireItem{ID: n.ItemID, Type: wireType}, n.TurnID)
	if it == nil {
		return
	}
	text := n.Delta
	if it.kind == kindReasoning && channel == channelSummary && n.SummaryIndex > it.part {
		it.part, text = n.SummaryIndex, partBreak+text
	}
	if channel == "" {
		channel = it.channel
	}
	body := it.stream(channel)
	for _, c := range chunks(text) {
		s.emitDelta(it, channel, object{"text": c})
		body.add(c)
	}
}

// Names in payload.stream of deltas that do not follow what was streamed. They
// are streams of their own to whoever looks at the text across deltas, as
// redaction does.
const (
	streamMissing = "missing-" // and a number
	streamRestart = "restart"
	streamFile    = "file-" // and a number
)

// partBreak stands between the parts of a reasoning.
const partBreak = "\n\n"

func (it *item) stream(channel string) *streamed {
	to := &it.body
	if it.kind == kindReasoning && channel == channelDetail {
		to = &it.detail
	}
	if *to == nil {
		*to = newStreamed()
	}
	return *to
}

func (s *session) emitDelta(it *item, channel string, payload object) {
	payload["itemId"], payload["kind"], payload["channel"] = it.id, it.kind, channel
	s.mark(payload, it.turnID)
	s.emit("item.delta", priorityDelta, payload)
}

func (s *session) itemCompleted(n notification) {
	w, ok := decodeItem(n.Item)
	if !ok {
		s.diagnose("item_malformed", object{})
		return
	}
	if w.Type == kindUserMessage {
		return
	}
	it := s.openItem(w, n.TurnID)
	if it == nil {
		return
	}
	delete(s.items, w.ID)
	payload := object{}
	switch it.kind {
	case kindMessage, kindPlan:
		s.settleBody(it, payload, "", it.stream(it.channel), w.Text, it.channel)
		if it.kind == kindMessage && w.Phase != "" {
			it.channel = messageChannel(w.Phase)
		}
	case kindReasoning:
		s.settleBody(it, payload, "", it.stream(channelSummary), strings.Join(w.Summary, partBreak), channelSummary)
		var content []string
		if json.Unmarshal(w.Content, &content) == nil && (it.detail != nil || len(content) > 0) {
			s.settleBody(it, payload, "detail", it.stream(channelDetail), strings.Join(content, ""), channelDetail)
		}
	case kindCommand:
		s.settleBody(it, payload, "", it.stream(it.channel), w.AggregatedOutput, it.channel)
		payload["exitCode"], payload["durationMs"] = w.ExitCode, w.DurationMs
	case kindFileChange:
		s.diffs(it, payload, w)
	default:
		s.otherItem(it, payload, n.Item)
	}
	if w.Status != "" {
		payload["status"] = bound(w.Status, maxShown)
	}
	payload["itemId"], payload["kind"], payload["channel"] = it.id, it.kind, it.channel
	describe(payload, w)
	s.mark(payload, it.turnID)
	s.emit("item.completed", priorityItem, payload)
	if it.kind == kindCommand {
		s.release(s.current(it.turnID))
	}
}

// settleBody emits what the deltas did not carry of the final text and
// describes the whole. prefix is that of the second body of a kind.
func (s *session) settleBody(it *item, payload object, prefix string, body *streamed, final, channel string) {
	r := settle(body, final, it.kind == kindCommand)
	for i, p := range r.missing {
		first := object{}
		switch {
		case r.restart:
			first["restart"], first["stream"] = true, streamRestart
		case p.offset != body.n:
			first["offset"], first["stream"] = p.offset, fmt.Sprintf("%s%d", streamMissing, i+1)
		}
		stream := first["stream"]
		for _, c := range chunks(p.text) {
			first["text"] = c
			s.emitDelta(it, channel, first)
			first = object{}
			if stream != nil {
				first["stream"] = stream
			}
		}
	}
	name := func(n string) string {
		if prefix == "" {
			return n
		}
		return prefix + strings.ToUpper(n[:1]) + n[1:]
	}
	payload[name("bytes")] = r.bytes
	if r.sha256 != "" {
		payload[name("sha256")] = r.sha256
	}
	if r.cut {
		payload["truncated"], payload["lostBytes"] = true, r.lost
	}
}

// diffs streams the diffs of a file change, each marked with its path.
func (s *session) diffs(it *item, payload object, w wireItem) {
	body := newStreamed()
	for i, c := range w.Changes {
		stream := fmt.Sprintf("%s%d", streamFile, i+1)
		for _, part := range chunks(c.Diff) {
			s.emitDelta(it, channelDetail, object{"text": part, "path": bound(c.Path, maxShown), "stream": stream})
			body.add(part)
		}
	}
	payload["bytes"], payload["sha256"] = body.n, body.digest()
}

// otherItem shows an item of another kind as Codex gave it: whole when it is
// small, else as deltas of its JSON text.
func (s *session) otherItem(it *item, payload object, raw json.RawMessage) {
	if len(raw) <= maxInline {
		payload["item"] = raw
		return
	}
	text := strings.ToValidUTF8(string(raw), "\ufffd")
	for _, part := range chunks(text) {
		s.emitDelta(it, channelDetail, object{"text": part, "mediaType": "application/json"})
	}
	payload["bytes"], payload["sha256"] = len(text), digest(text)
}

// failItems ends the open items of a turn that cannot go on: all but commands,
// which may outlive their turn. Without a turn: all of them.
func (s *session) failItems(turnID, reason string) {
	for id, it := range s.items {
		if turnID != "" && (it.turnID != turnID || it.kind == kindCommand) {
			continue
		}
		delete(s.items, id)
		payload := s.itemPayload(it)
		payload["reason"] = reason
		if it.body != nil {
			payload["bytes"], payload["sha256"] = it.body.n, it.body.digest()
		}
		s.emit("item.failed", priorityItem, payload)
	}
}
