package prp

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	cryptoprp "bowline/crypto/prp"
	"bowline/wire"
	"bowline/wire/canonjson"
)

func channels(t testing.TB, maxFrame int) (authority, runner *Channel) {
	t.Helper()
	key := cryptoprp.DeriveAuthKey("token")
	sh, ch := cryptoprp.NewServerHandshake(key, nil), cryptoprp.NewClientHandshake(key, nil)
	proof, err := ch.Verify(sh.Proof())
	if err != nil {
		t.Fatal(err)
	}
	server, err := sh.Finish(proof)
	if err != nil {
		t.Fatal(err)
	}
	return NewChannel(RoleAuthority, server, maxFrame), NewChannel(RoleRunner, ch.Finish(), maxFrame)
}

func TestFrameLimits(t *testing.T) {
	t.Parallel()
	const limit = 4096
	authority, runner := channels(t, limit)
	largest := 0
	for FrameSize(largest+1) <= limit {
		largest++
	}
	if _, err := runner.Seal(nil, make([]byte, largest+1)); wire.CodeOf(err) != wire.CodeProtocol {
		t.Fatalf("one byte beyond the limit: %v", err)
	}
	if runner.SendCounter() != 0 {
		t.Fatal("a refused plaintext used up a counter")
	}
	frame, err := runner.Seal(nil, make([]byte, largest))
	if err != nil || len(frame) > limit {
		t.Fatalf("at the limit: %d bytes, %v", len(frame), err)
	}
	if _, err := authority.Open(append(frame, strings.Repeat(" ", limit-len(frame)+1)...)); wire.CodeOf(err) != wire.CodeProtocol {
		t.Fatalf("frame beyond the limit: %v", err)
	}
	if plain, err := authority.Open(frame); err != nil || len(plain) != largest {
		t.Fatalf("at the limit: %d bytes, %v", len(plain), err)
	}
}

// However a frame is spelled, it is the same frame.
func TestOtherSpellings(t *testing.T) {
	t.Parallel()
	for name, spell := range map[string]func(string) string{
		"as sent":        func(f string) string { return f },
		"white space":    func(f string) string { return " { " + f[1:len(f)-1] + "\n}\t" },
		"other order":    func(f string) string { return reorder(f) },
		"unknown member": func(f string) string { return `{"x":[1],` + f[1:] },
		"counter as 0.0": func(f string) string { return strings.Replace(f, `"counter":0`, `"counter":0.0`, 1) },
		"counter as -0":  func(f string) string { return strings.Replace(f, `"counter":0`, `"counter":-0`, 1) },
		"counter as 0e5": func(f string) string { return strings.Replace(f, `"counter":0`, `"counter":0e5`, 1) },
		"escaped digit": func(f string) string {
			i := strings.Index(f, `xt":"`) + 5
			return f[:i] + fmt.Sprintf(`\u%04x`, f[i]) + f[i+1:]
		},
		"last member wins": func(f string) string { return `{"ciphertext":"00","counter":7,` + f[1:] },
	} {
		authority, runner := channels(t, MaxFrameBytes)
		frame, err := runner.Seal(nil, []byte("hello"))
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := authority.Open([]byte(spell(string(frame)))); err != nil || string(plain) != "hello" {
			t.Errorf("%s: %q, %v", name, plain, err)
		}
	}
}

func reorder(f string) string {
	v, err := canonjson.ParseText(f)
	if err != nil {
		panic(err)
	}
	m := v.Members()
	return string(canonjson.ObjectValue(m[2], m[1], m[0]).JSON())
}

func TestRefusedSpellings(t *testing.T) {
	t.Parallel()
	for name, spell := range map[string]func(string) string{
		"empty":         func(string) string { return "" },
		"no object":     func(f string) string { return "[" + f + "]" },
		"trailing text": func(f string) string { return f + "x" },
		"two frames":    func(f string) string { return f + f },
		"counter 00":    func(f string) string { return strings.Replace(f, `"counter":0`, `"counter":00`, 1) },
		"counter null":  func(f string) string { return strings.Replace(f, `"counter":0`, `"counter":null`, 1) },
		"counter true":  func(f string) string { return strings.Replace(f, `"counter":0`, `"counter":true`, 1) },
		"counter beyond 2^53": func(f string) string {
			return strings.Replace(f, `"counter":0`, `"counter":9007199254740992`, 1)
		},
		"counter of 25 digits": func(f string) string {
			return strings.Replace(f, `"counter":0`, `"counter":`+strings.Repeat("0", 24)+"0", 1)
		},
		"infinite counter":    func(f string) string { return strings.Replace(f, `"counter":0`, `"counter":1e999`, 1) },
		"no schema":           func(f string) string { return strings.Replace(f, `"schema"`, `"Schema"`, 1) },
		"ciphertext a number": func(f string) string { return strings.Replace(f, `"ciphertext":"`, `"ciphertext":1,"x":"`, 1) },
		"blank inside":        func(f string) string { return strings.Replace(f, `"}`, ` "}`, 1) },
	} {
		authority, runner := channels(t, MaxFrameBytes)
		frame, err := runner.Seal(nil, []byte("hello"))
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := authority.Open([]byte(spell(string(frame)))); wire.CodeOf(err) != wire.CodeProtocol {
			t.Errorf("%s: %q, %v", name, plain, err)
		}
	}
}

func TestUpperCaseHex(t *testing.T) {
	t.Parallel()
	authority, runner := channels(t, MaxFrameBytes)
	upper := func(f []byte) []byte {
		head, tail, _ := bytes.Cut(f, []byte(`"ciphertext":"`))
		return append(append(bytes.Clone(head), `"ciphertext":"`...), bytes.ToUpper(tail)...)
	}
	frame, err := authority.Seal(nil, []byte("down"))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := runner.Open(upper(frame)); err != nil || string(plain) != "down" {
		t.Errorf("a runner takes upper case: %q, %v", plain, err)
	}
	if frame, err = runner.Seal(nil, []byte("up")); err != nil {
		t.Fatal(err)
	}
	if _, err := authority.Open(upper(frame)); wire.CodeOf(err) != wire.CodeProtocol {
		t.Errorf("an authority takes lower case only: %v", err)
	}
}

// Every changed byte of a frame is either refused or the same frame.
func TestTamperedFrames(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	authority, runner := channels(t, MaxFrameBytes)
	frame, err := runner.Seal(nil, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range frame {
		bad := bytes.Clone(frame)
		for bad[i] == frame[i] {
			bad[i] = byte(r.IntN(256))
		}
		if plain, err := authority.Open(bad); err == nil {
			t.Fatalf("byte %d changed from %q to %q: opens as %q", i, frame[i], bad[i], plain)
		}
	}
	if _, err := authority.Open(frame); err != nil {
		t.Fatal(err)
	}
}

func TestFramesDoNotAllocate(t *testing.T) {
	authority, runner := channels(t, MaxFrameBytes)
	plain := []byte(strings.Repeat("x", 1024))
	var frame []byte
	one := func() {
		var err error
		if frame, err = runner.Seal(frame[:0], plain); err != nil {
			t.Fatal(err)
		}
		if _, err = authority.Open(frame); err != nil {
			t.Fatal(err)
		}
	}
	one()
	if n := testing.AllocsPerRun(200, one); n != 0 {
		t.Errorf("%v allocations a frame, want 0", n)
	}
}

// All pairs of bytes, in every place of a word, against encoding/hex.
func TestHexAgainstTheLibrary(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 5} {
		for at := range n {
			for pair := range 1 << 16 {
				text := bytes.Repeat([]byte("c3"), n)
				text[2*at], text[2*at+1] = byte(pair>>8), byte(pair)
				want, err := hex.DecodeString(string(text))
				got := make([]byte, n)
				upper := bytes.ContainsAny(text, "ABCDEF")
				if both, lower := decodeHex(bytes.Clone(got), text, true), decodeHex(got, text, false); both != (err == nil) || lower != (err == nil && !upper) {
					t.Fatalf("%q: any case %v, lower case %v; the library says %v", text, both, lower, err)
				}
				if err != nil {
					continue
				}
				if decodeHex(got, text, true); !bytes.Equal(got, want) {
					t.Fatalf("%q: %x, want %x", text, got, want)
				}
				room := append(make([]byte, n), want...)
				if spread(room); string(room) != hex.EncodeToString(want) {
					t.Fatalf("%x is spelled %s", want, room)
				}
			}
		}
	}
}

// Frames of every size around the buffers' limits, appended behind something.
func TestFrameSizes(t *testing.T) {
	t.Parallel()
	authority, runner := channels(t, MaxFrameBytes)
	for _, n := range []int{0, 1, 2, 15, 16, 17, 1023, keepBuffer - 17, keepBuffer - 16, keepBuffer - 15, 100_000, 3} {
		plain := bytes.Repeat([]byte{'p'}, n)
		frame, err := runner.Seal([]byte("before"), plain)
		if err != nil || !bytes.HasPrefix(frame, []byte("before"+frameHead)) || len(frame)-len("before") > FrameSize(n) {
			t.Fatalf("%d bytes: %.80s, %v", n, frame, err)
		}
		if got, err := authority.Open(frame[len("before"):]); err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("%d bytes: opens as %d bytes, %v", n, len(got), err)
		}
	}
}

func FuzzOpenFrame(f *testing.F) {
	f.Add([]byte(`{"schema":"paperclip.runner.secure-frame.v1","counter":0,"ciphertext":"00112233445566778899aabbccddeeff00"}`))
	f.Fuzz(func(t *testing.T, frame []byte) {
		authority, _ := channels(t, MaxFrameBytes)
		if _, err := authority.Open(frame); wire.CodeOf(err) != wire.CodeProtocol {
			t.Fatalf("%q: %v", frame, err)
		}
		// The fast way in must agree with the parser about what it takes.
		counter, text, ok := splitFrame(frame)
		if !ok || !authority.decodeHex(text) {
			return
		}
		slowCounter, slowText, err := parseFrame(frame)
		if err != nil || slowCounter != counter || !bytes.Equal(slowText, text) {
			t.Fatalf("%q: fast %d %q, slow %d %q %v", frame, counter, text, slowCounter, slowText, err)
		}
	})
}

func BenchmarkFrame(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 256 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			authority, runner := channels(b, MaxFrameBytes)
			plain := []byte(strings.Repeat("x", size))
			var frame []byte
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if frame, err = runner.Seal(frame[:0], plain); err != nil {
					b.Fatal(err)
				}
				if _, err = authority.Open(frame); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
