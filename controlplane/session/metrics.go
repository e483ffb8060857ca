package session

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bowline/controlplane/authority"
	"bowline/controlplane/store"
	"bowline/wire/prp"
)

// Metrics are the counters of all sessions of one process. Make them with
// [NewMetrics]; nil counts nothing.
type Metrics struct {
	commands    *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	events      prometheus.Counter
	acks        prometheus.Counter
	duplicates  *prometheus.CounterVec
	malformed   prometheus.Counter
	handshakes  *prometheus.CounterVec
	reconnects  prometheus.Counter
	faults      *prometheus.CounterVec
	tickets     prometheus.Counter
	runs        *prometheus.CounterVec
	depth       *prometheus.Desc
	age         *prometheus.Desc
	connections *prometheus.Desc

	mu       sync.Mutex
	sessions map[*Session]struct{}
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bowline_commands_total", Help: "Commands that got their result, by type and status.",
		}, []string{"kind", "status"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bowline_command_duration_seconds", Help: "Time from journaling a command to its durable result.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}, []string{"kind"}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bowline_events_committed_total", Help: "Runner events made durable.",
		}),
		acks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bowline_acks_total", Help: "Acknowledgements sent to runners.",
		}),
		duplicates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bowline_duplicates_total", Help: "Equal redeliveries, by what was delivered again.",
		}, []string{"what"}),
		malformed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bowline_malformed_frames_total", Help: "Frames that did not open or held no JSON.",
		}),
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bowline_handshakes_total", Help: "Handshakes of runners, by result.",
		}, []string{"result"}),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bowline_reconnects_total", Help: "Authenticated connections of a session after its first.",
		}),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bowline_faults_total", Help: "Integrity faults latched, by reason.",
		}, []string{"reason"}),
		tickets: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "bowline_tickets_total", Help: "Bootstrap tickets issued.",
		}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bowline_runs_ended_total", Help: "Runs that reached a terminal status.",
		}, []string{"status"}),
		depth:       prometheus.NewDesc("bowline_log_depth", "Entries waiting in a log, over all live sessions.", []string{"log"}, nil),
		age:         prometheus.NewDesc("bowline_log_age_seconds", "Age of the oldest entry waiting in a log.", []string{"log"}, nil),
		connections: prometheus.NewDesc("bowline_runner_connections", "Authenticated runner connections.", nil, nil),
		sessions:    make(map[*Session]struct{}),
	}
	reg.MustRegister(m.commands, m.durations, m.events, m.acks, m.duplicates, m.malformed, m.handshakes,
		m.reconnects, m.faults, m.tickets, m.runs, m)
	m.zero()
	return m
}

// zero begins the counters whose labels are known at 0: one that shows up with
// its first increment has no increase to alert on.
func (m *Metrics) zero() {
	for _, what := range []string{"event", "command_result"} {
		m.duplicates.WithLabelValues(what)
	}
	for _, reason := range []string{prp.ReasonSemanticInputDigestMismatch, prp.ReasonSourceEventReplayConflict} {
		m.faults.WithLabelValues(reason)
	}
	for _, status := range []string{store.StatusCompleted, store.StatusFailed, store.StatusCancelled, store.StatusOrphaned} {
		m.runs.WithLabelValues(status)
	}
	for _, result := range []string{
		"joined", authority.RefusedIdentity, authority.RefusedBuild, authority.RefusedWarm, authority.RefusedCredential,
		authority.RefusedVersion, authority.RefusedLate, authority.RefusedChanged, authority.RefusedHello,
		authority.RefusedResponse, authority.RefusedProof, authority.RefusedTimeout,
	} {
		m.handshakes.WithLabelValues(result)
	}
}

func (m *Metrics) add(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions[s] = struct{}{}
}

func (m *Metrics) remove(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, s)
}

// count counts one effect. No label comes from a peer: command types and
// statuses are a fixed vocabulary, reasons are ours.
func (m *Metrics) count(e *authority.Effect) {
	if m == nil {
		return
	}
	switch e.Kind {
	case authority.EffectCommitted:
		m.events.Inc()
	case authority.EffectAck:
		m.acks.Inc()
	case authority.EffectDuplicate:
		m.duplicates.WithLabelValues("event").Inc()
	case authority.EffectDupResult:
		m.duplicates.WithLabelValues("command_result").Inc()
	case authority.EffectMalformed:
		m.malformed.Inc()
	case authority.EffectCommand:
		m.commands.WithLabelValues(e.Type, e.Status).Inc()
		m.durations.WithLabelValues(e.Type).Observe(e.Seconds)
	case authority.EffectHandshake:
		m.handshakes.WithLabelValues("joined").Inc()
		if e.Link.Number > 1 {
			m.reconnects.Inc()
		}
	case authority.EffectRefused:
		m.handshakes.WithLabelValues(e.Reason).Inc()
	case authority.EffectFault:
		m.faults.WithLabelValues(e.Fault.Reason).Inc()
	case authority.EffectTicket:
		m.tickets.Inc()
	case authority.EffectRunEnded:
		m.runs.WithLabelValues(e.Status).Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.depth
	ch <- m.age
	ch <- m.connections
}

// Collect implements prometheus.Collector: it looks at every live session.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	sessions := make([]*Session, 0, len(m.sessions))
	for s := range m.sessions {
		sessions = append(sessions, s)
	}
	m.mu.Unlock()
	var depth, connections int
	var age time.Duration
	for _, s := range sessions {
		b := s.Brief()
		depth += b.Pending
		connections += b.Connections
		if b.Oldest != 0 {
			age = max(age, s.cfg.Now().Sub(time.UnixMilli(b.Oldest)))
		}
	}
	ch <- prometheus.MustNewConstMetric(m.depth, prometheus.GaugeValue, float64(depth), "commands")
	ch <- prometheus.MustNewConstMetric(m.age, prometheus.GaugeValue, age.Seconds(), "commands")
	ch <- prometheus.MustNewConstMetric(m.connections, prometheus.GaugeValue, float64(connections))
}
