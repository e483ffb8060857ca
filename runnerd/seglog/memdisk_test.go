package seglog

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
)

// memDisk is a disk in memory that can fail, and that remembers what was
// synced so that a test can build the disk a power cut leaves behind.
type memDisk struct {
	mu    sync.Mutex
	files map[string]*memFile
	syncs int

	failWrite, failSync, failAllocate error
	hold                              chan struct{} // a sync waits for it
	entered                           chan struct{} // a sync says that it has begun
}

func newMemDisk() *memDisk { return &memDisk{files: map[string]*memFile{}} }

func (d *memDisk) Names() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for n := range d.files {
		names = append(names, n)
	}
	return names, nil
}

func (d *memDisk) Create(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] != nil {
		return nil, os.ErrExist
	}
	f := &memFile{disk: d}
	d.files[name] = f
	return f, nil
}

func (d *memDisk) Open(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.files[name]; f != nil {
		return f, nil
	}
	return nil, os.ErrNotExist
}

func (d *memDisk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		return os.ErrNotExist
	}
	delete(d.files, name)
	return nil
}

func (d *memDisk) Sync() error { return nil }

// copyWith gives a disk with the same files, one of them changed.
func (d *memDisk) copyWith(name string, change func([]byte) []byte) *memDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := newMemDisk()
	for n, f := range d.files {
		data := slices.Clone(f.data)
		if n == name {
			data = change(data)
		}
		c.files[n] = &memFile{disk: c, data: data}
	}
	return c
}

type memFile struct {
	disk   *memDisk
	data   []byte
	synced []byte // what the last sync left
}

func (f *memFile) Close() error { return nil }

func (f *memFile) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return int64(len(f.data)), nil
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.failWrite != nil {
		return 0, f.disk.failWrite
	}
	if off+int64(len(b)) > int64(len(f.data)) {
		return 0, errors.New("write beyond what was allocated")
	}
	return copy(f.data[off:], b), nil
}

func (f *memFile) Allocate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.failAllocate != nil {
		return f.disk.failAllocate
	}
	if n := size - int64(len(f.data)); n > 0 {
		f.data = append(f.data, make([]byte, n)...)
	}
	return nil
}

func (f *memFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if size <= int64(len(f.data)) {
		f.data = f.data[:size:size]
		return nil
	}
	f.data = append(f.data, make([]byte, size-int64(len(f.data)))...)
	return nil
}

func (f *memFile) Datasync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.syncs++
	if hold, entered := f.disk.hold, f.disk.entered; hold != nil {
		f.disk.mu.Unlock()
		entered <- struct{}{}
		<-hold
		f.disk.mu.Lock()
	}
	if f.disk.failSync != nil {
		return f.disk.failSync
	}
	f.synced = slices.Clone(f.data)
	return nil
}

// uncloseAll gives the newest segment its reserved space again, as if the
// process had been killed instead of closing the log.
func (d *memDisk) uncloseAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		if n := testSegment - len(f.data); n > 0 {
			f.data = append(f.data, make([]byte, n)...)
		}
	}
}
