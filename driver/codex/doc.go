// Package codex drives OpenAI Codex through `codex app-server`: line-delimited
// JSON-RPC without a "jsonrpc" member over the pipes of one process
// (driver/jsonrpc). It was built against and is tested with the app-server of
// @openai/codex 0.171.0; the provider object of run.prepare calls that
// contract "codex-app-server-v1" (prp.md 6.5).
//
// # Permission modes
//
// What is sent with thread/start and how approvals are answered:
//
//	mode      approvalPolicy               sandbox                      approvals Codex asks for
//	default   provider.approvalPolicy, or  danger-full-access when      declined, with a line for operators
//	          not sent: Codex's own        externallySandboxed, else    and a harness.diagnostic event
//	          policy stands                not sent: its own stands
//	deny      untrusted                    as above                     declined, likewise
//	allow     never                        danger-full-access           accepted (with "never" none come)
//	ask       refused, not_available
//	edits     refused, not_available
//
// "untrusted" still lets Codex run what it knows to only read (ls, cat).
// In deny and allow the mode goes before provider.approvalPolicy. Questions to
// a person, tools of the host and elicitations are answered with "nobody
// there" in every mode; credentials are never refreshed or attested for Codex.
//
// # Events
//
// Types and payloads are those of prp.md 7 where it closes them. Every item
// event carries itemId, kind (Codex's name of the item's type) and
// providerTurnId.
//
//   - item.started: what is known before: command, cwd, paths.
//   - item.delta: text (at most 64 KiB of it), channel (prp.md 7.1). Deltas
//     are the body of an item: those without a stream name, joined in order,
//     are its text. Codex does not stream the beginning of a command's output;
//     it comes when the command has ended, as deltas of the stream "missing-1":
//     the first has an offset, the byte of the text where it stands, the
//     others follow it (a second hole is "missing-2"). When the final text is
//     not what had been streamed it comes whole as stream "restart", the first
//     delta with "restart": true. The diffs of a fileChange are the streams
//     "file-1", … with their path.
//   - item.completed: never text, but bytes and sha256 of the whole text. When
//     Codex itself cut a command's output (it keeps 512 KiB of each end)
//     truncated is true, lostBytes counts what nobody has seen, and there is
//     no sha256.
//   - item.failed: the turn or the process ended before the item did.
//   - late: true marks events of a turn that had ended before (a command may
//     outlive its turn), unrequested: true those of a turn nobody asked for (a
//     goal makes Codex start turns by itself). The latter have no turn events.
//
// One event is at most [MaxEvent] bytes.
//
// # Turns
//
// A turn that was accepted ends with exactly one terminal event: what Codex
// reports, or else turn.failed when its process ends (provider_exited), its
// final line was beyond the line limit (provider_line_too_long) or it reported
// a state we do not know; turn.interrupted when an interrupt had to end the
// process; turn.cancelled when the session is closed first. After an interrupt
// the commands of the turn are ended too, and the terminal event waits for
// them. Codex is given [InterruptGrace] for both, then its process tree is
// stopped and the session is over.
//
// # Concurrency
//
// All events are emitted by the one goroutine that reads the provider. While
// Host.Emit blocks nothing is read, so the provider waits too.
package codex
