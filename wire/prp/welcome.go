package prp

import (
	"bowline/wire/canonjson"
)

// Welcome is welcome.payload, the first encrypted frame (prp.md 4.9).
type Welcome struct {
	SelectedVersion       int
	LeaseID               string
	LeaseToken            string // only for a ticket; a bearer secret
	LeaseExpiresAtUnixMs  int64
	LeaseRevocationEpoch  int64
	Identity              Identity // of the envelope; the lease is bound to it
	MaxFrameBytes         int
	AckedSourceSeq        int64
	PendingCommand        *Command // delivered by the welcome itself
	WarmTransitionVersion bool
	WarmTransition        canonjson.Value // receipt, Undefined when none
	WarmTransitionPhase   string
	LeaseRenewalVersion   int // runner side: what the authority advertised, 0 for none
	ExpiresAtText         string
}

// EncodeWelcome builds the payload of a welcome; heartbeat, batch size and
// renewal version are the profile's.
func EncodeWelcome(w Welcome) []byte {
	expires := w.ExpiresAtText
	if expires == "" {
		expires = FormatUnixMs(w.LeaseExpiresAtUnixMs)
	}
	pending := canonjson.ArrayValue()
	if w.PendingCommand != nil {
		pending = canonjson.ArrayValue(w.PendingCommand.Value())
	}
	p := canonjson.ObjectValue(
		member("selectedVersion", canonjson.IntValue(int64(w.SelectedVersion))),
		member("heartbeatIntervalMs", canonjson.IntValue(HeartbeatInterval.Milliseconds())),
		member("connectionLeaseRenewalVersion", canonjson.IntValue(LeaseRenewalVersion)),
		member("connectionLeaseId", canonjson.StringValue(w.LeaseID)),
		member("connectionLeaseToken", optionalText(w.LeaseToken)),
		member("connectionLeaseExpiresAt", canonjson.StringValue(expires)),
		member("connectionLeaseExpiresAtUnixMs", canonjson.IntValue(w.LeaseExpiresAtUnixMs)),
		member("connectionLeaseRevocationEpoch", canonjson.IntValue(w.LeaseRevocationEpoch)),
		member("leaseBinding", canonjson.ObjectValue(
			member("runnerInstanceId", canonjson.StringValue(w.Identity.RunnerInstanceID)),
			member("environmentLeaseId", canonjson.StringValue(w.Identity.EnvironmentLeaseID)),
			member("runId", canonjson.StringValue(w.Identity.RunID)),
			member("normalizedSessionId", canonjson.StringValue(w.Identity.NormalizedSessionID)),
			member("protocolVersion", canonjson.IntValue(int64(w.SelectedVersion))),
		)),
		member("maxFrameBytes", canonjson.IntValue(int64(w.MaxFrameBytes))),
		member("maxBatchEvents", canonjson.IntValue(MaxBatchEvents)),
		member("ackedSourceSeq", canonjson.IntValue(w.AckedSourceSeq)),
		member("pendingCommands", pending),
	)
	if w.WarmTransitionVersion {
		p.Set("warmTransitionVersion", canonjson.IntValue(WarmTransitionVersion))
	}
	p.Set("warmTransition", w.WarmTransition)
	p.Set("warmTransitionPhase", optionalText(w.WarmTransitionPhase))
	return p.JSON()
}

// WelcomeExpectation is what a runner holds a welcome against.
type WelcomeExpectation struct {
	Version   int
	Identity  Identity
	Kind      string     // of the credential used
	Lease     *HeldLease // nil for a ticket
	NowUnixMs int64
}

// WelcomeOf reads a welcome on the runner and checks it (4.9). The envelope's
// connection id and lease id become the binding of the connection.
func WelcomeOf(c Control, want WelcomeExpectation) (Welcome, Binding, error) {
	fail := func(format string, args ...any) (Welcome, Binding, error) {
		return Welcome{}, Binding{}, violation("welcome: "+format, args...)
	}
	p := c.Payload
	w := Welcome{
		Identity:              c.Identity,
		LeaseID:               p.Get("connectionLeaseId").Str(),
		ExpiresAtText:         p.Get("connectionLeaseExpiresAt").Str(),
		WarmTransition:        p.Get("warmTransition"),
		WarmTransitionPhase:   p.Get("warmTransitionPhase").Str(),
		WarmTransitionVersion: isInt(p.Get("warmTransitionVersion"), WarmTransitionVersion),
	}
	version, ok := p.Get("selectedVersion").SafeInt()
	if !ok || version != int64(want.Version) || c.Version != want.Version {
		return fail("version is not the negotiated one")
	}
	w.SelectedVersion = want.Version
	switch {
	case c.Kind != KindWelcome:
		return fail("kind is not %q", KindWelcome)
	case c.Identity != want.Identity:
		return fail("identity is not ours")
	case w.LeaseID == "" || w.LeaseID != c.ConnectionLeaseID:
		return fail("connectionLeaseId differs between envelope and payload")
	}
	if err := readInts(p, KindWelcome, []intMember{
		{"connectionLeaseExpiresAtUnixMs", &w.LeaseExpiresAtUnixMs},
		{"connectionLeaseRevocationEpoch", &w.LeaseRevocationEpoch},
		{"ackedSourceSeq", &w.AckedSourceSeq},
	}); err != nil {
		return Welcome{}, Binding{}, err
	}
	if w.LeaseExpiresAtUnixMs <= want.NowUnixMs {
		return fail("lease has expired")
	}
	if err := w.checkCredential(p.Get("connectionLeaseToken"), want); err != nil {
		return Welcome{}, Binding{}, err
	}
	maxFrame, ok := p.Get("maxFrameBytes").SafeInt()
	if !ok || maxFrame < MaxFrameBytesSmallest {
		return fail("maxFrameBytes is not at least %d", MaxFrameBytesSmallest)
	}
	w.MaxFrameBytes = int(min(maxFrame, MaxFrameBytesLargest))
	if n, ok := p.Get("connectionLeaseRenewalVersion").SafeInt(); ok && n == LeaseRenewalVersion {
		w.LeaseRenewalVersion = LeaseRenewalVersion
	}
	pending := p.Get("pendingCommands")
	if !pending.IsArray() || pending.Len() > 1 {
		return fail("pendingCommands is not an array of at most one command")
	}
	if pending.Len() == 1 {
		cmd, err := CommandOf(pending.At(0))
		if err != nil {
			return Welcome{}, Binding{}, err
		}
		w.PendingCommand = &cmd
	}
	return w, Binding{
		Version: want.Version, Identity: c.Identity,
		ConnectionID: c.ConnectionID, ConnectionLeaseID: c.ConnectionLeaseID,
	}, nil
}

func (w *Welcome) checkCredential(token canonjson.Value, want WelcomeExpectation) error {
	if want.Lease == nil {
		w.LeaseToken = token.Str()
		if w.LeaseToken == "" {
			return violation("welcome: connectionLeaseToken is missing")
		}
		return nil
	}
	switch {
	case token.Exists() && !token.IsNull():
		return violation("welcome: connectionLeaseToken is set for a lease")
	case w.LeaseID != want.Lease.ID:
		return violation("welcome: connectionLeaseId is not ours")
	case w.LeaseRevocationEpoch != want.Lease.RevocationEpoch:
		return violation("welcome: revocation epoch is not our lease's")
	}
	return nil
}

type intMember struct {
	name string
	into *int64
}

// readInts reads safe integers that are not negative.
func readInts(v canonjson.Value, what string, members []intMember) error {
	for _, m := range members {
		n, ok := v.Get(m.name).SafeInt()
		if !ok || n < 0 {
			return violation("%s: %s is not a safe integer of at least 0", what, m.name)
		}
		*m.into = n
	}
	return nil
}

func isInt(v canonjson.Value, want int64) bool {
	n, ok := v.SafeInt()
	return ok && n == want
}
