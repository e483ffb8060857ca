package cli

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"bowline/controlplane/client"
	"bowline/controlplane/launch"
	"bowline/controlplane/resource"
	"bowline/wire"
)

// The demo's run: enough events to be in the middle of something.
const (
	demoEvents  = 400
	demoKillAt  = 100 // deltas seen before the runner is killed
	demoGateAt  = 200 // the agent waits here until the runner is back
	demoTimeout = 2 * time.Minute
)

func (a *app) demoCommand() *cobra.Command {
	var keep string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch a runner being killed in the middle of its work and come back, with nothing lost or doubled",
		Long: "Watch a runner being killed in the middle of its work and come back, with nothing lost or doubled.\n" +
			"It needs nothing but this binary, works in a folder of its own and leaves no process behind.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir := keep
			if dir == "" {
				var err error
				if dir, err = os.MkdirTemp("", "bowline-demo-"); err != nil {
					return wire.Errorf(wire.CodeUnavailable, "the demo's folder: %v", err)
				}
			}
			return a.demo(cmd.Context(), a.abs(dir))
		},
	}
	cmd.Flags().StringVar(&keep, "dir", "", "folder `DIR` of the demo (default: a fresh temporary one)")
	return cmd
}

// claimFolder takes an absent or empty folder for one demo: what an earlier one
// left, or another one is writing, would be taken for this one's ledger.
func claimFolder(dir, work string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return wire.Errorf(wire.CodeUnavailable, "the demo's folder: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return wire.Errorf(wire.CodeUnavailable, "the demo's folder: %v", err)
	}
	if len(entries) == 0 {
		err = os.Mkdir(work, 0o700) // one of two that come at once
	}
	if len(entries) > 0 || errors.Is(err, fs.ErrExist) {
		return wire.Errorf(wire.CodeUsage, "--dir: %s is not empty; the demo wants a folder of its own", dir).With("field", "dir")
	}
	if err != nil {
		return wire.Errorf(wire.CodeUnavailable, "the demo's folder: %v", err)
	}
	return nil
}

func (a *app) say(format string, args ...any) error {
	if _, err := fmt.Fprintf(a.Stdout, format+"\n", args...); err != nil {
		return stdoutFailed(err)
	}
	return nil
}

func (a *app) demo(ctx context.Context, dir string) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, demoTimeout, wire.Errorf(wire.CodeUnavailable, "the demo did not end within %s", demoTimeout))
	defer cancel()
	data, work := filepath.Join(dir, "data"), filepath.Join(dir, "workspace")
	if err := claimFolder(dir, work); err != nil {
		return err
	}
	if err := a.say("Bowline demo in %s\n", dir); err != nil {
		return err
	}
	var c *client.Client
	err = a.interruptible(ctx, func(ctx context.Context) error {
		var err error
		c, err = a.join(ctx, &serverFlags{data: data})
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	defer func() {
		_, serr := a.stopServer(context.WithoutCancel(ctx), data)
		err = errors.Join(err, serr)
	}()
	if err := a.say("1. A control plane serves at %s; what it keeps is in %s.", c.BaseURL(), filepath.Join(data, "bowline.db")); err != nil {
		return err
	}
	d := &demoRun{app: a, dir: dir, ledger: filepath.Join(dir, "ledger.jsonl"), gate: filepath.Join(dir, "gate")}
	run, err := d.create(ctx, c, work)
	if err != nil {
		return err
	}
	w := &watch{
		app: a, client: c, run: run, spec: d.spec, folder: filepath.Join(data, "runs", run.ID),
		silent: true, note: d.note, seen: d.see, rejoin: a.rejoin(data),
	}
	err = w.follow(ctx)
	if err != nil {
		d.sweep()
	}
	if derr := d.problem(); err != nil || derr != nil {
		return errors.Join(err, derr)
	}
	if err := d.check(ctx, c, run.ID); err != nil {
		return err
	}
	return a.demoOutro(data, run.ID)
}

func (a *app) demoOutro(data, runID string) error {
	text := fmt.Sprintf("\nNothing runs any more. To look at what was kept:\n"+
		"  bowline runs show %s --data %s\n  bowline runs events %s --data %s\n  bowline stop --data %s\n", runID, data, runID, data, data)
	if path := lookPath(a.Env, a.Dir, "codex"); path != "" {
		text += "\nCodex is installed (" + path + "). The same with a real agent, in the current folder:\n" +
			"  bowline run --prompt 'Say hello, then list the files here.'\n"
	} else {
		text += "\nA real command works the same way, and so does Codex once its binary is on PATH:\n" +
			"  bowline run -- sh -c 'echo hello; date'\n"
	}
	text += "(from a clone: go run ./cmd/bowline instead of bowline)"
	return a.say("%s", text)
}

// demoRun is the story of one run: it kills the runner once.
type demoRun struct {
	app               *app
	dir, ledger, gate string
	spec              launch.Spec

	pid     atomic.Int64
	deltas  int // seen; belongs to the goroutine that follows the run
	mu      sync.Mutex
	err     error
	started time.Time
}

func (d *demoRun) create(ctx context.Context, c *client.Client, work string) (*resource.Run, error) {
	digest, err := launch.Digest("")
	if err != nil {
		return nil, err
	}
	script, err := json.Marshal(map[string]any{
		"events": demoEvents, "textBytes": 64, "seed": 1,
		"ledger": d.ledger, "gate": d.gate, "gateAt": demoGateAt,
	})
	if err != nil {
		return nil, err
	}
	d.spec = launch.Spec{Env: d.app.Env, Permission: "default", Workspace: work, Dir: work}
	d.started = time.Now()
	return c.CreateRun(ctx, resource.CreateRun{
		Driver: "scripted", Prompt: "demo", Script: script, Workspace: work, Permission: "default",
		Placement: resource.PlacementAttached,
		Provider:  &resource.ProviderConfig{Kind: "scripted"},
		Runner:    &resource.RunnerBuild{Version: launch.OwnVersion, Digest: digest},
	}, "")
}

// sweep leaves no process behind when the story was cut short. A runner that
// was not waited for is our child still, so its pid is nobody else's.
func (d *demoRun) sweep() {
	if pid := int(d.pid.Load()); pid > 0 && d.problem() == nil {
		d.fail(ignoreGone(syscall.Kill(pid, syscall.SIGTERM)))
	}
}

func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

func (d *demoRun) problem() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func (d *demoRun) fail(err error) {
	if err == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = errors.Join(d.err, err)
}

// note tells the runner's part of the story.
func (d *demoRun) note(n launch.Note) {
	switch n.Kind {
	case launch.NoteStarted:
		d.pid.Store(int64(n.PID))
		if n.Attempt == 1 {
			d.fail(d.app.say("2. A runner (pid %d) starts with a one-use ticket, dials in, and plays an agent of %d events.", n.PID, demoEvents))
			return
		}
		d.fail(d.app.say("4. A new runner (pid %d) starts with a fresh ticket, reads its session log and goes on.", n.PID))
		f, err := os.OpenFile(d.gate, os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			err = f.Close()
		}
		d.fail(err)
	case launch.NoteExited:
		d.pid.Store(0)
	case launch.NoteGaveUp:
		d.fail(wire.Errorf(wire.CodeRefused, "the runner did not come back: %s", n.Exit))
	}
}

// see watches the events go by and kills the runner in the middle of the turn.
func (d *demoRun) see(line *resource.Line) {
	if line.Event == nil || line.Event.Type != "item.delta" {
		return
	}
	d.deltas++
	if d.deltas != demoKillAt {
		return
	}
	pid := int(d.pid.Load())
	if pid <= 0 {
		d.fail(wire.Errorf(wire.CodeRefused, "the runner ended before the demo could kill it"))
		return
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		d.fail(fmt.Errorf("the runner (pid %d) could not be killed: %w", pid, err))
		return
	}
	d.fail(d.app.say("3. The turn was accepted and %d of its events are safe here. SIGKILL to the runner: it gets no chance to tidy up.", d.deltas))
}

// check compares what the agent wrote into its own ledger, synced before each
// event, with what the control plane kept.
func (d *demoRun) check(ctx context.Context, c *client.Client, runID string) error {
	want, attempts, err := readLedger(d.ledger)
	if err != nil {
		return err
	}
	var got []string
	terminal := 0
	for line, err := range c.Events(ctx, runID, "") {
		if err != nil {
			return err
		}
		switch {
		case line.Event == nil:
		case line.Event.Type == resource.EventRunEnded:
			terminal++
		case line.Event.Origin == "runner" && strings.HasPrefix(line.Event.Type, "turn.") || line.Event.Type == "item.delta" || line.Event.Type == "item.completed":
			sum := sha256.Sum256(line.Event.Payload)
			got = append(got, hex.EncodeToString(sum[:]))
		}
	}
	if len(got) != len(want) {
		return wire.Errorf(wire.CodeIntegrityFault, "the agent produced %d events, the control plane has %d", len(want), len(got))
	}
	for i := range want {
		if got[i] != want[i] {
			return wire.Errorf(wire.CodeIntegrityFault, "event %d differs from what the agent wrote into its ledger", i)
		}
	}
	if terminal != 1 {
		return wire.Errorf(wire.CodeIntegrityFault, "the run has %d terminal events instead of one", terminal)
	}
	return d.app.say("5. The run completed %s after its start: %d events, each once, in order, equal to the agent's own ledger\n"+
		"   (%s, %d lines: what was being written when the kill came was produced again, and kept once).",
		dateless(time.Since(d.started)), len(got), d.ledger, attempts)
}

// readLedger returns the digest of every event of the turn, by its index, and
// the number of lines. The same index with another digest is an error.
func readLedger(path string) (digests []string, lines int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r := bufio.NewScanner(f) // our own file, short lines
	for r.Scan() {
		lines++
		var l struct {
			Event  *int   `json:"event"`
			SHA256 string `json:"sha256"`
		}
		if err := json.Unmarshal(r.Bytes(), &l); err != nil {
			return nil, 0, fmt.Errorf("ledger line %d: %w", lines, err)
		}
		switch {
		case l.Event == nil || *l.Event < 0: // an effect, or an event outside the turn
		case *l.Event == len(digests):
			digests = append(digests, l.SHA256)
		case *l.Event > len(digests) || digests[*l.Event] != l.SHA256:
			return nil, 0, wire.Errorf(wire.CodeIntegrityFault, "ledger line %d: the agent produced event %d twice, differently", lines, *l.Event)
		}
	}
	return digests, lines, r.Err()
}
