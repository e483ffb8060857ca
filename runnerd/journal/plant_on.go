//go:build bowline_plant_send

package journal

import (
	"time"

	"bowline/runnerd/seglog"
)

const plantSend = true

// plantedDelay is what a kill has to fall into.
const plantedDelay = 50 * time.Millisecond

// plantedDisk writes late, so that an event is on its way before it is in the
// log. The kill loses no page cache: what is to be lost must not be written yet.
func plantedDisk(d seglog.Disk) seglog.Disk { return lateDisk{d} }

type lateDisk struct{ seglog.Disk }

func (d lateDisk) Create(name string) (seglog.File, error) {
	f, err := d.Disk.Create(name)
	return lateFile{f}, err
}

func (d lateDisk) Open(name string) (seglog.File, error) {
	f, err := d.Disk.Open(name)
	return lateFile{f}, err
}

type lateFile struct{ seglog.File }

func (f lateFile) WriteAt(b []byte, at int64) (int, error) {
	time.Sleep(plantedDelay)
	return f.File.WriteAt(b, at)
}
