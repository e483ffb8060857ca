// Package journal is what a runner remembers of its session: identity, the
// command journal, the outbox of events, the provider's resume state, fences
// and the processes that run. Everything is in a session log
// ([bowline/runnerd/seglog]); the state in memory is rebuilt by reading it.
//
// # What it promises
//
//   - A command's pending mark is durable before its effect begins, its result
//     before it is sent ([Journal.Begin], [Journal.Finish]).
//   - An event is durable before [Journal.Next] gives it out. Its bytes never
//     change, so every delivery is the same.
//   - A provider's resume state is durable together with the event it came with.
//   - The record of a process is durable before it runs.
//   - runner-state.json, for peers that read that file (prp.md 9.1), is a view
//     of the log and never read back while there is a log.
//
// # Byte layout
//
// A record of the log is one or more operations, which take effect together:
//
//	record    = operation*
//	operation = kind u8  count u8  section{count}
//	section   = length u32 little-endian  bytes
//
// Section 0 is a JSON object, the others are exact bytes; the kinds are the
// constants op… in codec.go. The first record of a log is the header; each
// further segment begins with a checkpoint, which replaces everything but the
// outbox. Segments before the newest checkpoint and before the oldest
// unacknowledged event are deleted.
//
// # Concurrency
//
// All methods may be called from any goroutine. A failed write ends the
// journal: every later call gives the same error.
package journal
