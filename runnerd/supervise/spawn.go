package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"bowline/driver"
	"bowline/wire"
)

const (
	// ptyColumns and ptyRows are the size of a new terminal.
	ptyColumns = 120
	ptyRows    = 40
	// ptyTerm is TERM for a PTY whose environment names none.
	ptyTerm = "xterm-256color"
	// maxNamed bounds a program or folder named in an error, in bytes (ours).
	maxNamed = 200
)

// Spawn starts a process that leads its own session. ctx bounds the start
// only. Failures are *wire.Error with wire.CodeSpawnFailed and name the
// program as spec.Argv does, or the folder when that is at fault; a hook's
// error is returned wrapped in the same way.
//
// With spec.PTY stdin, stdout and stderr are one new terminal in the kernel's
// default (cooked) mode: a newline the process writes is read as "\r\n", and
// what is written to stdin is echoed. With spec.StdinNull stdin is /dev/null
// in both cases.
func (s *Supervisor) Spawn(ctx context.Context, spec driver.ProcessSpec) (driver.Process, error) {
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return nil, wire.Errorf(wire.CodeSpawnFailed, "no program named")
	}
	fail := func(err error) error { return spawnError(spec, err) }
	if err := ctx.Err(); err != nil {
		return nil, fail(err)
	}
	if s.isClosed() {
		return nil, fail(errClosed)
	}
	path, err := lookPath(spec.Argv[0], spec.Dir, spec.Env)
	if err != nil {
		return nil, fail(err)
	}
	marker, err := s.newMarker()
	if err != nil {
		return nil, fail(err)
	}
	record := Record{Marker: marker, BootID: s.bootID}
	if err := s.onSpawn(record); err != nil {
		return nil, fail(err)
	}
	p, err := s.start(path, spec, record)
	if err != nil {
		s.onGone(record)
		return nil, fail(err)
	}
	if err := s.onSpawn(p.record); err != nil {
		// Not durable means not started: ctx may be over, the kill must not be.
		return nil, fail(errors.Join(err, p.Stop(context.WithoutCancel(ctx), 0), p.release()))
	}
	return p, nil
}

// start runs the program and its watcher.
func (s *Supervisor) start(path string, spec driver.ProcessSpec, record Record) (*process, error) {
	cmd := &exec.Cmd{
		Path: path,
		Args: spec.Argv,
		Dir:  spec.Dir,
		Env:  s.environment(spec, record.Marker),
		// A session of its own: no controlling terminal of ours, and a group
		// that can be signalled as one.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	p := &process{owner: s, record: record, cmd: cmd, reaped: make(chan struct{}), done: make(chan struct{})}
	connect := p.pipes
	if spec.PTY {
		connect = p.terminal
	}
	theirs, err := connect(spec.StdinNull)
	s.begin()
	defer s.begun()
	if err == nil {
		err = cmd.Start()
	}
	if closing := closeAll(theirs); err == nil && closing != nil {
		// Cannot happen to a descriptor just made; the process would hold it.
		err = errors.Join(closing, cmd.Process.Kill(), cmd.Wait())
	}
	if err != nil {
		if p.stdout != nil {
			err = errors.Join(err, p.release())
		}
		return nil, err
	}
	p.record.PID = cmd.Process.Pid
	// Not waited for yet, so the pid is still its own even if it has exited.
	ticks, err := StartTicks(p.record.PID)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait(), p.release())
	}
	p.record.StartTicks = ticks
	p.tree = newTree(record.Marker, ident{pid: p.record.PID, start: ticks}, s.self, true)
	if s.options.OwnsChildren {
		p.tree.only = func() bool { return s.only(p.tree) }
	}
	added := s.add(p)
	s.watchProcess(p)
	if !added {
		return nil, errors.Join(errClosed, p.Stop(context.Background(), 0), p.release())
	}
	return p, nil
}

// watchProcess runs the watcher; Close waits for it.
func (s *Supervisor) watchProcess(p *process) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		p.watch()
	}()
}

// pipes connects the three streams and returns the child's ends.
func (p *process) pipes(stdinNull bool) (theirs []*os.File, err error) {
	if !stdinNull {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, r)
		p.cmd.Stdin, p.stdin = r, w
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return theirs, errors.Join(err, closeWriter(p.stdin))
	}
	theirs = append(theirs, outW)
	p.cmd.Stdout, p.stdout = outW, newOutput(outR)
	errR, errW, err := os.Pipe()
	if err != nil {
		return theirs, err
	}
	theirs = append(theirs, errW)
	p.cmd.Stderr, p.stderr = errW, newOutput(errR)
	return theirs, nil
}

// terminal connects a PTY and returns the child's end.
func (p *process) terminal(stdinNull bool) ([]*os.File, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	p.stdout = newOutput(master)
	theirs := []*os.File{slave}
	if err := pty.Setsize(master, &pty.Winsize{Rows: ptyRows, Cols: ptyColumns}); err != nil {
		return theirs, fmt.Errorf("size a terminal: %w", err)
	}
	p.cmd.Stdout, p.cmd.Stderr = slave, slave
	if !stdinNull {
		p.cmd.Stdin = slave
		p.stdin = &ptyInput{master: master}
	}
	p.cmd.SysProcAttr.Setctty = true
	p.cmd.SysProcAttr.Ctty = 1 // the child's stdout
	return theirs, nil
}

// ptyInput writes to a terminal's master. Closing sends end of file the way a
// person does, the master stays open for reading.
type ptyInput struct {
	master *os.File
	mu     sync.Mutex
	closed bool
}

// endOfFile is Ctrl-D, the kernel's default VEOF character.
const endOfFile = 4

func (w *ptyInput) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, os.ErrClosed
	}
	return w.master.Write(b)
}

func (w *ptyInput) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	w.closed = true
	_, err := w.master.Write([]byte{endOfFile})
	if errors.Is(err, unix.EIO) {
		return nil // everybody at the other end is gone
	}
	return ignoreClosed(err)
}

func closeWriter(w io.Closer) error {
	if w == nil {
		return nil
	}
	return w.Close()
}

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// environment is spec.Env with the tree's marker in front.
func (s *Supervisor) environment(spec driver.ProcessSpec, marker string) []string {
	value := marker
	if s.options.OuterTree != "" {
		value = s.options.OuterTree + "," + marker
	}
	env := make([]string, 0, len(spec.Env)+2)
	env = append(env, TreeVariable+"="+value)
	term := false
	for _, kv := range spec.Env {
		name, _, _ := strings.Cut(kv, "=")
		if name == TreeVariable {
			continue
		}
		term = term || name == "TERM"
		env = append(env, kv)
	}
	if spec.PTY && !term {
		env = append(env, "TERM="+ptyTerm)
	}
	return env
}

// lookPath finds the program in the PATH of the child's environment, never in
// our own.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, nil // relative to dir, as the kernel resolves it after chdir
	}
	var searched string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			searched = v // the last one wins, as in os/exec
		}
	}
	refused := exec.ErrNotFound
	for _, folder := range filepath.SplitList(searched) {
		if folder == "" {
			folder = "."
		}
		candidate := filepath.Join(folder, name)
		if !filepath.IsAbs(candidate) {
			candidate = filepath.Join(dir, candidate)
		}
		info, err := os.Stat(candidate)
		if err != nil || info.IsDir() {
			continue
		}
		if unix.Access(candidate, unix.X_OK) != nil {
			refused = os.ErrPermission
			continue
		}
		return candidate, nil
	}
	return "", refused
}

// spawnError names the program as it was asked for: argv is in the session's
// events anyway.
func spawnError(spec driver.ProcessSpec, err error) *wire.Error {
	program := named(spec.Argv[0])
	if spec.Dir != "" && !errors.Is(err, errClosed) {
		// The kernel says the same of a folder that cannot be entered and of a
		// program that cannot be executed.
		if derr := unix.Access(spec.Dir+"/.", unix.X_OK); derr != nil {
			return failedStart(program, fmt.Sprintf("its folder %q cannot be entered: %s", named(spec.Dir), derr), err)
		}
	}
	var reason string
	var errno syscall.Errno
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		reason = "not found"
		if len(spec.Argv) == 1 && strings.ContainsAny(spec.Argv[0], " \t\n") {
			reason += "; no shell reads it, ask for one: sh -c '…'"
		}
	case errors.Is(err, os.ErrPermission):
		reason = "permission denied"
	case errors.As(err, &errno):
		reason = errno.Error()
	case errors.Is(err, errClosed):
		reason = "the supervisor is closed"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		reason = "cancelled before it started"
	default:
		// A hook's or our own failure: details are for the log.
		reason = "it could not be made durable or supervised"
	}
	return failedStart(program, reason, err)
}

func failedStart(program, reason string, cause error) *wire.Error {
	e := wire.Errorf(wire.CodeSpawnFailed, "start %q: %s", program, reason)
	e.Cause = cause
	return e.With("program", program).With("reason", reason)
}

// named is text with at most maxNamed bytes of it.
func named(text string) string {
	if len(text) <= maxNamed {
		return text
	}
	return strings.ToValidUTF8(text[:maxNamed], "") + "…"
}
