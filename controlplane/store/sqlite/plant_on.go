//go:build bowline_plant_sync

package sqlite

const (
	synchronousPragma = "synchronous(OFF)"
	synchronousLevel  = int64(0)
)
