package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"

	"bowline/controlplane/resource"
	"bowline/wire"
)

// Reconnect delays of a stream (ours): doubled from the first to the last,
// spread by jitter, starting over once a line arrived.
const (
	reconnectFirst = 100 * time.Millisecond
	reconnectLast  = 5 * time.Second
)

// idleLimit is how long a stream may be silent before the client takes it for
// dead (ours): the server sends a keep-alive every 15 s.
const idleLimit = 60 * time.Second

// Events yields the lines of a run's event stream, from after the cursor
// ("" = from the beginning) to the terminal event, across reconnects: the
// cursor of the last event is kept, nothing is yielded twice, nothing is
// skipped. Status and gap lines are passed on as they come; keep-alives are
// not.
//
// The iteration ends after the terminal event (no error), when ctx ends (its
// error), or with the server's refusal (*wire.Error: unauthorized, not_found,
// bad_cursor, gone, …). An unreachable server is retried for ever: bound it
// with ctx or give up from onRetry.
func (c *Client) Events(ctx context.Context, runID, after string) iter.Seq2[*resource.Line, error] {
	return c.EventsRetry(ctx, runID, after, nil)
}

// EventsRetry is [Client.Events] with a say in reconnecting: onRetry is called
// before each wait with the number of attempts in a row that brought nothing
// (from 1) and what went wrong; its error ends the iteration.
func (c *Client) EventsRetry(ctx context.Context, runID, after string, onRetry func(attempt int, err error) error) iter.Seq2[*resource.Line, error] {
	return func(yield func(*resource.Line, error) bool) {
		cursor := after
		attempt := 0
		for {
			s := &stream{client: c, runID: runID, cursor: cursor}
			done, stop, err := s.run(ctx, yield)
			if stop || done {
				return
			}
			cursor = s.cursor
			if s.progress {
				attempt = 0
			}
			attempt++
			if ctx.Err() != nil {
				yield(nil, ctx.Err())
				return
			}
			var e *wire.Error
			if errors.As(err, &e) && !retryable(e) {
				yield(nil, err)
				return
			}
			if onRetry != nil {
				if rerr := onRetry(attempt, err); rerr != nil {
					yield(nil, rerr)
					return
				}
			}
			d := min(reconnectFirst<<min(attempt-1, 10), reconnectLast)
			if serr := c.opt.Sleep(ctx, c.opt.Jitter(d)); serr != nil {
				yield(nil, serr)
				return
			}
		}
	}
}

// retryable tells whether the same request can succeed later.
func retryable(e *wire.Error) bool {
	switch e.Code {
	case wire.CodeUnavailable, wire.CodeTooManyRequests, wire.CodeInternal:
		return true
	}
	return false
}

// stream is one connection of an event stream.
type stream struct {
	client   *Client
	runID    string
	cursor   string // of the last event yielded
	progress bool   // an event was yielded
}

// run reads one connection. done: the terminal event was yielded. stop: the
// caller wants no more.
func (s *stream) run(ctx context.Context, yield func(*resource.Line, error) bool) (done, stop bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	path := "/v1/runs/" + url.PathEscape(s.runID) + "/events"
	if s.cursor != "" {
		path += "?after=" + url.QueryEscape(s.cursor)
	}
	req, err := s.client.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return false, false, err
	}
	req.Header.Set("Accept", resource.MediaNDJSON)
	// The watchdog ends a connection that went silent: a half-open socket
	// would otherwise look alive for ever.
	watchdog := time.AfterFunc(idleLimit, cancel)
	defer watchdog.Stop()
	resp, err := s.client.http.Do(req)
	if err != nil {
		return false, false, (&unreachable{host: s.client.base.Host, cause: err}).asRetry()
	}
	defer func() {
		cancel()
		if cerr := resp.Body.Close(); err == nil && !done && !stop {
			err = cerr
		}
	}()
	if err := checkAnswer(resp); err != nil {
		return false, false, err
	}
	r := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		raw, err := readLine(r)
		if err != nil {
			return false, false, err
		}
		watchdog.Reset(idleLimit)
		if len(raw) == 0 {
			continue // keep-alive
		}
		var line resource.Line
		if err := json.Unmarshal(raw, &line); err != nil {
			return false, false, &wire.Error{Code: wire.CodeProtocol, Message: "a line of the event stream is not the JSON of this API version", Cause: err}
		}
		if line.Type == resource.LineError && line.Error != nil {
			return false, false, line.Error.AsError()
		}
		if line.Type == resource.LineEvent {
			fresh, err := s.follows(line.ID)
			if err != nil {
				return false, false, err
			}
			if !fresh {
				continue
			}
		}
		if !yield(&line, nil) {
			return false, true, nil
		}
		if line.Type == resource.LineEvent {
			s.cursor, s.progress = line.ID, true
			if line.Event != nil && line.Event.Type == resource.EventRunEnded {
				return true, false, nil
			}
		}
	}
}

// follows tells whether id comes after the last event; an event at or before
// it is a repetition and dropped.
func (s *stream) follows(id string) (bool, error) {
	next, err := resource.ParseCursor(id)
	if err != nil {
		return false, &wire.Error{Code: wire.CodeProtocol, Message: "an event of the stream has no valid id", Cause: err}
	}
	if s.cursor == "" {
		return true, nil
	}
	last, err := resource.ParseCursor(s.cursor)
	if err != nil {
		return false, err
	}
	return next.Epoch > last.Epoch || next.Epoch == last.Epoch && next.Seq > last.Seq, nil
}

// readLine reads one line without its newline, at most maxLineBytes.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLineBytes {
			return nil, wire.Errorf(wire.CodeProtocol, "a line of the event stream is larger than %d bytes", maxLineBytes)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "the event stream ended before the run did", Cause: err}
		default:
			return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "the connection to the server broke", Cause: err}
		}
	}
}

// asRetry keeps a watchdog's cancellation apart from the caller's: the caller
// is looked at first by EventsRetry.
func (u *unreachable) asRetry() error {
	return &wire.Error{Code: wire.CodeUnavailable, Message: "the server at " + u.host + " cannot be reached", Cause: u.cause}
}
