package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bowline/driver"
)

// process implements driver.Process.
type process struct {
	owner  *Supervisor
	record Record
	tree   *tree
	cmd    *exec.Cmd

	stdin  io.WriteCloser // nil: /dev/null
	stdout *output
	stderr *output // nil with a PTY

	// reaped closes when the leader has exited and its status was collected;
	// done closes when exit is complete.
	reaped chan struct{}
	done   chan struct{}
	exit   driver.Exit // after done

	// leader guards against signalling a pid that was given back: it is held
	// while the status is collected and while a signal is sent.
	leader sync.Mutex
	gone   bool // the leader's status was collected

	stopping sync.Mutex // one Stop at a time
	released bool       // guarded by stopping: the tree is proven gone
}

var _ driver.Process = (*process)(nil)

func (p *process) PID() int { return p.record.PID }

func (p *process) Stdin() io.WriteCloser { return p.stdin }

func (p *process) Stdout() io.Reader { return p.stdout }

func (p *process) Stderr() io.Reader {
	if p.stderr == nil {
		return nil
	}
	return p.stderr
}

func (p *process) Wait() driver.Exit {
	<-p.done
	return p.exit
}

// Interrupt sends SIGINT to the leader's process group. A leader that has
// exited is not an error.
func (p *process) Interrupt() error {
	p.leader.Lock()
	defer p.leader.Unlock()
	if p.gone {
		return nil
	}
	if err := unix.Kill(-p.record.PID, unix.SIGINT); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("supervise: interrupt: %w", err)
	}
	return nil
}

// Stop ends the tree. With grace 0 it kills at once. When it returns nil,
// nothing of the tree is alive and the leader was reaped; output written
// before can still be read.
func (p *process) Stop(ctx context.Context, grace time.Duration) error {
	p.stopping.Lock()
	defer p.stopping.Unlock()
	if p.released {
		return nil
	}
	if grace > 0 {
		asking, cancel := context.WithTimeout(ctx, grace)
		err := p.tree.terminate(asking)
		cancel()
		if err != nil {
			return err
		}
	}
	if _, err := p.tree.kill(ctx); err != nil {
		return err
	}
	select {
	case <-p.reaped:
	case <-ctx.Done():
		return fmt.Errorf("supervise: leader not reaped: %w", ctx.Err())
	}
	p.forget()
	return nil
}

// forget drops a process whose tree is proven gone. The caller holds stopping.
func (p *process) forget() {
	p.owner.onReap(ReapedOrphan, p.tree.reap())
	p.released = true
	p.owner.remove(p)
	p.owner.onGone(p.record)
}

// watch collects the leader's status, waits for its output to end, and lets go
// of a tree that ended with it.
func (p *process) watch() {
	p.exit = p.status()
	close(p.reaped)
	exited := time.Now()
	for _, o := range []*output{p.stdout, p.stderr} {
		if o != nil && !o.settle(exited) {
			p.exit.PipesLeftOpen = true
		}
	}
	close(p.done)

	// Most trees end with their leader: then nothing has to be kept of them.
	p.stopping.Lock()
	defer p.stopping.Unlock()
	if p.released {
		return
	}
	if alive, err := p.tree.living(); err == nil && alive == 0 {
		p.forget()
	}
}

// status waits for the leader without reaping it, so that no signal can hit a
// reused pid: the reaping itself happens under the leader lock.
func (p *process) status() driver.Exit {
	for {
		err := unix.Waitid(unix.P_PID, p.record.PID, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break // any other failure shows in Wait below
		}
	}
	p.leader.Lock()
	defer p.leader.Unlock()
	err := p.cmd.Wait()
	p.gone = true
	p.owner.onReap(ReapedLeader, 1)
	return exitOf(err)
}

// exitOf translates what os/exec says.
func exitOf(err error) driver.Exit {
	if err == nil {
		return driver.Exit{}
	}
	var failed *exec.ExitError
	if !errors.As(err, &failed) {
		return driver.Exit{Code: -1, Err: fmt.Errorf("supervise: wait: %w", err)}
	}
	status, ok := failed.Sys().(syscall.WaitStatus)
	if !ok {
		panic("bug: exit status is not a wait status")
	}
	if !status.Signaled() {
		return driver.Exit{Code: status.ExitStatus()}
	}
	return driver.Exit{Code: -1, Signal: signalName(status.Signal())}
}

// signalName is the name of a signal: "SIGKILL".
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(sig)) // a real-time signal
}

// release closes what is left of the process's pipes. Output not read yet is
// lost; only the owner's Close does this.
func (p *process) release() error {
	var errs []error
	if p.stdin != nil {
		errs = append(errs, ignoreClosed(p.stdin.Close()))
	}
	errs = append(errs, p.stdout.close())
	if p.stderr != nil {
		errs = append(errs, p.stderr.close())
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
