package session

import (
	"context"
	"sync"
)

// Bounds of one connection.
const (
	// ingressUnauthenticated is what may wait before the proof, in bytes.
	ingressUnauthenticated = 64 << 10
	// ingressBytes is what may wait after it, in bytes; the socket is not read
	// while more waits.
	ingressBytes = 4 << 20
	// egressBytes is what may wait to be written, in bytes; a runner that does
	// not read is cut off beyond it.
	egressBytes = 8 << 20
	// egressLow is what may wait while the next frames are handled, in bytes.
	egressLow = 256 << 10
	// batchFrames and batchBytes bound what shares one commit.
	batchFrames = 256
	batchBytes  = 2 << 20
)

// ingress holds frames that were read and not handled yet. One goroutine
// pushes, another takes.
type ingress struct {
	mu     sync.Mutex
	frames [][]byte
	bytes  int
	limit  int
	ended  bool
	filled chan struct{} // capacity 1: something to take, or the end
	room   chan struct{} // capacity 1: something was taken
}

func newIngress() *ingress {
	return &ingress{limit: ingressUnauthenticated, filled: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// push waits for room. It gives up when ctx ends.
func (q *ingress) push(ctx context.Context, frame []byte) bool {
	for {
		q.mu.Lock()
		if len(q.frames) == 0 || q.bytes+len(frame) <= q.limit {
			q.frames = append(q.frames, frame)
			q.bytes += len(frame)
			q.mu.Unlock()
			signal(q.filled)
			return true
		}
		q.mu.Unlock()
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		}
	}
}

func (q *ingress) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	signal(q.filled)
}

func (q *ingress) raise(limit int) {
	q.mu.Lock()
	q.limit = limit
	q.mu.Unlock()
	signal(q.room)
}

// take waits for frames and gives as many as may share a commit; nil when there
// will be no more.
func (q *ingress) take() [][]byte {
	for {
		q.mu.Lock()
		if n := len(q.frames); n > 0 {
			size, k := 0, 0
			for k < n && k < batchFrames && (k == 0 || size+len(q.frames[k]) <= batchBytes) {
				size += len(q.frames[k])
				k++
			}
			batch := q.frames[:k:k]
			q.frames = q.frames[k:]
			if len(q.frames) == 0 {
				q.frames = nil
			}
			q.bytes -= size
			q.mu.Unlock()
			signal(q.room)
			return batch
		}
		ended := q.ended
		q.mu.Unlock()
		if ended {
			return nil
		}
		<-q.filled
	}
}

// outgoing is one message to write.
type outgoing struct {
	text []byte
	seal bool // a plaintext envelope, to be sealed when its turn comes
}

// egress holds messages to write, in order. Anybody pushes, one goroutine takes.
type egress struct {
	mu       sync.Mutex
	messages []outgoing
	bytes    int
	finished bool // nothing is taken in any more; what is there still goes out
	aborted  bool
	filled   chan struct{}
	drained  chan struct{} // capacity 1: little is left
}

func newEgress() *egress {
	return &egress{filled: make(chan struct{}, 1), drained: make(chan struct{}, 1)}
}

func (q *egress) push(text []byte, seal bool) {
	q.mu.Lock()
	switch {
	case q.finished || q.aborted:
		q.mu.Unlock()
		return
	case q.bytes+len(text) > egressBytes:
		q.aborted = true // cut off: it does not read
	default:
		q.messages = append(q.messages, outgoing{text, seal})
		q.bytes += len(text)
	}
	aborted := q.aborted
	q.mu.Unlock()
	signal(q.filled)
	if aborted {
		signal(q.drained)
	}
}

// finish lets out what is queued and takes no more.
func (q *egress) finish() {
	q.mu.Lock()
	q.finished = true
	q.mu.Unlock()
	signal(q.filled)
	signal(q.drained)
}

// abort drops everything.
func (q *egress) abort() {
	q.mu.Lock()
	q.aborted = true
	q.messages, q.bytes = nil, 0
	q.mu.Unlock()
	signal(q.filled)
	signal(q.drained)
}

// take waits for messages; end tells that the connection is to be closed after
// them, at once when it is aborted.
func (q *egress) take() (messages []outgoing, end, aborted bool) {
	for {
		q.mu.Lock()
		if q.aborted {
			q.mu.Unlock()
			return nil, true, true
		}
		if len(q.messages) > 0 || q.finished {
			messages, end = q.messages, q.finished
			q.messages = nil
			q.mu.Unlock()
			return messages, end, false
		}
		q.mu.Unlock()
		<-q.filled
	}
}

// wrote tells that n bytes have left.
func (q *egress) wrote(n int) {
	q.mu.Lock()
	q.bytes -= n
	low := q.bytes <= egressLow
	q.mu.Unlock()
	if low {
		signal(q.drained)
	}
}

// waitLow waits until little is left to write, or the connection ends.
func (q *egress) waitLow() {
	for {
		q.mu.Lock()
		ok := q.bytes <= egressLow || q.finished || q.aborted
		q.mu.Unlock()
		if ok {
			return
		}
		<-q.drained
	}
}
