// Package session is the live side of one session: it owns the state machine of
// package authority, writes what that stages to the store, and only then lets
// its effects out. It serves the runner's connections and takes what the rest
// of the control plane has to say to the session.
//
// # What it promises
//
//   - No frame is sent, no tool is called and no snapshot is shown before what
//     it tells of is durable. When a commit fails the machine is loaded again
//     from the store and the runner's connections go.
//   - Frames of one connection are handled strictly in order. Frames that had
//     arrived before a close took effect are handled after it (prp.md 1.6).
//   - Consecutive frames that have arrived together share one commit; each
//     event still gets its own acknowledgement, in order.
//   - It is the only writer of its rows: a generation in the store fences
//     another one.
//
// # Concurrency
//
// Every method may be called from any goroutine. One mutex guards the machine
// and is held over a commit, so that inputs queue up behind a slow disk rather
// than pile up in memory. Goroutines: per connection a reader, a writer and
// the goroutine that called [Session.Serve]; one for deadlines; one per running
// tool call. [Session.Close] waits for all but Serve's own, which it makes
// return.
package session
