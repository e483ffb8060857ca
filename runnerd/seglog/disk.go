package seglog

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Disk is the directory a log lives in. Tests inject failures through it.
type Disk interface {
	// Names lists the files of the directory.
	Names() ([]string, error)
	// Create makes a new file of mode 0600; it must not exist.
	Create(name string) (File, error)
	// Open opens an existing regular file for reading and writing.
	Open(name string) (File, error)
	Remove(name string) error
	// Sync makes created and removed names durable.
	Sync() error
}

// File is one segment.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size in bytes.
	Size() (int64, error)
	// Allocate reserves space up to size; what was not written reads as zeros.
	Allocate(size int64) error
	Truncate(size int64) error
	// Datasync returns when everything written is on the disk.
	Datasync() error
}

// Modes of what a log makes (ours: the log holds prompts and agent output).
const (
	dirMode  = 0o700
	fileMode = 0o600
)

// OSDisk is a directory of the operating system.
type OSDisk struct{ root *os.Root }

// OpenDir opens the directory path, made with mode 0700 if it is missing, and
// tightened to it if it was wider. No name below it is followed out of it.
func OpenDir(path string) (*OSDisk, error) {
	switch err := os.Mkdir(path, dirMode); { //nolint:gosec // G703: the caller's own directory
	case err == nil:
		if err := syncDir(filepath.Dir(path)); err != nil {
			return nil, err
		}
	case !errors.Is(err, os.ErrExist):
		return nil, err
	}
	info, err := os.Lstat(path) //nolint:gosec // G703: the caller's own directory
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	}
	if info.Mode().Perm() != dirMode {
		//nolint:gosec // G302: a directory needs its x bit
		if err := os.Chmod(path, dirMode); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &OSDisk{root: root}, nil
}

// Close releases the directory handle; files stay open.
func (d *OSDisk) Close() error { return d.root.Close() }

// Names implements [Disk].
func (d *OSDisk) Names() (names []string, err error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Readdirnames(-1)
}

// Create implements [Disk].
func (d *OSDisk) Create(name string) (File, error) {
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Open implements [Disk].
func (d *OSDisk) Open(name string) (File, error) {
	f, err := d.root.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Remove implements [Disk].
func (d *OSDisk) Remove(name string) error { return d.root.Remove(name) }

// Sync implements [Disk].
func (d *OSDisk) Sync() (err error) {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}

func syncDir(path string) (err error) {
	f, err := os.Open(path) //nolint:gosec // G304: the caller's own directory
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Allocate uses fallocate, so that a later write cannot fail for lack of space
// and fdatasync need not write a new file size. A file system without it gets a
// longer sparse file.
func (f osFile) Allocate(size int64) error {
	for {
		//nolint:gosec // G115: a file descriptor fits
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			have, serr := f.Size()
			if serr != nil || have >= size {
				return serr
			}
			return f.Truncate(size)
		}
		return err
	}
}

func (f osFile) Datasync() error {
	if plantNoSync {
		return nil
	}
	for {
		//nolint:gosec // G115: a file descriptor fits
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
