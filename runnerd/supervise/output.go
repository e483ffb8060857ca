package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// outputPatience is how long a descendant may hold a pipe of an exited
	// leader while nobody takes anything out of it.
	outputPatience = time.Second
	// outputLimit is how long it may hold it at all, however much it writes.
	outputLimit = 10 * time.Second
	// hangupLook is how often the state of an open pipe is looked at once the
	// leader has exited.
	hangupLook = 20 * time.Millisecond
)

// output is the reading end of a pipe or the master of a PTY. One goroutine
// reads; the process's watcher looks at it from beside.
//
// End of stream is: the kernel says so, or the stream was given up and what
// lay in the pipe at that moment has been read.
type output struct {
	file *os.File

	mu      sync.Mutex
	taken   int64 // bytes read so far
	givenUp bool
	left    int64 // after giving up: bytes still to be read
	ended   bool  // reader saw the end
}

func newOutput(file *os.File) *output { return &output{file: file} }

// Read blocks until there is something to read or the stream ends.
func (o *output) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		givenUp, left := o.state()
		if givenUp {
			return o.readRest(b, left)
		}
		n, err := o.file.Read(b)
		if n > 0 {
			o.took(n, false)
			return n, nil
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue // given up while reading
		case err == nil:
			return 0, o.end(io.ErrNoProgress)
		default:
			return 0, o.end(err)
		}
	}
}

// readRest reads of a given-up stream what lay in it, without waiting. A
// descendant that still writes gets SIGPIPE once that is read.
func (o *output) readRest(b []byte, left int64) (int, error) {
	if left == 0 {
		return 0, o.end(io.EOF)
	}
	conn, err := o.file.SyscallConn()
	if err != nil {
		return 0, o.end(err)
	}
	if err := o.file.SetReadDeadline(time.Time{}); err != nil {
		return 0, o.end(err)
	}
	var n int
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		n, failed = readRetry(int(fd), b[:min(int64(len(b)), left)])
		return true // do not wait for more
	})
	switch {
	case n > 0:
		o.took(n, true)
		return n, nil
	case failed == nil && err == nil, errors.Is(failed, unix.EAGAIN):
		return 0, o.end(io.EOF)
	}
	return 0, o.end(errors.Join(err, failed))
}

// state says whether the stream was given up, and how much of it is left then.
func (o *output) state() (givenUp bool, left int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return true, 0
	}
	return o.givenUp, o.left
}

// took counts what was read. Only bytes read after the giving up count against
// what was left then.
func (o *output) took(n int, rest bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken += int64(n)
	if rest {
		o.left -= int64(n)
	}
}

// end closes the file. The end of a pipe is io.EOF, that of a PTY is EIO.
func (o *output) end(err error) error {
	if errors.Is(err, unix.EIO) || errors.Is(err, os.ErrClosed) {
		err = io.EOF
	}
	if closing := o.close(); closing != nil && errors.Is(err, io.EOF) {
		return closing
	}
	return err
}

// close is idempotent.
func (o *output) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	return ignoreClosed(o.file.Close())
}

func (o *output) progress() (int64, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.taken, o.ended
}

// settle waits after the leader's exit until no process can write to the
// stream any more; what is in the pipe then stays readable. It needs no
// reader. It returns false when a descendant held the stream too long and the
// stream was given up.
func (o *output) settle(exited time.Time) bool {
	last, _ := o.progress()
	idleSince := exited
	for {
		hup, err := o.hangup(hangupLook)
		taken, ended := o.progress()
		if ended || hup {
			return true
		}
		if err != nil {
			// The state of the pipe cannot be known: the reader decides alone.
			return false
		}
		now := time.Now()
		if taken != last {
			last, idleSince = taken, now
		}
		if now.Sub(idleSince) >= outputPatience || now.Sub(exited) >= outputLimit {
			o.giveUp()
			return false
		}
	}
}

// hangup reports whether every writer has closed, waiting for at most d.
func (o *output) hangup(d time.Duration) (bool, error) {
	conn, err := o.file.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("supervise: look at output: %w", err)
	}
	var hup bool
	var failed error
	err = conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}} //nolint:gosec // a descriptor fits
		_, failed = unix.Poll(fds, int(d.Milliseconds()))
		hup = fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	if errors.Is(failed, unix.EINTR) {
		failed = nil
	}
	return hup, errors.Join(err, failed)
}

// giveUp ends the stream after what lies in the pipe now.
func (o *output) giveUp() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.givenUp = true
	o.left = pending(o.file)
	// Wakes a blocked reader, which clears the deadline itself. The file may
	// have been closed meanwhile: then there is nobody to wake.
	if err := o.file.SetReadDeadline(time.Unix(1, 0)); err != nil {
		o.left = 0
	}
}

// pending is how many bytes lie in the pipe; 0 when the kernel does not tell.
func pending(file *os.File) int64 {
	conn, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	var n int
	var failed error
	if err := conn.Control(func(fd uintptr) { n, failed = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil || failed != nil {
		return 0
	}
	return int64(n)
}
