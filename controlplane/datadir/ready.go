package datadir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"bowline/controlplane/launch"
	"bowline/wire"
)

// Ready is the content of a ready file.
type Ready struct {
	URL            string `json:"url"`
	AdminTokenFile string `json:"adminTokenFile"`
	PID            int    `json:"pid"`
}

// WriteReady writes the ready file of the folder, and a copy at extra if that
// is not "". It is called once the server serves.
func (d *Dir) WriteReady(r Ready, extra string) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	raw = append(raw, '\n')
	files := []string{filepath.Join(d.path, readyName)}
	if extra != "" {
		abs, err := filepath.Abs(extra)
		if err != nil {
			return err
		}
		if abs != files[0] {
			files = append(files, abs)
		}
	}
	for _, f := range files {
		if err := writeAtomic(f, raw); err != nil {
			return &wire.Error{Code: wire.CodeUnavailable, Message: "the ready file cannot be written", Cause: err}
		}
		d.ready = append(d.ready, f)
	}
	return nil
}

// writeAtomic replaces path with a 0600 file of that content, durably.
func writeAtomic(path string, data []byte) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if rerr := os.Remove(tmp.Name()); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
	}()
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// Reasons for which [Find] finds no server.
const (
	NotRunning = "not_running" // nobody owns the folder, or there is no folder
	Stale      = "stale"       // a ready file is there, its server is not
	Starting   = "starting"    // somebody owns the folder and does not serve yet, or not any more
)

// Server is a running server of a data folder.
type Server struct {
	URL   string
	Token string
	PID   int
}

// Find looks for the running server of a data folder. Without one it returns
// nil and a reason. Errors: the folder or token cannot be read.
func Find(data string) (*Server, string, error) {
	data, err := filepath.Abs(data)
	if err != nil {
		return nil, "", fmt.Errorf("data folder: %w", err)
	}
	if err := ours(data); err != nil {
		return nil, "", err
	}
	raw, err := readSmall(filepath.Join(data, readyName))
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return nil, "", unusable(data, err)
	}
	o, err := readOwner(data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, NotRunning, nil
	case err != nil:
		return nil, "", unusable(data, err)
	}
	alive := launch.Alive(o.process())
	var ready Ready
	if !missing {
		if err := json.Unmarshal(raw, &ready); err != nil {
			return nil, "", &wire.Error{Code: wire.CodeUnavailable, Message: "the ready file in " + data + " is not JSON", Cause: err}
		}
	}
	switch {
	case !alive && missing:
		return nil, NotRunning, nil
	case !alive:
		return nil, Stale, nil
	case missing || ready.PID != o.PID:
		return nil, Starting, nil
	}
	token, err := ReadToken(ready.AdminTokenFile)
	if err != nil {
		return nil, "", err
	}
	return &Server{URL: ready.URL, Token: token, PID: ready.PID}, "", nil
}

// OwnerProcess is the process that owns the folder, and whether it lives.
func OwnerProcess(data string) (launch.ProcessID, bool, error) {
	if err := ours(data); err != nil { // its record could name any process of ours
		return launch.ProcessID{}, false, err
	}
	o, err := readOwner(data)
	if errors.Is(err, fs.ErrNotExist) {
		return launch.ProcessID{}, false, nil
	}
	if err != nil {
		return launch.ProcessID{}, false, unusable(data, err)
	}
	return o.process(), launch.Alive(o.process()), nil
}

// ours refuses a folder of another user; none at all is fine.
func ours(data string) error {
	st, err := os.Stat(data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = ownedBy(st, os.Geteuid())
	}
	if err != nil {
		return unusable(data, err)
	}
	return nil
}

// readOwner reads the owner record. An empty one (the lock was taken this
// moment, or never) counts as missing.
func readOwner(data string) (owner, error) {
	raw, err := readSmall(filepath.Join(data, lockName))
	if err != nil {
		return owner{}, err
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return owner{}, fs.ErrNotExist
	}
	var o owner
	if err := json.Unmarshal(raw, &o); err != nil {
		return owner{}, fmt.Errorf("owner record: %w", err)
	}
	return o, nil
}

func readSmall(path string) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, maxRecordBytes+1))
	if err == nil && len(data) > maxRecordBytes {
		err = fmt.Errorf("%s is larger than %d bytes", filepath.Base(path), maxRecordBytes)
	}
	return data, err
}
