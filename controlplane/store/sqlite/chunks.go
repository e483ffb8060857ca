package sqlite

import (
	"encoding/binary"
	"errors"
)

// How a session's log is found among all events.
//
// Events of all sessions are appended to one table, in the order of their
// commits, numbered 1, 2, 3, …: the numbers of one session's events are
// scattered. An index on (session, seq) would dirty one page per session and
// commit, which with 64 sessions is most of what a commit writes. So the
// numbers are kept in chunks instead: chunk k of a session lists the numbers of
// the events with seq 64k+1 to 64k+64. The open chunk, the tail, is a column of
// the session's head, which every commit rewrites anyway; a full one becomes a
// row of event_chunks. Seqs are dense, so (seq-1)/64 is the chunk and nothing
// has to be searched.
//
// A chunk is a list of unsigned varints: the first number, then differences.

// chunkLen is how many events a chunk lists. It is part of the file format.
const chunkLen = 64

var errChunk = errors.New("store: a list of event numbers is damaged")

// appendNum adds num to a chunk whose last number is last (0 for an empty one).
func appendNum(chunk []byte, last, num int64) []byte {
	if num <= last {
		panic("bug: store: event numbers must grow")
	}
	return binary.AppendUvarint(chunk, uint64(num-last))
}

// nums lists the numbers of a chunk.
func nums(chunk []byte) ([]int64, error) {
	list := make([]int64, 0, chunkLen)
	last := uint64(0)
	for len(chunk) > 0 {
		d, n := binary.Uvarint(chunk)
		if n <= 0 || d == 0 || len(list) == chunkLen || last+d > 1<<62 || d > 1<<62 {
			return nil, errChunk
		}
		last += d
		list = append(list, int64(last)) //nolint:gosec // at most 2^62
		chunk = chunk[n:]
	}
	return list, nil
}

// chunkStart is the first seq of the chunk that seq belongs to.
func chunkStart(seq int64) int64 { return (seq-1)/chunkLen*chunkLen + 1 }

// tail is the open chunk of a session's log.
type tail struct {
	seq  int64  // of the log's last event, 0 for an empty log
	last int64  // its number
	list []byte // numbers of the open chunk: seq mod 64 of them
}

// closed is a chunk that has become full.
type closed struct {
	first int64 // its first seq
	list  []byte
}

// extend gives the tail after n more events with the numbers first, first+1, …
// and the chunks they filled. It leaves t as it is.
func (t *tail) extend(n int, first int64) (next tail, full []closed) {
	next = tail{seq: t.seq, last: t.last, list: append(make([]byte, 0, len(t.list)+3*n+8), t.list...)}
	for i := range int64(n) {
		if next.seq%chunkLen == 0 {
			next.last = 0
		}
		next.list = appendNum(next.list, next.last, first+i)
		next.last = first + i
		if next.seq++; next.seq%chunkLen == 0 {
			full = append(full, closed{first: next.seq - chunkLen + 1, list: next.list})
			next.list = nil
		}
	}
	return next, full
}

// readTail rebuilds a tail from its columns.
func readTail(seq int64, list []byte) (tail, error) {
	all, err := nums(list)
	if err != nil {
		return tail{}, err
	}
	if int64(len(all)) != seq%chunkLen {
		return tail{}, errChunk
	}
	t := tail{seq: seq, list: list}
	if len(all) > 0 {
		t.last = all[len(all)-1]
	}
	return t, nil
}
