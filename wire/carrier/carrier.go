// Package carrier is the WebSocket under the PRP profile (prp.md section 1):
// one JSON text per text message, nothing else.
//
// # What it promises
//
// A [Conn] carries whole messages in order. Closing one destroys the socket;
// neither side of this package ever sends a WebSocket close frame, because the
// existing peers do not either and one of them treats it as an error. No
// extension and no subprotocol is ever negotiated.
//
// The two sides are different on purpose. [Accept] reads frames itself: the
// existing authority accepts frames that RFC 6455 forbids (FIN and RSV are not
// looked at), so a strict library would refuse peers it serves. [Pinned.Dial]
// uses github.com/coder/websocket and lets nothing through that the existing
// runner would refuse. docs/adr/0001-websocket-library.md has the reasons.
//
// # Byte layout
//
// Server to client, one frame per message (RFC 6455 section 5.2), unmasked:
//
//	0x81, length (7 bits | 126 + uint16 | 127 + uint64, big-endian), text
//
// # Concurrency
//
// One goroutine may read while others write and anyone closes. Writers take
// turns; two readers at once are a bug of the caller.
package carrier

import (
	"context"

	"bowline/wire"
)

// Conn is one WebSocket connection.
type Conn interface {
	// ReadMessage gives the next text message; the slice is valid until the
	// next call. Every error is final and is a *wire.Error: unavailable when
	// the peer or the network ended the connection, protocol_violation when the
	// peer sent what the profile does not allow. A context that ends during
	// the call destroys the connection, because half a frame may be read.
	ReadMessage(ctx context.Context) ([]byte, error)
	// WriteMessage sends one text message and returns when the kernel has it.
	// If it fails after the first byte may have left, the connection is
	// destroyed: a frame behind half a frame would be garbage. A context that
	// has ended before anything was written only fails the call.
	WriteMessage(ctx context.Context, message []byte) error
	// Close destroys the socket. It is idempotent and unblocks both others.
	Close() error
	// RemoteAddr is the peer's address, for logs.
	RemoteAddr() string
}

func unavailable(what string, cause error) error {
	return &wire.Error{Code: wire.CodeUnavailable, Message: "transport unavailable: " + what, Cause: cause}
}

func violation(format string, args ...any) error {
	return wire.Errorf(wire.CodeProtocol, format, args...)
}
