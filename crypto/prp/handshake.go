package prp

import (
	"crypto/subtle"
	"encoding/hex"
	"errors"
)

// ProofSize is the length of a proof as it travels: 64 lower-case hex digits.
const ProofSize = 64

// Errors of the handshake. Each names the step that failed and nothing else:
// the wire shows neither, the socket is closed (prp.md 3).
var (
	// ErrProofForm: a proof is not 64 lower-case hex digits.
	ErrProofForm = errors.New("prp handshake: proof is not 64 lower-case hex digits")
	// ErrServerProof: the authority does not hold the token, or signed another challenge.
	ErrServerProof = errors.New("prp handshake: server proof does not verify")
	// ErrClientProof: the runner does not hold the token, or signed another challenge.
	ErrClientProof = errors.New("prp handshake: client proof does not verify")
)

// Session is what a finished handshake yields. ID is public ("sha256:" and 64
// hex digits); it is part of the associated data of every frame.
type Session struct {
	ID   string
	Send *Sealer
	Recv *Opener
}

// ServerHandshake is the authority's side: [ServerHandshake.Proof] once, then
// [ServerHandshake.Finish] once. Any other order panics: a handshake that is
// used twice would give two sessions the same keys and nonces.
type ServerHandshake struct {
	key       AuthKey
	challenge []byte
	proof     string
	step      handshakeStep
}

// ClientHandshake is the runner's side: [ClientHandshake.Verify] once, then
// [ClientHandshake.Finish] once.
type ClientHandshake struct {
	key         AuthKey
	challenge   []byte
	serverProof string
	clientProof string
	step        handshakeStep
}

type handshakeStep uint8

const (
	stepNew handshakeStep = iota
	stepProved
	stepSpent
)

// NewServerHandshake starts the authority's side. canonicalChallenge is the
// canonical JSON of the challenge payload without its proof (prp.md 3.4); it is
// copied.
func NewServerHandshake(key AuthKey, canonicalChallenge []byte) *ServerHandshake {
	key.mustBeSet()
	return &ServerHandshake{key: key, challenge: append([]byte(nil), canonicalChallenge...)}
}

// Proof gives the server proof that goes out with the challenge.
func (h *ServerHandshake) Proof() string {
	if h.step != stepNew {
		panic("bug: prp: ServerHandshake.Proof called twice")
	}
	h.step = stepProved
	h.proof = proveServer(h.key, h.challenge)
	return h.proof
}

// Finish verifies the runner's proof in constant time and gives the session.
// It fails with [ErrProofForm] or [ErrClientProof]. The handshake is spent
// either way: a peer gets one guess per challenge.
func (h *ServerHandshake) Finish(clientProof string) (*Session, error) {
	if h.step != stepProved {
		panic("bug: prp: ServerHandshake.Finish before Proof, or twice")
	}
	h.step = stepSpent
	if !isProof(clientProof) {
		return nil, ErrProofForm
	}
	want := proveClient(h.key, h.challenge, h.proof)
	if subtle.ConstantTimeCompare([]byte(want), []byte(clientProof)) != 1 {
		return nil, ErrClientProof
	}
	s := newSchedule(h.key, h.challenge, h.proof, want)
	return &Session{
		ID:   s.id,
		Send: newSealer(s.coreToClient, s.id, coreToClient),
		Recv: newOpener(s.clientToCore, s.id, clientToCore),
	}, nil
}

// NewClientHandshake starts the runner's side. canonicalChallenge is the
// challenge as the runner built it again from the values it expects.
func NewClientHandshake(key AuthKey, canonicalChallenge []byte) *ClientHandshake {
	key.mustBeSet()
	return &ClientHandshake{key: key, challenge: append([]byte(nil), canonicalChallenge...)}
}

// Verify checks the authority's proof in constant time and gives the runner's
// own. It fails with [ErrProofForm] or [ErrServerProof], and then the handshake
// is spent: nothing was said that an impostor could use.
func (h *ClientHandshake) Verify(serverProof string) (clientProof string, err error) {
	if h.step != stepNew {
		panic("bug: prp: ClientHandshake.Verify called twice")
	}
	h.step = stepSpent
	if !isProof(serverProof) {
		return "", ErrProofForm
	}
	want := proveServer(h.key, h.challenge)
	if subtle.ConstantTimeCompare([]byte(want), []byte(serverProof)) != 1 {
		return "", ErrServerProof
	}
	h.step = stepProved
	h.serverProof = want
	h.clientProof = proveClient(h.key, h.challenge, want)
	return h.clientProof, nil
}

// Finish gives the session. Whether the authority accepted shows only when its
// welcome opens.
func (h *ClientHandshake) Finish() *Session {
	if h.step != stepProved {
		panic("bug: prp: ClientHandshake.Finish without a verified challenge, or twice")
	}
	h.step = stepSpent
	s := newSchedule(h.key, h.challenge, h.serverProof, h.clientProof)
	return &Session{
		ID:   s.id,
		Send: newSealer(s.clientToCore, s.id, clientToCore),
		Recv: newOpener(s.coreToClient, s.id, coreToClient),
	}
}

// proveServer binds the authority to everything in the challenge: the runner's
// nonce (so the proof is fresh), the runner's identity and build, the selected
// version and the credential's expiry. A man in the middle who changes any of
// them cannot make this value.
func proveServer(key AuthKey, challenge []byte) string {
	return hexProof(macFramed(&key.key, domainServerProof, challenge))
}

// proveClient binds the runner to the same challenge, which holds the
// authority's nonce, and to the authority's answer, so a proof made for one
// challenge is worthless for the next. The hex text of the server proof is the
// part that is mixed in, as both existing peers do it.
func proveClient(key AuthKey, challenge []byte, serverProof string) string {
	return hexProof(macFramed(&key.key, domainClientProof, challenge, []byte(serverProof)))
}

// schedule is what both sides derive once both proofs are known.
type schedule struct {
	id           string
	clientToCore [KeySize]byte
	coreToClient [KeySize]byte
}

func newSchedule(key AuthKey, challenge []byte, serverProof, clientProof string) schedule {
	// The binding is the transcript hash: it names this one handshake, public
	// because it goes into the associated data of every frame.
	binding := hashFramed(domainBinding, challenge, []byte(serverProof), []byte(clientProof))
	return schedule{
		id: digestPrefix + hex.EncodeToString(binding[:]),
		// One key per direction: a frame can never be reflected to its sender,
		// and both counters may start at 0. Each depends on the secret (who may
		// talk) and the binding (in which conversation).
		clientToCore: macFramed(&key.key, domainClientToCore, binding[:]),
		coreToClient: macFramed(&key.key, domainCoreToClient, binding[:]),
	}
}

func isProof(s string) bool {
	if len(s) != ProofSize {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
