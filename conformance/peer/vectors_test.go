package peer

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

func vectors(t *testing.T) M {
	t.Helper()
	text, err := os.ReadFile("testdata/prp-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := ParseObject(text)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func direction(t *testing.T, name string) Direction {
	t.Helper()
	for _, d := range []Direction{ClientToCore(), CoreToClient()} {
		if d.name == name {
			return d
		}
	}
	t.Fatalf("direction %q", name)
	return Direction{}
}

func vectorSession(v any) *Session {
	return NewSession(AuthKey(Str(v, "token")), Str(v, "signedChallenge"), Str(v, "serverProof"), Str(v, "clientProof"))
}

func TestHandshakeVectors(t *testing.T) {
	t.Parallel()
	list := List(vectors(t), "vectors")
	if len(list) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range list {
		t.Run(Str(v, "name"), func(t *testing.T) {
			t.Parallel()
			equal := func(what, got, want string) {
				t.Helper()
				if got != want {
					t.Errorf("%s is %s, expected %s", what, got, want)
				}
			}
			key := AuthKey(Str(v, "token"))
			equal("authKey", hex.EncodeToString(key), Str(v, "authKey"))
			equal("credentialId", CredentialID(Str(v, "token")), Str(v, "credentialId"))
			signed := Merge(Obj(v, "messages", "auth_challenge", "payload"))
			delete(signed, "serverProof")
			text, err := Canonical(signed)
			if err != nil {
				t.Fatal(err)
			}
			equal("signedChallenge", text, Str(v, "signedChallenge"))
			equal("signedChallengeSha256", SHA256Hex(text), Str(v, "signedChallengeSha256"))
			if int64(len(text)) != Int(v, "signedChallengeBytes") {
				t.Errorf("%d signed bytes", len(text))
			}
			proof := ServerProof(key, text)
			equal("serverProof", proof, Str(v, "serverProof"))
			equal("clientProof", ClientProof(key, text, proof), Str(v, "clientProof"))
			s := vectorSession(v)
			equal("binding", hex.EncodeToString(s.Binding), Str(v, "binding"))
			equal("sessionId", s.ID, Str(v, "sessionId"))
			equal("client key", hex.EncodeToString(s.Key(ClientToCore())), Str(v, "clientToCoreKey"))
			equal("core key", hex.EncodeToString(s.Key(CoreToClient())), Str(v, "coreToClientKey"))
			for _, f := range List(v, "frames") {
				d := direction(t, Str(f, "direction"))
				n := uint64(Int(f, "counter"))
				equal("nonce", hex.EncodeToString(s.Nonce(d, n)), Str(f, "nonce"))
				equal("aad", hex.EncodeToString(s.AAD(d, n)), Str(f, "aad"))
				equal("ciphertext", s.Seal(d, n, []byte(Str(f, "plaintext"))), Str(f, "ciphertext"))
				plain, err := s.OpenFrame(d, n, s.SealFrame(d, n, []byte(Str(f, "plaintext"))))
				if err != nil {
					t.Fatal(err)
				}
				equal("plaintext", string(plain), Str(f, "plaintext"))
			}
		})
	}
}

func TestAppendixA(t *testing.T) {
	t.Parallel()
	id := Identity{"runner-1", "lease-1", "run-1", "session-1", "turn-1", "item-1"}
	token := "bootstrap_00000000-0000-4000-8000-000000000001"
	text, err := Canonical(Merge(id.Members(), M{
		"credentialId": CredentialID(token), "credentialKind": "bootstrap", "clientNonce": "client-nonce",
		"serverNonce": "00000000-0000-4000-8000-000000000002", "runnerVersion": "0.3.0",
		"runnerDigest": "sha256:" + strings.Repeat("a", 64), "selectedVersion": 1, "credentialLeaseId": nil,
		"credentialExpiresAt": "2026-01-01T00:00:05.000Z", "credentialExpiresAtUnixMs": 1767225605000, "revocationEpoch": 0,
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(text) != 617 {
		t.Errorf("challenge of %d bytes", len(text))
	}
	key := AuthKey(token)
	server := ServerProof(key, text)
	client := ClientProof(key, text, server)
	s := NewSession(key, text, server, client)
	digest, err := SemanticDigest(M{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{hex.EncodeToString(key), "a8f2d8cd4f56b20e376e5beaddae26452d7ede312c7d2dd020cf2c3fa9d40e84"},
		{CredentialID(token), "sha256:8b8885f0478e85e84671a6538b12b96063f516c5fb2df57d5738fd3e31f11009"},
		{SHA256Hex(text), "4792e813e326077defff87c0acf81671846e40bcbc21927a2ba1f8ea7d76edd8"},
		{server, "6520d7978f1b0c5eddcd94238064b52167341c1478e058acd5c17384a8d6c89f"},
		{client, "51319437c2bce701bf0f2bcb324f8989b599638d451b852b87f8f028cc408a40"},
		{hex.EncodeToString(s.Binding), "db4d126e0a4db3c1577ca48129965ad3d97d1f0039edca83c3774218187135f5"},
		{s.Seal(CoreToClient(), 0, []byte(`{"kind":"welcome"}`)), "67593eb7805ceba63b27282a09a2048db8fc9ecb34b0b75b921d27b3c8b4fbd0ff4c"},
		{s.Seal(ClientToCore(), 0, []byte(`{"kind":"event"}`)), "ecf25d28f13155043d252feabf7c67bedfce6d8cad72030d5aa1922adbb83488"},
		{s.Seal(ClientToCore(), 1, []byte(`{"kind":"event"}`)), "9516aae0568dd539599cd2bbb34b63e787600193494701296e372cc06f2cd3e2"},
		{digest, "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
	} {
		if c[0] != c[1] {
			t.Errorf("got %s, expected %s", c[0], c[1])
		}
	}
}

func TestCanonicalVectors(t *testing.T) {
	t.Parallel()
	for _, c := range List(vectors(t), "canonicalJson") {
		v, err := Parse([]byte(Str(c, "json")))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Canonical(v)
		if err != nil {
			t.Fatal(err)
		}
		if got != Str(c, "canonical") || SHA256Hex(got) != Str(c, "sha256") {
			t.Errorf("canonical of %s is %s", Str(c, "json"), got)
		}
	}
}

func TestCanonicalLimits(t *testing.T) {
	t.Parallel()
	nested := func(levels int) any {
		var v any = 1
		for range levels {
			v = M{"d": v}
		}
		return v
	}
	wide := func(n int) A {
		out := A{}
		for range n {
			out = append(out, 0)
		}
		return out
	}
	for _, c := range []struct {
		name string
		v    any
		ok   bool
	}{
		{"depth 64", nested(64), true},
		{"depth 65", nested(65), false},
		{"10000 nodes", wide(9_999), true},
		{"10001 nodes", wide(10_000), false},
		{"not finite", Num("1e999"), false},
	} {
		if _, err := Canonical(c.v); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestSemanticDigestVectors(t *testing.T) {
	t.Parallel()
	for _, c := range List(vectors(t), "semanticDigests") {
		input := madeInput(t, c)
		got, err := SemanticDigest(input)
		if err != nil {
			t.Fatal(err)
		}
		if got != Str(c, "digest") {
			t.Errorf("digest of %.60s %v is %s, expected %s", Str(c, "json"), Get(c, "make"), got, Str(c, "digest"))
		}
	}
}

func madeInput(t *testing.T, c any) any {
	t.Helper()
	if text := Str(c, "json"); text != "" {
		v, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	made := Obj(c, "make")
	switch {
	case made["string"] != nil:
		return strings.Repeat(Str(made, "string"), int(Int(made, "times")))
	case made["array"] != nil:
		out := A{}
		for range Int(made, "times") {
			out = append(out, made["array"])
		}
		return out
	case made["nest"] != nil:
		var v any = 1
		for range Int(made, "nest") {
			v = M{"d": v}
		}
		return v
	}
	t.Fatalf("unknown form %v", made)
	return nil
}

func TestCommandVectors(t *testing.T) {
	t.Parallel()
	doc := vectors(t)
	for _, c := range List(doc, "commandFingerprints") {
		got, err := CommandFingerprint(Obj(c, "command"))
		if err != nil {
			t.Fatal(err)
		}
		if got != Str(c, "fingerprint") {
			t.Errorf("fingerprint %s, expected %s", got, Str(c, "fingerprint"))
		}
	}
	for _, c := range List(doc, "toolCommandIds") {
		if got := ToolCommandID(Str(c, "runId"), Str(c, "callId")); got != Str(c, "commandId") {
			t.Errorf("tool command id %s, expected %s", got, Str(c, "commandId"))
		}
	}
}

func TestRefusedFrames(t *testing.T) {
	t.Parallel()
	doc := vectors(t)
	sessions := map[string]*Session{}
	for _, v := range List(doc, "vectors") {
		sessions[Str(v, "name")] = vectorSession(v)
	}
	list := List(doc, "refusedFrames")
	if len(list) == 0 {
		t.Fatal("no refused frames")
	}
	for _, r := range list {
		s := sessions[Str(r, "vector")]
		if s == nil {
			t.Fatalf("no vector %q", Str(r, "vector"))
		}
		if _, err := s.OpenFrame(direction(t, Str(r, "direction")), uint64(Int(r, "expectCounter")), Write(Get(r, "frame"))); err == nil {
			t.Errorf("accepted: %s", Str(r, "why"))
		}
	}
}
