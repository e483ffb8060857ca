package carrier

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // RFC 6455 section 4.2.2 fixes it; it proves nothing and guards nothing
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// AcceptOptions configure [Accept].
type AcceptOptions struct {
	// Path is the only path that is served; "" when the caller's router has
	// chosen by path already.
	Path string
	// MaxFrame is the longest message taken, in bytes. It must be positive.
	MaxFrame int
}

// ErrNotUpgraded is what [Accept] returns (wrapped) after it has answered 400
// or 404: the caller has nothing left to do.
var ErrNotUpgraded = errors.New("carrier: request was answered without an upgrade")

// handshakeGUID is fixed by RFC 6455 section 1.3.
const handshakeGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

// answerTimeout bounds the few bytes of an answer to a request.
const answerTimeout = 5 * time.Second

// The raw refusals (prp.md 1.2).
const (
	rawNotFound   = "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"
	rawBadRequest = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
)

// Accept upgrades a request. It makes exactly the checks of the existing
// authority (prp.md 1.2): no Origin, no Host, no cookie, no query; offers of
// extensions and subprotocols are ignored. A refused request has been answered
// and its socket destroyed when Accept returns.
func Accept(w http.ResponseWriter, r *http.Request, opts AcceptOptions) (Conn, error) {
	if opts.MaxFrame <= 0 {
		panic("bug: carrier: MaxFrame is not positive")
	}
	// A request without both headers is no upgrade at all: it gets what any
	// plain request gets.
	if opts.Path != "" && r.URL.EscapedPath() != opts.Path || !wantsUpgrade(r) {
		return nil, refuse(w, http.StatusNotFound, "no such path, or not an upgrade")
	}
	key, ok := checkUpgrade(r)
	if !ok {
		return nil, refuse(w, http.StatusBadRequest, "not a WebSocket upgrade")
	}
	conn, buffered, err := hijack(w, http.StatusBadRequest)
	if err != nil {
		return nil, err
	}
	answer := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		acceptKey(key) + "\r\n\r\n"
	if err := writeAnswer(conn, answer); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotUpgraded, errors.Join(err, conn.Close()))
	}
	return newServerConn(conn, buffered, opts.MaxFrame), nil
}

// RejectNotFound answers with a raw 404 and destroys the socket (prp.md 1.2,
// 1.3).
func RejectNotFound(w http.ResponseWriter) error {
	return refuse(w, http.StatusNotFound, "no such path")
}

// RejectBadRequest answers with a raw 400 and destroys the socket.
func RejectBadRequest(w http.ResponseWriter) error {
	return refuse(w, http.StatusBadRequest, "bad request")
}

func wantsUpgrade(r *http.Request) bool {
	if len(r.Header.Values("Upgrade")) == 0 {
		return false
	}
	for _, line := range r.Header.Values("Connection") {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}

func checkUpgrade(r *http.Request) (key string, ok bool) {
	if r.Method != http.MethodGet || !r.ProtoAtLeast(1, 1) {
		return "", false
	}
	upgrade, one := single(r.Header, "Upgrade")
	version, two := single(r.Header, "Sec-WebSocket-Version")
	key, three := single(r.Header, "Sec-WebSocket-Key")
	if !one || !two || !three || !strings.EqualFold(upgrade, "websocket") || version != "13" {
		return "", false
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(key)
	return key, err == nil && len(raw) == 16 && base64.StdEncoding.EncodeToString(raw) == key
}

// single is a header that appears once; several make a list, which is refused.
func single(h http.Header, name string) (string, bool) {
	values := h.Values(name)
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}

func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + handshakeGUID)) //nolint:gosec // see the import
	return base64.StdEncoding.EncodeToString(sum[:])
}

// hijack takes the socket and whatever net/http has read beyond the request.
// Where there is no socket to take it answers with status otherwise.
func hijack(w http.ResponseWriter, otherwise int) (net.Conn, *bufio.Reader, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		// HTTP/2, or a wrapped writer: there is no socket to answer on.
		http.Error(w, http.StatusText(otherwise), otherwise)
		return nil, nil, fmt.Errorf("%w: %w", ErrNotUpgraded, err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNotUpgraded, errors.Join(err, conn.Close()))
	}
	return conn, rw.Reader, nil
}

func refuse(w http.ResponseWriter, status int, why string) error {
	conn, _, err := hijack(w, status)
	if err != nil {
		return err
	}
	raw := rawBadRequest
	if status == http.StatusNotFound {
		raw = rawNotFound
	}
	return errors.Join(fmt.Errorf("%w: %s", ErrNotUpgraded, why), writeAnswer(conn, raw), conn.Close())
}

func writeAnswer(conn net.Conn, answer string) error {
	if err := conn.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(answer)); err != nil {
		return err
	}
	return conn.SetWriteDeadline(time.Time{})
}
