package runnerd

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"bowline/runnerd/supervise"
	"bowline/wire"
)

// Variables a ticket may come in; both are always erased.
const (
	TicketVariable    = "BOWLINE_TICKET"
	PRPTicketVariable = "PAPERCLIP_RUNNER_BOOTSTRAP_TICKET"
)

// maxTicket is the longest ticket in bytes (ours; a ticket has 46).
const maxTicket = 4096

// takeTickets erases the ticket variables from the process and from env, and
// gives what they held.
func takeTickets(env []string) (rest []string, own, foreign *string, err error) {
	values := map[string]*string{}
	for _, name := range []string{PRPTicketVariable, TicketVariable} {
		if _, _, serr := supervise.ScrubEnv(name); serr != nil {
			err = errors.Join(err, serr)
		}
	}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if name == PRPTicketVariable || name == TicketVariable {
			values[name] = &value
			continue
		}
		rest = append(rest, kv)
	}
	return rest, values[TicketVariable], values[PRPTicketVariable], err
}

// ticket finds the ticket: exactly one source may name it.
func (c *config) ticket(own, foreign *string) (string, error) {
	var found []string
	if c.ticketFD >= 0 {
		t, err := readTicketFD(c.ticketFD)
		if err != nil {
			return "", err
		}
		found = append(found, t)
	}
	if c.ticketFile != "" {
		t, err := readTicketFile(c.ticketFile)
		if err != nil {
			return "", err
		}
		found = append(found, t)
	}
	for _, v := range []*string{own, foreign} {
		if v != nil {
			found = append(found, *v)
		}
	}
	switch len(found) {
	case 0:
		return "", usage("no ticket: it comes in %s, or by --ticket-fd, --ticket-file or %s", PRPTicketVariable, TicketVariable)
	case 1:
	default:
		return "", usage("more than one source of a ticket")
	}
	t := strings.TrimSpace(found[0])
	if t == "" {
		return "", usage("the ticket is empty")
	}
	return t, nil
}

func readTicketFD(fd int) (t string, err error) {
	f := os.NewFile(uintptr(fd), "ticket")
	if f == nil {
		return "", usage("flag --ticket-fd: not an open file descriptor")
	}
	defer func() {
		if cerr := f.Close(); cerr != nil && err == nil {
			err = usage("flag --ticket-fd: cannot be closed")
		}
	}()
	t, err = readTicket(f)
	if err != nil {
		return "", usage("flag --ticket-fd: cannot be read")
	}
	return t, nil
}

func readTicket(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxTicket+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxTicket {
		return "", errors.New("too long")
	}
	return string(b), nil
}

// readTicketFile reads a private file: regular, not a link, ours, 0600.
func readTicketFile(path string) (t string, err error) {
	bad := func(what string) (string, error) {
		return "", wire.Errorf(wire.CodeConfigInvalid, "flag --ticket-file: %s", what).With("field", "ticket-file")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0) //nolint:gosec // G304: the operator's choice
	if err != nil {
		return bad("cannot be opened")
	}
	defer func() {
		if cerr := f.Close(); cerr != nil && err == nil {
			t, err = bad("cannot be closed")
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil { //nolint:gosec // G115: a file descriptor fits
		return bad("cannot be examined")
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return bad("is not a regular file")
	case st.Mode&0o077 != 0:
		return bad("is accessible to others: mode 0600 is needed")
	case int(st.Uid) != os.Geteuid():
		return bad("belongs to another user")
	}
	if t, err = readTicket(f); err != nil {
		return bad("cannot be read, or is too long")
	}
	return t, nil
}
