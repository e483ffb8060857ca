package drivertest

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"bowline/driver"
	"bowline/wire"
)

// drainDelay is how long a descendant may hold the pipes of an exited leader.
const drainDelay = time.Second

// Spawn starts a process in its own group, with pipes. It has no PTY.
func Spawn(ctx context.Context, spec driver.ProcessSpec) (driver.Process, error) {
	fail := func(err error) error {
		e := wire.Errorf(wire.CodeSpawnFailed, "could not start the program")
		e.Cause = err
		return e
	}
	if spec.PTY {
		return nil, fail(errors.ErrUnsupported)
	}
	if len(spec.Argv) == 0 {
		return nil, fail(exec.ErrNotFound)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), spec.Argv[0], spec.Argv[1:]...) //nolint:gosec // a test names it
	cmd.Dir, cmd.Env = spec.Dir, spec.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &process{cmd: cmd, done: make(chan struct{})}
	var theirs []*os.File
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err != nil {
			return nil, nil, err
		}
		return r, w, nil
	}
	if !spec.StdinNull {
		r, w, err := pipe()
		if err != nil {
			return nil, fail(err)
		}
		cmd.Stdin, p.stdin, theirs = r, w, append(theirs, r)
	}
	for _, to := range []struct {
		theirs *io.Writer
		ours   **os.File
	}{{&cmd.Stdout, &p.stdout}, {&cmd.Stderr, &p.stderr}} {
		r, w, err := pipe()
		if err != nil {
			return nil, fail(err)
		}
		*to.theirs, *to.ours, theirs = w, r, append(theirs, w)
	}
	err := cmd.Start()
	for _, f := range theirs {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, fail(err)
	}
	go p.watch()
	return p, nil
}

// process is a small driver.Process.
type process struct {
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	done   chan struct{}
	exit   driver.Exit

	mu   sync.Mutex
	gone bool
}

func (p *process) watch() {
	defer close(p.done)
	err := p.cmd.Wait()
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	var failed *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &failed):
		status, ok := failed.Sys().(syscall.WaitStatus)
		if ok && status.Signaled() {
			p.exit = driver.Exit{Code: -1, Signal: signalName(status.Signal())}
		} else {
			p.exit.Code = failed.ExitCode()
		}
	default:
		p.exit.Err = err
	}
	deadline := time.Now().Add(drainDelay)
	// A pipe always takes a deadline; an error says that it is closed, by a
	// reader that came to its end, and then there is nothing to bound.
	_ = errors.Join(p.stdout.SetReadDeadline(deadline), p.stderr.SetReadDeadline(deadline))
}

func signalName(s syscall.Signal) string {
	switch s {
	case syscall.SIGINT:
		return "SIGINT"
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGKILL:
		return "SIGKILL"
	}
	return s.String()
}

func (p *process) PID() int { return p.cmd.Process.Pid }

func (p *process) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

func (p *process) Stdout() io.Reader { return eof{p.stdout} }

func (p *process) Stderr() io.Reader { return eof{p.stderr} }

// eof ends a stream that was given up.
type eof struct{ file *os.File }

func (r eof) Read(b []byte) (int, error) {
	n, err := r.file.Read(b)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = io.EOF
		}
		err = errors.Join(err, r.file.Close())
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			return n, io.EOF
		}
	}
	return n, err
}

func (p *process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone && s != syscall.SIGKILL {
		return nil
	}
	if err := syscall.Kill(-p.PID(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

func (p *process) Interrupt() error { return p.signal(syscall.SIGINT) }

func (p *process) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		if err := p.signal(syscall.SIGTERM); err != nil {
			return err
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *process) Wait() driver.Exit {
	<-p.done
	return p.exit
}
