package launch

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"bowline/wire"
)

const (
	// maxQuote bounds what is repeated of a runner's log, in bytes (ours).
	maxQuote = 300
	// quoteWindow is how much of the end of the log is looked at, in bytes
	// (ours): a line that is longer is not quoted.
	quoteWindow = 64 << 10
	// minSecret is the length from which a value that was handed on is taken
	// out of a quote, in bytes: as the runner redacts what it sends.
	minSecret = 8
)

// lastWords is the last line that a process wrote to its log: the code and the
// error of a line of our own log, another program's line as it is. "" = it
// wrote none that explains anything.
func (p *Process) lastWords(spec *Spec, ticket string) string {
	if p.log == nil {
		return ""
	}
	raw, err := p.log.tail()
	if err != nil {
		return "" // the exit is told without it
	}
	text := strings.TrimSpace(hide(string(raw), spec, ticket))
	at := strings.LastIndexByte(text, '\n')
	if at < 0 && len(raw) == quoteWindow {
		return "" // not the whole line: what is hidden in it was not found
	}
	return quote(text[at+1:])
}

// hide takes out what a program that is not ours may have printed of what it
// was trusted with.
func hide(text string, spec *Spec, ticket string) string {
	secrets := []string{ticket}
	for _, kv := range spec.Env {
		name, value, _ := strings.Cut(kv, "=")
		for _, n := range spec.PassEnv {
			if n == name {
				secrets = append(secrets, value)
			}
		}
	}
	for _, s := range secrets {
		if len(s) >= minSecret {
			text = strings.ReplaceAll(text, s, "[redacted]")
		}
	}
	return text
}

func quote(line string) string {
	if strings.HasPrefix(line, "{") {
		var own struct {
			Code string `json:"code"`
			Err  string `json:"err"`
			// Error is the name in other programs' logs.
			Error string `json:"error"`
		}
		if err := json.Unmarshal([]byte(line), &own); err != nil {
			return bounded(line) // not a line of a JSON log after all
		}
		text := own.Err
		if text == "" {
			text = own.Error
		}
		switch {
		case text == "":
			text = own.Code
		case own.Code != "" && !strings.HasPrefix(text, own.Code):
			text = own.Code + ": " + text
		}
		return bounded(text)
	}
	return bounded(line)
}

// bounded makes text printable, one line and short.
func bounded(text string) string {
	text = strings.TrimSpace(strings.Map(func(c rune) rune {
		switch {
		case c == '\n', c == '\t':
			return ' '
		case !unicode.IsPrint(c), c == utf8.RuneError:
			return -1
		}
		return c
	}, text))
	if len(text) <= maxQuote {
		return text
	}
	cut := maxQuote
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// tail reads the end of what was written since the log was opened.
func (l *logFile) tail() (raw []byte, err error) {
	f, err := os.Open(l.file.Name())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := l.from
	if st.Size() < from {
		from = 0 // it was emptied since
	}
	from = max(from, st.Size()-quoteWindow)
	return io.ReadAll(io.NewSectionReader(f, from, st.Size()-from))
}

// Detail is what a host may read of a failure to start or keep a runner: what,
// our message and the kernel's reason, without the paths of the cause. It has
// one line of at most a few hundred bytes.
func Detail(what string, err error) string {
	var e *wire.Error
	if errors.As(err, &e) {
		what = strings.TrimPrefix(what+": "+e.Message, ": ")
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && !strings.Contains(what, errno.Error()) {
		what += " (" + errno.Error() + ")"
	}
	return bounded(what)
}
