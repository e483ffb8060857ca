//go:build bowline_plant_sync

package seglog

const plantNoSync = true
