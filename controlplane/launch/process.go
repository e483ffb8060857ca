package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bowline/wire"
)

// ProcessID names a process for good: a pid alone is given out again.
type ProcessID struct {
	PID        int
	StartTicks uint64 // field 22 of /proc/PID/stat, clock ticks since boot
	BootID     string // /proc/sys/kernel/random/boot_id
}

// Process is a runner: our child, or one that an earlier owner started.
type Process struct {
	ID   ProcessID
	fd   *os.File    // pidfd: names exactly this process
	proc *os.Process // of a child of ours; nil of an adopted one
	log  *logFile
	// ticket is the write end of the child's pipe until [Process.Give].
	ticket *os.File
}

// Exit is how a runner ended.
type Exit struct {
	Known  bool // false: not our child, how it ended cannot be known
	Code   int
	Signal string // "SIGKILL", …
}

func (e Exit) String() string {
	switch {
	case !e.Known:
		return "unknown"
	case e.Signal != "":
		return "signal " + e.Signal
	}
	return "code " + strconv.Itoa(e.Code)
}

// Start starts the runner. Our own runnerd then waits for [Process.Give]; a
// stand-in has the ticket already. Errors: wire.CodeSpawnFailed.
func Start(spec *Spec, ticket string) (p *Process, err error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(spec.StateDir, 0o700); err != nil {
		return nil, spawnFailed("its state folder cannot be made", err)
	}
	log, err := openLog(spec.logFile())
	if err != nil {
		return nil, spawnFailed("its log file cannot be opened", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, log.Close())
		}
	}()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, spawnFailed("no null device", err)
	}
	defer func() { err = errors.Join(err, null.Close()) }()

	files := []*os.File{null, log.file, log.file}
	var give *os.File
	if !spec.StandIn {
		r, w, perr := os.Pipe()
		if perr != nil {
			return nil, spawnFailed("no pipe", perr)
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		files = append(files, r) // becomes ticketFD
		give = w
	}
	path, argv0 := spec.program()
	pidfd := -1
	proc, err := os.StartProcess(path, append([]string{argv0}, spec.Args()...), &os.ProcAttr{
		Dir:   spec.Dir,
		Env:   spec.environ(ticket),
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	if err != nil {
		if give != nil {
			err = errors.Join(err, give.Close())
		}
		return nil, spawnFailed("it cannot be executed", err)
	}
	p = &Process{proc: proc, log: log, ticket: give}
	p.ID, err = identify(proc.Pid)
	if err == nil {
		p.fd, err = pollable(pidfd)
	}
	if err != nil {
		// It has no ticket yet, or is a stand-in that nobody will know: either
		// way it must not go on.
		err = errors.Join(err, proc.Kill(), p.reap())
		return nil, spawnFailed("it cannot be identified", err)
	}
	return p, nil
}

// Adopt takes over a process that an earlier owner recorded. It returns nil
// if that process no longer lives.
func Adopt(id ProcessID) (*Process, error) {
	if id.PID <= 0 {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, spawnFailed("an earlier runner cannot be watched", err)
	}
	// Opened first, compared second: the descriptor cannot change its process.
	now, err := identify(id.PID)
	if err != nil || now != id || zombie(id.PID) {
		return nil, unix.Close(fd)
	}
	f, err := pollable(fd)
	if err != nil {
		return nil, err
	}
	return &Process{ID: id, fd: f}, nil
}

// Give hands the ticket to our own runnerd. It must be called exactly once,
// after the process was recorded; for other processes it does nothing.
func (p *Process) Give(ticket string) error {
	if p.ticket == nil {
		return nil
	}
	w := p.ticket
	p.ticket = nil
	_, err := w.WriteString(ticket)
	if errors.Is(err, unix.EPIPE) {
		err = nil // it died already: Wait tells how
	}
	return errors.Join(err, w.Close())
}

// Wait returns when the process has ended, or with ctx's error.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	if err := p.fd.SetReadDeadline(time.Time{}); err != nil {
		return Exit{}, err
	}
	stop := context.AfterFunc(ctx, func() {
		// Wakes the read below; the descriptor is open until Release.
		if err := p.fd.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return
		}
	})
	defer stop()
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return Exit{}, err
	}
	err = raw.Read(func(fd uintptr) bool {
		n, perr := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return perr == nil && n == 1
	})
	if err != nil {
		if ctx.Err() != nil {
			return Exit{}, ctx.Err()
		}
		return Exit{}, fmt.Errorf("waiting for the runner: %w", err)
	}
	if p.proc == nil {
		return Exit{}, nil
	}
	st, err := p.proc.Wait()
	if err != nil {
		return Exit{}, fmt.Errorf("waiting for the runner: %w", err)
	}
	e := Exit{Known: true, Code: st.ExitCode()}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = unix.SignalName(ws.Signal())
	}
	return e, nil
}

// Signal sends sig to the process, or to its whole process group.
func (p *Process) Signal(sig syscall.Signal, group bool) error {
	err := unix.PidfdSendSignal(int(p.fd.Fd()), sig, nil, 0)
	if group {
		// The leader's own session: its pid is the group's id and stays taken
		// while a member lives.
		if gerr := unix.Kill(-p.ID.PID, sig); gerr != nil && !errors.Is(gerr, unix.ESRCH) {
			err = errors.Join(err, gerr)
		}
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Stop ends the process: SIGTERM, grace, SIGKILL of its group.
func (p *Process) Stop(ctx context.Context, grace time.Duration) (Exit, error) {
	if err := p.Signal(syscall.SIGTERM, false); err != nil {
		return Exit{}, err
	}
	short, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	e, err := p.Wait(short)
	if err == nil || ctx.Err() != nil {
		return e, err
	}
	if err := p.Signal(syscall.SIGKILL, true); err != nil {
		return Exit{}, err
	}
	return p.Wait(ctx)
}

// Release lets go of the process without ending it. A runner without a ticket
// ends by itself.
func (p *Process) Release() error {
	var err error
	if p.ticket != nil {
		err = p.ticket.Close()
		p.ticket = nil
	}
	if p.fd != nil {
		err = errors.Join(err, p.fd.Close())
	}
	if p.log != nil {
		err = errors.Join(err, p.log.Close())
	}
	if p.proc != nil {
		// Release after Wait says the process is done: nothing to report.
		if rerr := p.proc.Release(); rerr != nil && !errors.Is(rerr, os.ErrProcessDone) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// reap waits for a child that was just killed.
func (p *Process) reap() error {
	_, err := p.proc.Wait()
	if p.ticket != nil {
		err = errors.Join(err, p.ticket.Close())
	}
	return err
}

// pollable makes a pidfd a file that the runtime's poller watches, so that
// waiting takes no thread and can be interrupted.
func pollable(fd int) (*os.File, error) {
	if fd < 0 {
		return nil, errors.New("this kernel has no pidfd")
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// Self is the identity of this process.
func Self() (ProcessID, error) { return identify(os.Getpid()) }

// Alive tells whether the process id names still runs.
func Alive(id ProcessID) bool {
	now, err := identify(id.PID)
	return err == nil && now == id && !zombie(id.PID)
}

func identify(pid int) (ProcessID, error) {
	fields, err := statFields(pid)
	if err != nil {
		return ProcessID{}, err
	}
	const startTime = 22 - 3 // proc(5): field 22, counted from field 3 (state)
	if len(fields) <= startTime {
		return ProcessID{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	ticks, err := strconv.ParseUint(fields[startTime], 10, 64)
	if err != nil {
		return ProcessID{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ProcessID{}, err
	}
	return ProcessID{PID: pid, StartTicks: ticks, BootID: string(bytes.TrimSpace(boot))}, nil
}

func zombie(pid int) bool {
	fields, err := statFields(pid)
	return err != nil || fields[0] == "Z" || fields[0] == "X"
}

// statFields are the fields of /proc/PID/stat from the third on: the second,
// the name in parentheses, may hold anything.
func statFields(pid int) ([]string, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	i := bytes.LastIndexByte(raw, ')')
	fields := strings.Fields(string(raw[i+1:]))
	if i < 0 || len(fields) == 0 {
		return nil, fmt.Errorf("/proc/%d/stat is malformed", pid)
	}
	return fields, nil
}

func spawnFailed(what string, cause error) error {
	return &wire.Error{Code: wire.CodeSpawnFailed, Message: "the runner cannot be started: " + what, Cause: cause}
}
