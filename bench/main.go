// Command bench measures Bowline beside what it competes with, in one run, and
// prints one table: figures in units of this disk's sync and ratios of medians.
//
// Machines like the ones it runs on are noisy by a factor of two. So peers take
// turns within each round, five rounds are made, and what counts is the ratio
// of the medians; an absolute figure of one run means little.
//
// One sync is: append 512 bytes to a preallocated file and fdatasync it, in the
// same directory, measured between the rounds. A p99 in syncs is over the p99
// of the sync.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"strings"
)

// rounds of everything. Odd, so that the median is a measured value.
const rounds = 5

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	bin := flag.String("bin", "", "folder with the built runnerd; without it the program part is skipped")
	dir := flag.String("dir", "", "where the files go; default a new folder in the current one, so that it is the same disk")
	only := flag.String("only", "store,frames,e2e,program", "parts to run")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	if *dir == "" {
		made, err := os.MkdirTemp(".", ".bench-")
		if err != nil {
			return err
		}
		*dir = made
		defer func() {
			if err := os.RemoveAll(made); err != nil {
				fmt.Fprintln(os.Stderr, "bench: remove the files:", err)
			}
		}()
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer func() {
			pprof.StopCPUProfile()
			if err := f.Close(); err != nil {
				fmt.Fprintln(os.Stderr, "bench: profile:", err)
			}
		}()
	}
	t := &table{}
	machine(t)
	for _, part := range []struct {
		name string
		run  func(context.Context, *table, string, string) error
	}{
		{"store", storePart}, {"frames", framesPart}, {"e2e", endToEndPart}, {"program", programPart},
	} {
		if !strings.Contains(","+*only+",", ","+part.name+",") {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s …\n", part.name)
		if err := part.run(ctx, t, *dir, *bin); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return t.print(os.Stdout)
}
