package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bowline/cmd/internal/config"
	"bowline/controlplane/client"
	"bowline/controlplane/launch"
	"bowline/controlplane/resource"
	"bowline/wire"
	"bowline/wire/carrier"
)

// runFlags are what the user asked for.
type runFlags struct {
	at         serverFlags
	driver     string
	prompt     string
	promptSet  bool
	argv       []string
	workspace  string
	env        []string
	permission string
	pty        bool
	timeout    time.Duration
	runner     string
	config     string
	json       bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--prompt TEXT | -- ARGV…]",
		Short: "Run an agent or a command in a runner, and follow it to its end",
		Long: "Run an agent or a command in a runner of its own, and follow it to its end.\n\n" +
			"The agent's output goes to stdout as it arrives, a command's stderr to stderr.\n" +
			"Ctrl-C (or SIGTERM) cancels the run and waits for its end; a second one leaves without\n" +
			"waiting, and the run ends by its cancel.\n" +
			"When stdout is closed, as by head, the run is cancelled.\n\n" +
			"Exit codes: 0 completed, 1 failed, cancelled elsewhere or orphaned, 2 usage, 3 no server,\n" +
			"4 refused by the server, 5 integrity fault, 130 Ctrl-C.",
		Example: "  bowline run -- make test\n" +
			"  bowline run --prompt 'Find out why the tests fail and fix it.'\n" +
			"  bowline run --env MY_TOKEN --timeout 10m -- ./deploy.sh\n" +
			"  bowline run --json -- date | tail -1",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) > 0 && dash != 0 {
				return wire.Errorf(wire.CodeUsage, "a command goes behind --: bowline run -- %s", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.argv = args
			f.promptSet = cmd.Flags().Changed("prompt")
			return a.run(cmd.Context(), &f)
		},
	}
	fl := cmd.Flags()
	f.at.add(fl)
	fl.StringVar(&f.driver, "driver", "", "`NAME`: command, codex, scripted or a name of the config file (default: command with -- ARGV, codex with --prompt)")
	fl.StringVar(&f.prompt, "prompt", "", "`TEXT`: what the agent is asked")
	fl.StringVar(&f.workspace, "workspace", "", "`DIR` the agent works in (default: the current one)")
	fl.StringArrayVar(&f.env, "env", nil, "`NAME` of a variable handed to the agent; repeatable. Its value is redacted in everything sent")
	fl.StringVar(&f.permission, "permission", "default", "`MODE` default, deny or allow: what happens when the agent asks")
	fl.BoolVar(&f.pty, "pty", false, "run the command on a terminal")
	fl.DurationVar(&f.timeout, "timeout", 0, "end the turn after this `DUR`, as 90s or 10m (0: never)")
	fl.StringVar(&f.runner, "runner", "", "start the program at `PATH` as the runner, as an existing \"paperclip.runner\" runner is started")
	fl.StringVar(&f.config, "config", "", "`FILE` that configures drivers")
	fl.BoolVar(&f.json, "json", false, "NDJSON on stdout: events, control lines, and the result as the last line")
	oneOf(cmd, "driver", config.Kinds()...)
	oneOf(cmd, "permission", "default", "deny", "allow")
	return cmd
}

// oneOf lets the shell complete a flag's value.
func oneOf(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("bug: completion of --" + flag + ": " + err.Error())
	}
}

// run is the verb. With --json its last line on stdout is always the result,
// also when the run was refused or Ctrl-C came first.
func (a *app) run(ctx context.Context, f *runFlags) error {
	p, err := a.prepare(f)
	var w *watch
	if err == nil {
		w, err = a.attached(ctx, f, p)
	}
	if !f.json || err == nil || w != nil && w.told {
		return err
	}
	var broken *stdioError
	if errors.As(err, &broken) {
		return err // there is no stdout to say it on
	}
	var run *resource.Run
	if w != nil {
		run = w.last
	}
	return errors.Join(err, a.printJSON(untold(run, err)))
}

// untold is the result line of a run whose end is not known here: it was never
// made, or this command had to leave it.
func untold(run *resource.Run, err error) any {
	result := map[string]any{"status": "refused", "exitCode": nil}
	var we *wire.Error
	var ee *exitError
	switch {
	case errors.As(err, &ee) && ee.code == wire.ExitSignal:
		result["status"] = "interrupted"
	case errors.As(err, &we):
		result["error"] = map[string]any{"code": we.Code, "message": we.Message, "details": we.Details}
	default:
		result["error"] = map[string]any{"code": wire.CodeInternal, "message": err.Error()}
	}
	if run != nil {
		result["status"] = run.Status
	}
	return map[string]any{"type": "result", "run": run, "result": result}
}

// prepared is a run that can be asked for: everything that is known on this
// side was checked, nothing was started.
type prepared struct {
	request resource.CreateRun
	spec    launch.Spec // without what the server gives
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (a *app) prepare(f *runFlags) (*prepared, error) {
	cfg, err := config.Load(a.configPath(f.config))
	if err != nil {
		return nil, err
	}
	d, name, err := chooseDriver(cfg, f)
	if err != nil {
		return nil, err
	}
	ws := a.Dir
	if f.workspace != "" {
		ws = a.abs(f.workspace)
	}
	if err := checkTexts(f, ws); err != nil {
		return nil, err
	}
	if err := checkWorkspace(ws); err != nil {
		return nil, err
	}
	if max := resource.MaxTurnTimeMs * time.Millisecond; f.timeout > max {
		return nil, wire.Errorf(wire.CodeUsage, "--timeout must be at most %s", max).With("field", "timeout").With("limit", resource.MaxTurnTimeMs)
	}
	if f.timeout < 0 || f.timeout > 0 && f.timeout < time.Millisecond {
		return nil, wire.Errorf(wire.CodeUsage, "--timeout must be at least 1ms, or 0 for none").With("field", "timeout")
	}
	env, pass, err := a.runnerEnv(f, d)
	if err != nil {
		return nil, err
	}
	p := &prepared{
		request: resource.CreateRun{
			Driver: name, Prompt: f.prompt, Argv: f.argv, PTY: f.pty,
			Workspace: ws, Env: pass, Permission: f.permission,
			Placement: resource.PlacementAttached,
			Provider:  &resource.ProviderConfig{Kind: d.Kind, Command: d.Command},
		},
		spec: launch.Spec{Env: env, PassEnv: pass, Permission: f.permission, Workspace: ws, Dir: a.Dir},
	}
	if f.timeout > 0 {
		p.request.Limits = &resource.Limits{TurnTimeMs: f.timeout.Milliseconds()}
	}
	version := launch.OwnVersion
	if f.runner == "" {
		if err := a.findProvider(d, env); err != nil {
			return nil, err
		}
	} else {
		p.spec.Path, p.spec.StandIn, version = a.abs(f.runner), true, launch.StandInVersion
		p.spec.Env = launch.StandInEnv(env, pass)
	}
	digest, err := launch.Digest(p.spec.Path)
	if err != nil {
		return nil, err
	}
	p.request.Runner = &resource.RunnerBuild{Version: version, Digest: digest}
	return p, nil
}

func (a *app) configPath(flag string) string {
	if flag == "" {
		return ""
	}
	return a.abs(flag)
}

// chooseDriver resolves --driver against the config file and this build.
func chooseDriver(cfg *config.Config, f *runFlags) (config.Driver, string, error) {
	name := f.driver
	switch {
	case f.promptSet && len(f.argv) > 0:
		return config.Driver{}, "", wire.Errorf(wire.CodeUsage, "--prompt and -- ARGV exclude each other")
	case name != "":
	case len(f.argv) > 0:
		name = "command"
	case f.promptSet:
		name = "codex"
	default:
		return config.Driver{}, "", wire.Errorf(wire.CodeUsage, "nothing to run: give --prompt TEXT or -- ARGV")
	}
	d, ok := cfg.Drivers[name]
	if !ok {
		if !slices.Contains(config.Kinds(), name) {
			known := config.Kinds()
			for n := range cfg.Drivers {
				known = append(known, n)
			}
			slices.Sort(known)
			return d, "", wire.Errorf(wire.CodeDriverUnknown, "--driver: no driver of this name; known: %v", slices.Compact(known)).With("field", "driver")
		}
		d = config.Driver{Kind: name}
	}
	switch {
	case d.Kind == "command" && f.promptSet:
		return d, "", wire.Errorf(wire.CodeUsage, "driver %s runs a command, it takes no --prompt", name)
	case d.Kind == "command" && len(f.argv)+len(d.Command) == 0:
		return d, "", wire.Errorf(wire.CodeUsage, "driver %s runs a command: give -- ARGV", name)
	case d.Kind == "codex" && f.prompt == "":
		return d, "", wire.Errorf(wire.CodeUsage, "driver %s needs a --prompt that is not empty", name).With("field", "prompt")
	case d.Kind != "command" && len(f.argv) > 0:
		return d, "", wire.Errorf(wire.CodeUsage, "driver %s takes --prompt, not a command", name)
	case d.Kind != "command" && f.pty:
		return d, "", wire.Errorf(wire.CodeUsage, "--pty is for driver command")
	}
	return d, name, nil
}

// findProvider looks for the agent's program before anything is started. A
// command's program is not looked for: that it does not exist is an outcome of
// its run.
func (a *app) findProvider(d config.Driver, env []string) error {
	if d.Kind != "codex" {
		return nil
	}
	program := "codex"
	if len(d.Command) > 0 {
		program = d.Command[0]
	}
	if lookPath(env, a.Dir, program) != "" {
		return nil
	}
	return wire.Errorf(wire.CodeSpawnFailed, "there is no program %q: install Codex, or name its binary in drivers.codex.command of a file given with --config", program).With("field", "driver")
}

func checkTexts(f *runFlags, workspace string) error {
	for i, arg := range f.argv {
		if err := utf8Only(fmt.Sprintf("argv[%d]", i), arg); err != nil {
			return err
		}
	}
	if err := utf8Only("prompt", f.prompt); err != nil {
		return err
	}
	return utf8Only("workspace", workspace)
}

func checkWorkspace(dir string) error {
	st, err := os.Stat(dir)
	switch {
	case err != nil:
		return wire.Errorf(wire.CodeWorkspaceInvalid, "workspace %s: %v", dir, errnoText(err)).With("field", "workspace")
	case !st.IsDir():
		return wire.Errorf(wire.CodeWorkspaceInvalid, "workspace %s is not a directory", dir).With("field", "workspace")
	}
	return nil
}

// runnerEnv is the environment of the runner, and the names in it that the
// agent gets besides the usual ones. Values travel by inheritance only.
func (a *app) runnerEnv(f *runFlags, d config.Driver) (env, pass []string, err error) {
	env = slices.Clone(a.Env)
	add := func(name string) {
		if !slices.Contains(pass, name) {
			pass = append(pass, name)
		}
	}
	for _, name := range f.env {
		if !envName.MatchString(name) {
			return nil, nil, wire.Errorf(wire.CodeUsage, "--env takes the name of a variable (letters, digits, underscores), not a value").With("field", "env")
		}
		if _, ok := a.getenv[name]; !ok {
			return nil, nil, wire.Errorf(wire.CodeUsage, "--env %s: this variable is not set", name).With("field", "env")
		}
		add(name)
	}
	for _, name := range sortedKeys(d.Env) {
		v := d.Env[name]
		value := v.Value
		if v.From != "" {
			var ok bool
			if value, ok = a.getenv[v.From]; !ok {
				return nil, nil, wire.Errorf(wire.CodeConfigInvalid, "driver env %s is taken from %s, which is not set", name, v.From)
			}
		}
		env = setEnv(env, name, value)
		add(name)
	}
	return env, pass, nil
}

// attached creates the run, keeps its runner running and follows it. The watch
// is nil when there is no run.
func (a *app) attached(ctx context.Context, f *runFlags, p *prepared) (*watch, error) {
	data, err := a.dataDir(f.at.data)
	if err != nil {
		return nil, err
	}
	var c *client.Client
	err = a.interruptible(ctx, func(ctx context.Context) error {
		err := checkDial(ctx, f.at.url)
		if err == nil {
			c, err = a.join(ctx, &f.at)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	// Not interrupted half way: a Ctrl-C from here on cancels the run.
	run, err := c.CreateRun(ctx, p.request, "")
	if err != nil {
		return nil, err
	}
	w := &watch{
		app: a, client: c, run: run, spec: p.spec, json: f.json,
		folder: filepath.Join(data, "runs", run.ID), provider: p.request.Provider.Kind,
	}
	if f.at.url == "" {
		w.rejoin = a.rejoin(data)
	}
	return w, w.follow(ctx)
}

// checkDial refuses a server that our runner would refuse to dial, before
// anything is made there: plain HTTP beyond this machine.
func checkDial(ctx context.Context, serverURL string) error {
	rest, plain := strings.CutPrefix(serverURL, "http://")
	if !plain {
		return nil // https, or refused by the client
	}
	target, err := carrier.ParseTarget("ws://" + rest)
	if err != nil {
		return nil //nolint:nilerr // not a URL: the client says so better
	}
	if _, err := target.Resolve(ctx, nil); wire.CodeOf(err) == wire.CodeConfigInvalid {
		return wire.Errorf(wire.CodeUsage, "--server: a runner dials plain http:// on this machine only; use https://").With("field", "server")
	}
	return nil
}

// rejoin starts the data folder's server again, or finds the one somebody else
// has started.
func (a *app) rejoin(data string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := a.background(ctx, data)
		return err
	}
}

// resultLine is the last line of --json.
func resultLine(run *resource.Run) (any, error) {
	result := map[string]any{}
	if len(run.Result) > 0 {
		if err := json.Unmarshal(run.Result, &result); err != nil {
			return nil, &wire.Error{Code: wire.CodeInternal, Message: "the run's result is not a JSON object", Cause: err}
		}
	}
	result["status"] = run.Status
	if run.Reason != "" {
		result["reason"] = run.Reason
	}
	if _, ok := result["exitCode"]; !ok {
		result["exitCode"] = nil
	}
	return map[string]any{"type": "result", "run": run, "result": result}, nil
}

// outcome is the exit code of an ended run, and what to say about it.
func outcome(run *resource.Run) (code int, say string) {
	switch {
	case run.Runner != nil && run.Runner.Fault != "" || run.Reason == "integrity_fault":
		return wire.ExitIntegrity, fmt.Sprintf("run %s: integrity fault; an operator has to look at it", run.ID)
	case run.Status == "completed":
		return wire.ExitOK, ""
	}
	var result struct {
		Message string `json:"message"`
	}
	say = fmt.Sprintf("run %s %s", run.ID, run.Status)
	if run.Reason != "" {
		say += " (" + run.Reason + ")"
	}
	if len(run.Result) > 0 && json.Unmarshal(run.Result, &result) == nil && result.Message != "" {
		say += ": " + result.Message
	}
	return wire.ExitFailed, say
}
