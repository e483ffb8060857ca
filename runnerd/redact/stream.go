package redact

// Stream redacts one stream of bytes that arrives in chunks.
type Stream struct {
	m  *machine
	at int32 // state of the automaton

	// Positions count bytes since the beginning of the stream.
	pos  int64  // bytes taken in
	base int64  // bytes given out or covered
	tail []byte // the bytes from base to pos
	// hits are the covered stretches that were not given out yet, disjoint and
	// in order. Only the last one can still grow.
	hits []hit
}

type hit struct{ start, end int64 }

// Stream begins a stream.
func (r *Redactor) Stream() *Stream {
	if r.Empty() {
		return &Stream{}
	}
	return &Stream{m: r.machine}
}

// flushEvery bounds the tail while one large chunk is worked on, in bytes.
const flushEvery = 64 << 10

// Write takes a chunk and returns what is certain by now: a new slice, or
// chunk itself when there is nothing to replace at all.
func (s *Stream) Write(chunk []byte) []byte {
	if s.m == nil {
		return chunk
	}
	out := make([]byte, 0, len(s.tail)+len(chunk))
	for len(chunk) > flushEvery {
		out = s.write(out, chunk[:flushEvery])
		chunk = chunk[flushEvery:]
	}
	return s.write(out, chunk)
}

func (s *Stream) write(out, chunk []byte) []byte {
	s.tail = append(s.tail, chunk...)
	for _, c := range chunk {
		s.at = s.m.step(s.at, c)
		s.pos++
		if n := s.m.nodes[s.at].longest; n != 0 {
			s.cover(s.pos-int64(n), s.pos)
		}
	}
	// Whatever is still to be found begins no earlier than the longest suffix
	// that begins a form.
	return s.give(out, s.pos-int64(s.m.nodes[s.at].depth))
}

// Flush ends the stream and returns the rest. The stream can be used again
// from its beginning.
func (s *Stream) Flush() []byte {
	if s.m == nil {
		return nil
	}
	out := s.give(nil, s.pos)
	*s = Stream{m: s.m}
	return out
}

// Held is how many bytes wait for what follows.
func (s *Stream) Held() int { return len(s.tail) }

// cover marks a stretch; it ends at or after every earlier one.
func (s *Stream) cover(start, end int64) {
	for n := len(s.hits); n > 0 && s.hits[n-1].end > start; n-- {
		start = min(start, s.hits[n-1].start)
		s.hits = s.hits[:n-1]
	}
	s.hits = append(s.hits, hit{start, end})
}

// give hands out everything before safe.
func (s *Stream) give(out []byte, safe int64) []byte {
	take := func(upTo int64) []byte {
		n := upTo - s.base
		b := s.tail[:n]
		s.tail, s.base = s.tail[n:], upTo
		return b
	}
	for len(s.hits) > 0 && s.hits[0].start < safe {
		h := s.hits[0]
		out = append(out, take(h.start)...)
		if h.end > safe {
			// It may grow: its bytes are gone, its marker is still due.
			take(safe)
			s.hits[0].start = safe
			break
		}
		take(h.end)
		out = append(out, Marker...)
		s.hits = s.hits[1:]
	}
	if safe > s.base {
		out = append(out, take(safe)...)
	}
	if len(s.tail) == 0 {
		s.tail = s.tail[:0:0] // do not keep a large chunk for nothing
	}
	return out
}
