package codex_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

const fakeVariable = "BOWLINE_FAKE_CODEX"

// TestMain makes the test binary play an app-server when it is told to.
func TestMain(m *testing.M) {
	if script := os.Getenv(fakeVariable); script != "" {
		os.Exit(playFake(script))
	}
	os.Exit(m.Run())
}

// fake is an app-server that misbehaves. Every script gets a turn that was
// asked for and has not been answered.
type fake struct {
	in   *bufio.Reader
	out  *bufio.Writer
	turn int
}

type fakeRequest struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

const fakeThread = "th-1"

func playFake(script string) int {
	f := &fake{in: bufio.NewReaderSize(os.Stdin, 1<<20), out: bufio.NewWriterSize(os.Stdout, 1<<16)}
	play := fakeScripts[script]
	if play == nil {
		fmt.Fprintln(os.Stderr, "no such script:", script)
		return 9
	}
	if script == "mute" {
		play(f, fakeRequest{})
	}
	if script == "noisy-start" {
		f.raw("\ufeffWelcome!\n")
		f.raw(`{"method":"warning","params":{"threadId":null,"message":"early"}}` + "\n")
	}
	for {
		r, ok := f.read()
		if !ok {
			return 0
		}
		switch r.Method {
		case "initialize":
			f.result(r, `{"userAgent":"fake"}`)
		case "initialized":
		case "thread/start", "thread/resume":
			f.result(r, `{"thread":{"id":"`+fakeThread+`","sessionId":"se-1"},"model":"fake-model","approvalPolicy":"never","sandbox":{"type":"readOnly"}}`)
		case "thread/read":
			f.result(r, `{"thread":{"id":"`+fakeThread+`","status":{"type":"idle"}}}`)
		case "thread/backgroundTerminals/clean":
			f.result(r, `{}`)
		case "turn/interrupt":
			if script != "silent" && script != "stubborn" {
				f.result(r, `{}`)
				f.end("interrupted")
			}
		case "turn/start":
			f.turn++
			play(f, r)
		}
	}
}

func (f *fake) read() (fakeRequest, bool) {
	text, err := f.in.ReadBytes('\n')
	if err != nil {
		return fakeRequest{}, false
	}
	var r fakeRequest
	if err := json.Unmarshal(text, &r); err != nil {
		fmt.Fprintln(os.Stderr, "fake: bad line")
		os.Exit(8)
	}
	return r, true
}

func (f *fake) raw(text string) {
	if _, err := f.out.WriteString(text); err != nil {
		os.Exit(7)
	}
	if err := f.out.Flush(); err != nil {
		os.Exit(7)
	}
}

func (f *fake) result(r fakeRequest, result string) {
	f.raw(`{"id":` + string(r.ID) + `,"result":` + result + "}\n")
}

func (f *fake) id() string { return fmt.Sprintf("tu-%d", f.turn) }

// say writes a notification about the thread; more are further members.
func (f *fake) say(method, more string) {
	if more != "" {
		more = "," + more
	}
	f.raw(`{"method":"` + method + `","params":{"threadId":"` + fakeThread + `"` + more + `},"emittedAtMs":1}` + "\n")
}

func (f *fake) accept(r fakeRequest) {
	f.result(r, `{"turn":{"id":"`+f.id()+`","status":"inProgress","items":[]}}`)
	f.say("turn/started", `"turn":{"id":"`+f.id()+`","status":"inProgress"}`)
}

func (f *fake) end(status string) {
	f.say("turn/completed", `"turn":{"id":"`+f.id()+`","status":"`+status+`","error":null}`)
}

func (f *fake) item(method, turn, item string) {
	f.say(method, `"turnId":"`+turn+`","item":`+item)
}

func (f *fake) delta(kind, item, text string) {
	quoted, err := json.Marshal(text)
	if err != nil {
		os.Exit(6)
	}
	f.say("item/"+kind+"/delta", `"turnId":"`+f.id()+`","itemId":"`+item+`","delta":`+string(quoted))
}

func (f *fake) message(text string) {
	quoted, err := json.Marshal(text)
	if err != nil {
		os.Exit(6)
	}
	f.item("item/completed", f.id(), `{"type":"agentMessage","id":"m-`+f.id()+`","text":`+string(quoted)+`}`)
}

// long writes n bytes of x without holding them.
func (f *fake) long(n int) {
	part := strings.Repeat("x", 1<<16)
	for n > 0 {
		m := min(n, len(part))
		if _, err := io.WriteString(f.out, part[:m]); err != nil {
			os.Exit(7)
		}
		n -= m
	}
}

// block waits for the end of the input.
func (f *fake) block() {
	for {
		if _, ok := f.read(); !ok {
			os.Exit(0)
		}
	}
}

var fakeScripts = map[string]func(*fake, fakeRequest){
	"plain": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.message("hello")
		f.end("completed")
	},
	"noisy-start": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.end("completed")
	},
	"mute":   func(f *fake, _ fakeRequest) { f.block() },
	"silent": func(f *fake, r fakeRequest) { f.accept(r) },
	"stubborn": func(f *fake, _ fakeRequest) { // never accepts
	},
	"refuses": func(f *fake, r fakeRequest) {
		f.raw(`{"id":` + string(r.ID) + `,"error":{"code":-32600,"message":"no turns today"}}` + "\n")
	},
	"nameless": func(f *fake, r fakeRequest) { f.result(r, `{"turn":{}}`) },
	"garbage": func(f *fake, r fakeRequest) {
		f.raw("\x1b[31mpanic!\n\xff\xfe\n{\"method\":\n[]\n")
		f.accept(r)
		f.raw("{}\n")
		f.message("hello")
		f.raw("null\n")
		f.end("completed")
	},
	"flood": func(f *fake, r fakeRequest) {
		f.accept(r)
		for range 5000 {
			f.raw("noise\n")
		}
		f.end("completed")
	},
	"big": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.raw(`{"method":"item/completed","params":{"threadId":"` + fakeThread + `","turnId":"` + f.id() + `","item":{"type":"agentMessage","id":"m","text":"`)
		f.long(fakeBig)
		f.raw(`"}}}` + "\n")
		f.end("completed")
	},
	"end-too-long": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.raw(`{"method":"turn/completed","params":{"threadId":"` + fakeThread + `","turn":{"id":"` + f.id() + `","status":"completed","items":[{"text":"`)
		f.long(65 << 20)
		f.raw(`"}]}}}` + "\n")
	},
	"item-too-long": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.raw(`{"method":"item/completed","params":{"threadId":"` + fakeThread + `","turnId":"` + f.id() + `","item":{"type":"agentMessage","id":"m","text":"`)
		f.long(65 << 20)
		f.raw(`"}}}` + "\n")
		f.end("completed")
	},
	"unknown-too-long": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.raw(`{"params":{"pad":"`)
		f.long(65 << 20)
		f.raw(`"},"method":"turn/completed"}` + "\n")
	},
	"duplicate": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.end("failed")
		f.end("completed")
		f.end("interrupted")
	},
	"late": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.item("item/started", f.id(), `{"type":"commandExecution","id":"c","command":"sleep 1"}`)
		f.item("item/started", f.id(), `{"type":"agentMessage","id":"open","text":""}`)
		f.delta("agentMessage", "open", "half")
		f.end("completed")
		f.say("item/commandExecution/outputDelta", `"turnId":"`+f.id()+`","itemId":"c","delta":"tail\n"`)
		f.item("item/completed", f.id(), `{"type":"commandExecution","id":"c","command":"sleep 1","status":"completed","exitCode":0,"aggregatedOutput":"head\ntail\n"}`)
	},
	"wrong-thread": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.raw(`{"method":"turn/completed","params":{"threadId":"other","turn":{"id":"` + f.id() + `","status":"failed"}}}` + "\n")
		f.raw(`{"method":"turn/completed","params":{"threadId":"` + fakeThread + `","turn":{"id":"other","status":"failed"}}}` + "\n")
		f.raw(`{"method":"item/completed","params":{"threadId":"other","turnId":"` + f.id() + `","item":{"type":"agentMessage","id":"m","text":"not ours"}}}` + "\n")
		f.end("completed")
	},
	"requests": func(f *fake, r fakeRequest) {
		f.accept(r)
		for i, method := range []string{
			"item/commandExecution/requestApproval", "item/fileChange/requestApproval", "item/permissions/requestApproval",
			"item/tool/requestUserInput", "item/tool/call", "mcpServer/elicitation/request",
			"account/chatgptAuthTokens/refresh", "attestation/generate", "execCommandApproval", "applyPatchApproval", "brand/new",
		} {
			f.raw(fmt.Sprintf(`{"id":%d,"method":"%s","params":{"threadId":"%s","turnId":"%s","itemId":"i","permissions":{"network":{"enabled":true}}}}`+"\n", i, method, fakeThread, f.id()))
			answer, ok := f.read()
			if !ok || string(answer.ID) != fmt.Sprint(i) {
				os.Exit(5)
			}
			f.raw(`{"method":"item/completed","params":{"turnId":"` + f.id() + `","item":{"type":"agentMessage","id":"a` + fmt.Sprint(i) + `","text":` + quote(method+" "+string(answer.Result)+string(answer.Error)+"\n") + `}}}` + "\n")
		}
		f.end("completed")
	},
	"early-end": func(f *fake, r fakeRequest) {
		f.say("turn/started", `"turn":{"id":"`+f.id()+`"}`)
		f.end("completed")
		f.result(r, `{"turn":{"id":"`+f.id()+`","status":"completed"}}`)
	},
	"malformed-end": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.say("turn/completed", `"turn":7`)
	},
	"unknown-status": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.end("exploded")
	},
	"exits": func(f *fake, r fakeRequest) {
		f.accept(r)
		fmt.Fprintln(os.Stderr, "out of memory, sorry")
		os.Exit(3)
	},
	"exits-before": func(*fake, fakeRequest) { os.Exit(4) },
	"closes-output": func(f *fake, r fakeRequest) {
		f.accept(r)
		if err := os.Stdout.Close(); err != nil {
			os.Exit(2)
		}
		f.block()
	},
	"rewrites": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.delta("agentMessage", "m-"+f.id(), "first version")
		f.message("second version")
		f.end("completed")
	},
	"goal": func(f *fake, r fakeRequest) {
		f.accept(r)
		f.end("completed")
		f.turn++
		f.say("turn/started", `"turn":{"id":"`+f.id()+`"}`)
		f.message("by itself")
		f.end("completed")
	},
	"hostile": func(f *fake, r fakeRequest) {
		f.accept(r)
		bad := quote(strings.Repeat("\x01<", 1<<14))
		long := quote(strings.Repeat("\x01<", 1<<17))
		f.item("item/started", f.id(), `{"type":"fileChange","id":`+bad+`,"status":`+bad+`,"changes":[`+strings.Repeat(`{"path":`+quote(strings.Repeat("\x01", 600))+`,"diff":"x","kind":{"type":"add"}},`, 500)+`{"path":"p","diff":"d","kind":{"type":"add"}}]}`)
		f.item("item/completed", f.id(), `{"type":"commandExecution","id":"c","command":`+bad+`,"cwd":`+bad+`,"source":`+bad+`,"status":`+bad+`,"aggregatedOutput":`+long+`}`)
		f.item("item/completed", f.id(), `{"type":"x y","id":"o","summary":7,"text":{"a":`+bad+`}}`)
		f.item("item/completed", f.id(), `{"type":"mcpToolCall","id":"p","server":"s","summary":7,"result":"small"}`)
		f.say("turn/plan/updated", `"explanation":`+bad+`,"plan":[`+strings.Repeat(`{"step":`+quote(strings.Repeat("\x02", 900))+`,"status":"inProgress"},`, 300)+`{"step":"s","status":"completed"}]`)
		f.say("warning", `"message":`+bad)
		f.say("error", `"error":{"message":`+bad+`,"additionalDetails":`+bad+`},"willRetry":true`)
		f.say("turn/completed", `"turn":{"id":"`+f.id()+`","status":"failed","error":{"message":`+bad+`,"codexErrorInfo":`+bad+`}}`)
	},
}

func quote(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		os.Exit(6)
	}
	return string(quoted)
}
