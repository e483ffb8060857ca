package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"bowline/controlplane/client"
	"bowline/controlplane/resource"
	"bowline/wire"
)

func (a *app) runsCommand() *cobra.Command {
	runs := &cobra.Command{
		Use: "runs", Short: "Look at runs, and cancel them", Args: noCommand,
		RunE: whichVerb("which verb?", "list|show|events|cancel"),
	}
	var at serverFlags
	at.add(runs.PersistentFlags())
	runs.AddCommand(a.runsList(&at), a.runsShow(&at), a.runsEvents(&at), a.runsCancel(&at))
	return runs
}

func (a *app) runsList(at *serverFlags) *cobra.Command {
	var (
		asJSON bool
		q      client.ListQuery
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List runs, newest first", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withServer(cmd.Context(), at, func(ctx context.Context, c *client.Client) error {
				list, err := c.ListRuns(ctx, q)
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(list)
				}
				w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
				rows := "ID\tSTATUS\tREASON\tDRIVER\tCREATED\n"
				for _, r := range list.Runs {
					rows += fmt.Sprintf("%s\t%s\t%s\t%s\t%s\n", r.ID, r.Status, dash(r.Reason), r.Driver, r.CreatedAt.Format(time.RFC3339))
				}
				if _, err := w.Write([]byte(rows)); err != nil {
					return stdoutFailed(err)
				}
				if err := w.Flush(); err != nil {
					return stdoutFailed(err)
				}
				if list.Next != "" {
					a.warn("more: bowline runs list --cursor %s", list.Next)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&q.Status, "status", "", "only runs of this `STATUS`")
	cmd.Flags().IntVar(&q.Limit, "limit", 0, "at most `N` (0: the server's default)")
	cmd.Flags().StringVar(&q.Cursor, "cursor", "", "start behind `PLACE`, from an earlier list")
	return cmd
}

func (a *app) runsShow(at *serverFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show RUN", Short: "Show one run", Args: oneArg("a run id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withServer(cmd.Context(), at, func(ctx context.Context, c *client.Client) error {
				r, err := c.GetRun(ctx, args[0])
				if err != nil {
					return unknownRun(args[0], err)
				}
				return a.showRun(r, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) showRun(r *resource.Run, asJSON bool) error {
	if asJSON {
		return a.printJSON(r)
	}
	text := ""
	row := func(name, value string) {
		if value != "" {
			text += name + "\t" + value + "\n"
		}
	}
	row("id", r.ID)
	row("session", r.SessionID)
	row("status", r.Status)
	row("reason", r.Reason)
	row("driver", r.Driver)
	row("placement", r.Placement)
	row("workspace", r.Workspace)
	row("permission", r.Permission)
	row("created", r.CreatedAt.Format(time.RFC3339))
	row("started", when(r.StartedAt))
	row("ended", when(r.EndedAt))
	row("events", r.Head)
	if r.Runner != nil {
		row("connected", fmt.Sprint(r.Runner.Connected))
		row("fault", r.Runner.Fault)
	}
	row("result", printable(string(r.Result)))
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	if _, err := w.Write([]byte(text)); err != nil {
		return stdoutFailed(err)
	}
	if err := w.Flush(); err != nil {
		return stdoutFailed(err)
	}
	return nil
}

func (a *app) runsEvents(at *serverFlags) *cobra.Command {
	var (
		after  string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use: "events RUN", Short: "Follow the events of a run to its end", Args: oneArg("a run id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if after != "" {
				if _, err := resource.ParseCursor(after); err != nil {
					return err
				}
			}
			return a.withServer(cmd.Context(), at, func(ctx context.Context, c *client.Client) error {
				for line, err := range c.Events(ctx, args[0], after) {
					if err != nil {
						return unknownRun(args[0], err)
					}
					if err := a.showLine(line, asJSON); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&after, "after", "", "start behind this `CURSOR`, for example 1.17")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print NDJSON")
	return cmd
}

func (a *app) showLine(line *resource.Line, asJSON bool) error {
	if asJSON {
		return a.printJSON(line)
	}
	var err error
	switch {
	case line.Event != nil:
		payload := line.Event.Payload
		if len(payload) > 200 {
			payload = json.RawMessage(string(payload[:200]) + "…")
		}
		_, err = fmt.Fprintf(a.Stdout, "%s\t%s\t%s\t%s\n", line.ID, line.Event.At.Format(time.RFC3339Nano), line.Event.Type, printable(string(payload)))
	case line.Type == resource.LineGap:
		_, err = fmt.Fprintf(a.Stdout, "gap\t%s to %s are not kept any more\n", line.From, line.To)
	}
	if err != nil {
		return stdoutFailed(err)
	}
	return nil
}

func (a *app) runsCancel(at *serverFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "cancel RUN", Short: "Cancel a run; answers at once", Args: oneArg("a run id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withServer(cmd.Context(), at, func(ctx context.Context, c *client.Client) error {
				r, err := c.CancelRun(ctx, args[0])
				if err != nil {
					return unknownRun(args[0], err)
				}
				if asJSON {
					return a.printJSON(r)
				}
				a.warn("%s is %s", r.ID, r.Status)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// maxShownID bounds what an error repeats of an argument, in bytes.
const maxShownID = 100

// unknownRun names the id that the server does not know: its own answer never
// repeats what it was sent.
func unknownRun(id string, err error) error {
	if wire.CodeOf(err) != wire.CodeNotFound {
		return err
	}
	if len(id) > maxShownID {
		id = id[:maxShownID] + "…"
	}
	return wire.Errorf(wire.CodeNotFound, "no run has the id %q; bowline runs list shows them whole", id)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func when(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format(time.RFC3339)
}

// stdioError is a standard stream that cannot be written: its reader has gone.
type stdioError struct {
	name  string
	cause error
}

func (e *stdioError) Error() string { return e.name + " cannot be written: " + e.cause.Error() }

// why says it to a person.
func (e *stdioError) why() string {
	if errors.Is(e.cause, syscall.EPIPE) {
		return e.name + " was closed"
	}
	return fmt.Sprintf("%s cannot be written: %v", e.name, errnoText(e.cause))
}

// Unwrap makes it the typed error of a closed stream.
func (e *stdioError) Unwrap() error {
	return &wire.Error{Code: wire.CodeInternal, Message: e.name + " cannot be written", Cause: e.cause}
}

func stdoutFailed(err error) error { return &stdioError{"stdout", err} }
