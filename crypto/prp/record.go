package prp

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// Overhead is how much longer a ciphertext is than its plaintext, in bytes.
const Overhead = 16

// MaxCounter is the last usable frame counter: the counter travels as a JSON
// number and must be one JavaScript holds exactly (prp.md 4.6).
const MaxCounter = 1<<53 - 1

const nonceSize = 12

// aadSchema opens the associated data (prp.md 4.4); it is also the schema name
// of the JSON frame, so a frame of another format cannot be passed off as one.
const aadSchema = "paperclip.runner.secure-frame.v1"

// Errors of the record layer.
var (
	// ErrCounter: the frame's counter is not the expected one.
	ErrCounter = errors.New("prp frame: counter is not the expected one")
	// ErrOpen: the frame does not authenticate.
	ErrOpen = errors.New("prp frame: does not authenticate")
	// ErrExhausted: [MaxCounter] frames went in this direction; a new handshake is due.
	ErrExhausted = errors.New("prp frame: counter is exhausted, a new handshake is due")
)

// direction is who speaks in a lane. Its two texts keep the lanes apart in the
// nonce and in the associated data (prp.md 4.3, 4.4).
type direction uint8

const (
	clientToCore direction = iota
	coreToClient
)

func (d direction) name() string {
	if d == clientToCore {
		return "client_to_core"
	}
	return "core_to_client"
}

func (d direction) noncePrefix() string {
	if d == clientToCore {
		return "P3C1"
	}
	return "P3S1"
}

// lane is one direction of one session: key, counter and the two buffers that
// depend on the counter, kept so that a frame costs no allocation.
type lane struct {
	aead    cipher.AEAD
	counter uint64
	nonce   [nonceSize]byte
	aad     []byte
	fixed   int // length of the part of aad that does not change
	self    *lane
}

func (l *lane) init(key [KeySize]byte, sessionID string, d direction) {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic("bug: prp: " + err.Error())
	}
	if l.aead, err = cipher.NewGCM(block); err != nil {
		panic("bug: prp: " + err.Error())
	}
	copy(l.nonce[:], d.noncePrefix())
	l.aad = fmt.Appendf(make([]byte, 0, 192), "%s\x00%s\x00%s\x00", aadSchema, sessionID, d.name())
	l.fixed = len(l.aad)
	l.self = l
}

// prepare sets nonce and associated data for the current counter.
func (l *lane) prepare() error {
	if l.self != l {
		// A copy would count on its own and use nonces twice.
		panic("bug: prp: a Sealer or Opener was copied, or not made by a handshake")
	}
	if l.counter > MaxCounter {
		return ErrExhausted
	}
	binary.BigEndian.PutUint64(l.nonce[4:], l.counter)
	l.aad = strconv.AppendUint(l.aad[:l.fixed], l.counter, 10)
	return nil
}

// Sealer encrypts one direction of one session. It must not be copied.
type Sealer struct{ lane lane }

func newSealer(key [KeySize]byte, sessionID string, d direction) *Sealer {
	s := new(Sealer)
	s.lane.init(key, sessionID, d)
	return s
}

// Counter is the counter of the next frame, from 0.
func (s *Sealer) Counter() uint64 { return s.lane.counter }

// Seal appends the ciphertext of plaintext to dst and gives the counter it was
// sealed under. Every call uses the next counter, so a nonce is never used
// twice. It fails only with [ErrExhausted]. dst may be plaintext[:0] but must
// not overlap it otherwise; with room for [Overhead] more bytes nothing is
// allocated.
func (s *Sealer) Seal(dst, plaintext []byte) (out []byte, counter uint64, err error) {
	if err := s.lane.prepare(); err != nil {
		return dst, 0, err
	}
	counter = s.lane.counter
	// Counted before sealing: a panic in between must not leave the nonce open.
	s.lane.counter++
	return s.lane.aead.Seal(dst, s.lane.nonce[:], plaintext, s.lane.aad), counter, nil
}

// Opener decrypts one direction of one session. It must not be copied.
type Opener struct{ lane lane }

func newOpener(key [KeySize]byte, sessionID string, d direction) *Opener {
	o := new(Opener)
	o.lane.init(key, sessionID, d)
	return o
}

// Counter is the only counter the next frame may carry, from 0.
func (o *Opener) Counter() uint64 { return o.lane.counter }

// Open appends the plaintext of the frame to dst, which may be ciphertext[:0]
// but must not overlap it otherwise. counter is what the frame
// says and must be the expected one: no gap, no repetition. It fails with
// [ErrCounter], [ErrOpen] or [ErrExhausted]; the expected counter then stays
// (prp.md 4.6), though every caller closes the connection.
func (o *Opener) Open(dst []byte, counter uint64, ciphertext []byte) ([]byte, error) {
	if err := o.lane.prepare(); err != nil {
		return dst, err
	}
	if counter != o.lane.counter {
		return dst, ErrCounter
	}
	out, err := o.lane.aead.Open(dst, o.lane.nonce[:], ciphertext, o.lane.aad)
	if err != nil {
		return dst, ErrOpen
	}
	o.lane.counter++
	return out, nil
}
