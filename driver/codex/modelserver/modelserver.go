// Package modelserver is a scripted model for tests of the Codex driver: an
// HTTP server on loopback that answers the Responses API as a stream of
// server-sent events. Nothing outside tests imports it.
//
// The script is in the prompt: each line that begins with "MODEL: " is one
// answer, played in order, one a request; a request whose input ends in k tool
// results since that prompt gets the k-th line (from 0). Beyond the script the
// model says "done".
//
//	MODEL: text WORDS        says WORDS, streamed word by word; {last} is the last tool result
//	MODEL: big N             says N bytes in one delta
//	MODEL: think WORDS       a reasoning summary, then "thought"
//	MODEL: shell CMD         calls the shell tool
//	MODEL: background CMD    calls the shell tool and does not wait for it
//	MODEL: patch FILE TEXT   adds FILE with the line TEXT by apply_patch
//	MODEL: escalate CMD      calls the shell tool and asks to leave the sandbox
//	MODEL: fail STATUS       answers with an HTTP status
//	MODEL: failed CODE WORDS a response.failed event with an error
//	MODEL: drop              closes the stream in the middle
//	MODEL: hang              says nothing until the client goes away
//
// Concurrency: all methods may be called from several goroutines.
package modelserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// HangingModel is the name of a model that plays "hang" whatever the script.
const HangingModel = "hanging-model"

const (
	waitLimit    = 20 * time.Second // how long Wait* wait before the test fails
	maxBody      = 64 << 20         // bytes of a request
	defaultYield = 10_000           // milliseconds a shell call waits for its command
)

// Request is one request the model got.
type Request struct {
	Header http.Header
	Body   []byte
	Line   string // the script line it was answered with
}

// Server is a running model.
type Server struct {
	URL string // http://127.0.0.1:PORT, without a path

	tb       testing.TB
	mu       sync.Mutex
	requests []Request
	changed  chan struct{} // closed and replaced with every request
	stop     chan struct{} // frees what hangs
	calls    int
}

// Start runs a model until the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{tb: tb, changed: make(chan struct{}), stop: make(chan struct{})}
	h := httptest.NewServer(http.HandlerFunc(s.serve)) // 127.0.0.1, any free port
	s.URL = h.URL
	tb.Cleanup(func() {
		close(s.stop)
		h.CloseClientConnections()
		h.Close()
	})
	return s
}

// Requests returns what was asked so far, in order.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// WaitRequests returns when at least n requests have come, or fails the test.
func (s *Server) WaitRequests(n int) []Request {
	s.tb.Helper()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	for {
		s.mu.Lock()
		got, changed := append([]Request(nil), s.requests...), s.changed
		s.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-changed:
		case <-limit.C:
			s.tb.Fatalf("modelserver: %d requests within %s, want %d", len(got), waitLimit, n)
		}
	}
}

type inputItem struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	Output  json.RawMessage `json:"output"`
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/responses") {
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var asked struct {
		Model string      `json:"model"`
		Input []inputItem `json:"input"`
	}
	if err == nil {
		err = json.Unmarshal(body, &asked)
	}
	if err != nil {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	line, last := script(asked.Input)
	if asked.Model == HangingModel {
		line = "hang"
	}
	s.mu.Lock()
	s.requests = append(s.requests, Request{Header: r.Header.Clone(), Body: body, Line: line})
	s.calls++
	n := s.calls
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	s.play(w, r, &stream{w: w, n: n}, line, last)
}

// script finds the line to play and the last tool result.
func script(input []inputItem) (line, last string) {
	var lines []string
	results := 0
	for _, item := range input {
		switch {
		case item.Type == "message" && item.Role == "user":
			var found []string
			for l := range strings.Lines(text(item.Content)) {
				if rest, ok := strings.CutPrefix(strings.TrimSpace(l), "MODEL: "); ok {
					found = append(found, rest)
				}
			}
			if found != nil {
				lines, results = found, 0
			}
		case item.Type == "function_call_output" || item.Type == "custom_tool_call_output":
			results++
			last = text(item.Output)
		}
	}
	if results < len(lines) {
		return lines[results], last
	}
	return "text done", last
}

// text is the text of a content that is a string or a list of parts.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text + "\n")
	}
	return b.String()
}

func (s *Server) play(w http.ResponseWriter, r *http.Request, out *stream, line, last string) {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "fail":
		status, err := strconv.Atoi(rest)
		if err != nil {
			status = http.StatusInternalServerError
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		out.raw(`{"error":{"message":"scripted failure","type":"scripted"}}`)
	case "failed":
		code, message, _ := strings.Cut(rest, " ")
		out.begin()
		out.event("response.failed", object{"response": object{"id": out.id(), "error": object{"code": code, "message": message}}})
	case "hang":
		out.begin()
		select {
		case <-r.Context().Done():
		case <-s.stop:
		}
	case "drop":
		out.begin()
		out.event("response.output_item.added", object{"output_index": 0, "item": out.message("")})
		out.event("response.output_text.delta", object{"item_id": out.item(), "output_index": 0, "content_index": 0, "delta": "half"})
	case "shell":
		out.call(object{"cmd": rest, "yield_time_ms": defaultYield})
	case "background":
		out.call(object{"cmd": rest, "yield_time_ms": 250})
	case "patch":
		file, line, _ := strings.Cut(rest, " ")
		out.call(object{"cmd": "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: " + file + "\n+" + line + "\n*** End Patch\nEOF\n"})
	case "escalate":
		out.call(object{"cmd": rest, "sandbox_permissions": "require_escalated", "justification": "scripted"})
	case "think":
		out.begin()
		out.think(rest)
		out.say([]string{"thought"})
	case "big":
		n, err := strconv.Atoi(rest)
		if err != nil {
			n = 0
		}
		out.begin()
		out.say([]string{strings.Repeat("b", n)})
	default:
		out.begin()
		out.say(strings.SplitAfter(strings.ReplaceAll(rest, "{last}", last), " "))
	}
}

type object map[string]any

// stream writes one response.
type stream struct {
	w io.Writer
	n int // number of the response, makes its ids
}

func (o *stream) id() string   { return fmt.Sprintf("resp_%d", o.n) }
func (o *stream) item() string { return fmt.Sprintf("msg_%d", o.n) }

// raw writes and flushes. A client that went away is not our concern.
func (o *stream) raw(text string) {
	_, _ = io.WriteString(o.w, text)
	if f, ok := o.w.(http.Flusher); ok {
		f.Flush()
	}
}

func (o *stream) event(kind string, data object) {
	data["type"] = kind
	text, err := json.Marshal(data)
	if err != nil {
		panic("bug: modelserver event: " + err.Error())
	}
	o.raw("event: " + kind + "\ndata: " + string(text) + "\n\n")
}

func (o *stream) begin() {
	if w, ok := o.w.(http.ResponseWriter); ok {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	o.event("response.created", object{"response": object{"id": o.id()}})
}

func (o *stream) end() {
	o.event("response.completed", object{"response": object{"id": o.id(), "usage": object{
		"input_tokens": 10, "input_tokens_details": object{"cached_tokens": 2},
		"output_tokens": 5, "output_tokens_details": object{"reasoning_tokens": 1}, "total_tokens": 15,
	}}})
}

func (o *stream) message(text string) object {
	return object{"type": "message", "role": "assistant", "id": o.item(), "content": []object{{"type": "output_text", "text": text}}}
}

func (o *stream) say(parts []string) {
	o.event("response.output_item.added", object{"output_index": 0, "item": o.message("")})
	for _, p := range parts {
		o.event("response.output_text.delta", object{"item_id": o.item(), "output_index": 0, "content_index": 0, "delta": p})
	}
	o.event("response.output_item.done", object{"output_index": 0, "item": o.message(strings.Join(parts, ""))})
	o.end()
}

func (o *stream) think(words string) {
	id := fmt.Sprintf("rs_%d", o.n)
	item := func(summary []object) object {
		return object{"type": "reasoning", "id": id, "summary": summary, "encrypted_content": nil}
	}
	o.event("response.output_item.added", object{"output_index": 0, "item": item([]object{})})
	o.event("response.reasoning_summary_part.added", object{"item_id": id, "output_index": 0, "summary_index": 0, "part": object{"type": "summary_text", "text": ""}})
	for _, p := range strings.SplitAfter(words, " ") {
		o.event("response.reasoning_summary_text.delta", object{"item_id": id, "output_index": 0, "summary_index": 0, "delta": p})
	}
	o.event("response.output_item.done", object{"output_index": 0, "item": item([]object{{"type": "summary_text", "text": words}})})
}

func (o *stream) call(arguments object) {
	text, err := json.Marshal(arguments)
	if err != nil {
		panic("bug: modelserver call: " + err.Error())
	}
	o.begin()
	o.event("response.output_item.done", object{"output_index": 0, "item": object{
		"type": "function_call", "id": fmt.Sprintf("fc_%d", o.n), "call_id": fmt.Sprintf("call_%d", o.n),
		"name": "exec_command", "arguments": string(text),
	}})
	o.end()
}
