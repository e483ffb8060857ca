package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
)

// selectEvents takes a JSON list of event numbers and gives the events in that
// order. The count of redeliveries is joined on.
const selectEvents = `SELECT e.seq, e.run_id, e.origin, e.type, e.at_ms, e.late, e.source_seq, e.source_event_id, e.priority,
	e.delivery_count + COALESCE(r.count, 0), e.digest, e.body
	FROM json_each(?1) j CROSS JOIN events e ON e.num = j.value AND e.session = ?2
	LEFT JOIN redeliveries r ON e.origin = 0 AND r.session = e.session AND r.source_seq = e.source_seq`

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

func readHead(ctx context.Context, q querier, id string) (h logHead, err error) {
	err = q.QueryRowContext(ctx, `SELECT s.num, h.log_seq, h.tail FROM sessions s JOIN session_heads h ON h.session = s.num
		WHERE s.id = ?`, id).Scan(&h.session, &h.seq, &h.tail)
	return h, err
}

// numsFrom lists the numbers of the events from seq to the end of its chunk.
func (h *logHead) numsFrom(ctx context.Context, q querier, seq int64) ([]int64, error) {
	first, chunk := chunkStart(seq), h.tail
	if first+chunkLen-1 <= h.seq {
		err := q.QueryRowContext(ctx, `SELECT nums FROM event_chunks WHERE session = ? AND first_seq = ?`, h.session, first).Scan(&chunk)
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
	h, err := readHead(ctx, s.read, sessionID)
	if err != nil {
		return nil, readError("session", err)
	}
	var events []store.EventRow
	total, more := 0, true
	for seq := max(after, 0) + 1; more && seq <= h.seq && len(events) < limit; seq = chunkStart(seq) + chunkLen {
		list, err := h.numsFrom(ctx, s.read, seq)
		if err != nil {
			return nil, readError("events", err)
		}
		list = list[:min(len(list), limit-len(events))]
		want := seq
		page, err := collect(ctx, s.read, func(sc scanner, r *store.EventRow) (stop bool, err error) {
			if err := scanEvent(sc, r); err != nil {
				return false, err
			}
			if r.Seq != want {
				return false, damaged(want)
			}
			// At least one, however large it is.
			if total += len(r.Body); total > maxBytes && (len(events) > 0 || want > seq) {
				more = false
				return true, nil
			}
			want++
			return false, nil
		}, selectEvents, jsonNums(list), h.session)
		if err != nil {
			return nil, readError("events", err)
		}
		if more && len(page) != len(list) {
			return nil, readError("events", damaged(want))
		}
		events = append(events, page...)
	}
	return events, nil
}

// newest gives the newest events of the runner, ascending, at most window.
func (h *logHead) newest(ctx context.Context, q querier, window int) ([]store.EventRow, error) {
	var chunks [][]store.EventRow // newest first
	found := 0
	if h.seq == 0 {
		return nil, nil
	}
	for seq := chunkStart(h.seq); seq > 0 && found < window; seq -= chunkLen {
		list, err := h.numsFrom(ctx, q, seq)
		if err != nil {
			return nil, err
		}
		events, err := collect(ctx, q, whole(scanEvent), selectEvents+` WHERE e.origin = 0`, jsonNums(list), h.session)
		if err != nil {
			return nil, err
		}
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

func scanEvent(sc scanner, r *store.EventRow) error {
	var digest []byte
	var origin, at int64
	if err := sc.Scan(&r.Seq, &r.RunID, &origin, &r.Type, &at, &r.Late, &r.SourceSeq, &r.SourceEventID, &r.Priority,
		&r.DeliveryCount, &digest, &r.Body); err != nil {
		return err
	}
	r.Origin = store.OriginRunner
	if origin == originControlPlane {
		r.Origin = store.OriginControlPlane
	}
	r.At = time.UnixMilli(at).UTC()
	// SQLite keeps no checksums: a bit that flipped in a body shows here or never.
	if err := scan32(digest, &r.Digest); err != nil || sha256.Sum256(r.Body) != r.Digest {
		return damaged(r.Seq)
	}
	return nil
}
