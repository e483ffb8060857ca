package prp

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

// vectorFile is shared with package wire/prp, which checks the messages in it;
// here it is the keys, nonces and records, at every counter the file has.
const vectorFile = "../../wire/prp/testdata/prp-vectors.json"

type vector struct {
	Name, Token, CredentialID, AuthKey string
	SignedChallenge                    string
	ServerProof, ClientProof           string
	Binding, SessionID                 string
	ClientToCoreKey, CoreToClientKey   string
	Frames                             []struct {
		Direction, Nonce, AAD, Plaintext, Ciphertext string
		Counter                                      uint64
	}
}

func TestVectorFile(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []vector }
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) != 4 {
		t.Fatalf("%d vectors, the file has 4", len(file.Vectors))
	}
	for _, v := range file.Vectors {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			testVector(t, v)
		})
	}
}

func testVector(t *testing.T, v vector) {
	key, challenge := DeriveAuthKey(v.Token), []byte(v.SignedChallenge)
	raw := key.Reveal()
	sched := newSchedule(key, challenge, v.ServerProof, v.ClientProof)
	for name, pair := range map[string][2]string{
		"authKey":      {hex.EncodeToString(raw[:]), v.AuthKey},
		"credentialId": {CredentialID(v.Token), v.CredentialID},
		"serverProof":  {proveServer(key, challenge), v.ServerProof},
		"clientProof":  {proveClient(key, challenge, v.ServerProof), v.ClientProof},
		"sessionId":    {sched.id, v.SessionID},
		"binding":      {sched.id, "sha256:" + v.Binding},
		"clientKey":    {hex.EncodeToString(sched.clientToCore[:]), v.ClientToCoreKey},
		"serverKey":    {hex.EncodeToString(sched.coreToClient[:]), v.CoreToClientKey},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s = %s, want %s", name, pair[0], pair[1])
		}
	}
	for _, f := range v.Frames {
		k, d := sched.clientToCore, clientToCore
		if f.Direction == coreToClient.name() {
			k, d = sched.coreToClient, coreToClient
		}
		s, o := newSealer(k, sched.id, d), newOpener(k, sched.id, d)
		s.lane.counter, o.lane.counter = f.Counter, f.Counter
		sealed, counter, err := s.Seal(nil, []byte(f.Plaintext))
		if err != nil || counter != f.Counter {
			t.Fatalf("%s %d: counter %d, %v", f.Direction, f.Counter, counter, err)
		}
		for name, pair := range map[string][2]string{
			"nonce":      {hex.EncodeToString(s.lane.nonce[:]), f.Nonce},
			"aad":        {hex.EncodeToString(s.lane.aad), f.AAD},
			"ciphertext": {hex.EncodeToString(sealed), f.Ciphertext},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s %d: %s = %s, want %s", f.Direction, f.Counter, name, pair[0], pair[1])
			}
		}
		if opened, err := o.Open(nil, f.Counter, sealed); err != nil || string(opened) != f.Plaintext {
			t.Errorf("%s %d: opens as %q, %v", f.Direction, f.Counter, opened, err)
		}
	}
}
