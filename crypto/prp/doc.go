// Package prp is the cryptography of the "paperclip.runner" profile (prp.md
// sections 2 to 4): bytes in, bytes out. It opens no socket, reads no clock and
// no random source, and knows no JSON: the caller hands it the exact bytes both
// sides sign.
//
// # What it promises
//
// Both ends hold the same bearer token (a bootstrap ticket or a connection
// lease). The token itself never crosses the wire; a name derived from it does
// ([CredentialID]), and each side proves with an HMAC that it holds the key
// derived from it ([DeriveAuthKey]). The proofs cover the whole canonical
// challenge, so identity, build, version and both nonces are agreed or the
// handshake fails. The two traffic keys depend on both proofs.
//
// There is no forward secrecy: whoever learns the token and has recorded the
// connection can read it. That is the profile's property, not ours to change.
//
// # Byte layouts
//
//	F(domain, parts) = domain 0x00 { len(part) as uint64 big-endian, part }*
//	authKey          = SHA-256(F("paperclip-runner-auth-key-v1", [token]))
//	credentialId     = "sha256:" hex(SHA-256(F("paperclip-runner-credential-id-v1", [token])))
//	serverProof      = hex(HMAC(authKey, F("paperclip-runner-server-proof-v1", [challenge])))
//	clientProof      = hex(HMAC(authKey, F("paperclip-runner-client-proof-v1", [challenge, serverProof])))
//	binding          = SHA-256(F("paperclip-runner-session-binding-v1", [challenge, serverProof, clientProof]))
//	sessionId        = "sha256:" hex(binding)
//	clientKey        = HMAC(authKey, F("paperclip-runner-client-to-core-key-v1", [binding]))
//	serverKey        = HMAC(authKey, F("paperclip-runner-core-to-client-key-v1", [binding]))
//	nonce            = "P3C1" or "P3S1", counter as uint64 big-endian       (12 bytes)
//	aad              = "paperclip.runner.secure-frame.v1" 0x00 sessionId 0x00 direction 0x00 counter in decimal
//	frame            = AES-256-GCM(key, nonce, aad, plaintext), tag of 16 bytes at the end
//
// HMAC is HMAC-SHA-256, hex is lower case, and where a proof is a part its 64
// hex digits are the part, not the 32 bytes they stand for.
//
// # Concurrency
//
// No type here is safe for use by two goroutines at once. A [Sealer] and an
// [Opener] of one [Session] are independent of each other.
package prp
