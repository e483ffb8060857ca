package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man",
		Short: "Print the manual page, for man",
		Long: "Print the manual page of all verbs in the format of man.\n\n" +
			"  bowline man | man -l -\n" +
			"  bowline man > /usr/local/share/man/man1/bowline.1",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := io.WriteString(a.Stdout, manPage(cmd.Root())); err != nil {
				return stdoutFailed(err)
			}
			return nil
		},
	}
}

// manPage is bowline(1): the tree of verbs with their flags, from the same
// tables as --help.
func manPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(".TH BOWLINE 1\n.SH NAME\nbowline \\- " + roff(root.Short) + "\n.SH DESCRIPTION\n.nf\n" + roff(root.Long) + "\n.fi\n")
	b.WriteString(".SH COMMANDS\n")
	manVerbs(&b, root)
	b.WriteString(".SH EXIT STATUS\n")
	for _, e := range [...]struct{ code, meaning string }{
		{"0", "ok"},
		{"1", "failed"},
		{"2", "the command line or the input is wrong"},
		{"3", "not ready: no server"},
		{"4", "refused by the server or a peer"},
		{"5", "integrity fault: an operator has to look at it"},
		{"130", "ended by Ctrl-C or SIGTERM"},
	} {
		b.WriteString(".TP\n.B " + e.code + "\n" + e.meaning + "\n")
	}
	b.WriteString(".SH ENVIRONMENT\n.TP\n.B XDG_STATE_HOME\nwhere the data folder is, if absolute; else $HOME/.local/state\n.TP\n.B NO_COLOR\nnot empty: no color\n")
	return b.String()
}

func manVerbs(b *strings.Builder, parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		switch {
		case cmd.Hidden || cmd.Name() == "help":
		case cmd.HasSubCommands() && cmd.Name() != "completion":
			manVerbs(b, cmd)
		default:
			text := cmd.Long
			if text == "" || cmd.HasSubCommands() {
				text = cmd.Short
			}
			b.WriteString(".SS " + roff(cmd.UseLine()) + "\n.nf\n" + roff(text) + "\n.fi\n")
			flag := func(f *pflag.Flag) {
				if f.Name == "help" {
					return
				}
				value, usage := pflag.UnquoteUsage(f)
				b.WriteString(".TP\n.B " + roff(strings.TrimSpace("--"+f.Name+" "+value)) + "\n" + roff(usage) + "\n")
			}
			cmd.LocalFlags().VisitAll(flag)
			cmd.InheritedFlags().VisitAll(flag)
		}
	}
}

// roff escapes text: a hyphen would become a typographic one, and a line that
// begins with a dot or an apostrophe would be a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...").Replace(strings.TrimRight(text, "\n"))
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
