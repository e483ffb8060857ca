package prp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"bowline/wire"
	"bowline/wire/canonjson"
)

func envelope(t testing.TB, text []byte) Envelope {
	t.Helper()
	e, err := ParseEnvelope(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return e
}

func testHello() Hello {
	return Hello{
		CredentialID: "sha256:" + digest64, CredentialKind: CredentialBootstrap, ClientNonce: "any text ü <>", ProtocolMin: 1, ProtocolMax: 2,
		Identity: testIdentity(), RunnerVersion: "0.3.0", RunnerDigest: "sha256:" + digest64,
	}
}

func TestEnvelopeRules(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`{"protocol":"paperclip.runner","version":1,"kind":"x","payload":{}}`: true,
		`{"protocol":"paperclip.runner","version":2,"kind":""}`:               true,
		`{"protocol":"paperclip.runner","version":1.0,"kind":"x"}`:            true,
		`{"protocol":"paperclip.runner","version":3,"kind":"x"}`:              false,
		`{"protocol":"paperclip.runner","version":0,"kind":"x"}`:              false,
		`{"protocol":"paperclip.runner","version":1.5,"kind":"x"}`:            false,
		`{"protocol":"paperclip.runner","version":"1","kind":"x"}`:            false,
		`{"protocol":"paperclip.runner","kind":"x"}`:                          false,
		`{"protocol":"paperclip.Runner","version":1,"kind":"x"}`:              false,
		`{"version":1,"kind":"x"}`:                                            false,
		`{"protocol":"paperclip.runner","version":1}`:                         false,
		`{"protocol":"paperclip.runner","version":1,"kind":1}`:                false,
		`[]`: false, `null`: false, `{`: false, ``: false,
		`{"protocol":"x","version":1,"kind":"x","protocol":"paperclip.runner","version":2}`: true,
	} {
		_, err := ParseEnvelope([]byte(text))
		if ok != (err == nil) {
			t.Errorf("%s: %v", text, err)
		}
		if err != nil && wire.CodeOf(err) != wire.CodeProtocol {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestIdentityRules(t *testing.T) {
	t.Parallel()
	if err := testIdentity().ValidateRunner(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id                string
		authority, runner [6]bool // runnerInstance, lease, run, session, turn, item
	}{
		{"", [6]bool{}, [6]bool{}},
		{"a", all6(true), all6(true)},
		{"A9._:-", all6(true), all6(true)},
		{"-a", [6]bool{}, [6]bool{}},
		{".a", [6]bool{}, [6]bool{}},
		{"a b", [6]bool{}, [6]bool{}},
		{"ä", [6]bool{}, [6]bool{}},
		{"a\n", [6]bool{}, [6]bool{}},
		{"a/b", [6]bool{}, [6]bool{}},
		{strings.Repeat("a", 137), all6(true), all6(true)},
		{strings.Repeat("a", 138), all6(true), [6]bool{false, true, true, true, true, true}},
		{strings.Repeat("a", 160), all6(true), [6]bool{false, true, true, true, true, true}},
		{strings.Repeat("a", 161), all6(true), [6]bool{false, true, false, false, true, true}},
		{strings.Repeat("a", 240), all6(true), [6]bool{false, true, false, false, true, true}},
		{strings.Repeat("a", 241), [6]bool{}, [6]bool{}},
	} {
		for i := range 6 {
			id := testIdentity()
			*id.members()[i].value = c.id
			if err := id.Validate(); c.authority[i] != (err == nil) {
				t.Errorf("authority, member %d of %d bytes %.10q: %v", i, len(c.id), c.id, err)
			}
			if err := id.ValidateRunner(); c.runner[i] != (err == nil) {
				t.Errorf("runner, member %d of %d bytes %.10q: %v", i, len(c.id), c.id, err)
			}
		}
	}
	// The bound on a runner's own id is the one at which its event ids fit.
	if n := len(RunnerEventID(strings.Repeat("a", maxRunnerInstanceIDLen), canonjson.MaxSafeInteger)); n != MaxShortIDLen {
		t.Errorf("the longest event id has %d characters, want %d", n, MaxShortIDLen)
	}
}

func all6(b bool) [6]bool { return [6]bool{b, b, b, b, b, b} }

func TestHelloRules(t *testing.T) {
	t.Parallel()
	good := parseText(t, string(EncodeHello(testHello())))
	if h, err := HelloOf(envelope(t, good.JSON())); err != nil || string(EncodeHello(h)) != string(good.JSON()) {
		t.Fatalf("%+v, %v", h, err)
	}
	for _, c := range []struct {
		path, with string
		ok         bool
	}{
		{"kind", `"auth_response"`, false},
		{"payload", "", false},
		{"payload", `[]`, false},
		{"payload.credentialId", "", false},
		{"payload.credentialId", `1`, false},
		{"payload.credentialKind", "", true},
		{"payload.credentialKind", `7`, true},
		{"payload.clientNonce", "", false},
		{"payload.clientNonce", `""`, true},
		{"payload.clientNonce", `null`, false},
		{"payload.protocolMin", "", false},
		{"payload.protocolMin", `"1"`, false},
		{"payload.protocolMin", `1.5`, false},
		{"payload.protocolMin", `-5`, true},
		{"payload.protocolMin", `3`, false},
		{"payload.protocolMax", `0`, false},
		{"payload.protocolMax", `9`, true},
		{"payload.protocolMax", `1e300`, false},
		{"payload.protocolMax", `null`, false},
		{"payload.runId", "", false},
		{"payload.turnId", `{}`, false},
		{"payload.runnerVersion", "", false},
		{"payload.runnerDigest", `1`, false},
		{"payload.warmTransitionVersion", `"1"`, true},
		{"payload.warmTransitionId", `null`, true},
		{"payload.resume", `1`, true},
		{"payload.unknown", `1`, true},
	} {
		_, err := HelloOf(envelope(t, edit(t, good, c.path, c.with).JSON()))
		if c.ok != (err == nil) {
			t.Errorf("%s = %s: %v", c.path, c.with, err)
		}
	}
	h, err := HelloOf(envelope(t, edit(t, edit(t, good, "payload.warmTransitionId", `null`), "payload.warmTransitionVersion", `2`).JSON()))
	if err != nil || !h.WarmTransitionID.IsNull() || h.WarmTransitionVersion {
		t.Errorf("warm members: %+v, %v", h, err)
	}
}

func TestSelectVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ low, high, lease, want int }{
		{1, 2, 0, 2}, {1, 1, 0, 1}, {2, 2, 0, 2}, {1, 3, 0, 2}, {0, 1, 0, 1}, {1, 2, 1, 1}, {1, 2, 2, 2}, {2, 2, 1, 0}, {1, 1, 2, 0}, {1, 3, 2, 2},
	} {
		got, err := Hello{ProtocolMin: c.low, ProtocolMax: c.high}.SelectVersion(c.lease)
		if got != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%d to %d with lease %d: %d, %v", c.low, c.high, c.lease, got, err)
		}
	}
}

const testNow = 1_767_323_045_006

func testChallenge(lease *HeldLease) Challenge {
	kind := CredentialBootstrap
	if lease != nil {
		kind = CredentialLease
	}
	c := NewChallenge(testHello(), kind, "server-nonce", 2)
	c.CredentialExpiresAtUnixMs = testNow + 1
	if lease != nil {
		c.CredentialLeaseID, c.CredentialExpiresAtUnixMs, c.RevocationEpoch = lease.ID, lease.ExpiresAtUnixMs, lease.RevocationEpoch
	}
	return c
}

func TestChallengeRules(t *testing.T) {
	t.Parallel()
	lease := &HeldLease{ID: "connection_lease_1", ExpiresAtUnixMs: testNow + 1000, RevocationEpoch: 3}
	renewing := *lease
	renewing.RenewalOutstanding = true
	other := func(s string) string { return `"` + s + `"` }
	for _, c := range []struct {
		path, with string
		lease      *HeldLease
		ok         bool
	}{
		{"version", `2`, nil, true},
		{"version", `1`, nil, false},
		{"kind", `"welcome"`, nil, false},
		{"payload", "", nil, false},
		{"payload.credentialId", other("x"), nil, false},
		{"payload.credentialKind", other("lease"), nil, false},
		{"payload.credentialKind", "", nil, false},
		{"payload.clientNonce", other("x"), nil, false},
		{"payload.serverNonce", other(""), nil, false},
		{"payload.serverNonce", `1`, nil, false},
		{"payload.runnerInstanceId", other("x"), nil, false},
		{"payload.environmentLeaseId", other("x"), nil, false},
		{"payload.runId", other("x"), nil, false},
		{"payload.normalizedSessionId", other("x"), nil, false},
		{"payload.turnId", other("x"), nil, false},
		{"payload.itemId", other("x"), nil, false},
		{"payload.runnerVersion", other("x"), nil, false},
		{"payload.runnerDigest", other("x"), nil, false},
		{"payload.selectedVersion", `1`, nil, false},
		{"payload.selectedVersion", `3`, nil, false},
		{"payload.selectedVersion", `"2"`, nil, false},
		{"payload.credentialLeaseId", "", nil, true},
		{"payload.credentialLeaseId", other("x"), nil, false},
		{"payload.credentialLeaseId", other(""), nil, false},
		{"payload.credentialExpiresAt", "", nil, false},
		{"payload.credentialExpiresAtUnixMs", fmt.Sprint(testNow), nil, false},
		{"payload.credentialExpiresAtUnixMs", `1.5`, nil, false},
		{"payload.revocationEpoch", `-1`, nil, false},
		{"payload.revocationEpoch", "", nil, false},
		{"payload.serverProof", "", nil, false},
		{"payload.warmTransitionVersion", `1`, nil, false},
		{"payload.warmTransitionId", other("x"), nil, false},
		{"payload.warmTransitionId", `null`, nil, false},
		{"payload.unknown", `1`, nil, true},
		{"version", `2`, lease, true},
		{"payload.credentialKind", other("bootstrap"), lease, false},
		{"payload.credentialLeaseId", `null`, lease, false},
		{"payload.credentialLeaseId", other("connection_lease_2"), lease, false},
		{"payload.revocationEpoch", `4`, lease, false},
		{"payload.credentialExpiresAtUnixMs", fmt.Sprint(testNow + 999), lease, false},
		{"payload.credentialExpiresAtUnixMs", fmt.Sprint(testNow + 1001), lease, false},
		{"payload.credentialExpiresAtUnixMs", fmt.Sprint(testNow + 1001), &renewing, true},
		{"payload.credentialExpiresAtUnixMs", fmt.Sprint(testNow + 999), &renewing, false},
	} {
		sent := parseText(t, string(EncodeChallenge(testChallenge(c.lease), digest64)))
		got, proof, err := ChallengeOf(envelope(t, edit(t, sent, c.path, c.with).JSON()), testHello(), c.lease, testNow)
		if c.ok != (err == nil) {
			t.Errorf("%s = %s (lease %v): %v", c.path, c.with, c.lease, err)
		}
		if err == nil && (proof != digest64 || got.ServerNonce != "server-nonce") {
			t.Errorf("%+v, %s", got, proof)
		}
	}
}

// The warm members are echoed when and only when the hello had them.
func TestChallengeWarmEchoes(t *testing.T) {
	t.Parallel()
	hello := testHello()
	hello.WarmTransitionVersion, hello.WarmTransitionID = true, canonjson.StringValue("t1")
	c := NewChallenge(hello, CredentialBootstrap, "n", 2)
	c.CredentialExpiresAtUnixMs = testNow + 1
	got, _, err := ChallengeOf(envelope(t, EncodeChallenge(c, digest64)), hello, nil, testNow)
	if err != nil {
		t.Fatal(err)
	}
	a, errA := c.Canonical()
	b, errB := got.Canonical()
	if errors.Join(errA, errB) != nil || string(a) != string(b) || !strings.Contains(string(a), `"warmTransitionId":"t1","warmTransitionVersion":1`) {
		t.Errorf("signed %s, rebuilt %s", a, b)
	}
	// An unknown member is not part of what the runner rebuilds, so the proof
	// of an authority that signs one cannot verify.
	extra := edit(t, parseText(t, string(EncodeChallenge(c, digest64))), "payload.extra", `1`)
	got, _, err = ChallengeOf(envelope(t, extra.JSON()), hello, nil, testNow)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = got.Canonical(); err != nil || string(b) != string(a) {
		t.Errorf("with an unknown member: %s, %v", b, err)
	}
}

func TestResponseRules(t *testing.T) {
	t.Parallel()
	c := testChallenge(nil)
	good := parseText(t, string(EncodeResponse(2, Response{c.CredentialID, c.ClientNonce, c.ServerNonce, digest64})))
	for _, x := range []struct {
		path, with string
		ok         bool
	}{
		{"payload.unknown", `1`, true},
		{"version", `1`, false},
		{"kind", `"auth_hello"`, false},
		{"payload", `null`, false},
		{"payload.credentialId", `"x"`, false},
		{"payload.clientNonce", `"x"`, false},
		{"payload.serverNonce", `"x"`, false},
		{"payload.serverNonce", "", false},
		{"payload.clientProof", `1`, false},
		{"payload.clientProof", `"short"`, true},
	} {
		r, err := ResponseOf(envelope(t, edit(t, good, x.path, x.with).JSON()), c)
		if x.ok != (err == nil) {
			t.Errorf("%s = %s: %+v, %v", x.path, x.with, r, err)
		}
	}
}

func testBinding() Binding {
	return Binding{Version: 2, Identity: testIdentity(), ConnectionID: "connection_1", ConnectionLeaseID: "connection_lease_1"}
}

func testControl(kind string, payload []byte) []byte {
	b := testBinding()
	return AppendControl(nil, ControlHeader{
		Version: b.Version, EnvelopeID: "e1", Kind: kind, Identity: b.Identity, ConnectionID: b.ConnectionID, ConnectionLeaseID: b.ConnectionLeaseID,
		SentAt: FormatUnixMs(testNow),
	}, payload)
}

func TestControlRules(t *testing.T) {
	t.Parallel()
	text := testControl(KindAck, EncodeAck(7))
	want := `{"protocol":"paperclip.runner","version":2,"envelopeId":"e1","kind":"ack","runnerInstanceId":"runner-1","environmentLeaseId":"lease-1","runId":"run-1",` +
		`"normalizedSessionId":"session-1","turnId":"turn-1","itemId":"item-1","connectionId":"connection_1","connectionLeaseId":"connection_lease_1",` +
		`"sentAt":"2026-01-02T03:04:05.006Z","payload":{"ackedSourceSeq":7}}`
	if string(text) != want {
		t.Fatalf("%s\nwant %s", text, want)
	}
	good := parseText(t, want)
	for _, c := range []struct {
		path, with string
		reads, ok  bool
	}{
		{"unknown", `1`, true, true},
		{"version", `1`, true, false},
		{"runnerInstanceId", `"x"`, true, false},
		{"environmentLeaseId", `"x"`, true, false},
		{"runId", `"x"`, true, false},
		{"normalizedSessionId", `"x"`, true, false},
		{"turnId", `"x"`, true, false},
		{"itemId", `"x"`, true, false},
		{"connectionId", `"x"`, true, false},
		{"connectionLeaseId", `"x"`, true, false},
		{"itemId", "", false, false},
		{"connectionId", "", false, false},
		{"connectionLeaseId", `null`, false, false},
		{"envelopeId", "", false, false},
		{"sentAt", `1`, false, false},
		{"payload", `[]`, false, false},
	} {
		ctl, err := ControlOf(envelope(t, edit(t, good, c.path, c.with).JSON()))
		if c.reads != (err == nil) {
			t.Errorf("%s = %s: %v", c.path, c.with, err)
			continue
		}
		if err == nil && (ctl.Verify(testBinding()) == nil) != c.ok {
			t.Errorf("%s = %s: verify says %v", c.path, c.with, ctl.Verify(testBinding()))
		}
	}
	ctl, err := ControlOf(envelope(t, text))
	if err != nil {
		t.Fatal(err)
	}
	if seq, err := AckOf(ctl.Payload); err != nil || seq != 7 {
		t.Errorf("ack %d, %v", seq, err)
	}
}

func TestRunnerMessages(t *testing.T) {
	t.Parallel()
	b := testBinding()
	event := AppendRunnerMessage(nil, 1, KindEvent, b.Identity, []byte(`{"a":1}`))
	if want := `{"protocol":"paperclip.runner","version":1,"kind":"event","runnerInstanceId":"runner-1","environmentLeaseId":"lease-1","runId":"run-1",` +
		`"normalizedSessionId":"session-1","turnId":"turn-1","itemId":"item-1","payload":{"a":1}}`; string(event) != want {
		t.Errorf("%s\nwant %s", event, want)
	}
	text := AppendRunnerLeaseMessage(nil, KindLeaseRenew, b, EncodeLeaseRenew(LeaseRenew{5, 6}))
	e := envelope(t, text)
	if err := e.VerifyRunner(b); err != nil {
		t.Error(err)
	}
	if r, err := LeaseRenewOf(e.Payload); err != nil || r != (LeaseRenew{5, 6}) {
		t.Errorf("%+v, %v", r, err)
	}
	good := parseText(t, string(text))
	for _, path := range []string{"version", "runId", "itemId", "connectionId", "connectionLeaseId"} {
		with := `"x"`
		if path == "version" {
			with = `1`
		}
		if err := envelope(t, edit(t, good, path, with).JSON()).VerifyRunner(b); err == nil {
			t.Errorf("another %s is taken", path)
		}
		if path == "version" {
			continue
		}
		if err := envelope(t, edit(t, good, path, "").JSON()).VerifyRunner(b); err == nil {
			t.Errorf("no %s is taken", path)
		}
	}
	for _, payload := range []string{`{}`, `{"connectionLeaseExpiresAtUnixMs":0,"connectionLeaseRevocationEpoch":0}`, `{"connectionLeaseExpiresAtUnixMs":1.5,"connectionLeaseRevocationEpoch":0}`, `{"connectionLeaseExpiresAtUnixMs":1,"connectionLeaseRevocationEpoch":-1}`, `null`} {
		if _, err := LeaseRenewOf(parseText(t, payload)); err == nil {
			t.Errorf("lease_renew %s is taken", payload)
		}
	}
	if got := string(EncodePong(Pong{"ready", 1, 2})); got != `{"lifecycle":"ready","ackedSourceSeq":1,"outboxBytes":2}` {
		t.Errorf("pong %s", got)
	}
}

func TestLeaseRenewedRules(t *testing.T) {
	t.Parallel()
	held := HeldLease{ID: "l", ExpiresAtUnixMs: 100, RevocationEpoch: 1}
	asked := held
	asked.RenewalOutstanding = true
	for _, c := range []struct {
		r    LeaseRenewed
		held HeldLease
		ok   bool
	}{
		{LeaseRenewed{100, 200, 1}, asked, true},
		{LeaseRenewed{100, 200, 1}, held, false},
		{LeaseRenewed{100, 100, 1}, held, true},
		{LeaseRenewed{50, 100, 1}, held, true},
		{LeaseRenewed{100, 99, 1}, asked, false},
		{LeaseRenewed{101, 200, 1}, asked, false},
		{LeaseRenewed{100, 200, 2}, asked, false},
		{LeaseRenewed{100, 200, 0}, asked, false},
	} {
		got, err := LeaseRenewedOf(parseText(t, string(EncodeLeaseRenewed(c.r))), c.held)
		if c.ok != (err == nil) || err == nil && got != c.r {
			t.Errorf("%+v: %+v, %v", c.r, got, err)
		}
	}
	for epoch, ok := range map[int64]bool{0: false, 1: false, 2: true} {
		if got, err := RevokeOf(parseText(t, string(EncodeRevoke(epoch))), held); ok != (err == nil) || ok && got != epoch {
			t.Errorf("revoke %d: %d, %v", epoch, got, err)
		}
	}
}

func testCommand() Command {
	return Command{
		CommandID: CommandIDOf(4), ControllerSeq: 4, Type: CommandSessionOpen, IssuedAt: FormatUnixMs(testNow),
		Payload: canonjson.ObjectValue(member("reuse", canonjson.StringValue("same_session"))),
	}
}

func TestWelcome(t *testing.T) {
	t.Parallel()
	cmd := testCommand()
	w := Welcome{
		SelectedVersion: 2, LeaseID: "connection_lease_1", LeaseToken: "lease_x", LeaseExpiresAtUnixMs: testNow + 60_000, LeaseRevocationEpoch: 0,
		Identity: testIdentity(), MaxFrameBytes: MaxFrameBytes, AckedSourceSeq: 3, PendingCommand: &cmd,
	}
	text := testControl(KindWelcome, EncodeWelcome(w))
	good := parseText(t, string(text))
	want := `{"selectedVersion":2,"heartbeatIntervalMs":250,"connectionLeaseRenewalVersion":1,"connectionLeaseId":"connection_lease_1","connectionLeaseToken":"lease_x",` +
		`"connectionLeaseExpiresAt":"2026-01-02T03:05:05.006Z","connectionLeaseExpiresAtUnixMs":1767323105006,"connectionLeaseRevocationEpoch":0,` +
		`"leaseBinding":{"runnerInstanceId":"runner-1","environmentLeaseId":"lease-1","runId":"run-1","normalizedSessionId":"session-1","protocolVersion":2},` +
		`"maxFrameBytes":1048576,"maxBatchEvents":100,"ackedSourceSeq":3,"pendingCommands":[{"schema":"paperclip.prp.command.v1","commandId":"command_prp_00000004",` +
		`"controllerSeq":4,"type":"session.open","issuedAt":"2026-01-02T03:04:05.006Z","payload":{"reuse":"same_session"}}]}`
	if got := string(good.Get("payload").JSON()); got != want {
		t.Fatalf("%s\nwant %s", got, want)
	}
	read := func(v canonjson.Value, lease *HeldLease) (Welcome, Binding, error) {
		ctl, err := ControlOf(envelope(t, v.JSON()))
		if err != nil {
			t.Fatal(err)
		}
		return WelcomeOf(ctl, WelcomeExpectation{Version: 2, Identity: testIdentity(), Lease: lease, NowUnixMs: testNow})
	}
	got, binding, err := read(good, nil)
	if err != nil || binding != testBinding() || got.LeaseToken != "lease_x" || got.AckedSourceSeq != 3 || got.PendingCommand == nil ||
		got.PendingCommand.CommandID != cmd.CommandID || got.LeaseRenewalVersion != 1 || got.MaxFrameBytes != MaxFrameBytes {
		t.Fatalf("%+v, %+v, %v", got, binding, err)
	}
	for _, c := range []struct {
		path, with string
		ok         bool
	}{
		{"kind", `"command"`, false},
		{"version", `1`, false},
		{"runId", `"x"`, false},
		{"connectionLeaseId", `"x"`, false},
		{"payload.connectionLeaseId", `"x"`, false},
		{"payload.selectedVersion", `1`, false},
		{"payload.connectionLeaseToken", "", false},
		{"payload.connectionLeaseToken", `""`, false},
		{"payload.connectionLeaseExpiresAtUnixMs", fmt.Sprint(testNow), false},
		{"payload.connectionLeaseRevocationEpoch", "", false},
		{"payload.ackedSourceSeq", `-1`, false},
		{"payload.pendingCommands", `[]`, true},
		{"payload.pendingCommands", "", false},
		{"payload.pendingCommands", `[{}]`, false},
		{"payload.pendingCommands", `[1,2]`, false},
		{"payload.maxFrameBytes", `10`, false},
		{"payload.maxFrameBytes", `1e9`, true},
		{"payload.connectionLeaseRenewalVersion", "", true},
		{"payload.unknown", `1`, true},
	} {
		if _, _, err := read(edit(t, good, c.path, c.with), nil); c.ok != (err == nil) {
			t.Errorf("%s = %s: %v", c.path, c.with, err)
		}
	}
	lease := &HeldLease{ID: "connection_lease_1"}
	if _, _, err := read(good, lease); err == nil {
		t.Error("a token for a lease is taken")
	}
	for _, path := range []string{"", "null"} {
		if _, _, err := read(edit(t, good, "payload.connectionLeaseToken", path), lease); err != nil {
			t.Errorf("token %q for a lease: %v", path, err)
		}
	}
	bare := edit(t, good, "payload.connectionLeaseToken", "")
	if _, _, err := read(bare, &HeldLease{ID: "connection_lease_2"}); err == nil {
		t.Error("another lease is taken")
	}
	if _, _, err := read(bare, &HeldLease{ID: "connection_lease_1", RevocationEpoch: 1}); err == nil {
		t.Error("another revocation epoch is taken")
	}
}

func TestCommandRules(t *testing.T) {
	t.Parallel()
	good := testCommand().Value()
	for _, c := range []struct {
		path, with string
		ok         bool
	}{
		{"unknown", `1`, true},
		{"status", `"pending"`, true},
		{"schema", "", false},
		{"schema", `"paperclip.prp.command.v2"`, false},
		{"commandId", "", false},
		{"commandId", `"a b"`, false},
		{"commandId", quoted("a", 160), true},
		{"commandId", quoted("a", 161), false},
		{"controllerSeq", `0`, false},
		{"controllerSeq", `1.5`, false},
		{"controllerSeq", `"1"`, false},
		{"type", `"session.unknown"`, false},
		{"type", "", false},
		{"issuedAt", `"now"`, false},
		{"issuedAt", "", false},
		{"payload", `[]`, false},
		{"payload", "", false},
		{"deadlineAt", `null`, true},
		{"deadlineAt", `"2026-01-02T03:04:05Z"`, true},
		{"deadlineAt", `"soon"`, false},
		{"deadlineAt", `1`, false},
		{"precondition", `null`, true},
		{"precondition", `{}`, true},
		{"precondition", `[]`, false},
	} {
		if _, err := CommandOf(edit(t, good, c.path, c.with)); c.ok != (err == nil) {
			t.Errorf("%s = %s: %v", c.path, c.with, err)
		}
	}
	types := CommandTypes()
	if len(types) != 21 {
		t.Errorf("%d command types, prp.md 6.1 has 21", len(types))
	}
	v2 := 0
	for _, name := range types {
		c := testCommand()
		c.Type = name
		if _, err := CommandOf(c.Value()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if CommandSchema(name) == CommandSchemaV2 {
			v2++
		}
	}
	if v2 != 3 {
		t.Errorf("%d commands of schema v2, want the 3 goal commands", v2)
	}
	for name, want := range map[string]bool{CommandRunnerSuspend: true, CommandRunnerShutdown: true, CommandRunnerDrain: false, CommandRunAttach: false} {
		if IsTerminalCommand(name) != want {
			t.Errorf("terminal %s: %v", name, !want)
		}
	}
}

func TestCommandFingerprintSees(t *testing.T) {
	t.Parallel()
	print := func(c Command) string {
		s, err := c.Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	base := print(testCommand())
	null := testCommand()
	null.DeadlineAt, null.Precondition = canonjson.NullValue(), canonjson.NullValue()
	if print(null) != base {
		t.Error("absent and null optional members differ")
	}
	for name, change := range map[string]func(*Command){
		"id": func(c *Command) { c.CommandID += "x" }, "seq": func(c *Command) { c.ControllerSeq++ }, "type": func(c *Command) { c.Type = CommandSessionClose },
		"time": func(c *Command) { c.IssuedAt = FormatUnixMs(testNow + 1) }, "payload": func(c *Command) { c.Payload = canonjson.ObjectValue() },
		"deadline": func(c *Command) { c.DeadlineAt = canonjson.StringValue(FormatUnixMs(testNow)) }, "precondition": func(c *Command) { c.Precondition = canonjson.ObjectValue() },
	} {
		c := testCommand()
		change(&c)
		if print(c) == base {
			t.Errorf("another %s has the same fingerprint", name)
		}
	}
	c := testCommand()
	c.Payload = parseText(t, `{"x":1e999}`)
	if _, err := c.Fingerprint(); !errors.Is(err, canonjson.ErrInvalid) {
		t.Errorf("an infinite number: %v", err)
	}
}

func TestCommandSize(t *testing.T) {
	t.Parallel()
	if MaxQueuedCommandBytes != 518_144 {
		t.Errorf("the limit is %d", MaxQueuedCommandBytes)
	}
	size := func(c Command) int { return len(c.Record(StatusPending, canonjson.Value{}).JSON()) }
	c := testCommand()
	c.Payload = canonjson.ObjectValue(member("t", canonjson.StringValue("")))
	fill := MaxQueuedCommandBytes - size(c)
	c.Payload = canonjson.ObjectValue(member("t", canonjson.StringValue(strings.Repeat("x", fill))))
	if err := c.CheckSize(); err != nil || size(c) != MaxQueuedCommandBytes {
		t.Errorf("at the limit (%d bytes): %v", size(c), err)
	}
	// A command at the limit fits a frame.
	if n := FrameSize(len(testControl(KindCommand, c.Value().JSON()))); n > MaxFrameBytes {
		t.Errorf("a command at the limit needs a frame of %d bytes", n)
	}
	c.Payload = canonjson.ObjectValue(member("t", canonjson.StringValue(strings.Repeat("x", fill+1))))
	if err := c.CheckSize(); wire.CodeOf(err) != wire.CodeCommandTooLarge {
		t.Errorf("one byte beyond: %v", err)
	}
	if got := string(testCommand().Record(StatusPending, canonjson.Value{}).JSON()); !strings.HasSuffix(got, `"payload":{"reuse":"same_session"},"status":"pending","result":null}`) {
		t.Errorf("record %s", got)
	}
}

func TestCommandResults(t *testing.T) {
	t.Parallel()
	sent := CommandResult{CommandID: "c1", ControllerSeq: 3, CommandType: CommandRunnerSuspend, Status: StatusCompleted, Result: canonjson.ObjectValue()}
	got, err := CommandResultOf(sent.Value())
	if err != nil || got.CommandID != "c1" || got.ControllerSeq != 3 || got.CommandType != CommandRunnerSuspend || got.Status != StatusCompleted || !got.Result.IsObject() {
		t.Fatalf("%+v, %v", got, err)
	}
	for payload, ok := range map[string]bool{
		`{"commandId":"c","status":"completed"}`: true, `{"commandId":"c","status":"failed","x":1}`: true, `{"commandId":"c","status":"rejected"}`: true,
		`{"commandId":"c","status":"indeterminate"}`: true, `{"commandId":"c","status":"pending"}`: false, `{"commandId":"c"}`: false,
		`{"status":"completed"}`: false, `{"commandId":1,"status":"completed"}`: false, `[]`: false, `null`: false,
	} {
		if r, err := CommandResultOf(parseText(t, payload)); ok != (err == nil) || ok && string(r.Whole.JSON()) != payload {
			t.Errorf("%s: %v", payload, err)
		}
	}
	ack := parseText(t, string(EncodeCommandResultAck(sent)))
	if err := CommandResultAckOf(ack, sent); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"commandId", "commandType", "controllerSeq", "status"} {
		if err := CommandResultAckOf(edit(t, ack, path, `"x"`), sent); err == nil {
			t.Errorf("an ack of another %s is taken", path)
		}
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		CommandIDOf(1):                      "command_prp_00000001",
		CommandIDOf(123_456_789):            "command_prp_123456789",
		CommandEnvelopeID("c1", 2):          "command_c1_2",
		AckEnvelopeID(9):                    "ack_9",
		WelcomeEnvelopeID(1):                "welcome_1",
		ConnectionID(1):                     "connection_1",
		CommandResultAckEnvelopeID(4):       "command_result_ack_4",
		LeaseRenewedEnvelopeID(5):           "lease_renewed_5",
		FormatTime(time.UnixMilli(testNow)): "2026-01-02T03:04:05.006Z",
		FormatUnixMs(0):                     "1970-01-01T00:00:00.000Z",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, id := range []string{ToolCommandID("r", "c"), AttachCommandID("a", "b", "c"), SteerCommandID("t", "c")} {
		if !IsStableID(id, MaxShortIDLen) {
			t.Errorf("%s is no command id", id)
		}
	}
}

func TestIntegrityFault(t *testing.T) {
	t.Parallel()
	a, b := NewIntegrityFault(ReasonSourceEventReplayConflict), NewIntegrityFault(ReasonSourceEventReplayConflict)
	if a == b || a.Code() != "native_event_replay_conflict" || a.Recovery() != "operator_required" {
		t.Error("faults are not what they must be")
	}
	var found *IntegrityFault
	if !errors.As(error(a), &found) || found != a {
		t.Error("a fault is not found by its type")
	}
	if errors.As(errors.New(a.Error()), &found) {
		t.Error("an error of the same text passes for a fault")
	}
	defer func() {
		if r := recover(); !strings.HasPrefix(fmt.Sprint(r), "bug: ") {
			t.Errorf("an unknown reason: %v", r)
		}
	}()
	t.Errorf("an unknown reason gives %v", NewIntegrityFault("other"))
}
