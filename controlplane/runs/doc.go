// Package runs keeps the runs of a control plane: it checks what a host asks
// for, writes run, session and first commands in one transaction, keeps the
// live sessions of open runs, starts and restarts the runners of local ones,
// reaps runs whose runner will not come, and reads their events.
//
// A run ends with one terminal event, which its session writes; this package
// only tells the session what happened outside the runner's connection
// (cancelled, not launched, lost, lease ended).
//
// Sessions are opened when somebody needs them (a runner dials, a host
// cancels, a run is open at start) and closed a moment after their close
// sequence is over; an ended run is then read from the store alone.
//
// Concurrency: a [Manager] may be used from any goroutine. It starts one
// goroutine per live session, one more per supervised runner, and one reaper;
// [Manager.Close] waits for all of them and leaves runners running.
package runs
