package prp

import (
	"fmt"

	"bowline/wire/canonjson"
)

// The small payloads after the handshake (prp.md 5.2). Each has an encoder that
// gives the JSON text of the payload and a reader for the other side.

// EncodeAck builds ack.payload: everything up to and including seq is durable.
func EncodeAck(seq int64) []byte {
	return append(appendInt([]byte{'{'}, "ackedSourceSeq", seq), '}')
}

// AckOf reads ack.payload. Whether the cursor lies in range is the outbox's to
// say (5.7).
func AckOf(payload canonjson.Value) (seq int64, err error) {
	err = readInts(payload, KindAck, []intMember{{"ackedSourceSeq", &seq}})
	return seq, err
}

// AckEnvelopeID is the envelopeId of an ack (5.6).
func AckEnvelopeID(seq int64) string { return fmt.Sprintf("ack_%d", seq) }

// WelcomeEnvelopeID and ConnectionID number connections from 1 (4.9).
func WelcomeEnvelopeID(connection int64) string { return fmt.Sprintf("welcome_%d", connection) }

// ConnectionID is the connectionId of an authority's n-th connection.
func ConnectionID(connection int64) string { return fmt.Sprintf("connection_%d", connection) }

// CommandEnvelopeID counts the deliveries of one command from 1 (5.2).
func CommandEnvelopeID(commandID string, delivery int64) string {
	return fmt.Sprintf("command_%s_%d", commandID, delivery)
}

// LeaseRenew is lease_renew.payload (5.9).
type LeaseRenew struct {
	ExpiresAtUnixMs int64
	RevocationEpoch int64
}

// EncodeLeaseRenew builds lease_renew.payload.
func EncodeLeaseRenew(r LeaseRenew) []byte {
	dst := appendInt([]byte{'{'}, "connectionLeaseExpiresAtUnixMs", r.ExpiresAtUnixMs)
	dst = appendInt(append(dst, ','), "connectionLeaseRevocationEpoch", r.RevocationEpoch)
	return append(dst, '}')
}

// LeaseRenewOf reads lease_renew.payload: the expiry must be a positive integer.
func LeaseRenewOf(payload canonjson.Value) (LeaseRenew, error) {
	var r LeaseRenew
	if err := readInts(payload, KindLeaseRenew, []intMember{
		{"connectionLeaseExpiresAtUnixMs", &r.ExpiresAtUnixMs},
		{"connectionLeaseRevocationEpoch", &r.RevocationEpoch},
	}); err != nil {
		return LeaseRenew{}, err
	}
	if r.ExpiresAtUnixMs == 0 {
		return LeaseRenew{}, violation("lease_renew: connectionLeaseExpiresAtUnixMs is 0")
	}
	return r, nil
}

// LeaseRenewed is lease_renewed.payload (5.9).
type LeaseRenewed struct {
	PreviousExpiresAtUnixMs int64
	ExpiresAtUnixMs         int64
	RevocationEpoch         int64
}

// LeaseRenewedEnvelopeID is the envelopeId of lease_renewed.
func LeaseRenewedEnvelopeID(previousUnixMs int64) string {
	return fmt.Sprintf("lease_renewed_%d", previousUnixMs)
}

// EncodeLeaseRenewed builds lease_renewed.payload.
func EncodeLeaseRenewed(r LeaseRenewed) []byte {
	dst := appendInt([]byte{'{'}, "previousExpiresAtUnixMs", r.PreviousExpiresAtUnixMs)
	dst = appendInt(append(dst, ','), "connectionLeaseExpiresAtUnixMs", r.ExpiresAtUnixMs)
	dst = appendInt(append(dst, ','), "connectionLeaseRevocationEpoch", r.RevocationEpoch)
	return append(dst, '}')
}

// LeaseRenewedOf reads lease_renewed.payload on the runner and checks it
// against the held lease (5.9).
func LeaseRenewedOf(payload canonjson.Value, held HeldLease) (LeaseRenewed, error) {
	var r LeaseRenewed
	if err := readInts(payload, KindLeaseRenewed, []intMember{
		{"previousExpiresAtUnixMs", &r.PreviousExpiresAtUnixMs},
		{"connectionLeaseExpiresAtUnixMs", &r.ExpiresAtUnixMs},
		{"connectionLeaseRevocationEpoch", &r.RevocationEpoch},
	}); err != nil {
		return LeaseRenewed{}, err
	}
	switch {
	case r.RevocationEpoch != held.RevocationEpoch:
		return LeaseRenewed{}, violation("lease_renewed: revocation epoch is not our lease's")
	case r.ExpiresAtUnixMs < held.ExpiresAtUnixMs:
		return LeaseRenewed{}, violation("lease_renewed: expiry lies before the current one")
	case r.PreviousExpiresAtUnixMs > held.ExpiresAtUnixMs:
		return LeaseRenewed{}, violation("lease_renewed: previous expiry lies behind the current one")
	case r.ExpiresAtUnixMs > held.ExpiresAtUnixMs && !held.RenewalOutstanding:
		return LeaseRenewed{}, violation("lease_renewed: nothing was asked for")
	}
	return r, nil
}

// Pong is pong.payload; an authority ignores it.
type Pong struct {
	Lifecycle      string
	AckedSourceSeq int64
	OutboxBytes    int64
}

// EncodePong builds pong.payload.
func EncodePong(p Pong) []byte {
	dst := appendKey([]byte{'{'}, "lifecycle")
	dst = canonjson.AppendString(dst, p.Lifecycle)
	dst = appendInt(append(dst, ','), "ackedSourceSeq", p.AckedSourceSeq)
	dst = appendInt(append(dst, ','), "outboxBytes", p.OutboxBytes)
	return append(dst, '}')
}

// EncodeRevoke builds revoke.payload; the epoch must be greater than the lease's.
func EncodeRevoke(epoch int64) []byte {
	return append(appendInt([]byte{'{'}, "revocationEpoch", epoch), '}')
}

// RevokeOf reads revoke.payload on the runner.
func RevokeOf(payload canonjson.Value, held HeldLease) (epoch int64, err error) {
	if err = readInts(payload, KindRevoke, []intMember{{"revocationEpoch", &epoch}}); err != nil {
		return 0, err
	}
	if epoch <= held.RevocationEpoch {
		return 0, violation("revoke: revocationEpoch is not greater than the current one")
	}
	return epoch, nil
}
