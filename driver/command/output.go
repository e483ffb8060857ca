package command

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"sync"
	"unicode/utf8"

	"bowline/driver"
)

// chunkSize is how much output one delta carries at most, in bytes. In the
// worst case JSON makes six bytes of one: 288 KiB of the 480 KiB an event may
// have (architecture, "Limits").
const chunkSize = 48 << 10

// output reads the streams of one process. Each reader waits until its piece
// was emitted before it reads on: that is the back-pressure, and the bound on
// memory.
type output struct {
	streams []*stream
	pieces  chan piece    // closed when all streams have ended
	quit    chan struct{} // closed when the process cannot be ended
}

// stream is one of stdout, stderr, pty. Its fields belong to its reader, and
// after pieces is closed to whoever saw that.
type stream struct {
	name  string
	from  io.Reader
	bytes int64
	hash  hash.Hash
	err   error // why it ended, nil at the end of the stream
}

// piece is what one delta carries. Its data is valid until taken is answered.
type piece struct {
	stream string
	data   []byte
	taken  chan<- struct{}
}

func newOutput(p driver.Process) *output {
	o := &output{pieces: make(chan piece), quit: make(chan struct{})}
	first := "stdout"
	if p.Stderr() == nil {
		first = "pty"
	}
	o.streams = append(o.streams, &stream{name: first, from: p.Stdout(), hash: sha256.New()})
	if p.Stderr() != nil {
		o.streams = append(o.streams, &stream{name: "stderr", from: p.Stderr(), hash: sha256.New()})
	}
	return o
}

// start runs the readers. Whoever calls it takes with next to the end.
func (o *output) start() {
	var all sync.WaitGroup
	for _, s := range o.streams {
		all.Add(1)
		go func() {
			defer all.Done()
			s.read(o.pieces, o.quit)
		}()
	}
	go func() {
		// After quit a reader stays blocked for as long as the process lives;
		// it sends nothing any more.
		all.Wait()
		close(o.pieces)
	}()
}

// next is the next piece; false when all streams have ended, or after quit.
func (o *output) next() (piece, bool) {
	select {
	case p, ok := <-o.pieces:
		return p, ok
	case <-o.quit:
		return piece{}, false
	}
}

// read takes what is there, as much as a chunk holds, and hands it on. The
// beginning of a rune whose rest has not arrived waits for it.
func (s *stream) read(pieces chan<- piece, quit <-chan struct{}) {
	taken := make(chan struct{})
	hand := func(b []byte) bool {
		select {
		case pieces <- piece{s.name, b, taken}:
			<-taken
			return true
		case <-quit:
			return false
		}
	}
	buf := make([]byte, chunkSize)
	held := 0 // bytes at the start of buf that begin a rune
	for {
		n, err := s.from.Read(buf[held:])
		if n > 0 {
			s.bytes += int64(n)
			s.hash.Write(buf[held : held+n])
			have := buf[:held+n]
			send := len(have) - beginsRune(have)
			if send > 0 && !hand(have[:send]) {
				return
			}
			held = copy(buf, have[send:])
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.err = err
			}
			if held > 0 {
				hand(buf[:held])
			}
			return
		}
	}
}

// wait is the exit of the process; not known after quit.
func (o *output) wait(p driver.Process) (exit driver.Exit, known bool) {
	exited := make(chan driver.Exit, 1)
	go func() { exited <- p.Wait() }()
	select {
	case exit = <-exited:
		return exit, true
	case <-o.quit:
		return driver.Exit{Err: errSurvived}, false
	}
}

// errSurvived is the exit of a process that SIGKILL did not end.
var errSurvived = errors.New("command: the process survived SIGKILL")

// beginsRune is the length of an incomplete rune at the end of b, 0 to 3.
func beginsRune(b []byte) int {
	for n := 1; n <= min(len(b), utf8.UTFMax-1); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// delta is the payload of item.delta.
type delta struct {
	ItemID   string  `json:"itemId"`
	Kind     string  `json:"kind"`
	Channel  string  `json:"channel"`
	Stream   string  `json:"stream"`
	Text     *string `json:"text,omitempty"`
	Encoding string  `json:"encoding,omitempty"`
	Data     []byte  `json:"data,omitempty"` // encoding/json writes base64
}

// emitPiece emits one piece: as text where it is UTF-8, else as base64.
func (t *turn) emitPiece(p piece) error {
	d := delta{ItemID: t.item, Kind: kindCommand, Channel: "detail", Stream: p.stream}
	if utf8.Valid(p.data) {
		text := string(p.data)
		d.Text = &text
	} else {
		d.Encoding, d.Data = "base64", p.data
	}
	const priority = 2 // prp.md 7.5
	return emit(t.s.life, t.s.host, driver.Event{Type: "item.delta", Priority: priority}, d)
}
