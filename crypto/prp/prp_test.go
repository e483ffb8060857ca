package prp

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// The vectors of prp.md, appendix A.
const (
	vectorTicket     = "bootstrap_00000000-0000-4000-8000-000000000001"
	vectorAuthKey    = "a8f2d8cd4f56b20e376e5beaddae26452d7ede312c7d2dd020cf2c3fa9d40e84"
	vectorCredential = "sha256:8b8885f0478e85e84671a6538b12b96063f516c5fb2df57d5738fd3e31f11009"
	vectorServer     = "6520d7978f1b0c5eddcd94238064b52167341c1478e058acd5c17384a8d6c89f"
	vectorClient     = "51319437c2bce701bf0f2bcb324f8989b599638d451b852b87f8f028cc408a40"
	vectorBinding    = "db4d126e0a4db3c1577ca48129965ad3d97d1f0039edca83c3774218187135f5"
	vectorClientKey  = "c5546cddc443bb012e7285bcaa1136a2fb3f2eb3e18c82f577cc3253ec79b86d"
	vectorServerKey  = "fd305525d722c52d7670b6e632ae8db2a109e6a93713dc0b242c8f6b7567b1ae"
)

var vectorChallenge = []byte(`{"clientNonce":"client-nonce","credentialExpiresAt":"2026-01-01T00:00:05.000Z",` +
	`"credentialExpiresAtUnixMs":1767225605000,"credentialId":"` + vectorCredential + `","credentialKind":"bootstrap",` +
	`"credentialLeaseId":null,"environmentLeaseId":"lease-1","itemId":"item-1","normalizedSessionId":"session-1",` +
	`"revocationEpoch":0,"runId":"run-1","runnerDigest":"sha256:` + strings.Repeat("a", 64) + `","runnerInstanceId":"runner-1",` +
	`"runnerVersion":"0.3.0","selectedVersion":1,"serverNonce":"00000000-0000-4000-8000-000000000002","turnId":"turn-1"}`)

func handshake(t testing.TB, challenge []byte) (server, client *Session) {
	t.Helper()
	key := DeriveAuthKey(vectorTicket)
	sh, ch := NewServerHandshake(key, challenge), NewClientHandshake(key, challenge)
	proof, err := ch.Verify(sh.Proof())
	if err != nil {
		t.Fatalf("client refuses the server: %v", err)
	}
	if server, err = sh.Finish(proof); err != nil {
		t.Fatalf("server refuses the client: %v", err)
	}
	return server, ch.Finish()
}

func TestAppendixA(t *testing.T) {
	t.Parallel()
	if len(vectorChallenge) != 617 {
		t.Fatalf("challenge is %d bytes, the vector has 617", len(vectorChallenge))
	}
	key := DeriveAuthKey(vectorTicket)
	raw := key.Reveal()
	sched := newSchedule(key, vectorChallenge, vectorServer, vectorClient)
	for name, pair := range map[string][2]string{
		"authKey":      {hex.EncodeToString(raw[:]), vectorAuthKey},
		"credentialId": {CredentialID(vectorTicket), vectorCredential},
		"serverProof":  {proveServer(key, vectorChallenge), vectorServer},
		"clientProof":  {proveClient(key, vectorChallenge, vectorServer), vectorClient},
		"sessionId":    {sched.id, "sha256:" + vectorBinding},
		"clientKey":    {hex.EncodeToString(sched.clientToCore[:]), vectorClientKey},
		"serverKey":    {hex.EncodeToString(sched.coreToClient[:]), vectorServerKey},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s = %s, want %s", name, pair[0], pair[1])
		}
	}
	server, client := handshake(t, vectorChallenge)
	for _, f := range []struct {
		seal      *Sealer
		open      *Opener
		plain     string
		wantCiper string
	}{
		{server.Send, client.Recv, `{"kind":"welcome"}`, "67593eb7805ceba63b27282a09a2048db8fc9ecb34b0b75b921d27b3c8b4fbd0ff4c"},
		{client.Send, server.Recv, `{"kind":"event"}`, "ecf25d28f13155043d252feabf7c67bedfce6d8cad72030d5aa1922adbb83488"},
		{client.Send, server.Recv, `{"kind":"event"}`, "9516aae0568dd539599cd2bbb34b63e787600193494701296e372cc06f2cd3e2"},
	} {
		sealed, counter, err := f.seal.Seal(nil, []byte(f.plain))
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(sealed); got != f.wantCiper {
			t.Errorf("frame %d of %s = %s, want %s", counter, f.plain, got, f.wantCiper)
		}
		if opened, err := f.open.Open(nil, counter, sealed); err != nil || string(opened) != f.plain {
			t.Errorf("frame %d does not open: %q, %v", counter, opened, err)
		}
	}
}

func TestBothSidesAgree(t *testing.T) {
	t.Parallel()
	server, client := handshake(t, []byte("a challenge"))
	if server.ID != client.ID {
		t.Fatalf("session ids differ: %s and %s", server.ID, client.ID)
	}
	if other, _ := handshake(t, []byte("another challenge")); other.ID == server.ID {
		t.Error("two challenges gave one session id")
	}
}

// Every bit of everything that is mixed in matters.
func TestTamperedHandshake(t *testing.T) {
	t.Parallel()
	challenge := []byte(`{"a":1}`)
	for i := range challenge {
		for bit := range 8 {
			bad := bytes.Clone(challenge)
			bad[i] ^= 1 << bit
			key := DeriveAuthKey("token")
			proof := NewServerHandshake(key, challenge).Proof()
			if _, err := NewClientHandshake(key, bad).Verify(proof); !errors.Is(err, ErrServerProof) {
				t.Fatalf("byte %d bit %d: server proof over another challenge: %v", i, bit, err)
			}
		}
	}
	for i := range ProofSize {
		key := DeriveAuthKey("token")
		sh, ch := NewServerHandshake(key, challenge), NewClientHandshake(key, challenge)
		proof, err := ch.Verify(sh.Proof())
		if err != nil {
			t.Fatal(err)
		}
		bad := []byte(proof)
		if bad[i] == '0' {
			bad[i] = '1'
		} else {
			bad[i] = '0'
		}
		if _, err := sh.Finish(string(bad)); !errors.Is(err, ErrClientProof) {
			t.Fatalf("digit %d changed: %v", i, err)
		}
	}
}

func TestProofForm(t *testing.T) {
	t.Parallel()
	good := strings.Repeat("a", 64)
	for _, proof := range []string{"", good[1:], good + "a", strings.ToUpper(good), good[:63] + "g", good[:63] + " "} {
		key := DeriveAuthKey("token")
		sh := NewServerHandshake(key, nil)
		sh.Proof()
		if _, err := sh.Finish(proof); !errors.Is(err, ErrProofForm) {
			t.Errorf("server takes %q: %v", proof, err)
		}
		if _, err := NewClientHandshake(key, nil).Verify(proof); !errors.Is(err, ErrProofForm) {
			t.Errorf("client takes %q: %v", proof, err)
		}
	}
}

func TestAnotherTokenFails(t *testing.T) {
	t.Parallel()
	proof := NewServerHandshake(DeriveAuthKey("a"), nil).Proof()
	if _, err := NewClientHandshake(DeriveAuthKey("b"), nil).Verify(proof); !errors.Is(err, ErrServerProof) {
		t.Errorf("another token verifies: %v", err)
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if r := recover(); r == nil || !strings.HasPrefix(fmt.Sprint(r), "bug: ") {
			t.Errorf("%s: panic %v, want one that begins with \"bug: \"", what, r)
		}
	}()
	f()
}

func TestSingleUse(t *testing.T) {
	t.Parallel()
	key := DeriveAuthKey("token")
	finished := func() (*ServerHandshake, *ClientHandshake) {
		sh, ch := NewServerHandshake(key, nil), NewClientHandshake(key, nil)
		proof, err := ch.Verify(sh.Proof())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sh.Finish(proof); err != nil {
			t.Fatal(err)
		}
		ch.Finish()
		return sh, ch
	}
	sh, ch := finished()
	mustPanic(t, "server proof twice", func() { sh.Proof() })
	mustPanic(t, "server finish twice", func() { _, _ = sh.Finish("") })
	mustPanic(t, "client verify twice", func() { _, _ = ch.Verify("") })
	mustPanic(t, "client finish twice", func() { ch.Finish() })
	mustPanic(t, "server finish first", func() { _, _ = NewServerHandshake(key, nil).Finish("") })
	mustPanic(t, "client finish first", func() { NewClientHandshake(key, nil).Finish() })
	failed := NewClientHandshake(key, nil)
	if _, err := failed.Verify(strings.Repeat("0", 64)); err == nil {
		t.Fatal("a wrong proof verifies")
	}
	mustPanic(t, "client finish after a failure", func() { failed.Finish() })
	server := NewServerHandshake(key, nil)
	server.Proof()
	if _, err := server.Finish(strings.Repeat("0", 64)); err == nil {
		t.Fatal("a wrong proof verifies")
	}
	mustPanic(t, "server finish after a failure", func() { _, _ = server.Finish(strings.Repeat("0", 64)) })
	mustPanic(t, "zero key", func() { NewServerHandshake(AuthKey{}, nil) })
	mustPanic(t, "zero key", func() { NewClientHandshake(AuthKey{}, nil) })
	mustPanic(t, "zero key revealed", func() { AuthKey{}.Reveal() })
}

func TestTamperedFrame(t *testing.T) {
	t.Parallel()
	server, client := handshake(t, nil)
	sealed, counter, err := client.Send.Seal(nil, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		for bit := range 8 {
			bad := bytes.Clone(sealed)
			bad[i] ^= 1 << bit
			if _, err := server.Recv.Open(nil, counter, bad); !errors.Is(err, ErrOpen) {
				t.Fatalf("byte %d bit %d: %v", i, bit, err)
			}
		}
	}
	for n := range len(sealed) {
		if _, err := server.Recv.Open(nil, counter, sealed[:n]); !errors.Is(err, ErrOpen) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	inPlace := bytes.Clone(sealed)
	if out, err := handshakeCopy(t).Open(inPlace[:0], counter, inPlace); err != nil || string(out) != "hello" {
		t.Fatalf("in place: %q, %v", out, err)
	}
	if _, err := server.Recv.Open(nil, counter, append(bytes.Clone(sealed), 0)); !errors.Is(err, ErrOpen) {
		t.Fatalf("one byte more: %v", err)
	}
	// None of that moved the counter.
	if out, err := server.Recv.Open([]byte("x"), counter, sealed); err != nil || string(out) != "xhello" {
		t.Fatalf("the true frame does not open afterwards: %q, %v", out, err)
	}
}

// handshakeCopy is another end of the same (deterministic) session.
func handshakeCopy(t *testing.T) *Opener {
	t.Helper()
	server, _ := handshake(t, nil)
	return server.Recv
}

func TestCounters(t *testing.T) {
	t.Parallel()
	server, client := handshake(t, nil)
	var frames [][]byte
	for i := range uint64(3) {
		sealed, counter, err := client.Send.Seal(nil, []byte("same"))
		if err != nil || counter != i || client.Send.Counter() != i+1 {
			t.Fatalf("frame %d: counter %d, next %d, %v", i, counter, client.Send.Counter(), err)
		}
		for _, f := range frames {
			if bytes.Equal(f, sealed) {
				t.Fatal("equal plaintexts gave equal frames")
			}
		}
		frames = append(frames, sealed)
	}
	open := func(frame int, counter uint64) error {
		_, err := server.Recv.Open(nil, counter, frames[frame])
		return err
	}
	for _, c := range []struct {
		frame   int
		counter uint64
		want    error
	}{
		{1, 1, ErrCounter},
		{1, 0, ErrOpen},
		{0, 0, nil},
		{0, 0, ErrCounter},
		{0, 1, ErrOpen},
		{2, 2, ErrCounter},
		{1, 1, nil},
		{2, 2, nil},
		{2, 3, ErrOpen},
		{2, 1 << 60, ErrCounter},
	} {
		if err := open(c.frame, c.counter); !errors.Is(err, c.want) {
			t.Fatalf("frame %d at counter %d: %v, want %v", c.frame, c.counter, err, c.want)
		}
	}
}

func TestCounterExhaustion(t *testing.T) {
	t.Parallel()
	server, client := handshake(t, nil)
	client.Send.lane.counter, server.Recv.lane.counter = MaxCounter, MaxCounter
	sealed, counter, err := client.Send.Seal(nil, []byte("last"))
	if err != nil || counter != MaxCounter {
		t.Fatalf("the last counter: %d, %v", counter, err)
	}
	if _, err := server.Recv.Open(nil, counter, sealed); err != nil {
		t.Fatalf("the last frame: %v", err)
	}
	if _, _, err := client.Send.Seal(nil, nil); !errors.Is(err, ErrExhausted) {
		t.Errorf("seal beyond the last: %v", err)
	}
	if _, err := server.Recv.Open(nil, MaxCounter+1, sealed); !errors.Is(err, ErrExhausted) {
		t.Errorf("open beyond the last: %v", err)
	}
}

func TestReflectionAndOtherSession(t *testing.T) {
	t.Parallel()
	server, client := handshake(t, nil)
	other, _ := handshake(t, []byte("x"))
	fromClient, _, err := client.Send.Seal(nil, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Recv.Open(nil, 0, fromClient); !errors.Is(err, ErrOpen) {
		t.Errorf("the client opens its own frame: %v", err)
	}
	if _, err := other.Recv.Open(nil, 0, fromClient); !errors.Is(err, ErrOpen) {
		t.Errorf("another session opens the frame: %v", err)
	}
	if _, err := server.Recv.Open(nil, 0, fromClient); err != nil {
		t.Errorf("the server does not open it: %v", err)
	}
}

func TestCopyPanics(t *testing.T) {
	t.Parallel()
	server, client := handshake(t, nil)
	sealer, opener := *client.Send, *server.Recv
	mustPanic(t, "copied sealer", func() { _, _, _ = sealer.Seal(nil, nil) })
	mustPanic(t, "copied opener", func() { _, _ = opener.Open(nil, 0, nil) })
	mustPanic(t, "zero sealer", func() { _, _, _ = new(Sealer).Seal(nil, nil) })
}

func TestKeyNeverPrints(t *testing.T) {
	t.Parallel()
	key := DeriveAuthKey(vectorTicket)
	raw := key.Reveal()
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", key, "ptr", &key)
	asJSON, err := json.Marshal(struct{ Key AuthKey }{key})
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{log.String(), string(asJSON), key.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%c", "%U", "%t"} {
		texts = append(texts, fmt.Sprintf(verb, key), fmt.Sprintf(verb, &key), fmt.Sprintf(verb, []AuthKey{key}),
			fmt.Sprintf(verb, struct{ Key AuthKey }{key}))
	}
	for _, text := range texts {
		lower := strings.ToLower(text)
		if strings.Contains(lower, vectorAuthKey[:8]) || strings.Contains(text, fmt.Sprint(raw[0], " ", raw[1])) {
			t.Errorf("a key is printed: %s", text)
		}
	}
}

func TestKeyStorage(t *testing.T) {
	t.Parallel()
	key := DeriveAuthKey("token")
	raw := key.Reveal()
	back, err := LoadAuthKey(raw[:])
	if err != nil || !back.Equal(key) {
		t.Errorf("the key does not come back: %v", err)
	}
	for _, n := range []int{0, 31, 33} {
		if _, err := LoadAuthKey(make([]byte, n)); err == nil {
			t.Errorf("a key of %d bytes is taken", n)
		}
	}
	switch {
	case (AuthKey{}).Equal(AuthKey{}):
		t.Error("two zero keys are equal")
	case key.Equal(DeriveAuthKey("other")):
		t.Error("two keys are equal")
	case !(AuthKey{}).IsZero() || key.IsZero():
		t.Error("IsZero is wrong")
	}
}

// The framing must not let one split of the parts look like another.
func TestFramingIsInjective(t *testing.T) {
	t.Parallel()
	seen := map[[32]byte]string{}
	for _, c := range []struct {
		domain string
		parts  []string
	}{
		{"d", nil},
		{"d", []string{""}},
		{"d", []string{"", ""}},
		{"d", []string{"ab"}},
		{"d", []string{"a", "b"}},
		{"d", []string{"", "ab"}},
		{"da", []string{"b"}},
		{"d\x00", []string{"ab"}},
	} {
		var parts [][]byte
		for _, p := range c.parts {
			parts = append(parts, []byte(p))
		}
		sum := hashFramed(c.domain, parts...)
		if was, ok := seen[sum]; ok {
			t.Errorf("%q%q hashes like %s", c.domain, c.parts, was)
		}
		seen[sum] = fmt.Sprintf("%q%q", c.domain, c.parts)
	}
}

func TestRecordsDoNotAllocate(t *testing.T) {
	server, client := handshake(t, nil)
	plain := make([]byte, 1024)
	sealed := make([]byte, 0, len(plain)+Overhead)
	opened := make([]byte, 0, len(plain))
	n := testing.AllocsPerRun(200, func() {
		out, counter, err := client.Send.Seal(sealed[:0], plain)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Recv.Open(opened[:0], counter, out); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a frame, want 0", n)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(uint64(0), []byte("0123456789abcdef0"))
	f.Fuzz(func(t *testing.T, counter uint64, frame []byte) {
		server, _ := handshake(t, nil)
		if _, err := server.Recv.Open(nil, counter, frame); err == nil {
			t.Error("a made-up frame opens")
		}
		if server.Recv.Counter() != 0 {
			t.Error("a refused frame moved the counter")
		}
	})
}

func BenchmarkSeal(b *testing.B) { benchmarkSizes(b, true) }

func BenchmarkOpen(b *testing.B) { benchmarkSizes(b, false) }

func benchmarkSizes(b *testing.B, seal bool) {
	b.Helper()
	for _, size := range []int{128, 1 << 10, 16 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			server, client := handshake(b, nil)
			plain := make([]byte, size)
			sealed, _, err := client.Send.Seal(nil, plain)
			if err != nil {
				b.Fatal(err)
			}
			opened := make([]byte, 0, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if seal {
					if _, _, err := client.Send.Seal(sealed[:0], plain); err != nil {
						b.Fatal(err)
					}
					continue
				}
				server.Recv.lane.counter = 0
				if _, err := server.Recv.Open(opened, 0, sealed); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
