package seglog

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"bowline/wire"
)

// scanBuffer is how much of a segment is read at once, in bytes.
const scanBuffer = 256 << 10

// damaged names a fault by its place, never by what is there.
func damaged(segment uint64, offset int64, what string) *wire.Error {
	return wire.Errorf(wire.CodeLogDamaged, "session log segment %d is damaged at offset %d: %s", segment, offset, what).
		With("segment", segment).With("offset", offset)
}

// scanner reads one segment.
type scanner struct {
	file   File
	size   int64
	number uint64
	newest bool // only the newest segment may end in a torn write

	commit  uint64 // last commit seen, in this segment or an earlier one
	records uint64 // records seen in this segment
	end     int64  // offset behind the last good record
	cut     bool   // something behind end has to be cut away
}

// scan hands every good record to fn. It fails with wire.CodeLogDamaged, with an
// error of the disk, or with one of fn.
func (s *scanner) scan(fn func(Position, []byte) error) error {
	r := bufio.NewReaderSize(io.NewSectionReader(s.file, headerSize, s.size-headerSize), s.bufferSize())
	s.end = headerSize
	var head [recordHead]byte
	for {
		n, err := io.ReadFull(r, head[:])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if n < recordHead {
			if allZero(head[:n]) {
				return nil
			}
			return s.failed(head[:n], s.commit+1, true, "record header is cut off")
		}
		if allZero(head[:]) {
			return s.checkTail()
		}
		h, ok := parseRecordHead(head[:])
		if !ok {
			return s.failed(head[:], s.commit+1, false, "record header fails its checksum")
		}
		if h.commit != s.commit+1 && (h.commit != s.commit || s.commit == 0) {
			return damaged(s.number, s.end, "commit number is out of order")
		}
		body := make([]byte, span(h.length)-recordHead)
		n, err = io.ReadFull(r, body)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if n < len(body) {
			return s.failed(append(head[:], body[:n]...), h.commit, true, "record is cut off")
		}
		if sha256.Sum256(body[:h.length]) != h.digest || !isFiller(body[h.length:]) {
			return s.failed(append(head[:], body...), h.commit, false, "record fails its checksum")
		}
		if err := fn(Position{Segment: s.number, Offset: s.end}, body[:h.length:h.length]); err != nil {
			return err
		}
		s.commit = h.commit
		s.records++
		s.end += int64(recordHead + len(body))
	}
}

func isFiller(b []byte) bool {
	for _, c := range b {
		if c != fillerByte {
			return false
		}
	}
	return true
}

// failed judges a bad record at s.end: torn (cut it) or damaged. extent is what
// there is of it, commit the newest commit it can belong to.
func (s *scanner) failed(extent []byte, commit uint64, truncated bool, what string) error {
	if !s.newest {
		return damaged(s.number, s.end, what)
	}
	if !truncated && !hasUnwrittenSector(extent, s.end) {
		return damaged(s.number, s.end, what)
	}
	later, err := s.laterCommit(s.end+alignment, commit)
	if err != nil {
		return err
	}
	if later {
		return damaged(s.number, s.end, what+", and later commits follow")
	}
	s.cut = true
	return nil
}

// checkTail looks at the space behind the last record, which reads as zeros
// unless a write was torn whose first sectors did not arrive.
func (s *scanner) checkTail() error {
	r := bufio.NewReaderSize(io.NewSectionReader(s.file, s.end, s.size-s.end), s.bufferSize())
	for {
		b, err := r.Peek(s.bufferSize())
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(b) == 0 {
			return nil
		}
		if !allZero(b) {
			break
		}
		if _, err := r.Discard(len(b)); err != nil {
			return err
		}
	}
	if !s.newest {
		return damaged(s.number, s.end, "a record is missing")
	}
	later, err := s.laterCommit(s.end, s.commit+1)
	if err != nil {
		return err
	}
	if later {
		return damaged(s.number, s.end, "a record is missing, and later commits follow")
	}
	s.cut = true
	return nil
}

// laterCommit tells whether a whole, good record of a commit after commit lies
// at or behind from.
func (s *scanner) laterCommit(from int64, commit uint64) (bool, error) {
	r := bufio.NewReaderSize(io.NewSectionReader(s.file, from, s.size-from), s.bufferSize())
	for at := from; ; at += alignment {
		b, err := r.Peek(recordHead)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return false, nil
			}
			return false, err
		}
		if h, ok := parseRecordHead(b); ok && h.commit > commit {
			body := make([]byte, h.length)
			n, err := s.file.ReadAt(body, at+recordHead)
			if err != nil && !errors.Is(err, io.EOF) {
				return false, err
			}
			if n == len(body) && sha256.Sum256(body) == h.digest {
				return true, nil
			}
		}
		if _, err := r.Discard(alignment); err != nil {
			return false, fmt.Errorf("scanning segment %d: %w", s.number, err)
		}
	}
}

// bufferSize is scanBuffer, or less for a small segment.
func (s *scanner) bufferSize() int { return int(max(recordHead, min(scanBuffer, s.size))) }
