package jsonrpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

// side is a peer under test and the raw other end of its pipes.
type side struct {
	t     *testing.T
	peer  *Peer
	in    *io.PipeWriter // what the peer reads
	out   *lineReader    // what the peer writes
	ended chan error
}

func start(t *testing.T, opts Options) *side {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	s := &side{t: t, peer: New(inR, outW, opts), in: inW, out: newLineReader(outR, MaxLine), ended: make(chan error, 1)}
	go func() { s.ended <- s.peer.Run(context.Background()) }()
	t.Cleanup(func() {
		_ = inW.Close()  // an io.Pipe never fails to close
		_ = outR.Close() // same
		<-s.peer.Done()
	})
	return s
}

func (s *side) write(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, text); err != nil {
		s.t.Fatalf("write to the peer: %v", err)
	}
}

func (s *side) read() string {
	s.t.Helper()
	l, err := s.out.next()
	if err != nil {
		s.t.Fatalf("read from the peer: %v", err)
	}
	return string(l.text)
}

func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("timeout waiting for %s", what)
		panic("unreachable")
	}
}

func TestCallWithAndWithoutVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []bool{false, true} {
		s := start(t, Options{Version: version})
		got := make(chan error, 1)
		var result struct{ N int }
		go func() {
			got <- s.peer.Call(t.Context(), "a/b", map[string]any{"x": "<é>"}, &result)
		}()
		want := `{"id":1,"method":"a/b","params":{"x":"<é>"}}`
		if version {
			want = `{"jsonrpc":"2.0",` + want[1:]
		}
		if line := s.read(); line != want {
			t.Errorf("wrote %s, want %s", line, want)
		}
		s.write(`{"id":1,"result":{"N":7}}` + "\n")
		if err := wait(t, "the answer", got); err != nil || result.N != 7 {
			t.Errorf("Call = %v, N = %d", err, result.N)
		}
		done := make(chan error, 1)
		go func() { done <- s.peer.Notify(t.Context(), "n", nil) }()
		want = `{"method":"n"}`
		if version {
			want = `{"jsonrpc":"2.0","method":"n"}`
		}
		if line := s.read(); line != want {
			t.Errorf("wrote %s, want %s", line, want)
		}
		if err := wait(t, "Notify", done); err != nil {
			t.Error(err)
		}
	}
}

func TestErrorAnswers(t *testing.T) {
	t.Parallel()
	for answer, code := range map[string]int{
		`{"id":1,"error":{"code":-32600,"message":"no"}}`:         -32600,
		`{"id":1,"error":"odd"}`:                                  CodeInternal,
		`{"id":1,"result":null,"error":{"code":5,"message":"x"}}`: 5,
	} {
		s := start(t, Options{})
		got := make(chan error, 1)
		go func() { got <- s.peer.Call(t.Context(), "m", nil, nil) }()
		s.read()
		s.write(answer + "\n")
		err := wait(t, "the answer", got)
		var rpc *RPCError
		if !errors.As(err, &rpc) || rpc.Code != code {
			t.Errorf("%s: Call = %v, want code %d", answer, err, code)
		}
	}
}

// Both sides use the id 1 at the same time, as integer and as string.
func TestTwoIDSpaces(t *testing.T) {
	t.Parallel()
	requests := make(chan *Request, 4)
	noise := make(chan Noise, 4)
	s := start(t, Options{
		OnRequest: func(_ context.Context, r *Request) { requests <- r },
		OnNoise:   func(n Noise) { noise <- n },
	})
	got := make(chan error, 1)
	go func() { got <- s.peer.Call(t.Context(), "ours", nil, nil) }()
	s.read()
	s.write(`{"id":1,"method":"theirs"}` + "\n" + `{"id":"1","method":"theirs"}` + "\n" + `{"id":0,"method":"theirs","params":[1]}` + "\n")
	s.write(`{"id":"1","result":"not yours"}` + "\n") // a string is not our integer
	if n := wait(t, "noise", noise); n.Kind != NoiseUnmatched {
		t.Errorf("noise %+v, want unmatched", n)
	}
	var open []*Request
	for range 3 {
		open = append(open, wait(t, "a request", requests))
	}
	go func() {
		for i := len(open) - 1; i >= 0; i-- {
			if err := open[i].Reply(context.Background(), map[string]int{"i": i}); err != nil {
				t.Errorf("Reply: %v", err)
			}
		}
		if err := open[0].Reply(context.Background(), nil); !errors.Is(err, ErrAnswered) {
			t.Errorf("second Reply = %v, want ErrAnswered", err)
		}
	}()
	for _, want := range []string{`{"id":0,"result":{"i":2}}`, `{"id":"1","result":{"i":1}}`, `{"id":1,"result":{"i":0}}`} {
		if line := s.read(); line != want {
			t.Errorf("wrote %s, want %s", line, want)
		}
	}
	s.write(`{"id":1,"result":true}` + "\n")
	if err := wait(t, "the answer", got); err != nil {
		t.Errorf("Call = %v", err)
	}
}

func TestNoHandlerRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	s.write(`{"id":9,"method":"x"}` + "\n")
	if line := s.read(); line != `{"id":9,"error":{"code":-32601,"message":"method not found"}}` {
		t.Errorf("wrote %s", line)
	}
}

// A request that waits for a person does not hold up what comes after it, and
// the continuation of a call sees the order of the stream.
func TestOrderAndNoBlocking(t *testing.T) {
	t.Parallel()
	var order []string
	settled := make(chan struct{})
	var open *Request
	s := start(t, Options{
		OnNotification: func(_ context.Context, method string, _ json.RawMessage) {
			order = append(order, method)
			if method == "last" {
				close(settled)
			}
		},
		OnRequest: func(_ context.Context, r *Request) { open = r; order = append(order, "request") },
	})
	started := make(chan error, 1)
	go func() {
		_, err := s.peer.CallThen(t.Context(), "m", nil, func(_ json.RawMessage, err error) {
			order = append(order, fmt.Sprint("answer ", err))
		})
		started <- err
	}()
	s.read()
	if err := wait(t, "CallThen", started); err != nil {
		t.Fatal(err)
	}
	s.write(`{"method":"n1"}` + "\n" + `{"id":0,"method":"ask"}` + "\n" + `{"method":"n2"}` + "\n" + `{"id":1,"result":{}}` + "\n" + `{"method":"last"}` + "\n")
	wait(t, "the last notification", settled)
	if got, want := strings.Join(order, ","), "n1,request,n2,answer <nil>,last"; got != want {
		t.Errorf("order %s, want %s", got, want)
	}
	go func() {
		if err := open.ReplyError(context.Background(), CodeInternal, "late"); err != nil {
			t.Errorf("ReplyError: %v", err)
		}
	}()
	if line := s.read(); line != `{"id":0,"error":{"code":-32603,"message":"late"}}` {
		t.Errorf("wrote %s", line)
	}
}

func TestNoiseIsReportedAndTheStreamGoesOn(t *testing.T) {
	t.Parallel()
	var noise []Noise
	var methods []string
	s := start(t, Options{
		OnNoise:        func(n Noise) { noise = append(noise, n) },
		OnNotification: func(_ context.Context, m string, _ json.RawMessage) { methods = append(methods, m) },
	})
	s.write("\ufeff{\"method\":\"bom\"}\r\n\r\n  \n")
	s.write("Welcome to the agent!\n[1,2]\n\xff\xfe\x00\n{\"method\":\n")
	s.write(`{"foo":1}` + "\n" + `{"id":{},"result":1}` + "\n" + `{"id":1.5,"method":"x"}` + "\n" + `{"method":7}` + "\n" + `{"id":4,"result":1}` + "\n")
	s.write(`{"id":null,"method":"nullid"}` + "\n" + `{"method":"part`)
	if err := s.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, "the end", s.ended); err != nil {
		t.Errorf("Run = %v", err)
	}
	if got := strings.Join(methods, ","); got != "bom,nullid" {
		t.Errorf("methods %s", got)
	}
	var kinds []string
	for _, n := range noise {
		kinds = append(kinds, string(n.Kind))
	}
	if got, want := strings.Join(kinds, ","), "garbage,garbage,garbage,garbage,malformed,malformed,malformed,malformed,unmatched,partial"; got != want {
		t.Errorf("kinds %s, want %s", got, want)
	}
	sum := sha256.Sum256([]byte("Welcome to the agent!"))
	if noise[0].Size != 21 || noise[0].SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("first noise %+v", noise[0])
	}
}

func TestPartialLastLineIsAMessage(t *testing.T) {
	t.Parallel()
	var methods []string
	s := start(t, Options{OnNotification: func(_ context.Context, m string, _ json.RawMessage) { methods = append(methods, m) }})
	s.write(`{"method":"whole"}`)
	if err := s.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, "the end", s.ended); err != nil || len(methods) != 1 {
		t.Errorf("Run = %v, methods %v", err, methods)
	}
}

func TestEOFFailsWhatIsPending(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	got := make(chan error, 2)
	for range 2 {
		go func() { got <- s.peer.Call(context.Background(), "m", nil, nil) }()
		s.read()
	}
	if err := s.in.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := wait(t, "a failed call", got)
		var closed *ClosedError
		if !errors.As(err, &closed) || !errors.Is(err, io.EOF) {
			t.Errorf("Call = %v, want ClosedError(EOF)", err)
		}
	}
	if err := s.peer.Call(t.Context(), "m", nil, nil); !errors.Is(err, io.EOF) {
		t.Errorf("Call after the end = %v", err)
	}
	if err := s.peer.Notify(t.Context(), "m", nil); !errors.Is(err, io.EOF) {
		t.Errorf("Notify after the end = %v", err)
	}
}

func TestReadErrorIsReturned(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	_, out := io.Pipe()
	p := New(iotest.ErrReader(boom), out, Options{})
	if err := p.Run(t.Context()); !errors.Is(err, boom) {
		t.Errorf("Run = %v, want boom", err)
	}
	<-p.Done()
}

// A provider that does not read: writers wait, a context frees them, and the
// end of the stream frees the writing goroutine.
func TestUnreadPeer(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, QueueLength+8)
	for range QueueLength + 8 {
		go func() { got <- s.peer.Call(ctx, "m", nil, nil) }()
	}
	cancel()
	for range QueueLength + 8 {
		if err := wait(t, "a cancelled call", got); !errors.Is(err, context.Canceled) {
			t.Errorf("Call = %v", err)
		}
	}
	if err := s.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, "the end", s.ended); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestWriteFailureFailsCallsAndReadingGoesOn(t *testing.T) {
	t.Parallel()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	if err := outR.Close(); err != nil {
		t.Fatal(err)
	}
	methods := make(chan string, 1)
	p := New(inR, outW, Options{OnNotification: func(_ context.Context, m string, _ json.RawMessage) { methods <- m }})
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.Background()) }()
	var closed *ClosedError
	if err := p.Call(t.Context(), "m", nil, nil); !errors.As(err, &closed) {
		t.Errorf("Call = %v", err)
	}
	if _, err := io.WriteString(inW, `{"method":"last words"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if m := wait(t, "the last words", methods); m != "last words" {
		t.Errorf("method %s", m)
	}
	if err := inW.Close(); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, "the end", ended); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestConcurrentWritersNeverInterleave(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	const writers, each = 16, 50
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := s.peer.Notify(t.Context(), "n", map[string]any{"w": w, "i": i, "pad": strings.Repeat("x", 3000)}); err != nil {
					t.Errorf("Notify: %v", err)
				}
			}
		})
	}
	next := map[int]int{}
	for range writers * each {
		var m struct{ Params struct{ W, I int } }
		if err := json.Unmarshal([]byte(s.read()), &m); err != nil {
			t.Fatalf("interleaved: %v", err)
		}
		if next[m.Params.W] != m.Params.I {
			t.Fatalf("writer %d: %d came, want %d", m.Params.W, m.Params.I, next[m.Params.W])
		}
		next[m.Params.W]++
	}
	wg.Wait()
}

// repeat is an endless line without the memory of one.
type repeat struct {
	b byte
	n int64
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), r.n))
	for i := range n {
		p[i] = r.b
	}
	r.n -= int64(n)
	return n, nil
}

// Lines at the limit, one byte past it and far beyond; what follows is read.
func TestLineLengths(t *testing.T) {
	const wrap = len(`{"method":"m","params":""}`)
	for _, tc := range []struct {
		size int
		skip bool
	}{{64 << 10, false}, {1 << 20, false}, {16 << 20, false}, {MaxLine, false}, {MaxLine + 1, true}, {65 << 20, true}} {
		t.Run(fmt.Sprint(tc.size), func(t *testing.T) {
			hash := sha256.New()
			stream := io.MultiReader(
				io.TeeReader(io.MultiReader(strings.NewReader(`{"method":"m","params":"`), &repeat{'x', int64(tc.size - wrap)}, strings.NewReader(`"}`)), hash),
				strings.NewReader("\n"+`{"method":"after"}`+"\n"))
			var got []string
			var noise []Noise
			_, out := io.Pipe()
			p := New(stream, out, Options{
				OnNotification: func(_ context.Context, m string, params json.RawMessage) {
					got = append(got, fmt.Sprint(m, len(params)))
				},
				OnNoise: func(n Noise) { noise = append(noise, n) },
			})
			if err := p.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if tc.skip {
				if len(noise) != 1 || noise[0].Kind != NoiseTooLong || noise[0].Size != int64(tc.size) ||
					noise[0].SHA256 != hex.EncodeToString(hash.Sum(nil)) || noise[0].Method != "m" || len(noise[0].Head) != HeadLength {
					t.Errorf("noise = %d, %s %d", len(noise), noise[0].Kind, noise[0].Size)
				}
				if len(got) != 1 || got[0] != "after0" {
					t.Errorf("got %v", got)
				}
				return
			}
			if len(noise) != 0 || len(got) != 2 || got[0] != fmt.Sprint("m", tc.size-wrap+2) || got[1] != "after0" {
				t.Errorf("got %v, noise %v", got, noise)
			}
		})
	}
}

// A line of 256 times the limit costs no more memory than the limit.
func TestSkippedLineHasBoundedMemory(t *testing.T) {
	const limit = 1 << 20
	_, out := io.Pipe()
	var sizes []int64
	p := New(io.MultiReader(&repeat{'x', 256 * limit}, strings.NewReader("\n{}\n")), out, Options{
		MaxLine: limit,
		OnNoise: func(n Noise) { sizes = append(sizes, n.Size) },
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 16*limit {
		t.Errorf("allocated %d bytes in all for a line of %d with the limit %d", got, 256*limit, limit)
	}
	if len(sizes) != 2 || sizes[0] != 256*limit || sizes[1] != 2 {
		t.Errorf("noise sizes %v", sizes)
	}
}

// A skipped response fails its call, a skipped request is refused, and a
// skipped message whose kind its beginning does not tell does neither.
func TestSkippedMessagesAreSettled(t *testing.T) {
	t.Parallel()
	s := start(t, Options{MaxLine: 1000})
	got := make(chan error, 2)
	for range 2 {
		go func() { got <- s.peer.Call(t.Context(), "m", nil, nil) }()
		s.read()
	}
	pad := strings.Repeat("x", 5000)
	s.write(`{"id":2,"params":"` + pad + `","method":"m"}` + "\n")
	s.write(`{"id":1,"result":"` + pad + `"}` + "\n")
	err := wait(t, "the first call", got)
	var long *TooLongError
	if !errors.As(err, &long) || long.Size != 5000+20 {
		t.Errorf("Call = %v, want TooLongError", err)
	}
	s.write(`{"method":"ask","id":"q","params":"` + pad + `"}` + "\n")
	if line := s.read(); !strings.HasPrefix(line, `{"id":"q","error":{"code":-32600`) {
		t.Errorf("wrote %s", line)
	}
	s.write(`{"id":2,"result":1}` + "\n")
	if err := wait(t, "the second call", got); err != nil {
		t.Errorf("Call = %v", err)
	}
}

// A rune split over two reads arrives whole.
func TestSplitRunes(t *testing.T) {
	t.Parallel()
	text := `{"method":"m","params":"` + strings.Repeat("añ漢😀", 40000) + `"}`
	var got string
	_, out := io.Pipe()
	p := New(iotest.HalfReader(iotest.OneByteReader(strings.NewReader(text[:300]+text[300:]+"\n"))), out, Options{
		OnNotification: func(_ context.Context, _ string, params json.RawMessage) {
			if err := json.Unmarshal(params, &got); err != nil {
				t.Error(err)
			}
		},
	})
	if err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("añ漢😀", 40000); got != want {
		t.Errorf("text of %d bytes differs", len(got))
	}
}

// Not returning from a handler stops the reading.
func TestBackPressure(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	inR, inW := io.Pipe()
	_, out := io.Pipe()
	p := New(inR, out, Options{OnNotification: func(context.Context, string, json.RawMessage) {
		entered <- struct{}{}
		<-release
	}})
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.Background()) }()
	go func() {
		big := bytes.Repeat([]byte(`{"method":"m"}`+"\n"), 3*readBuffer/15)
		if _, err := inW.Write(big); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the whole of %d bytes was read while the handler waited: %v", len(big), err)
		}
		ended <- nil
	}()
	wait(t, "the handler", entered)
	if err := inR.Close(); err != nil { // the write above ends unfinished
		t.Fatal(err)
	}
	if err := wait(t, "the blocked write", ended); err != nil {
		t.Error(err)
	}
	go func() {
		for range entered {
		}
	}()
	close(release)
	if err := wait(t, "the end", ended); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Run = %v", err)
	}
	close(entered)
}

func FuzzPeer(f *testing.F) {
	f.Add([]byte(`{"id":1,"result":{}}` + "\n" + `{"method":"x","id":"a"}` + "\n"))
	f.Add([]byte("\ufeff{}\n\x00\n{\"id\":1"))
	f.Fuzz(func(t *testing.T, in []byte) {
		p := New(bytes.NewReader(in), discard{}, Options{MaxLine: 64})
		answered := 0
		if _, err := p.CallThen(t.Context(), "m", nil, func(json.RawMessage, error) { answered++ }); err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if answered != 1 {
			t.Fatalf("a call was answered %d times", answered)
		}
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }
