// Command bowline runs coding agents in places you do not trust and loses
// nothing: server, command line and runner in one binary. Started under the
// name runnerd it is the runner (cmd/runnerd is the slim build of that).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"bowline/cmd/internal/cli"
	"bowline/runnerd"
	"bowline/runnerd/supervise"
	"bowline/wire"
)

func main() {
	if filepath.Base(os.Args[0]) == "runnerd" {
		os.Exit(runnerd.Main(context.Background(), os.Args[1:], os.Environ(), runnerd.Stdio{Out: os.Stdout, Err: os.Stderr}))
	}
	os.Exit(run())
}

func run() int {
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bowline: the current folder is gone:", err)
		return wire.ExitFailed
	}
	if err := supervise.CloseOnExec(); err != nil {
		fmt.Fprintln(os.Stderr, "bowline:", err)
		return wire.ExitFailed
	}
	// Never given back: a third Ctrl-C on the way out would end the process
	// with the signal's status instead of ours.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// A closed stdout is an error of the write, not the end of the process: the
	// run behind it has to be cancelled. Caught rather than ignored, because
	// children would inherit an ignored signal.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return cli.Main(context.Background(), cli.Process{
		Args: os.Args[1:], Env: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Dir: dir, Self: "/proc/self/exe", Signals: signals,
	})
}
