package runnerd

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"bowline/runnerd/journal"
	"bowline/runnerd/link"
	"bowline/runnerd/supervise"
	"bowline/wire"
)

// metrics are the figures of one runner. They are counted always and served
// only with --metrics.
type metrics struct {
	reg        *prometheus.Registry
	handshakes *prometheus.CounterVec
	shake      prometheus.Histogram
	connected  prometheus.Gauge
	frames     *prometheus.CounterVec
	frameBytes *prometheus.CounterVec
	decrypt    prometheus.Counter
	reconnects *prometheus.CounterVec
	commands   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	replays    *prometheus.CounterVec
	up         *prometheus.GaugeVec
	fsync      prometheus.Histogram
	reaped     *prometheus.CounterVec
	channel    prometheus.Gauge
	lines      *lineMetrics
	leaseEnds  atomic.Int64 // Unix ms, 0: none
}

func newMetrics() *metrics {
	reg := prometheus.NewRegistry()
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	histogram := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)})
		reg.MustRegister(h)
		return h
	}
	m := &metrics{
		reg:        reg,
		handshakes: counter("runnerd_handshakes_total", "Handshakes by result.", "result", "code"),
		shake:      histogram("runnerd_handshake_duration_seconds", "From dialling to the welcome."),
		connected:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "runnerd_connected", Help: "1 while a connection is authenticated."}),
		frames:     counter("runnerd_frames_total", "Frames by direction and kind of message.", "direction", "kind"),
		frameBytes: counter("runnerd_frame_bytes_total", "Bytes of frames, before and after sealing.", "direction", "layer"),
		decrypt:    prometheus.NewCounter(prometheus.CounterOpts{Name: "runnerd_decrypt_failures_total", Help: "Frames that did not open."}),
		reconnects: counter("runnerd_reconnects_total", "Connections that ended, by reason.", "reason"),
		commands:   counter("runnerd_commands_total", "Executed commands.", "kind", "outcome"),
		replays:    counter("runnerd_replays_total", "Repeated deliveries that were answered from the journal.", "kind"),
		fsync:      histogram("runnerd_fsync_duration_seconds", "Syncs of the session log."),
		up:         prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "runnerd_provider_up", Help: "1 while a provider session is open."}, []string{"provider"}),
		reaped:     counter("runnerd_reaped_total", "Processes that were waited for: leaders of trees, and orphans of theirs.", "how"),
		channel: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "runnerd_channel_info", Help: "1 while a connection is authenticated; the labels describe its protection.",
			ConstLabels: prometheus.Labels{"profile": "prp", "suite": "HMAC-SHA-256+AES-256-GCM", "fs": "false"},
		}),
		lines: newLineMetrics(reg),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "runnerd_command_duration_seconds", Help: "Execution of commands.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"kind"}),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "runnerd_build_info", Help: "Always 1; the labels describe the build."}, []string{"version", "revision", "go_version"})
	build.WithLabelValues(buildVersion(), buildRevision(), runtime.Version()).Set(1)
	reg.MustRegister(m.connected, m.decrypt, m.up, m.duration, m.channel, build)
	// A counter that shows up with its first increment has no increase to alert
	// on: where the labels are known they begin at 0.
	m.replays.WithLabelValues("command")
	m.reconnects.WithLabelValues(string(wire.CodeUnavailable))
	m.reaped.WithLabelValues(supervise.ReapedLeader)
	m.reaped.WithLabelValues(supervise.ReapedOrphan)
	return m
}

func (m *metrics) sync(d time.Duration) { m.fsync.Observe(d.Seconds()) }

func (m *metrics) command(kind, outcome string, d time.Duration) {
	m.commands.WithLabelValues(kind, outcome).Inc()
	m.duration.WithLabelValues(kind).Observe(d.Seconds())
}

func (m *metrics) reap(how string) { m.reaped.WithLabelValues(how).Inc() }

func (m *metrics) replay() { m.replays.WithLabelValues("command").Inc() }

func (m *metrics) provider(kind string, up bool) {
	m.up.WithLabelValues(kind).Set(number(up))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) hooks() link.Hooks {
	return link.Hooks{
		Handshake: func(ok bool, code string, took time.Duration) {
			result := "ok"
			if !ok {
				result = "failed"
			}
			m.handshakes.WithLabelValues(result, code).Inc()
			m.shake.Observe(took.Seconds())
		},
		Connected: func(up bool) {
			m.connected.Set(number(up))
			m.channel.Set(number(up))
		},
		Frame: func(sent bool, kind string, plain, size int) {
			direction := "received"
			if sent {
				direction = "sent"
			}
			m.frames.WithLabelValues(direction, kind).Inc()
			m.frameBytes.WithLabelValues(direction, "plain").Add(float64(plain))
			m.frameBytes.WithLabelValues(direction, "wire").Add(float64(size))
		},
		Reconnect:      func(reason string) { m.reconnects.WithLabelValues(reason).Inc() },
		DecryptFailure: m.decrypt.Inc,
		Lease:          func(at time.Time) { m.leaseEnds.Store(at.UnixMilli()) },
	}
}

// watch registers what is read when somebody asks. dir is the state directory.
func (m *metrics) watch(jr *journal.Journal, dir string) {
	gauge := func(name, help string, read func() float64) {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
	}
	gauge("runnerd_outbox_events", "Events that are not acknowledged.", func() float64 { return float64(jr.Stats().Events) })
	gauge("runnerd_outbox_bytes", "Bytes of these events.", func() float64 { return float64(jr.Stats().Bytes) })
	gauge("runnerd_ack_lag_events", "Events produced and not acknowledged.", func() float64 {
		s := jr.Stats()
		return float64(s.NextSeq - 1 - s.Acked)
	})
	gauge("runnerd_outbox_oldest_seconds", "Age of the oldest event that is not acknowledged.", func() float64 {
		at := jr.Stats().OldestAtMs
		if at == 0 {
			return 0
		}
		return max(0, time.Since(time.UnixMilli(at)).Seconds())
	})
	gauge("runnerd_disk_free_bytes", "Room for the session log that an ordinary user may take; -1: not known.", func() float64 { return freeBytes(dir) })
	gauge("runnerd_children", "Process trees that are recorded.", func() float64 { return float64(len(jr.Processes())) })
	m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "runnerd_lease_remaining_seconds", Help: "Remaining life of the connection lease.", ConstLabels: prometheus.Labels{"clock": "wall"},
	}, func() float64 {
		at := m.leaseEnds.Load()
		if at == 0 {
			return 0
		}
		return max(0, time.Until(time.UnixMilli(at)).Seconds())
	}))
}

func freeBytes(dir string) float64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return -1
	}
	return float64(st.Bavail) * float64(st.Bsize)
}

func buildRevision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// serve answers /metrics on addr, which must be a loopback address.
func (m *metrics) serve(addr string, jr *journal.Journal, dir string) (stop func() error, err error) {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	if err != nil || ip == nil || !ip.IsLoopback() {
		return nil, wire.Errorf(wire.CodeListenRefused, "flag --metrics: not ADDRESS:PORT with a loopback address")
	}
	m.watch(jr, dir)
	var lc net.ListenConfig
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, wire.Errorf(wire.CodeListenRefused, "flag --metrics: the address cannot be listened on")
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	return func() error {
		err := server.Close()
		if serr := <-done; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
		return err
	}, nil
}
