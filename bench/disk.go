package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// What one sync is (quality.md).
const (
	syncRecord = 512
	syncFile   = 4 << 20
	syncEach   = 300 // per call of measure
)

// disk measures this disk's sync and keeps all samples.
type disk struct {
	f       *os.File
	off     int64
	samples []time.Duration
}

func openDisk(dir string) (*disk, error) {
	f, err := os.OpenFile(filepath.Join(dir, "sync"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// Written, not only allocated: the first write to an allocated block costs
	// a change of metadata, which is not what is measured.
	if _, err := f.Write(make([]byte, syncFile)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &disk{f: f}, f.Sync()
}

func (d *disk) measure() error {
	record := make([]byte, syncRecord)
	for range syncEach {
		if d.off+syncRecord > syncFile {
			d.off = 0
		}
		start := time.Now()
		if _, err := d.f.WriteAt(record, d.off); err != nil {
			return err
		}
		if err := unix.Fdatasync(int(d.f.Fd())); err != nil {
			return fmt.Errorf("fdatasync: %w", err)
		}
		d.samples = append(d.samples, time.Since(start))
		d.off += syncRecord
	}
	return nil
}

func (d *disk) at(p float64) time.Duration { return percentile(d.samples, p) }

func (d *disk) note(t *table, part string) {
	t.note("%s: one sync (512 B append + fdatasync) p50 %s, p99 %s, %d samples", part, micro(d.at(0.5)), micro(d.at(0.99)), len(d.samples))
}

func (d *disk) close() error { return d.f.Close() }

func micro(v time.Duration) string { return fmt.Sprintf("%d µs", v.Microseconds()) }
