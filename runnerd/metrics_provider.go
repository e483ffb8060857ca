package runnerd

import (
	"bytes"
	"context"
	"io"

	"github.com/prometheus/client_golang/prometheus"

	"bowline/driver"
	"bowline/driver/jsonrpc"
	"bowline/runnerd/executor"
)

// lineMetrics measure the lines of providers that are spoken to over stdin and
// answer line by line. The output of a command is nobody's protocol and is not
// looked at.
type lineMetrics struct {
	size     prometheus.Histogram
	oversize prometheus.Counter
}

func newLineMetrics(reg prometheus.Registerer) *lineMetrics {
	l := &lineMetrics{
		size: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "runnerd_provider_line_bytes", Help: "Lines a provider wrote, without their newline.",
			Buckets: prometheus.ExponentialBuckets(64, 8, 8), // 64 B to 128 MiB
		}),
		oversize: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runnerd_provider_oversize_lines_total", Help: "Lines beyond the limit, which are skipped.",
		}),
	}
	reg.MustRegister(l.size, l.oversize)
	return l
}

// watching measures what s spawns.
func (l *lineMetrics) watching(s executor.Spawner) executor.Spawner { return lineSpawner{s, l} }

type lineSpawner struct {
	executor.Spawner
	metrics *lineMetrics
}

// Spawn implements executor.Spawner.
func (s lineSpawner) Spawn(ctx context.Context, spec driver.ProcessSpec) (driver.Process, error) {
	p, err := s.Spawner.Spawn(ctx, spec)
	if err != nil || spec.StdinNull || spec.PTY {
		return p, err
	}
	return &lineProcess{p, &lineCounter{from: p.Stdout(), metrics: s.metrics}}, nil
}

type lineProcess struct {
	driver.Process
	out *lineCounter
}

// Stdout implements driver.Process.
func (p *lineProcess) Stdout() io.Reader { return p.out }

// lineCounter counts the bytes between newlines as they are read.
type lineCounter struct {
	from    io.Reader
	metrics *lineMetrics
	size    int
}

// Read implements io.Reader.
func (c *lineCounter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	for rest := p[:n]; ; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			c.size += len(rest)
			return n, err
		}
		c.size += i
		c.metrics.size.Observe(float64(c.size))
		if c.size > jsonrpc.MaxLine {
			c.metrics.oversize.Inc()
		}
		c.size, rest = 0, rest[i+1:]
	}
}
