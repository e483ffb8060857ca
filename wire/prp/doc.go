// Package prp holds the messages of the "paperclip.runner" profile, versions 1
// and 2, for both ends: what an authority (control plane) sends and checks, and
// what a runner does. It knows what a message looks like and which rules need
// no stored state; what a command does, and in what order things become
// durable, is for the layers above. Section numbers are those of prp.md, our
// collection of facts about the existing peers.
//
// # What it promises
//
// Bytes are those the existing peers expect: member order, number spelling and
// escapes as JSON.stringify has them (package canonjson). Whatever is later
// compared (envelopes, command results) is kept whole, unknown members
// included. Everything a peer can get wrong is a *wire.Error of code
// protocol_violation that names the rule and never holds what the peer sent;
// the wire shows nothing of it, the socket is closed (section 3). The one
// other failure is [IntegrityFault], which only the authority's state machine
// may raise.
//
// # Layouts
//
// In the clear, before the session is authenticated:
//
//	{"protocol":"paperclip.runner","version":1|2,"kind":"auth_…","payload":{…}}
//
//	C→S auth_hello      who, which credential, which versions      [Hello]
//	S→C auth_challenge  the signed object, and serverProof         [Challenge]
//	C→S auth_response   echoes, and clientProof                    [Response]
//	S→C welcome         the first encrypted frame, counter 0       [Welcome]
//
// From then on every WebSocket message is a secure frame ([Channel]):
//
//	{"schema":"paperclip.runner.secure-frame.v1","counter":n,"ciphertext":"hex"}
//
// with AES-256-GCM under package crypto/prp. Inside, one envelope:
//
//	S→C {protocol, version, envelopeId, kind, six ids, connectionId, connectionLeaseId, sentAt, payload}   [AppendControl]
//	C→S {protocol, version, kind, six ids, payload}                                                       [AppendRunnerMessage]
//	C→S {protocol, version, kind, six ids, connectionId, connectionLeaseId, payload}                      [AppendRunnerLeaseMessage]
//
// The six ids are [Identity], always in the order of its fields.
//
// Hex doubles a plaintext, so a frame of 1 MiB carries about 520 kB; that is
// where [MaxQueuedCommandBytes] comes from.
//
// # Three digests
//
//   - [Command.Fingerprint]: how a runner tells a repeated command from another.
//   - [SemanticDigest]: how the authority checks a host tool's input; over a
//     redacted and bounded copy, byte for byte as the existing authority has it.
//   - [WarmTransitionID] and [ResultDigest]: agreed by both ends of a transition.
//
// # Concurrency
//
// Everything is a value or a pure function, except [Channel]: one goroutine may
// seal while another opens.
package prp
