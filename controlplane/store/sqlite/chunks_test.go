package sqlite

import (
	"encoding/hex"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"bowline/controlplane/store"
	"bowline/wire"
)

// TestChunkFormat pins the bytes: they are in the files of users.
func TestChunkFormat(t *testing.T) {
	t.Parallel()
	if chunkLen != 64 {
		t.Errorf("a chunk lists %d events; files hold chunks of 64", chunkLen)
	}
	var chunk []byte
	last := int64(0)
	for _, n := range []int64{7, 8, 300, 1 << 40} {
		chunk, last = appendNum(chunk, last, n), n
	}
	if got := hex.EncodeToString(chunk); got != "0701a402d4fdffffff1f" {
		t.Errorf("chunk of 7, 8, 300, 2^40 is %s", got)
	}
	for _, bad := range []string{"00", "0700", "80", "0780", "ffffffffffffffffff01", "ffffffffffffffffffff01"} {
		b, err := hex.DecodeString(bad)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := nums(b); !errors.Is(err, errChunk) {
			t.Errorf("damaged chunk %s gave %v, %v", bad, list, err)
		}
	}
	if _, err := nums(slices.Repeat([]byte{1}, chunkLen+1)); !errors.Is(err, errChunk) {
		t.Errorf("a chunk of %d numbers gave %v", chunkLen+1, err)
	}
	if _, err := readTail(3, []byte{1, 1}); !errors.Is(err, errChunk) {
		t.Errorf("a tail that is too short gave %v", err)
	}
}

// TestTail extends a log at random, through its columns now and then, and
// compares with a plain list.
func TestTail(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var log, stored []int64
		var at tail
		next := int64(1)
		for range rapid.IntRange(1, 12).Draw(t, "commits") {
			n := rapid.IntRange(1, 200).Draw(t, "events")
			next += rapid.Int64Range(0, 1000).Draw(t, "events of others")
			before := slices.Clone(at.list)
			extended, full := at.extend(n, next)
			if !slices.Equal(before, at.list) {
				t.Fatal("extend changed the tail it was called on")
			}
			for i := range n {
				log = append(log, next+int64(i))
			}
			next += int64(n)
			for _, c := range full {
				if c.first != int64(len(stored)+1) || chunkStart(c.first) != c.first {
					t.Fatalf("chunk begins at %d after %d events", c.first, len(stored))
				}
				list, err := nums(c.list)
				if err != nil || len(list) != chunkLen {
					t.Fatalf("full chunk: %d numbers, %v", len(list), err)
				}
				stored = append(stored, list...)
			}
			at = extended
			if rapid.Bool().Draw(t, "reread") {
				read, err := readTail(at.seq, at.list)
				if err != nil || read.last != at.last && len(at.list) > 0 {
					t.Fatalf("tail read back: last %d, want %d; %v", read.last, at.last, err)
				}
				at = read
			}
		}
		open, err := nums(at.list)
		if err != nil || !slices.Equal(append(stored, open...), log) || at.seq != int64(len(log)) {
			t.Fatalf("the chunks do not add up to the log: %v", err)
		}
	})
}

// TestDamageStaysWithItsSession flips what finds a session's events. That
// session is refused by reads and writes, the others go on.
func TestDamageStaysWithItsSession(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"tail":        `UPDATE session_heads SET tail = x'80' WHERE session = 1`,
		"tail length": `UPDATE session_heads SET log_seq = log_seq + 1 WHERE session = 1`,
		"chunk gone":  `DELETE FROM event_chunks WHERE session = 1`,
		"chunk":       `UPDATE event_chunks SET nums = x'0102' WHERE session = 1`,
		"body":        `UPDATE events SET body = x'7b' WHERE session = 1 AND seq = 5`,
		"digest":      `UPDATE events SET digest = zeroblob(32) WHERE session = 1 AND seq = 5`,
		"event gone":  `DELETE FROM events WHERE session = 1 AND seq = 5`,
		"event moved": `UPDATE events SET seq = 6 WHERE session = 1 AND seq = 5`,
		"other's":     `UPDATE events SET session = 2 WHERE session = 1 AND seq = 5`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir() + "/db"
			s := openTest(t, path, Options{})
			rows := []*store.SessionRow{row("damaged"), row("sound")}
			for _, r := range rows {
				mustCommit(t, s, &store.Tx{NewSession: r})
				var es []store.EventRow
				for range 100 {
					r.HeadSeq++
					es = append(es, entry(r.HeadSeq))
				}
				mustCommit(t, s, &store.Tx{Session: r, Events: es})
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			query(t, path, spoil)
			s = openTest(t, path, Options{})
			_, err := s.Events(t.Context(), "damaged", 0, 1000, 1<<20)
			wantCode(t, err, wire.CodeLogDamaged)
			_, err = s.Session(t.Context(), "damaged", 1000)
			wantCode(t, err, wire.CodeLogDamaged)
			if name == "tail" || name == "tail length" {
				wantCode(t, s.Commit(t.Context(), &store.Tx{Session: rows[0]}), wire.CodeLogDamaged)
			}
			rows[1].HeadSeq++
			mustCommit(t, s, &store.Tx{Session: rows[1], Events: []store.EventRow{entry(rows[1].HeadSeq)}})
			if es, err := s.Events(t.Context(), "sound", 0, 1000, 1<<20); err != nil || len(es) != 101 {
				t.Fatalf("the other session: %d events, %v", len(es), err)
			}
			if err := s.Latched(); err != nil {
				t.Fatalf("one damaged session latched the store: %v", err)
			}
		})
	}
}
