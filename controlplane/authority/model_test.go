package authority_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bowline/controlplane/authority"
	"bowline/controlplane/store"
	"bowline/wire/prp"
)

// modelled is what a much simpler authority would remember.
type modelled struct {
	rig      *rig
	link     *authority.Link
	acked    int64
	payloads map[int64]string // of committed events
	results  map[int64]string // of commands, "" = pending
	faulted  bool
	order    []int64 // source seqs in the host log
}

// TestModel plays random inputs, with a crash between any two of them, against
// the model. The machine is reloaded from what was committed, so whatever was
// acknowledged must be in the store.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &modelled{rig: plain(t), payloads: map[int64]string{}, results: map[int64]string{}}
		t.Repeat(map[string]func(*rapid.T){
			"":          m.check,
			"join":      func(*rapid.T) { m.link = m.rig.join(); m.rig.take() },
			"crash":     m.crash,
			"discard":   m.discard,
			"event":     m.event,
			"replay":    m.replay,
			"conflict":  m.conflict,
			"gap":       m.gap,
			"queue":     m.queue,
			"result":    m.result,
			"sameAgain": m.sameResult,
			"pass time": func(t *rapid.T) {
				m.rig.now = m.rig.now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "minutes")) * time.Minute)
			},
		})
	})
}

// live says whether the model expects the link's messages to be admitted.
func (m *modelled) live(t *rapid.T) bool {
	if m.link == nil {
		t.Skip("not joined")
	}
	return m.rig.m.Snapshot().Session.LastLeaseExpiresAtMs > m.rig.now.UnixMilli()
}

func (m *modelled) crash(*rapid.T) {
	m.rig.load()
	m.link, m.faulted = nil, false // line M forgets the fault
}

// discard stages an event and loses the commit.
func (m *modelled) discard(t *rapid.T) {
	if !m.live(t) || m.faulted {
		t.Skip()
	}
	raw := event(m.link.Version, m.acked+1, "harness.ready", `{"lost":true}`)
	e, err := prp.ParseEnvelope(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.rig.m.Message(m.rig.now, m.link, e, raw); err != nil {
		t.Fatal(err)
	}
	m.rig.m.Take()
	m.crash(t)
}

func (m *modelled) event(t *rapid.T) {
	live := m.live(t)
	payload := fmt.Sprintf(`{"n":%d}`, rapid.IntRange(0, 3).Draw(t, "n"))
	err := m.rig.say(m.link, event(m.link.Version, m.acked+1, "harness.ready", payload))
	if ok := live && !m.faulted; ok != (err == nil) {
		t.Fatalf("event: %v (live %v, faulted %v)", err, live, m.faulted)
	}
	if err != nil {
		return
	}
	m.acked++
	m.payloads[m.acked] = payload
	m.order = append(m.order, m.acked)
	m.acknowledged(t)
}

func (m *modelled) acknowledged(t *rapid.T) {
	frames := m.rig.take()
	if len(frames) != 1 || frames[0].env.Kind != prp.KindAck {
		t.Fatalf("%d frames answer an event", len(frames))
	}
	if seq, err := prp.AckOf(frames[0].env.Payload); err != nil || seq != m.acked {
		t.Fatalf("ack of %d, expected %d", seq, m.acked)
	}
}

func (m *modelled) known(t *rapid.T) int64 {
	if m.acked == 0 {
		t.Skip("no event yet")
	}
	return rapid.Int64Range(1, m.acked).Draw(t, "seq")
}

func (m *modelled) replay(t *rapid.T) {
	live, seq := m.live(t), m.known(t)
	err := m.rig.say(m.link, event(m.link.Version, seq, "harness.ready", m.payloads[seq]))
	if ok := live && !m.faulted; ok != (err == nil) {
		t.Fatalf("replay: %v", err)
	}
	if err == nil {
		m.acknowledged(t)
	}
}

func (m *modelled) conflict(t *rapid.T) {
	live, seq := m.live(t), m.known(t)
	if err := m.rig.say(m.link, event(m.link.Version, seq, "harness.ready", `{"other":1}`)); err == nil {
		t.Fatalf("a changed replay was taken")
	}
	m.faulted = m.faulted || live
}

func (m *modelled) gap(t *rapid.T) {
	m.live(t)
	if err := m.rig.say(m.link, event(m.link.Version, m.acked+2, "harness.ready", `{}`)); err == nil {
		t.Fatalf("a gap was taken")
	}
}

func (m *modelled) queue(t *rapid.T) {
	deliver := rapid.Bool().Draw(t, "deliver")
	row, err := m.rig.m.Queue(m.rig.now, authority.Command{Type: prp.CommandSessionSnapshot, Payload: object(`{}`), Deliver: deliver})
	if err != nil {
		t.Fatal(err)
	}
	m.rig.commit()
	if row.ControllerSeq != int64(len(m.results)+1) {
		t.Fatalf("sequence %d after %d commands", row.ControllerSeq, len(m.results))
	}
	m.results[row.ControllerSeq] = ""
	frames := m.rig.take()
	if sent := len(frames) > 0; sent != (deliver && m.link != nil) {
		t.Fatalf("sent %v, deliver %v, joined %v", sent, deliver, m.link != nil)
	}
	for _, f := range frames {
		seq, _ := f.env.Payload.Get("controllerSeq").SafeInt()
		for before := int64(1); before < seq; before++ {
			if m.results[before] == "" {
				t.Fatalf("command %d was sent while %d is pending", seq, before)
			}
		}
	}
}

func (m *modelled) command(t *rapid.T) int64 {
	if len(m.results) == 0 {
		t.Skip("no command yet")
	}
	return rapid.Int64Range(1, int64(len(m.results))).Draw(t, "command")
}

func (m *modelled) result(t *rapid.T) {
	live, seq := m.live(t), m.command(t)
	inner := fmt.Sprintf(`{"r":%d}`, rapid.IntRange(0, 2).Draw(t, "r"))
	err := m.rig.say(m.link, result(m.link.Version, seq, prp.CommandSessionSnapshot, "completed", inner))
	m.rig.take()
	stored := m.results[seq]
	if ok := live && (stored == "" || stored == inner); ok != (err == nil) {
		t.Fatalf("result: %v (live %v, stored %q)", err, live, stored)
	}
	if err == nil {
		m.results[seq] = inner
	}
}

func (m *modelled) sameResult(t *rapid.T) {
	live, seq := m.live(t), m.command(t)
	if m.results[seq] == "" {
		t.Skip("pending")
	}
	err := m.rig.say(m.link, result(m.link.Version, seq, prp.CommandSessionSnapshot, "completed", m.results[seq]))
	m.rig.take()
	if live != (err == nil) {
		t.Fatalf("the same result again: %v", err)
	}
}

// check holds machine and store against the model.
func (m *modelled) check(t *rapid.T) {
	s := m.rig.m.Snapshot()
	if s.Session.AckedSourceSeq != m.acked {
		t.Fatalf("acked %d, expected %d", s.Session.AckedSourceSeq, m.acked)
	}
	if (s.Fault != nil) != m.faulted {
		t.Fatalf("fault %v, expected %v", s.Fault, m.faulted)
	}
	var order []int64
	for _, row := range m.rig.hostLog() {
		if row.Origin == store.OriginRunner {
			order = append(order, row.SourceSeq)
		}
	}
	if len(order) != len(m.order) {
		t.Fatalf("log holds %v, expected %v", order, m.order)
	}
	for i := range order {
		if order[i] != m.order[i] {
			t.Fatalf("log holds %v, expected %v", order, m.order)
		}
	}
	pending := 0
	for seq, want := range m.results {
		c := s.Commands[seq-1]
		if want == "" {
			pending++
			if c.Status != prp.StatusPending {
				t.Fatalf("command %d is %s", seq, c.Status)
			}
			continue
		}
		if got := string(object(string(c.Result)).Get("result").JSON()); got != want {
			t.Fatalf("command %d has result %s, expected %s", seq, got, want)
		}
	}
	if s.Pending != pending {
		t.Fatalf("%d pending, expected %d", s.Pending, pending)
	}
}
