//go:build bowline_plant_mark

package executor

import (
	"context"
	"time"

	"bowline/wire/prp"
)

// plantedDelay is what a kill has to fall into.
const plantedDelay = 500 * time.Millisecond

// planted executes a command that nobody marked yet and gives its outcome
// afterwards.
func (e *Executor) planted(ctx context.Context, cmd prp.Command) func(context.Context, prp.Command) outcome {
	if _, known := e.jr.Lookup(cmd.CommandID); known {
		return e.execute
	}
	out := e.execute(ctx, cmd)
	time.Sleep(plantedDelay)
	return func(context.Context, prp.Command) outcome { return out }
}
