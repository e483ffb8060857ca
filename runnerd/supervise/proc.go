package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxEnviron bounds what is read of one process's environment, in bytes. The
// kernel's own bound for arguments and environment together is a quarter of
// the stack limit, 2 MiB by default.
const maxEnviron = 8 << 20

// ident names a process beyond reuse of its pid.
type ident struct {
	pid   int
	start uint64 // clock ticks since boot
}

// procStat is what a tree needs to know of one process.
type procStat struct {
	ident
	ppid, pgrp, sid int
	dead            bool // a zombie without living threads
	zombie          bool // state Z, waiting to be reaped
}

// BootID is the kernel's id of this boot.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("supervise: boot id: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// StartTicks is the start time of a process, for [Record]. It fails with
// [os.ErrNotExist] when there is no such process.
func StartTicks(pid int) (uint64, error) {
	st, ok := readStat(pid, make([]byte, statBuffer))
	if !ok {
		return 0, fmt.Errorf("supervise: process %d: %w", pid, os.ErrNotExist)
	}
	return st.start, nil
}

// statBuffer holds one line of /proc/PID/stat: 52 numbers and a name of at
// most 64 bytes.
const statBuffer = 2048

// readStat reads /proc/PID/stat into buf; false when the process is gone.
func readStat(pid int, buf []byte) (procStat, bool) {
	n, err := readInto("/proc/"+strconv.Itoa(pid)+"/stat", buf)
	if err != nil {
		return procStat{}, false
	}
	return parseStat(pid, buf[:n])
}

// parseStat understands the line. The name in parentheses may itself hold
// spaces and parentheses, so fields are counted from the last one.
func parseStat(pid int, line []byte) (procStat, bool) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return procStat{}, false
	}
	fields := bytes.Fields(line[end+1:])
	const (
		// Fields 3, 4, 5, 6, 20 and 22 of proc(5), counted from the state.
		state      = 0
		ppid       = 1
		pgrp       = 2
		session    = 3
		numThreads = 17
		startTime  = 19
	)
	if len(fields) <= startTime || len(fields[state]) != 1 {
		return procStat{}, false
	}
	ok := true
	number := func(i int) int {
		v, err := strconv.Atoi(string(fields[i]))
		ok = ok && err == nil
		return v
	}
	st := procStat{ident: ident{pid: pid}, ppid: number(ppid), pgrp: number(pgrp), sid: number(session)}
	threads := number(numThreads)
	start, err := strconv.ParseUint(string(fields[startTime]), 10, 64)
	if err != nil || !ok {
		return procStat{}, false
	}
	st.start = start
	st.zombie = fields[state][0] == 'Z'
	// The main thread of a living process may have ended before the others:
	// it then looks like a zombie with threads.
	st.dead = (st.zombie || fields[state][0] == 'X') && threads <= 1
	return st, true
}

// readInto reads a small /proc file with three system calls.
func readInto(path string, buf []byte) (int, error) {
	fd, err := openRetry(path)
	if err != nil {
		return 0, err
	}
	n, err := readRetry(fd, buf)
	return n, errors.Join(err, unix.Close(fd))
}

func openRetry(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return fd, err
	}
}

func readRetry(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return max(n, 0), err
	}
}

// scanner reads the process table with reused buffers. Not safe for
// concurrent use.
type scanner struct {
	stat    []byte
	environ []byte
}

func newScanner() *scanner {
	return &scanner{stat: make([]byte, statBuffer), environ: make([]byte, 16<<10)}
}

// table is the process table at one moment, by pid.
type table map[int]procStat

// snapshot reads the process table. Processes that vanish meanwhile are left
// out.
func (s *scanner) snapshot() (table, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("supervise: process table: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, fmt.Errorf("supervise: process table: %w", err)
	}
	t := make(table, len(names))
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if st, ok := readStat(pid, s.stat); ok {
			t[pid] = st
		}
	}
	return t, nil
}

// carries reports whether the environment of pid names marker. An unreadable
// environment carries nothing.
func (s *scanner) carries(pid int, marker string) bool {
	fd, err := openRetry("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	n := 0
	for {
		if n == len(s.environ) {
			if n >= maxEnviron {
				break
			}
			s.environ = append(s.environ, make([]byte, n)...)
		}
		m, err := readRetry(fd, s.environ[n:])
		if err != nil || m == 0 {
			break
		}
		n += m
	}
	if err := unix.Close(fd); err != nil {
		return false
	}
	return environCarries(s.environ[:n], marker)
}

// environCarries looks for marker in a NUL-separated environment block.
func environCarries(block []byte, marker string) bool {
	prefix := []byte(TreeVariable + "=")
	for len(block) > 0 {
		entry, rest, _ := bytes.Cut(block, []byte{0})
		block = rest
		value, ok := bytes.CutPrefix(entry, prefix)
		if !ok {
			continue
		}
		for one := range bytes.SplitSeq(value, []byte{','}) {
			if string(one) == marker {
				return true
			}
		}
	}
	return false
}

// send signals a process only while it is still the one with that start time.
// It reports false when the process is gone.
func send(id ident, sig unix.Signal, buf []byte) (bool, error) {
	fd, err := unix.PidfdOpen(id.pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return false, nil
	case errors.Is(err, unix.ENOSYS):
		// Linux before 5.3: the start time is compared right before.
		if st, ok := readStat(id.pid, buf); !ok || st.start != id.start {
			return false, nil
		}
		return sent(unix.Kill(id.pid, sig))
	case err != nil:
		return false, fmt.Errorf("supervise: signal process %d: %w", id.pid, err)
	}
	if st, ok := readStat(id.pid, buf); !ok || st.start != id.start {
		return false, unix.Close(fd)
	}
	ok, err := sent(unix.PidfdSendSignal(fd, sig, nil, 0))
	return ok, errors.Join(err, unix.Close(fd))
}

func sent(err error) (bool, error) {
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("supervise: signal: %w", err)
	}
	return true, nil
}
