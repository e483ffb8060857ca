package prp

// Reasons of an [IntegrityFault] (prp.md 10.1); there is no other.
const (
	ReasonSemanticInputDigestMismatch = "semantic_input_digest_mismatch"
	ReasonSourceEventReplayConflict   = "source_event_replay_conflict"
)

// Constants of every [IntegrityFault].
const (
	FaultCode     = "native_event_replay_conflict"
	FaultRecovery = "operator_required"
)

// IntegrityFault is a latched protocol-integrity fault. It is recognised by its
// type and handed on as the same pointer to everyone who waits: an ordinary
// error with the same text is not one. Only an authority makes it; it must not
// be wrapped when handed to a caller that compares it. It holds no payload
// text.
type IntegrityFault struct {
	Reason string
}

// NewIntegrityFault makes a fault; each is different from every other.
func NewIntegrityFault(reason string) *IntegrityFault {
	if reason != ReasonSemanticInputDigestMismatch && reason != ReasonSourceEventReplayConflict {
		panic("bug: prp: unknown fault reason")
	}
	return &IntegrityFault{Reason: reason}
}

// Code is always [FaultCode].
func (*IntegrityFault) Code() string { return FaultCode }

// Recovery is always [FaultRecovery].
func (*IntegrityFault) Recovery() string { return FaultRecovery }

// Error names code and reason only.
func (f *IntegrityFault) Error() string {
	return "protocol integrity fault " + FaultCode + " (" + f.Reason + "), " + FaultRecovery
}
