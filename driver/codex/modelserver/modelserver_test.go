package modelserver

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestScript(t *testing.T) {
	t.Parallel()
	const prompt = `{"type":"message","role":"user","content":[{"text":"go\nMODEL: shell a\nMODEL: text {last}"}]}`
	const result = `{"type":"function_call_output","output":"out"}`
	for input, want := range map[string]string{
		`[` + prompt + `]`:                               "shell a|",
		`[` + prompt + `,` + result + `]`:                "text {last}|out",
		`[` + prompt + `,` + result + `,` + result + `]`: "text done|out",
		`[]`: "text done|",
		`[` + prompt + `,` + result + `,` + prompt + `]`:               "shell a|out",
		`[{"type":"message","role":"user","content":"MODEL: fail 7"}]`: "fail 7|",
	} {
		var items []inputItem
		if err := json.Unmarshal([]byte(input), &items); err != nil {
			t.Fatal(err)
		}
		line, last := script(items)
		if got := line + "|" + last; got != want {
			t.Errorf("%s: %q, want %q", input, got, want)
		}
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	s := Start(t)
	post := func(body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/responses", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if status, text := post(`{"input":[{"type":"message","role":"user","content":"MODEL: text a b"}]}`); status != http.StatusOK ||
		strings.Count(text, "event: response.output_text.delta") != 2 || !strings.Contains(text, "event: response.completed") {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := post(`{"input":[{"type":"message","role":"user","content":"MODEL: fail 503"}]}`); status != http.StatusServiceUnavailable {
		t.Errorf("status %d", status)
	}
	if status, _ := post(`{`); status != http.StatusBadRequest {
		t.Errorf("status %d", status)
	}
	got := s.WaitRequests(2)
	if len(got) != 2 || got[0].Line != "text a b" || got[1].Line != "fail 503" {
		t.Errorf("requests %+v", got)
	}
}
