package session_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"bowline/controlplane/authority"
	"bowline/controlplane/session"
	"bowline/controlplane/session/sessiontest"
	"bowline/controlplane/store/sqlite"
	"bowline/wire/carrier"
	"bowline/wire/prp"
)

// served is a session on a real store behind a real socket.
func served(tb testing.TB) *sessiontest.Runner {
	tb.Helper()
	st, err := sqlite.Open(context.Background(), filepath.Join(tb.TempDir(), "db"), sqlite.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tx, err := authority.NewSession(identity(), runnerVersion, runnerDigest, time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	if err := st.Commit(context.Background(), tx); err != nil {
		tb.Fatal(err)
	}
	s, err := session.Open(context.Background(), session.Config{Store: st, Options: authority.ProductOptions(uuid.NewString)}, identity().NormalizedSessionID)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		conn, err := carrier.Accept(w, r, carrier.AcceptOptions{Path: prp.PathStandalone, MaxFrame: prp.MaxFrameBytes})
		if err != nil {
			tb.Errorf("accept: %v", err)
			return
		}
		if err := s.Serve(ctx, conn); err != nil {
			tb.Errorf("serve: %v", err)
		}
	}))
	tb.Cleanup(func() {
		cancel()
		<-done
		server.Close()
		closing, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(closing); err != nil {
			tb.Error(err)
		}
		if err := st.Close(); err != nil {
			tb.Error(err)
		}
	})
	ticket, err := s.IssueTicket(context.Background(), time.Minute)
	if err != nil {
		tb.Fatal(err)
	}
	return sessiontest.Join(tb, sessiontest.Config{
		URL: "ws" + strings.TrimPrefix(server.URL, "http") + prp.PathStandalone, Ticket: ticket, Identity: identity(),
		RunnerVersion: runnerVersion, RunnerDigest: runnerDigest,
	})
}

var payload = `{"itemId":"i","kind":"text","channel":"final","text":"` + strings.Repeat("x", 300) + `"}`

func TestServedByARealStore(t *testing.T) {
	t.Parallel()
	r := served(t)
	for seq := int64(1); seq <= 50; seq++ {
		r.Event(seq, "item.delta", payload)
	}
	for seq := int64(1); seq <= 50; seq++ {
		r.Ack(seq)
	}
}

// BenchmarkEvent is one event at a time: sent, durable, acknowledged.
func BenchmarkEvent(b *testing.B) {
	r := served(b)
	seq := int64(0)
	for b.Loop() {
		seq++
		r.Event(seq, "item.delta", payload)
		r.Ack(seq)
	}
}

// BenchmarkEventsInFlight keeps 128 events on their way, as a runner does with
// its outbox.
func BenchmarkEventsInFlight(b *testing.B) {
	const window = 128
	r := served(b)
	sent, acked := int64(0), int64(0)
	for b.Loop() {
		sent++
		r.Event(sent, "item.delta", payload)
		if sent-acked == window {
			acked++
			r.Ack(acked)
		}
	}
	for acked < sent {
		acked++
		r.Ack(acked)
	}
}
