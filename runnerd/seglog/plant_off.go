//go:build !bowline_plant_sync

package seglog

// plantNoSync is off. Built with the tag bowline_plant_sync, which no shipped
// program has, nothing is synced: a bug that the tests of cmd/e2e must see.
const plantNoSync = false
