package prp

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
)

// KeySize is the size of an authentication key and of a traffic key in bytes.
const KeySize = sha256.Size

// redactedKey is what every way of printing an [AuthKey] gives.
const redactedKey = "[auth key redacted]"

// AuthKey is the secret both proofs and both traffic keys are made from. It is
// as good as the token it came from: who has it can impersonate either side.
// It prints as a fixed text in every fmt verb and in slog, and encodes to JSON
// as an empty object. The zero value is no key; using it panics.
type AuthKey struct {
	key [KeySize]byte
	set bool
}

// DeriveAuthKey gives the key of a ticket or a lease token (prp.md 2.3).
func DeriveAuthKey(token string) AuthKey {
	return AuthKey{key: hashFramed(domainAuthKey, []byte(token)), set: true}
}

// LoadAuthKey takes back the bytes [AuthKey.Reveal] gave: an authority stores
// keys (sealed), never tokens. It fails unless b is exactly [KeySize] bytes.
func LoadAuthKey(b []byte) (AuthKey, error) {
	if len(b) != KeySize {
		return AuthKey{}, fmt.Errorf("auth key is %d bytes, must be %d", len(b), KeySize)
	}
	return AuthKey{key: [KeySize]byte(b), set: true}, nil
}

// Reveal gives the raw key, for sealing it into a store and nothing else.
func (k AuthKey) Reveal() [KeySize]byte {
	k.mustBeSet()
	return k.key
}

// Equal compares in constant time. Two zero keys are not equal.
func (k AuthKey) Equal(other AuthKey) bool {
	same := subtle.ConstantTimeCompare(k.key[:], other.key[:]) == 1
	return same && k.set && other.set
}

// IsZero tells whether k is no key at all.
func (k AuthKey) IsZero() bool { return !k.set }

func (k AuthKey) mustBeSet() {
	if !k.set {
		panic("bug: prp: use of a zero AuthKey")
	}
}

// String gives a fixed text.
func (AuthKey) String() string { return redactedKey }

// GoString gives a fixed text.
func (AuthKey) GoString() string { return redactedKey }

// LogValue gives a fixed text.
func (AuthKey) LogValue() slog.Value { return slog.StringValue(redactedKey) }

// Format gives a fixed text whatever the verb: %x and %d would otherwise reach
// the bytes.
func (AuthKey) Format(f fmt.State, _ rune) {
	// fmt.State writes to memory; its error has nowhere to go.
	if _, err := io.WriteString(f, redactedKey); err != nil {
		return
	}
}

// CredentialID is the public name of a token, "sha256:" and 64 hex digits
// (prp.md 2.3). It tells nothing about the token or its [AuthKey].
func CredentialID(token string) string {
	sum := hashFramed(domainCredentialID, []byte(token))
	return digestPrefix + hex.EncodeToString(sum[:])
}
