package runnerd

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/prometheus/client_golang/prometheus"

	"bowline/driver"
	"bowline/driver/jsonrpc"
)

// lineFigures reads the two metrics of lines.
func lineFigures(t *testing.T, reg *prometheus.Registry) (lines uint64, bytes, oversize float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "runnerd_provider_line_bytes":
			h := f.GetMetric()[0].GetHistogram()
			lines, bytes = h.GetSampleCount(), h.GetSampleSum()
		case "runnerd_provider_oversize_lines_total":
			oversize = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return lines, bytes, oversize
}

type talker struct {
	driver.Process
	out io.Reader
}

func (p talker) Stdout() io.Reader { return p.out }

type talkers struct{ out io.Reader }

func (s talkers) Spawn(context.Context, driver.ProcessSpec) (driver.Process, error) {
	return talker{out: s.out}, nil
}

func TestLineMetrics(t *testing.T) {
	t.Parallel()
	const text = "one\n\nthree\r\nno end"
	for _, tt := range []struct {
		name  string
		spec  driver.ProcessSpec
		lines uint64
		bytes float64
	}{
		{"a provider that is spoken to", driver.ProcessSpec{}, 3, 3 + 0 + 6},
		{"a command", driver.ProcessSpec{StdinNull: true}, 0, 0},
		{"a terminal", driver.ProcessSpec{PTY: true}, 0, 0},
	} {
		for _, from := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
			reg := prometheus.NewRegistry()
			p, err := newLineMetrics(reg).watching(talkers{from}).Spawn(t.Context(), tt.spec)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(p.Stdout())
			if err != nil || string(got) != text {
				t.Errorf("%s: read %q, %v", tt.name, got, err)
			}
			if lines, size, oversize := lineFigures(t, reg); lines != tt.lines || size != tt.bytes || oversize != 0 {
				t.Errorf("%s: %d lines, %v bytes, %v oversize", tt.name, lines, size, oversize)
			}
		}
	}
}

func TestOversizeLines(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	// At the limit, and one beyond it; the bytes are repeated, not kept.
	piece := bytes.Repeat([]byte("x"), 1<<20)
	var parts []io.Reader
	for _, extra := range []string{"", "x"} {
		for range jsonrpc.MaxLine / len(piece) {
			parts = append(parts, bytes.NewReader(piece))
		}
		parts = append(parts, strings.NewReader(extra+"\n"))
	}
	p, err := newLineMetrics(reg).watching(talkers{io.MultiReader(parts...)}).Spawn(t.Context(), driver.ProcessSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, p.Stdout()); err != nil {
		t.Fatal(err)
	}
	if lines, _, oversize := lineFigures(t, reg); lines != 2 || oversize != 1 {
		t.Errorf("%d lines, %v of them oversize; want 2 and 1", lines, oversize)
	}
}
