package carrier

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"syscall"

	"bowline/wire"
)

// maxCABundle bounds a CA bundle, in bytes (prp.md 1.4).
const maxCABundle = 4 << 20

// TLSWithCABundle gives a client configuration that trusts the platform's roots
// and the certificates of a PEM file. The file must be a private regular file
// (no symbolic link, no permission for group or others) of at most 4 MiB with
// at least one certificate (prp.md 1.4); otherwise the error is a *wire.Error
// of code config_invalid.
func TLSWithCABundle(path string) (*tls.Config, error) {
	pem, err := readPrivate(path)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeConfigInvalid, Message: "CA bundle cannot be used", Cause: err}
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // a platform without roots: the bundle alone
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, wire.Errorf(wire.CodeConfigInvalid, "CA bundle holds no usable certificate")
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

func readPrivate(path string) (content []byte, err error) {
	// O_NONBLOCK: a named pipe must not hang us before it is refused.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return nil, errors.New("group or others have access to it")
	}
	content, err = io.ReadAll(io.LimitReader(f, maxCABundle+1))
	if err == nil && len(content) > maxCABundle {
		return nil, wire.Errorf(wire.CodeConfigInvalid, "file exceeds the limit of %d bytes", maxCABundle)
	}
	return content, err
}
