package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
)

const (
	selectHead = `SELECT s.num, h.log_seq, h.tail FROM sessions s JOIN session_heads h ON h.session = s.num WHERE s.id = ?`

	selectChunk = `SELECT nums FROM event_chunks WHERE session = ? AND first_seq = ?`

	// selectEvents takes a JSON list of event numbers and gives the events in
	// that order. The count of redeliveries is joined on.
	selectEvents = `SELECT e.session, e.seq, e.run_id, e.origin, e.type, e.at_ms, e.late, e.source_seq, e.source_event_id,
		e.priority, e.delivery_count + COALESCE(r.count, 0), e.digest, e.body
		FROM json_each(?1) j CROSS JOIN events e ON e.num = j.value
		LEFT JOIN redeliveries r ON e.origin = 0 AND r.session = e.session AND r.source_seq = e.source_seq`
)

// logReader holds the statements that find a session's events, prepared once:
// whoever follows a log asks them after every commit.
type logReader struct{ head, chunk, events *sql.Stmt }

func newLogReader(ctx context.Context, db *sql.DB) (*logReader, error) {
	l := new(logReader)
	for into, text := range map[**sql.Stmt]string{&l.head: selectHead, &l.chunk: selectChunk, &l.events: selectEvents} {
		st, err := db.PrepareContext(ctx, text)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("store: prepare a read: %w", err), l.close())
		}
		*into = st
	}
	return l, nil
}

// in gives the same statements inside tx, which closes them.
func (l *logReader) in(ctx context.Context, tx *sql.Tx) *logReader {
	return &logReader{head: tx.StmtContext(ctx, l.head), chunk: tx.StmtContext(ctx, l.chunk), events: tx.StmtContext(ctx, l.events)}
}

func (l *logReader) close() error {
	var errs []error
	for _, st := range []*sql.Stmt{l.head, l.chunk, l.events} {
		if st != nil {
			errs = append(errs, st.Close())
		}
	}
	return errors.Join(errs...)
}

// What Events does when a caller names no limit, ours.
const (
	defaultEvents      = 1000
	defaultEventsBytes = 1 << 20
)

// logHead is where a session's log is.
type logHead struct {
	session int64
	seq     int64 // of the last event
	tail    []byte
}

func (l *logReader) headOf(ctx context.Context, id string) (h logHead, err error) {
	err = l.head.QueryRowContext(ctx, id).Scan(&h.session, &h.seq, &h.tail)
	return h, err
}

// nums lists the numbers of the events from seq to the end of its chunk.
func (l *logReader) nums(ctx context.Context, h *logHead, seq int64) ([]int64, error) {
	first, chunk := chunkStart(seq), h.tail
	if first+chunkLen-1 <= h.seq {
		err := l.chunk.QueryRowContext(ctx, h.session, first).Scan(&chunk)
		if errors.Is(err, sql.ErrNoRows) {
			return nil, damaged(seq)
		}
		if err != nil {
			return nil, err
		}
	}
	all, err := nums(chunk)
	if err != nil || int64(len(all)) != min(chunkLen, h.seq-first+1) {
		return nil, damaged(seq)
	}
	return all[seq-first:], nil
}

// page reads the events of a list of numbers, the first of which has seq first,
// until stop says so.
func (l *logReader) page(ctx context.Context, h *logHead, first int64, list []int64, stop func(*store.EventRow) bool) ([]store.EventRow, error) {
	want, stopped := first, false
	rows, err := l.events.QueryContext(ctx, jsonNums(list))
	events, err := drain(rows, err, func(sc scanner, r *store.EventRow) (bool, error) {
		session, err := scanEvent(sc, r)
		if err != nil {
			return false, err
		}
		if session != h.session || r.Seq != want {
			return false, damaged(want)
		}
		want++
		stopped = stop(r)
		return stopped, nil
	})
	if err == nil && !stopped && len(events) != len(list) {
		err = damaged(want)
	}
	return events, err
}

func damaged(seq int64) *wire.Error {
	return wire.Errorf(wire.CodeLogDamaged, "the log of this session is damaged at event %d", seq)
}

// Events returns host-log entries after a sequence number. A limit or size
// below 1 means 1000 entries, 1 MiB. It needs no snapshot: a log only grows.
func (s *Store) Events(ctx context.Context, sessionID string, after int64, limit, maxBytes int) ([]store.EventRow, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	if limit < 1 {
		limit = defaultEvents
	}
	if maxBytes < 1 {
		maxBytes = defaultEventsBytes
	}
	h, err := s.log.headOf(ctx, sessionID)
	if err != nil {
		return nil, readError("session", err)
	}
	var events []store.EventRow
	total, taken, full := 0, 0, false
	for seq := max(after, 0) + 1; !full && seq <= h.seq && len(events) < limit; seq = chunkStart(seq) + chunkLen {
		list, err := s.log.nums(ctx, &h, seq)
		if err != nil {
			return nil, readError("events", err)
		}
		list = list[:min(len(list), limit-len(events))]
		page, err := s.log.page(ctx, &h, seq, list, func(r *store.EventRow) bool {
			total += len(r.Body)
			full = total > maxBytes && taken > 0 // at least one, however large it is
			taken++
			return full
		})
		if err != nil {
			return nil, readError("events", err)
		}
		events = append(events, page...)
	}
	return events, nil
}

// newest gives the newest events of the runner, ascending, at most window.
func (l *logReader) newest(ctx context.Context, h *logHead, window int) ([]store.EventRow, error) {
	if h.seq == 0 {
		return nil, nil
	}
	var chunks [][]store.EventRow // newest first
	found := 0
	for seq := chunkStart(h.seq); seq > 0 && found < window; seq -= chunkLen {
		list, err := l.nums(ctx, h, seq)
		if err != nil {
			return nil, err
		}
		// All of them, so that one that is missing is noticed.
		events, err := l.page(ctx, h, seq, list, func(*store.EventRow) bool { return false })
		if err != nil {
			return nil, err
		}
		events = slices.DeleteFunc(events, func(r store.EventRow) bool { return r.Origin != store.OriginRunner })
		chunks = append(chunks, events)
		found += len(events)
	}
	slices.Reverse(chunks)
	events := slices.Concat(chunks...)
	return events[max(0, len(events)-window):], nil
}

// jsonNums writes numbers as a JSON list: the one way to hand SQLite a list.
func jsonNums(list []int64) string {
	b := make([]byte, 0, 12*len(list)+2)
	b = append(b, '[')
	for i, n := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(append(b, ']'))
}

func scanEvent(sc scanner, r *store.EventRow) (session int64, err error) {
	var digest []byte
	var origin, at int64
	if err := sc.Scan(&session, &r.Seq, &r.RunID, &origin, &r.Type, &at, &r.Late, &r.SourceSeq, &r.SourceEventID,
		&r.Priority, &r.DeliveryCount, &digest, &r.Body); err != nil {
		return 0, err
	}
	r.Origin = store.OriginRunner
	if origin == originControlPlane {
		r.Origin = store.OriginControlPlane
	}
	r.At = time.UnixMilli(at).UTC()
	// SQLite keeps no checksums: a bit that flipped in a body shows here or never.
	if err := scan32(digest, &r.Digest); err != nil || sha256.Sum256(r.Body) != r.Digest {
		return 0, damaged(r.Seq)
	}
	return session, nil
}
