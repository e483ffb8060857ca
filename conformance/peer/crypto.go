package peer

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
)

// SecureSchema is the schema of every secure frame (4.5).
const SecureSchema = "paperclip.runner.secure-frame.v1"

// framed is F(domain, parts) of 2.3.
func framed(domain string, parts ...[]byte) []byte {
	out := append([]byte(domain), 0)
	for _, p := range parts {
		out = binary.BigEndian.AppendUint64(out, uint64(len(p)))
		out = append(out, p...)
	}
	return out
}

func mac(key, message []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(message)
	return h.Sum(nil)
}

// AuthKey is the 32-byte key of a ticket or lease token (2.3).
func AuthKey(token string) []byte {
	sum := sha256.Sum256(framed("paperclip-runner-auth-key-v1", []byte(token)))
	return sum[:]
}

// CredentialID is the public name of a ticket or lease token (2.3).
func CredentialID(token string) string {
	sum := sha256.Sum256(framed("paperclip-runner-credential-id-v1", []byte(token)))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ServerProof signs a canonical challenge (3.4).
func ServerProof(authKey []byte, challenge string) string {
	return hex.EncodeToString(mac(authKey, framed("paperclip-runner-server-proof-v1", []byte(challenge))))
}

// ClientProof answers a canonical challenge (3.6).
func ClientProof(authKey []byte, challenge, serverProof string) string {
	return hex.EncodeToString(mac(authKey, framed("paperclip-runner-client-proof-v1", []byte(challenge), []byte(serverProof))))
}

// Direction is one of the two directions of a secure channel.
type Direction struct {
	name  string
	nonce string
	key   string
}

// ClientToCore and CoreToClient return the directions of 4.2 to 4.4.
func ClientToCore() Direction {
	return Direction{"client_to_core", "P3C1", "paperclip-runner-client-to-core-key-v1"}
}

// CoreToClient is the authority's direction.
func CoreToClient() Direction {
	return Direction{"core_to_client", "P3S1", "paperclip-runner-core-to-client-key-v1"}
}

// Session holds the binding and the keys of one secure channel (4.1, 4.2).
type Session struct {
	Binding []byte
	ID      string
	authKey []byte
}

// NewSession derives the binding of a finished handshake.
func NewSession(authKey []byte, challenge, serverProof, clientProof string) *Session {
	sum := sha256.Sum256(framed("paperclip-runner-session-binding-v1", []byte(challenge), []byte(serverProof), []byte(clientProof)))
	return &Session{Binding: sum[:], ID: "sha256:" + hex.EncodeToString(sum[:]), authKey: authKey}
}

// Key returns the AES-256 key of a direction.
func (s *Session) Key(d Direction) []byte { return mac(s.authKey, framed(d.key, s.Binding)) }

// Nonce returns the 12-byte nonce of a counter (4.3).
func (s *Session) Nonce(d Direction, counter uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte(d.nonce), counter)
}

// AAD returns the associated data of a counter (4.4).
func (s *Session) AAD(d Direction, counter uint64) []byte {
	return []byte(SecureSchema + "\x00" + s.ID + "\x00" + d.name + "\x00" + strconv.FormatUint(counter, 10))
}

func (s *Session) aead(d Direction) cipher.AEAD {
	block, err := aes.NewCipher(s.Key(d))
	if err != nil {
		panic("bug: 32-byte key refused: " + err.Error())
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic("bug: AES-GCM refused: " + err.Error())
	}
	return gcm
}

// Seal returns the hex ciphertext of a plaintext.
func (s *Session) Seal(d Direction, counter uint64, plaintext []byte) string {
	return hex.EncodeToString(s.aead(d).Seal(nil, s.Nonce(d, counter), plaintext, s.AAD(d, counter)))
}

// SealFrame returns the JSON text of a secure frame.
func (s *Session) SealFrame(d Direction, counter uint64, plaintext []byte) []byte {
	return Write(M{"schema": SecureSchema, "counter": counter, "ciphertext": s.Seal(d, counter, plaintext)})
}

// OpenFrame checks and decrypts a secure frame that must carry exactly this
// counter, three members and lower-case hex (4.5, 4.6).
func (s *Session) OpenFrame(d Direction, counter uint64, text []byte) ([]byte, error) {
	frame, err := ParseObject(text)
	if err != nil {
		return nil, err
	}
	if err := Members(frame, "schema", "counter", "ciphertext"); err != nil {
		return nil, fmt.Errorf("secure frame: %w", err)
	}
	if frame["schema"] != SecureSchema {
		return nil, fmt.Errorf("secure frame: schema %v", frame["schema"])
	}
	n, ok := frame["counter"].(Num)
	if !ok || string(n) != strconv.FormatUint(counter, 10) {
		return nil, fmt.Errorf("secure frame: counter %v, expected %d", frame["counter"], counter)
	}
	text16, ok := frame["ciphertext"].(string)
	if !ok || len(text16) < 32 || len(text16)%2 != 0 {
		return nil, errors.New("secure frame: ciphertext is not hex of at least a tag")
	}
	for _, c := range text16 {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return nil, errors.New("secure frame: ciphertext is not lower-case hex")
		}
	}
	data, err := hex.DecodeString(text16)
	if err != nil {
		return nil, err
	}
	return s.aead(d).Open(nil, s.Nonce(d, counter), data, s.AAD(d, counter))
}

// RandomHex returns n random bytes as lower-case hex.
func RandomHex(n int) string {
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		panic("bug: crypto/rand failed: " + err.Error())
	}
	return hex.EncodeToString(b)
}

// NewUUID returns a random UUID v4 in lower case.
func NewUUID() string {
	h := []byte(RandomHex(16))
	h[12] = '4'
	h[16] = "89ab"[h[16]&3]
	return fmt.Sprintf("%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}
