// Package runnerd is the runner: it joins an authority with a one-use ticket,
// executes the commands of one session through a driver and keeps every event
// until it is acknowledged. [Main] is the whole program, so that another binary
// can be a runner too.
//
// # Two uses
//
// In PRP use the ticket comes in PAPERCLIP_RUNNER_BOOTSTRAP_TICKET and the
// program stands in for the existing runner binary (prp.md 11.4): unknown flags
// are ignored, it exits with 0 or 1, and says why on stderr behind
// "paperclip-runnerd: ". In our own use the ticket comes by --ticket-fd,
// --ticket-file or BOWLINE_TICKET: flags are strict, exit codes are those of
// [bowline/wire], and stderr is a JSON log.
//
// # What it promises
//
//   - The ticket is gone from the process's environment, as the kernel shows it
//     too, before anything else happens; no child ever inherits it.
//   - It may be killed at any time. A new process with the same state directory
//     takes the session up again.
//   - On SIGTERM it takes no more commands, ends the provider with its whole
//     process tree, tries for a few seconds to get its events acknowledged, and
//     exits with 0; the state stays resumable.
//
// # State directory
//
// Mode 0700: runner.lock (held with flock while a runner lives), log/ (the
// session log, [bowline/runnerd/journal]), runner-state.json (a view of it) and,
// for Codex, codex-provider-state.json.
package runnerd
