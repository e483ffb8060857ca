package prp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// Domain strings (prp.md 2.3, 3.4, 3.6, 4.1, 4.2). They keep the hashes of one
// purpose from ever being valid for another; changing one breaks every peer.
const (
	domainAuthKey      = "paperclip-runner-auth-key-v1"
	domainCredentialID = "paperclip-runner-credential-id-v1"
	domainServerProof  = "paperclip-runner-server-proof-v1"
	domainClientProof  = "paperclip-runner-client-proof-v1"
	domainBinding      = "paperclip-runner-session-binding-v1"
	domainClientToCore = "paperclip-runner-client-to-core-key-v1"
	domainCoreToClient = "paperclip-runner-core-to-client-key-v1"
)

// digestPrefix names the hash in every textual digest of the profile.
const digestPrefix = "sha256:"

// writeFramed feeds F(domain, parts) to h. The zero byte ends the domain and
// the lengths separate the parts, so no two different inputs give equal bytes.
func writeFramed(h hash.Hash, domain string, parts ...[]byte) {
	h.Write([]byte(domain))
	h.Write([]byte{0})
	var length [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write(part)
	}
}

func hashFramed(domain string, parts ...[]byte) [sha256.Size]byte {
	h := sha256.New()
	writeFramed(h, domain, parts...)
	return [sha256.Size]byte(h.Sum(nil))
}

func macFramed(key *[KeySize]byte, domain string, parts ...[]byte) [sha256.Size]byte {
	h := hmac.New(sha256.New, key[:])
	writeFramed(h, domain, parts...)
	return [sha256.Size]byte(h.Sum(nil))
}

// hexProof is how a proof travels and how it is mixed into later steps.
func hexProof(sum [sha256.Size]byte) string { return hex.EncodeToString(sum[:]) }
