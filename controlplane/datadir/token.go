package datadir

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io/fs"

	"bowline/wire"
)

// TokenPrefix marks a host token, so that scanners for leaked secrets can
// know it.
const TokenPrefix = "bowline_"

// tokenBytes of randomness in a token (ours).
const tokenBytes = 32

// NewToken makes the text of a host token.
func NewToken() string {
	raw := make([]byte, tokenBytes)
	// crypto/rand.Read does not fail: it ends the process if there is no
	// randomness (Go 1.24).
	if _, err := rand.Read(raw); err != nil {
		panic("bug: crypto/rand: " + err.Error())
	}
	return TokenPrefix + base64.RawURLEncoding.EncodeToString(raw)
}

// EnsureToken reads the admin token, or makes and writes one. made tells that
// it is new.
func (d *Dir) EnsureToken() (token string, made bool, err error) {
	token, err = ReadToken(d.AdminTokenFile())
	if err == nil {
		return token, false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", false, err
	}
	token = NewToken()
	if err := writeAtomic(d.AdminTokenFile(), []byte(token+"\n")); err != nil {
		return "", false, unusable(d.path, err)
	}
	return token, true, nil
}

// ReadToken reads a token file: one line. A file that cannot be read, is empty
// or holds more is wire.CodeUnauthorized; its content is never part of the
// error.
func ReadToken(path string) (string, error) {
	raw, err := readSmall(path)
	if err != nil {
		return "", &wire.Error{Code: wire.CodeUnauthorized, Message: "the token file " + path + " cannot be read", Cause: err}
	}
	token := bytes.TrimSpace(raw)
	if len(token) == 0 || bytes.ContainsAny(token, " \t\r\n") {
		return "", wire.Errorf(wire.CodeUnauthorized, "the token file %s does not hold one token on one line (size %d bytes)", path, len(raw))
	}
	return string(token), nil
}
