package prp

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	cryptoprp "bowline/crypto/prp"
	"bowline/wire/canonjson"
)

// The file holds self-made vectors of the profile; its own member "fields" says
// what is what.
func vectors(t testing.TB) canonjson.Value {
	t.Helper()
	b, err := os.ReadFile("testdata/prp-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := canonjson.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func vectorNamed(t testing.TB, name string) canonjson.Value {
	t.Helper()
	for _, v := range vectors(t).Get("vectors").Elements() {
		if v.Get("name").Str() == name {
			return v
		}
	}
	t.Fatalf("no vector %q", name)
	return canonjson.Value{}
}

// helloOf and leaseOf give both sides what the vector presupposes.
func vectorHello(t testing.TB, v canonjson.Value) Hello {
	t.Helper()
	e, err := ParseEnvelope(v.Get("messages", "auth_hello").JSON())
	if err != nil {
		t.Fatal(err)
	}
	h, err := HelloOf(e)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func vectorLease(v canonjson.Value) *HeldLease {
	if v.Get("credentialKind").Str() != CredentialLease {
		return nil
	}
	p := v.Get("messages", "auth_challenge", "payload")
	expires, _ := p.Get("credentialExpiresAtUnixMs").SafeInt()
	epoch, _ := p.Get("revocationEpoch").SafeInt()
	return &HeldLease{ID: p.Get("credentialLeaseId").Str(), ExpiresAtUnixMs: expires, RevocationEpoch: epoch}
}

// vectorSessions runs both handshakes over the vector's messages and checks
// every value on the way.
func vectorSessions(t testing.TB, v canonjson.Value) (server, client *cryptoprp.Session) {
	t.Helper()
	same := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Fatalf("%s = %s\nwant %s", what, got, want)
		}
	}
	token := v.Get("token").Str()
	key := cryptoprp.DeriveAuthKey(token)
	raw := key.Reveal()
	same("authKey", hex.EncodeToString(raw[:]), v.Get("authKey").Str())
	same("credentialId", cryptoprp.CredentialID(token), v.Get("credentialId").Str())

	hello := vectorHello(t, v)
	now, _ := v.Get("nowUnixMs").SafeInt()
	lease := vectorLease(v)
	version, _ := v.Get("protocolVersion").SafeInt()
	leaseVersion := 0
	if lease != nil {
		leaseVersion = int(version)
	}
	selected, err := hello.SelectVersion(leaseVersion)
	if err != nil || selected != int(version) {
		t.Fatalf("selected version %d, %v; want %d", selected, err, version)
	}

	// The authority's challenge, built anew.
	sent := v.Get("messages", "auth_challenge", "payload")
	challenge := NewChallenge(hello, v.Get("credentialKind").Str(), sent.Get("serverNonce").Str(), selected)
	challenge.CredentialLeaseID = sent.Get("credentialLeaseId").Str()
	challenge.CredentialExpiresAtUnixMs, _ = sent.Get("credentialExpiresAtUnixMs").SafeInt()
	challenge.RevocationEpoch, _ = sent.Get("revocationEpoch").SafeInt()
	signed, err := challenge.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	same("signedChallenge", string(signed), v.Get("signedChallenge").Str())
	if n, _ := v.Get("signedChallengeBytes").SafeInt(); n != int64(len(signed)) {
		t.Fatalf("signed challenge is %d bytes, want %d", len(signed), n)
	}
	sh := cryptoprp.NewServerHandshake(key, signed)
	serverProof := sh.Proof()
	same("serverProof", serverProof, v.Get("serverProof").Str())
	equalJSON(t, "auth_challenge", EncodeChallenge(challenge, serverProof), v.Get("messages", "auth_challenge"))

	// The runner's reading of it.
	e, err := ParseEnvelope(EncodeChallenge(challenge, serverProof))
	if err != nil {
		t.Fatal(err)
	}
	got, proof, err := ChallengeOf(e, hello, lease, now)
	if err != nil {
		t.Fatal(err)
	}
	rebuilt, err := got.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	same("challenge built again by the runner", string(rebuilt), string(signed))
	ch := cryptoprp.NewClientHandshake(key, rebuilt)
	clientProof, err := ch.Verify(proof)
	if err != nil {
		t.Fatal(err)
	}
	same("clientProof", clientProof, v.Get("clientProof").Str())
	response := EncodeResponse(selected, Response{
		CredentialID: hello.CredentialID, ClientNonce: hello.ClientNonce, ServerNonce: got.ServerNonce, ClientProof: clientProof,
	})
	equalJSON(t, "auth_response", response, v.Get("messages", "auth_response"))
	if e, err = ParseEnvelope(response); err != nil {
		t.Fatal(err)
	}
	answer, err := ResponseOf(e, challenge)
	if err != nil {
		t.Fatal(err)
	}
	if server, err = sh.Finish(answer.ClientProof); err != nil {
		t.Fatal(err)
	}
	client = ch.Finish()
	same("sessionId", server.ID, v.Get("sessionId").Str())
	same("sessionId of the client", client.ID, v.Get("sessionId").Str())
	same("binding", strings.TrimPrefix(server.ID, "sha256:"), v.Get("binding").Str())
	return server, client
}

func equalJSON(t testing.TB, what string, got []byte, want canonjson.Value) {
	t.Helper()
	v, err := canonjson.Parse(got)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	same, err := canonjson.Equal(v, want)
	if err != nil || !same {
		t.Fatalf("%s = %s\nwant %s (%v)", what, got, want.JSON(), err)
	}
}

func TestVectorHandshakes(t *testing.T) {
	t.Parallel()
	for _, v := range vectors(t).Get("vectors").Elements() {
		t.Run(v.Get("name").Str(), func(t *testing.T) {
			t.Parallel()
			vectorSessions(t, v)
			// The hello itself, encoded anew from what was read.
			equalJSON(t, "auth_hello", EncodeHello(vectorHello(t, v)), v.Get("messages", "auth_hello"))
		})
	}
}

func TestVectorFrames(t *testing.T) {
	t.Parallel()
	for i, v := range vectors(t).Get("vectors").Elements() {
		t.Run(v.Get("name").Str(), func(t *testing.T) {
			t.Parallel()
			server, client := vectorSessions(t, v)
			authority, runner := NewChannel(RoleAuthority, server, MaxFrameBytes), NewChannel(RoleRunner, client, MaxFrameBytes)
			seen := 0
			for _, f := range v.Get("frames").Elements() {
				from, to := authority, runner
				if f.Get("direction").Str() == "client_to_core" {
					from, to = runner, authority
				}
				counter, _ := f.Get("counter").SafeInt()
				if seen++; counter > 256 && i > 0 {
					continue // once is enough to get there; package crypto/prp checks them all
				}
				advance(t, from, to, uint64(counter))
				plain := f.Get("plaintext").Str()
				frame, err := from.Seal(nil, []byte(plain))
				if err != nil {
					t.Fatal(err)
				}
				want := canonjson.ObjectValue(
					member("schema", canonjson.StringValue(FrameSchema)),
					member("counter", canonjson.IntValue(counter)),
					member("ciphertext", f.Get("ciphertext")),
				)
				if !bytes.Equal(frame, want.JSON()) {
					t.Fatalf("frame %d is\n%s, want\n%s", counter, frame, want.JSON())
				}
				if opened, err := to.Open(frame); err != nil || string(opened) != plain {
					t.Fatalf("frame %d opens as %q, %v", counter, opened, err)
				}
			}
			if seen != 12 {
				t.Errorf("%d frames, the vectors have 12", seen)
			}
		})
	}
}

// advance uses up counters until the next one is the wanted one.
func advance(t testing.TB, from, to *Channel, counter uint64) {
	t.Helper()
	var frame []byte
	for from.SendCounter() < counter {
		var err error
		if frame, err = from.Seal(frame[:0], nil); err != nil {
			t.Fatal(err)
		}
		if _, err = to.Open(frame); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVectorRefusedFrames(t *testing.T) {
	t.Parallel()
	all := vectors(t).Get("refusedFrames").Elements()
	if len(all) == 0 {
		t.Fatal("no refused frames in the vectors")
	}
	for _, r := range all {
		t.Run(r.Get("why").Str(), func(t *testing.T) {
			t.Parallel()
			v := vectorNamed(t, r.Get("vector").Str())
			server, client := vectorSessions(t, v)
			from, to := NewChannel(RoleRunner, client, MaxFrameBytes), NewChannel(RoleAuthority, server, MaxFrameBytes)
			if r.Get("direction").Str() != "client_to_core" {
				t.Fatal("the vectors only have frames to the authority")
			}
			counter, _ := r.Get("expectCounter").SafeInt()
			advance(t, from, to, uint64(counter))
			if _, err := to.Open(r.Get("frame").JSON()); err == nil {
				t.Fatal("the frame opens")
			}
			if to.RecvCounter() != uint64(counter) {
				t.Errorf("counter is %d after a refused frame, want %d", to.RecvCounter(), counter)
			}
		})
	}
}

func TestVectorCanonicalJSON(t *testing.T) {
	t.Parallel()
	for _, c := range vectors(t).Get("canonicalJson").Elements() {
		v, err := canonjson.ParseText(c.Get("json").Str())
		if err != nil {
			t.Fatal(err)
		}
		got, err := canonjson.Canonical(v)
		if err != nil || string(got) != c.Get("canonical").Str() {
			t.Errorf("canonical form of %s is %s (%v), want %s", c.Get("json").Str(), got, err, c.Get("canonical").Str())
		}
		if digest, err := hexDigest(v); err != nil || digest != c.Get("sha256").Str() {
			t.Errorf("digest of %s is %s (%v)", got, digest, err)
		}
	}
}

func TestVectorSemanticDigests(t *testing.T) {
	t.Parallel()
	for _, c := range vectors(t).Get("semanticDigests").Elements() {
		input := madeInput(t, c)
		if got := SemanticDigest(input); got != c.Get("digest").Str() {
			t.Errorf("%.200s: digest %s, want %s", c.JSON(), got, c.Get("digest").Str())
		}
	}
}

func madeInput(t testing.TB, c canonjson.Value) canonjson.Value {
	t.Helper()
	if text, ok := c.Get("json").AsString(); ok {
		v, err := canonjson.ParseText(text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	m := c.Get("make")
	times, _ := m.Get("times").SafeInt()
	switch {
	case m.Has("string"):
		return canonjson.StringValue(strings.Repeat(m.Get("string").Str(), int(times)))
	case m.Has("array"):
		items := make([]canonjson.Value, times)
		for i := range items {
			items[i] = m.Get("array")
		}
		return canonjson.ArrayValue(items...)
	case m.Has("nest"):
		v := canonjson.IntValue(1)
		n, _ := m.Get("nest").SafeInt()
		for range n {
			v = canonjson.ObjectValue(member("d", v))
		}
		return v
	}
	t.Fatalf("unknown make: %s", m.JSON())
	return canonjson.Value{}
}

func TestVectorCommands(t *testing.T) {
	t.Parallel()
	all := vectors(t)
	for _, c := range all.Get("commandFingerprints").Elements() {
		cmd, err := CommandOf(c.Get("command"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := cmd.Fingerprint(); err != nil || got != c.Get("fingerprint").Str() {
			t.Errorf("fingerprint %s (%v), want %s", got, err, c.Get("fingerprint").Str())
		}
		equalJSON(t, "command", cmd.Value().JSON(), c.Get("command"))
	}
	for _, c := range all.Get("toolCommandIds").Elements() {
		if got := ToolCommandID(c.Get("runId").Str(), c.Get("callId").Str()); got != c.Get("commandId").Str() {
			t.Errorf("tool command id %s, want %s", got, c.Get("commandId").Str())
		}
	}
	for _, w := range all.Get("warmTransitions").Elements() {
		if got, err := WarmTransitionID(w.Get("receipt")); err != nil || got != w.Get("transitionId").Str() {
			t.Errorf("transition id %s (%v), want %s", got, err, w.Get("transitionId").Str())
		}
		cmd, err := CommandOf(w.Get("command"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := cmd.Fingerprint(); err != nil || got != w.Get("receipt", "commandFingerprint").Str() {
			t.Errorf("attach fingerprint %s (%v)", got, err)
		}
		if got, err := ResultDigest(w.Get("result")); err != nil || got != w.Get("receipt", "resultDigest").Str() {
			t.Errorf("result digest %s (%v)", got, err)
		}
	}
}
