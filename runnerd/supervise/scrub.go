package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrNotScrubbed is returned when a value is still visible after ScrubEnv.
var ErrNotScrubbed = errors.New("supervise: the variable is still in the initial environment")

// ScrubEnv removes a variable from this process for good and returns its
// value: from the Go environment, so that no child inherits it, and from the
// block the kernel shows as /proc/PID/environ, where os.Unsetenv leaves it.
// The whole entry is overwritten with NUL bytes. present is false when there
// was none. It must run before the process gives up being dumpable, and before
// the first child is started. On an error the value must be taken for
// exposed.
func ScrubEnv(name string) (value string, present bool, err error) {
	value, present = os.LookupEnv(name)
	if err := os.Unsetenv(name); err != nil {
		return value, present, fmt.Errorf("supervise: unset: %w", err)
	}
	start, end, err := environBlock()
	if err != nil {
		return value, present, err
	}
	if err := scrubBlock(name, start, end); err != nil {
		return value, present, err
	}
	shown, err := os.ReadFile("/proc/self/environ")
	if err != nil {
		return value, present, fmt.Errorf("supervise: check environment: %w", err)
	}
	if len(entries(shown, name)) != 0 {
		return value, present, ErrNotScrubbed
	}
	return value, present, nil
}

// environBlock finds where the kernel put the environment: fields 50 and 51 of
// /proc/self/stat, env_start and env_end (proc(5)).
func environBlock() (start, end uint64, err error) {
	line, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("supervise: find environment: %w", err)
	}
	fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
	const envStart, envEnd = 50 - 3, 51 - 3
	if len(fields) <= envEnd {
		return 0, 0, errors.New("supervise: find environment: short stat")
	}
	start, err1 := strconv.ParseUint(string(fields[envStart]), 10, 64)
	end, err2 := strconv.ParseUint(string(fields[envEnd]), 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, fmt.Errorf("supervise: find environment: %w", err)
	}
	if start == 0 || end < start || end-start > maxEnviron {
		return 0, 0, errors.New("supervise: find environment: the kernel does not tell")
	}
	return start, end, nil
}

// scrubBlock overwrites every entry of name between two addresses of this
// process. It goes through /proc/self/mem, where a wrong address is an error
// and not a crash.
func scrubBlock(name string, start, end uint64) (err error) {
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("supervise: open own memory: %w", err)
	}
	defer func() { err = errors.Join(err, mem.Close()) }()
	block := make([]byte, end-start)
	if _, err := mem.ReadAt(block, int64(start)); err != nil { //nolint:gosec // user addresses are below 2^63
		return fmt.Errorf("supervise: read environment: %w", err)
	}
	for _, e := range entries(block, name) {
		zero := make([]byte, e.end-e.start)
		if _, err := mem.WriteAt(zero, int64(start)+int64(e.start)); err != nil { //nolint:gosec // as above
			return fmt.Errorf("supervise: overwrite environment: %w", err)
		}
	}
	clear(block)
	return nil
}

// span is a range of bytes.
type span struct{ start, end int }

// entries finds the entries "name=…" in a NUL-separated block.
func entries(block []byte, name string) []span {
	prefix := []byte(name + "=")
	var found []span
	for at := 0; at < len(block); {
		n := bytes.IndexByte(block[at:], 0)
		if n < 0 {
			n = len(block) - at
		}
		if bytes.HasPrefix(block[at:at+n], prefix) {
			found = append(found, span{at, at + n})
		}
		at += n + 1
	}
	return found
}

// ClearDumpable hides this process's memory and environment from others of the
// same user (PR_SET_DUMPABLE 0). Programs it starts are not affected.
func ClearDumpable() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("supervise: clear dumpable: %w", err)
	}
	return nil
}

// firstDescriptor is the first that is not one of the three streams.
const firstDescriptor = 3

// CloseOnExec keeps every descriptor this process was started with, but the
// three streams, from the programs it starts: a lock, a pipe or a file that
// whoever started us forgot to close would otherwise stay open in agents and in
// servers that outlive their caller. Descriptors that are handed on by name are
// not affected.
func CloseOnExec() error {
	if err := unix.CloseRange(firstDescriptor, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("supervise: close on exec: %w", err)
	}
	return nil
}
