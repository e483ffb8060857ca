// Package datadir owns the data folder of a control plane: one server per
// folder, what tells others where it listens, and the admin token's file.
//
//	DATA/            0700
//	  lock           flock of the server; holds its owner record (JSON)
//	  ready.json     0600, present while it serves: {"url","adminTokenFile","pid"}
//	  admin-token    0600, one line
//	  bowline.db     the store
//	  runs/RUNID/    state and log of runners that the server launched
//	  workspaces/    fresh folders of runs without a workspace
//
// The lock is the kernel's and goes with the process; the owner record only
// tells people and [Find] who holds it. A ready file whose owner is gone is
// stale: [Find] says so and the next server replaces it.
//
// Concurrency: a [Dir] belongs to one goroutine; [Find] may be called from any.
package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"bowline/controlplane/launch"
	"bowline/wire"
)

// Names inside the data folder.
const (
	lockName  = "lock"
	readyName = "ready.json"
	tokenName = "admin-token"
	storeName = "bowline.db"
)

// maxRecordBytes bounds the small files read here (ours).
const maxRecordBytes = 64 << 10

// Default is ${XDG_STATE_HOME:-~/.local/state}/bowline, from the given
// environment lookup (os.Getenv).
func Default(getenv func(string) string) (string, error) {
	if d := getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "bowline"), nil
	}
	home := getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", wire.Errorf(wire.CodeUsage, "no data folder: neither XDG_STATE_HOME nor HOME is an absolute path; name one with --data")
	}
	return filepath.Join(home, ".local", "state", "bowline"), nil
}

// owner is the record in the lock file.
type owner struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"` // proc(5), field 22
	BootID     string `json:"bootId"`
}

func (o owner) process() launch.ProcessID {
	return launch.ProcessID{PID: o.PID, StartTicks: o.StartTicks, BootID: o.BootID}
}

// Dir is a data folder that this process owns.
type Dir struct {
	path  string
	lock  *os.File
	ready []string // ready files written
}

// Open makes the folder if it is missing and takes its lock. Another owner is
// wire.CodeDataDirBusy, with its pid in the details. A stale ready file is
// removed; Stale in the result tells.
func Open(path string) (d *Dir, stale bool, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, false, fmt.Errorf("data folder: %w", err)
	}
	if err := private(path); err != nil {
		return nil, false, err
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, unusable(path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := flock(lock); err != nil {
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, false, unusable(path, err)
		}
		busy := wire.Errorf(wire.CodeDataDirBusy, "another server owns the data folder %s", path)
		if o, oerr := readOwner(path); oerr == nil {
			busy = wire.Errorf(wire.CodeDataDirBusy, "another server (pid %d) owns the data folder %s", o.PID, path).With("pid", o.PID)
		}
		return nil, false, busy
	}
	self, err := launch.Self()
	if err != nil {
		return nil, false, fmt.Errorf("data folder: own process: %w", err)
	}
	raw, err := json.Marshal(owner{self.PID, self.StartTicks, self.BootID})
	if err != nil {
		return nil, false, err
	}
	if err := rewrite(lock, append(raw, '\n')); err != nil {
		return nil, false, unusable(path, err)
	}
	// Whoever wrote a ready file does not hold the lock any more.
	err = os.Remove(filepath.Join(path, readyName))
	stale = err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, unusable(path, err)
	}
	return &Dir{path: path, lock: lock}, stale, nil
}

// private makes the folder 0700. A folder of somebody else, or a file, is
// refused.
func private(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return unusable(path, err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return unusable(path, err)
	}
	if !st.IsDir() {
		return unusable(path, errors.New("not a directory"))
	}
	if err := ownedBy(st, os.Geteuid()); err != nil {
		return unusable(path, err)
	}
	if st.Mode().Perm() != 0o700 {
		if err := os.Chmod(path, 0o700); err != nil { //nolint:gosec // a directory needs its x bit
			return unusable(path, err)
		}
	}
	return nil
}

// ownedBy refuses what belongs to another user: who owns the folder says which
// server a caller talks to, and that server what runs on the caller's machine.
func ownedBy(st fs.FileInfo, uid int) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || int64(sys.Uid) != int64(uid) {
		return errors.New("belongs to another user")
	}
	return nil
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func unlock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_UN)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func rewrite(f *os.File, data []byte) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt(data, 0)
	return err
}

func unusable(path string, err error) error {
	code := wire.CodeUnavailable
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		code = wire.CodeDiskFull
	}
	return &wire.Error{Code: code, Message: "the data folder " + path + " cannot be used", Cause: err}
}

// Path is the absolute path of the folder.
func (d *Dir) Path() string { return d.path }

// Store is the path of the store's file.
func (d *Dir) Store() string { return filepath.Join(d.path, storeName) }

// RunFolder holds the runner state and log of a run; WorkspaceFolder is the
// fresh folder of a run without a workspace. Neither is made here.
func (d *Dir) RunFolder(runID string) string { return filepath.Join(d.path, "runs", runID) }

// WorkspaceFolder see [Dir.RunFolder].
func (d *Dir) WorkspaceFolder(runID string) string { return filepath.Join(d.path, "workspaces", runID) }

// AdminTokenFile is the path of the admin token.
func (d *Dir) AdminTokenFile() string { return filepath.Join(d.path, tokenName) }

// Close removes the ready files and gives the lock back.
func (d *Dir) Close() error {
	var err error
	for _, f := range d.ready {
		if rerr := os.Remove(f); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	d.ready = nil
	// Unlocked, not only closed: a child that was forked this moment and has
	// not come to its exec yet holds a copy of the descriptor, and with it the
	// lock.
	return errors.Join(err, unlock(d.lock), d.lock.Close())
}
