//go:build !bowline_plant_mark

package executor

import (
	"context"

	"bowline/wire/prp"
)

// planted is e.execute. Built with the tag bowline_plant_mark, which no shipped
// program has, it executes a command before its pending mark is made: a bug
// that the crash tests of cmd/e2e must see.
func (e *Executor) planted(context.Context, prp.Command) func(context.Context, prp.Command) outcome {
	return e.execute
}
