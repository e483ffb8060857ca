package codex

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"bowline/driver"
	"bowline/driver/jsonrpc"
	"bowline/wire"
)

// Version of this driver.
const Version = "0.1.0"

// Graces (ours; measured on an idle machine: initialize 0.1 s, an interrupt
// 15 ms, end after closed input 30 ms).
const (
	InterruptGrace = 5 * time.Second  // from the interrupt to stopping the process
	CloseGrace     = 2 * time.Second  // from closing the input to stopping the process
	StopGrace      = 3 * time.Second  // from SIGTERM to SIGKILL
	OpenTimeout    = 60 * time.Second // for initialize and thread/start together
	lastWords      = time.Second      // from the exit to the end of stderr
)

// Driver makes Codex sessions. Zero durations are the constants of the same
// name.
type Driver struct {
	InterruptGrace time.Duration
	CloseGrace     time.Duration
	StopGrace      time.Duration
	OpenTimeout    time.Duration
}

// New returns the driver with its usual graces.
func New() *Driver { return &Driver{} }

var _ driver.Driver = (*Driver)(nil)

// Descriptor of the driver.
func (d *Driver) Descriptor() driver.Descriptor {
	return driver.Descriptor{
		Name:            Kind,
		Version:         Version,
		ProviderVersion: ProviderVersion,
		InputSchema:     json.RawMessage(inputSchema),
		PermissionModes: []driver.Permission{driver.PermissionDefault, driver.PermissionDeny, driver.PermissionAllow},
		Capabilities:    driver.Capabilities{Resume: true, Steer: true, Interrupt: true},
	}
}

// inputSchema is the JSON Schema of a run's input: the prompt, and what may
// differ from run to run in the provider object.
const inputSchema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",` +
	`"properties":{"prompt":{"type":"string","minLength":1,"maxLength":491520},` +
	`"model":{"type":["string","null"],"minLength":1,"maxLength":4096},` +
	`"instructions":{"type":["string","null"],"maxLength":491520}},` +
	`"required":["prompt"],"additionalProperties":false}`

// Validate checks a provider object; see [driver.Driver].
func (d *Driver) Validate(raw json.RawMessage) error {
	_, err := parseProvider(raw)
	return err
}

// resumeState is Event.Resume and Config.Resume. Codex keeps a thread only
// once it has had a turn; one without may be replaced by a new one.
type resumeState struct {
	ThreadID string `json:"threadId"`
	Used     bool   `json:"used,omitempty"` // a turn was started
}

// Open starts `codex app-server` and a thread in it, or resumes one. It
// returns a *wire.Error for what is wrong with the configuration and a
// *driver.ProviderError (initialize_failed, thread_failed, resume_failed,
// provider_exited) for what Codex made of it; in both cases nothing runs any
// more.
func (d *Driver) Open(ctx context.Context, host driver.Host, cfg driver.Config) (driver.Session, error) {
	p, err := parseProvider(cfg.Provider)
	if err != nil {
		return nil, err
	}
	rules, err := permissions(cfg.Permission, p)
	if err != nil {
		return nil, err
	}
	if p.cwd == "" {
		p.cwd = cfg.Workspace
		if err := checkCwd(p.cwd); err != nil {
			return nil, err
		}
	}
	var resume resumeState
	if cfg.Resume != nil {
		if err := json.Unmarshal(cfg.Resume, &resume); err != nil || resume.ThreadID == "" {
			return nil, wire.Errorf(wire.CodeInputInvalid, "resume state must have a threadId").With("field", "resume.threadId")
		}
	}
	argv, err := p.argv(cfg.Env)
	if err != nil {
		return nil, err
	}
	proc, err := host.Spawn(ctx, driver.ProcessSpec{Argv: argv, Dir: p.cwd, Env: cfg.Env})
	if err != nil {
		return nil, err
	}
	s := d.session(ctx, host, proc, p, rules)
	openCtx, cancel := context.WithTimeout(ctx, or(d.OpenTimeout, OpenTimeout))
	defer cancel()
	if err := s.open(openCtx, cfg.Permission, resume); err != nil {
		s.abandon()
		return nil, s.openError(err)
	}
	return s, nil
}

func or(d, standard time.Duration) time.Duration {
	if d == 0 {
		return standard
	}
	return d
}

func (d *Driver) session(ctx context.Context, host driver.Host, proc driver.Process, p provider, rules policy) *session {
	lifetime, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &session{
		host: host, proc: proc, provider: p, rules: rules,
		interruptGrace: or(d.InterruptGrace, InterruptGrace),
		closeGrace:     or(d.CloseGrace, CloseGrace),
		stopGrace:      or(d.StopGrace, StopGrace),
		ctx:            lifetime, cancel: cancel,
		exited:    make(chan struct{}),
		ended:     make(chan struct{}),
		stderr:    newTail(),
		items:     make(map[string]*item),
		diagnosed: make(map[string]int),
	}
	s.peer = jsonrpc.New(proc.Stdout(), proc.Stdin(), jsonrpc.Options{
		OnNotification: s.onNotification,
		OnRequest:      s.onRequest,
		OnNoise:        s.onNoise,
	})
	s.wg.Go(s.readErrors)
	s.wg.Go(s.awaitExit)
	s.wg.Go(s.run)
	return s
}

// open does the handshake. The continuation of thread/start runs on the
// reading goroutine, so session.started comes before everything the thread
// says.
func (s *session) open(ctx context.Context, mode driver.Permission, resume resumeState) error {
	err := s.peer.Call(ctx, methodInitialize, initializeParams{
		ClientInfo:   clientInfo{Name: "bowline-runnerd", Title: "Bowline", Version: Version},
		Capabilities: capabilities{ExperimentalAPI: true},
	}, nil)
	if err == nil {
		err = s.peer.Notify(ctx, methodInitialized, nil)
	}
	if err != nil {
		return &openFailure{"initialize_failed", err}
	}
	params := threadParams{
		Cwd: s.provider.cwd, Model: s.provider.model,
		ApprovalPolicy: s.rules.approval, Sandbox: s.rules.sandbox,
		DeveloperInstructions: s.provider.instructions,
		Config:                s.provider.config(),
	}
	if resume.ThreadID != "" {
		again := params
		again.ThreadID, again.ExcludeTurns = resume.ThreadID, true
		err := s.thread(ctx, methodThreadResume, again, mode, resume)
		var rpc *jsonrpc.RPCError
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &rpc) || resume.Used || !strings.Contains(rpc.Message, "no rollout found"):
			return &openFailure{"resume_failed", err}
		}
	}
	if err := s.thread(ctx, methodThreadStart, params, mode, resumeState{}); err != nil {
		return &openFailure{"thread_failed", err}
	}
	return nil
}

// thread starts or resumes the thread.
func (s *session) thread(ctx context.Context, method string, params threadParams, mode driver.Permission, resume resumeState) error {
	opened := make(chan error, 1)
	cancel, err := s.peer.CallThen(ctx, method, params, func(raw json.RawMessage, err error) {
		if err == nil {
			err = s.opened(raw, mode, resume)
		}
		opened <- err
	})
	if err != nil {
		return err
	}
	select {
	case err := <-opened:
		return err
	case <-ctx.Done():
		if cancel() {
			return ctx.Err()
		}
		s.cancel() // the host may not take the first event
		return <-opened
	}
}

func (p *provider) config() map[string]any {
	c := map[string]any{}
	if p.modeInstructions != nil {
		c["include_collaboration_mode_instructions"] = *p.modeInstructions
	}
	if p.skillInstructions != nil {
		c["skills"] = map[string]any{"include_instructions": *p.skillInstructions}
	}
	return c
}

var errSessionOver = errors.New("the host has ended the session")

// opened runs on the reading goroutine.
func (s *session) opened(raw json.RawMessage, mode driver.Permission, resume resumeState) error {
	var got threadResult
	if err := json.Unmarshal(raw, &got); err != nil || got.Thread.ID == "" || len(got.Thread.ID) > maxID {
		return errors.New("the answer names no thread")
	}
	if got.Thread.SessionID == "" || len(got.Thread.SessionID) > maxID {
		got.Thread.SessionID = got.Thread.ID
	}
	s.mu.Lock()
	s.threadID, s.sessionID, s.model = got.Thread.ID, got.Thread.SessionID, got.Model
	s.mu.Unlock()
	s.used = resume.Used
	typ := "session.started"
	if resume.ThreadID != "" {
		typ = "session.resumed"
	}
	descriptor := object{
		"provider": Kind, "driver": DriverName, "providerVersion": ProviderVersion, "driverVersion": Version,
		"model": bound(got.Model, maxShown), "permissionMode": mode, "sandbox": bound(got.Sandbox.Type, maxShown),
	}
	if len(got.ApprovalPolicy) > 0 && len(got.ApprovalPolicy) <= maxShown {
		descriptor["approvalPolicy"] = got.ApprovalPolicy
	}
	s.isOpen = true
	s.emitEvent(driver.Event{Type: typ, Priority: priorityTerminal, Resume: s.resumeState()}, object{
		"threadId": got.Thread.ID, "sessionId": got.Thread.SessionID, "cwd": s.provider.cwd,
		"runtimeIdentity":    object{"processId": s.proc.PID()},
		"providerDescriptor": descriptor,
	})
	for _, ev := range s.early {
		s.send(ev)
	}
	s.early = nil
	if s.over {
		return errSessionOver
	}
	return nil
}

func (s *session) resumeState() json.RawMessage {
	state, err := json.Marshal(resumeState{ThreadID: s.threadID, Used: s.used})
	if err != nil {
		panic("bug: codex resume state: " + err.Error())
	}
	return state
}

type openFailure struct {
	code string
	err  error
}

func (e *openFailure) Error() string { return e.code + ": " + e.err.Error() }
func (e *openFailure) Unwrap() error { return e.err }

// openError says what went wrong once the process is gone.
func (s *session) openError(err error) error {
	var (
		failed *openFailure
		closed *jsonrpc.ClosedError
		rpc    *jsonrpc.RPCError
	)
	switch {
	case errors.Is(err, errSessionOver):
		return driver.ErrClosed
	case errors.As(err, &closed):
		return s.exitError()
	case !errors.As(err, &failed):
		return err
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.As(err, &rpc):
		return &driver.ProviderError{Code: failed.code, Message: bound(rpc.Message, MaxMessage)}
	case errors.Is(err, context.DeadlineExceeded):
		return &driver.ProviderError{Code: failed.code, Message: "codex did not answer in time"}
	}
	return &driver.ProviderError{Code: failed.code, Message: bound(failed.err.Error(), MaxMessage)}
}

// exitError says how the process ended. What it wrote to stderr last is the
// only explanation there is.
func (s *session) exitError() *driver.ProviderError {
	exit := s.proc.Wait()
	last := time.NewTimer(lastWords)
	defer last.Stop()
	select {
	case <-s.stderr.ended:
	case <-last.C: // a descendant holds the pipe
	}
	message := "codex app-server ended"
	switch {
	case exit.Signal != "":
		message += " by " + exit.Signal
	case exit.Err != nil:
		message += ", it could not be waited for"
	default:
		message += fmt.Sprintf(" with status %d", exit.Code)
	}
	if last := s.stderr.text(); last != "" {
		message += ": " + last
	}
	return &driver.ProviderError{Code: "provider_exited", Message: bound(message, MaxMessage)}
}

// readErrors drains stderr: a full pipe would stop the provider.
func (s *session) readErrors() {
	defer close(s.stderr.ended)
	if r := s.proc.Stderr(); r != nil {
		// An error here is the end of the pipe in another form.
		_, _ = io.Copy(s.stderr, r)
	}
}
