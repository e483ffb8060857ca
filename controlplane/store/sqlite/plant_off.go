//go:build !bowline_plant_sync

package sqlite

// The durability this package promises. Built with the tag bowline_plant_sync,
// which no shipped program has, SQLite does not sync: a bug that the tests of
// cmd/e2e must see.
const (
	synchronousPragma = "synchronous(FULL)"
	synchronousLevel  = int64(2) // what the pragma answers
)
