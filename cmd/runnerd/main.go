// Command runnerd is the slim build of the runner: see [bowline/runnerd].
package main

import (
	"context"
	"os"

	"bowline/runnerd"
)

func main() {
	os.Exit(runnerd.Main(context.Background(), os.Args[1:], os.Environ(), runnerd.Stdio{Out: os.Stdout, Err: os.Stderr}))
}
