package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"bowline/controlplane/client"
	"bowline/controlplane/datadir"
	"bowline/controlplane/launch"
	"bowline/wire"
)

// Bounds of joining a server (ours).
const (
	startTimeout  = 30 * time.Second      // from exec to a ready file
	lookEvery     = 20 * time.Millisecond // at the ready file, while a server starts
	backgroundFor = 30 * time.Minute      // idle life of a background server
	maxTokenBytes = 4096                  // a token file
	startLogTail  = 4096                  // bytes of the server's log shown when it does not start
	serveLogName  = "serve.log"           // stdout and stderr of a background server, below the data folder
)

// serverFlags say which server a verb talks to.
type serverFlags struct {
	data, url, tokenFile string
}

func (f *serverFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.data, "data", "", "data folder `DIR` (default ${XDG_STATE_HOME:-~/.local/state}/bowline)")
	flags.StringVar(&f.url, "server", "", "`URL` of a running server, instead of the data folder's own")
	flags.StringVar(&f.tokenFile, "token-file", "", "`FILE` with the token for --server")
}

// withServer joins the server of the flags, or starts the data folder's in the
// background, and calls fn with a client of it.
func (a *app) withServer(ctx context.Context, f *serverFlags, fn func(context.Context, *client.Client) error) error {
	return a.interruptible(ctx, func(ctx context.Context) error {
		c, err := a.join(ctx, f)
		if err != nil {
			return err
		}
		defer c.Close()
		return fn(ctx, c)
	})
}

func (a *app) join(ctx context.Context, f *serverFlags) (*client.Client, error) {
	if f.url != "" {
		if f.tokenFile == "" {
			return nil, wire.Errorf(wire.CodeUsage, "--server needs --token-file")
		}
		token, err := readToken(a.abs(f.tokenFile))
		if err != nil {
			return nil, err
		}
		c, err := client.New(f.url, client.Options{Token: token})
		if err != nil {
			return nil, err
		}
		return c, c.Ready(ctx)
	}
	if f.tokenFile != "" {
		return nil, wire.Errorf(wire.CodeUsage, "--token-file goes with --server")
	}
	data, err := a.dataDir(f.data)
	if err != nil {
		return nil, err
	}
	s, err := a.background(ctx, data)
	if err != nil {
		return nil, err
	}
	return client.New(s.URL, client.Options{Token: s.Token})
}

// readToken reads a token file. Group or others being able to read it is an
// error: the token is a password.
func readToken(path string) (token string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", wire.Errorf(wire.CodeUsage, "--token-file: %v", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return "", wire.Errorf(wire.CodeUsage, "--token-file: %v", err)
	}
	if !st.Mode().IsRegular() {
		return "", wire.Errorf(wire.CodeUsage, "--token-file %s is not a regular file", path)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return "", wire.Errorf(wire.CodeUsage, "--token-file %s can be read by others (mode %04o): chmod 600 it", path, st.Mode().Perm())
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err != nil {
		return "", wire.Errorf(wire.CodeUsage, "--token-file: %v", err)
	}
	token = string(bytes.TrimSpace(raw))
	if token == "" || len(raw) > maxTokenBytes || strings.ContainsAny(token, " \t\r\n") {
		return "", wire.Errorf(wire.CodeUsage, "--token-file %s does not hold one token", path)
	}
	return token, nil
}

// background finds the server of a data folder or starts one.
func (a *app) background(ctx context.Context, data string) (*datadir.Server, error) {
	s, why, err := datadir.Find(data)
	if err != nil || s != nil {
		return s, err
	}
	var child *startedServer
	if why != datadir.Starting {
		if child, err = a.startServer(data); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout,
		wire.Errorf(wire.CodeServerStart, "the server of %s did not become ready within %s; its log is %s", data, startTimeout, filepath.Join(data, serveLogName)))
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		s, _, err := datadir.Find(data)
		if err != nil || s != nil {
			return s, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case err := <-child.exited():
			// Somebody else's server may have won the folder in between; that
			// one is joined, once it is ready.
			s, why, ferr := datadir.Find(data)
			if ferr != nil || s != nil {
				return s, ferr
			}
			if child.code() == wire.CodeDataDirBusy.ExitCode() && why == datadir.Starting {
				child = nil
				continue
			}
			return nil, child.failed(data, err)
		case <-tick.C:
		}
	}
}

// startedServer is a background server between its start and its readiness.
type startedServer struct {
	cmd  *exec.Cmd
	done chan error
	log  string
	from int64 // where this start begins in the log
}

func (a *app) startServer(data string) (*startedServer, error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, wire.Errorf(wire.CodeServerStart, "data folder: %v", err)
	}
	logPath := filepath.Join(data, serveLogName)
	log, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, wire.Errorf(wire.CodeServerStart, "the server's log: %v", err)
	}
	st, err := log.Stat()
	if err != nil {
		return nil, errors.Join(wire.Errorf(wire.CodeServerStart, "the server's log: %v", err), log.Close())
	}
	// The server outlives this command on purpose, so no context may kill it.
	cmd := exec.Command(a.Self, "serve", "--data", data, "--idle-exit", backgroundFor.String()) //nolint:noctx // see above
	cmd.Args[0] = "bowline"
	cmd.Env = a.Env
	cmd.Dir = "/" // it must not hold the caller's folder
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	if cerr := log.Close(); err == nil && cerr != nil {
		err = cerr
	}
	if err != nil {
		return nil, wire.Errorf(wire.CodeServerStart, "the server cannot be started: %v", err)
	}
	s := &startedServer{cmd: cmd, done: make(chan error, 1), log: logPath, from: st.Size()}
	// The goroutine ends with the server or with this command, whichever is
	// first: nothing can wait for a process that is meant to stay.
	go func() { s.done <- cmd.Wait() }()
	return s, nil
}

// exited is nil, and so blocks for ever, when somebody else's start is awaited.
func (s *startedServer) exited() <-chan error {
	if s == nil {
		return nil
	}
	return s.done
}

func (s *startedServer) code() int { return s.cmd.ProcessState.ExitCode() }

// failed tells why the server did not come up: its own last words.
func (s *startedServer) failed(data string, err error) error {
	reason := fmt.Sprintf("%v, and its log %s says nothing: is there room for it?", err, s.log)
	if tail, terr := tailOf(s.log, s.from); terr == nil && tail != "" {
		reason = tail
	}
	return wire.Errorf(wire.CodeServerStart, "the server of %s ended before it was ready: %s", data, reason)
}

// tailOf reads the last line that was written to path behind offset from.
func tailOf(path string, from int64) (line string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	start := max(from, st.Size()-startLogTail)
	raw := make([]byte, max(st.Size()-start, 0))
	if _, err := f.ReadAt(raw, start); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return lines[len(lines)-1], nil
}

// stopServer ends the server of a data folder and waits until the folder is
// free. It returns false when none was running.
func (a *app) stopServer(ctx context.Context, data string) (bool, error) {
	p, alive, err := datadir.OwnerProcess(data)
	if err != nil || !alive {
		return false, err
	}
	if err := syscall.Kill(p.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return false, wire.Errorf(wire.CodeUnavailable, "the server (pid %d) cannot be stopped: %v", p.PID, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout,
		wire.Errorf(wire.CodeUnavailable, "the server (pid %d) is still stopping after %s", p.PID, startTimeout))
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for launch.Alive(p) {
		select {
		case <-ctx.Done():
			return true, context.Cause(ctx)
		case <-tick.C:
		}
	}
	return true, nil
}
