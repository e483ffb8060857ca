package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"bowline/controlplane/resource"
	"bowline/wire"
)

// streamEvents serves the events of a run.
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request, q url.Values) {
	const name = "GET /v1/runs/{id}/events"
	after := q.Get("after")
	if _, given := q["after"]; !given {
		after = r.Header.Get(resource.HeaderLastEventID)
	} else if after == "" {
		s.fail(w, r, name, wire.Errorf(wire.CodeBadCursor, "query.after: cursor is empty; leave it out to start at the beginning"))
		return
	}
	// Everything that can be refused is refused before the first byte.
	follower, err := s.cfg.Runs.Follow(r.Context(), r.PathValue("id"), after)
	if err != nil {
		s.fail(w, r, name, err)
		return
	}
	s.streams.Inc()
	defer s.streams.Dec()
	s.requests.WithLabelValues(name, class(200)).Inc()

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-s.cfg.Done:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-stopped }()

	out := &streamWriter{w: w, rc: http.NewResponseController(w), sse: !acceptsNDJSON(r)}
	if err := out.start(); err != nil {
		s.log(ctx, "stream not delivered", err)
		return
	}
	if err := out.follow(ctx, follower); err != nil && ctx.Err() == nil {
		s.log(ctx, "stream ended early", err)
	}
}

// acceptsNDJSON tells whether the request prefers lines.
func acceptsNDJSON(r *http.Request) bool {
	return slices.ContainsFunc(strings.Split(r.Header.Get("Accept"), ","), func(part string) bool {
		media, _, _ := strings.Cut(part, ";")
		return strings.TrimSpace(media) == resource.MediaNDJSON
	})
}

// streamWriter writes lines in one of the two formats.
type streamWriter struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	sse bool
}

func (o *streamWriter) start() error {
	media := resource.MediaNDJSON
	if o.sse {
		media = resource.MediaSSE
	}
	o.w.Header().Set("Content-Type", media)
	// Proxies that buffer would hold events back.
	o.w.Header().Set("X-Accel-Buffering", "no")
	// The request was read; a stream may stay open for ever.
	if err := o.rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	o.w.WriteHeader(http.StatusOK)
	return o.flush(nil)
}

// follow copies lines until the end, ctx's end or an error.
func (o *streamWriter) follow(ctx context.Context, f Follower) error {
	for {
		wait, cancel := context.WithTimeout(ctx, keepAlive)
		lines, end, err := f.Next(wait)
		cancel()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded):
			if err := o.flush(o.comment()); err != nil {
				return err
			}
			continue
		default:
			// The reader learns that this is not the run's end.
			body := resource.ErrorBodyOf(err, requestID(ctx))
			data, ferr := o.frame(&resource.Line{Type: resource.LineError, Error: &body})
			if ferr == nil {
				ferr = o.flush(data)
			}
			return errors.Join(err, ferr)
		}
		var page bytes.Buffer
		for i := range lines {
			data, err := o.frame(&lines[i])
			if err != nil {
				return err
			}
			page.Write(data)
		}
		if err := o.flush(page.Bytes()); err != nil || end {
			return err
		}
	}
}

func (o *streamWriter) comment() []byte {
	if o.sse {
		return []byte(": keep-alive\n\n")
	}
	return []byte("\n")
}

// frame is one line in the stream's format. JSON holds no newline of its own.
func (o *streamWriter) frame(l *resource.Line) ([]byte, error) {
	data, err := encode(l)
	if err != nil || !o.sse {
		return data, err
	}
	var b bytes.Buffer
	if l.ID != "" {
		b.WriteString("id: " + l.ID + "\n")
	} else {
		b.WriteString("event: " + l.Type + "\n")
	}
	b.WriteString("data: ")
	b.Write(data)
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// flush writes data through to the reader within answerTimeout.
func (o *streamWriter) flush(data []byte) error {
	if err := o.rc.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if len(data) > 0 {
		if _, err := o.w.Write(data); err != nil {
			return err
		}
	}
	return o.rc.Flush()
}
