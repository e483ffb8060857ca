// Package authority is the state machine of one session on the control plane:
// credentials, command journal, event admission, fault latch (prp.md 2 to 10)
// and, on top of it, the life of the run the session serves.
//
// It does no I/O, reads no clock and draws no randomness of its own: every call
// gets the time, ids come from [Options.NewID]. A call changes the state in
// memory and stages two things: the rows to write and the effects to have once
// they are durable. [Machine.Take] hands both out as a [Batch].
//
// # Contract with the caller
//
//   - Nothing of a batch may become visible (no frame sent, no handler called,
//     no [Machine.Snapshot] shown) before its transaction is durable.
//   - Several inputs may be staged before one Take: their effects then happen in
//     the order in which they were staged.
//   - When the transaction fails, the machine is ahead of the disk and must be
//     thrown away: load a new one from the store and let it [Machine.Inherit]
//     what lives in memory only.
//   - An error from an input means: close the link it came over. Everything that
//     was staged before (and by the same call) still stands.
//
// # Concurrency
//
// None: one goroutine at a time.
package authority
