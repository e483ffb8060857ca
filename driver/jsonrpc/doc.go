// Package jsonrpc is one peer of a line-delimited JSON-RPC conversation, as
// agent providers speak it over the pipes of a process: Codex app-server
// (without the "jsonrpc" member) and ACP agents (with it, [Options.Version]).
//
// Bytes: one JSON object a line, in UTF-8, ended by '\n'; a '\r' before it, a
// byte order mark and blank lines are tolerated. A message is a request
// (method and id), a notification (method, no id) or a response (id and result
// or error). What is none of these is reported to [Options.OnNoise] and the
// stream goes on. A line longer than [Options.MaxLine] is skipped up to its
// newline in bounded memory and reported with its size and SHA-256.
//
// Ids: there are two id spaces. Requests of this peer are numbered 1, 2, 3, …;
// requests of the other side keep their own ids (integer or string), which are
// echoed byte for byte and never compared with ours.
//
// Order: [Peer.Run] reads on one goroutine and calls every handler on it, so
// notifications, requests and the continuation of [Peer.CallThen] are seen in
// the order of the stream. Not returning from a handler stops the reading:
// that is the back-pressure. A request is answered through [Request.Reply] at
// any time from any goroutine, so a request that waits for a person does not
// hold up the stream. [Peer.Call] waits for the reader and therefore must not
// be called inside a handler.
//
// Writing: any goroutine may write; one goroutine owns the pipe and writes
// whole lines, so messages never interleave. At most [QueueLength] messages
// wait for it; further writers wait too.
//
// End: when the stream ends or cannot be read, every pending call fails with a
// [*ClosedError], and so does every later one.
package jsonrpc
