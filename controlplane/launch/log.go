package launch

import (
	"errors"
	"os"
	"path/filepath"
)

// MaxLogBytes bounds runnerd.log (ours): a longer file is moved to
// runnerd.log.1 at the next start, and emptied while the runner lives.
const MaxLogBytes = 4 << 20

// logFile is the file that a runner writes its output to by itself: a pipe
// would break when its owner dies.
type logFile struct {
	file *os.File
	from int64 // where this process begins, in bytes
}

func openLog(path string) (*logFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if st, err := os.Stat(path); err == nil && st.Size() > MaxLogBytes/2 {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	// O_APPEND: after a truncation the child goes on at the new end.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &logFile{file: f, from: st.Size()}, nil
}

// bound empties the file when it has outgrown its limit.
func (l *logFile) bound() error {
	if l == nil {
		return nil
	}
	st, err := l.file.Stat()
	if err != nil || st.Size() <= MaxLogBytes {
		return err
	}
	return l.file.Truncate(0)
}

func (l *logFile) Close() error {
	err := l.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
