//go:build !bowline_plant_send

package journal

import "bowline/runnerd/seglog"

// plantSend is off. Built with the tag bowline_plant_send, which no shipped
// program has, events are given out before they are durable: a bug that the
// crash tests of cmd/e2e must see.
const plantSend = false

// plantedDisk is the disk as it is.
func plantedDisk(d seglog.Disk) seglog.Disk { return d }
