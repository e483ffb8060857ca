package jsonrpc

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
)

const (
	// MaxLine is the longest line taken, in bytes without its newline
	// (architecture, "Limits": provider line 64 MiB).
	MaxLine = 64 << 20
	// HeadLength is how much of the beginning of a skipped line is kept, in
	// bytes: enough to see which message it was (ours).
	HeadLength = 4 << 10

	readBuffer = 64 << 10 // bytes read from the pipe at once (a pipe's capacity)
	keepBuffer = 1 << 20  // a line buffer above this many bytes is given back after use
)

// line is one line of the stream. Text is valid until the next call.
type line struct {
	text    []byte // nil when skipped
	skipped bool   // longer than the limit
	head    []byte // beginning of a skipped line
	size    int64  // bytes without the newline
	sum     string // SHA-256 of a skipped line, hex
	partial bool   // the stream ended without a newline
}

type lineReader struct {
	r   *bufio.Reader
	max int
	buf []byte
}

func newLineReader(r io.Reader, limit int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, readBuffer), max: limit}
}

// next reads one line. At the end of the stream it returns io.EOF; a last line
// without a newline is returned first, marked partial. Another error of the
// reader comes after what was read before it, in the same way.
func (l *lineReader) next() (line, error) {
	if cap(l.buf) > keepBuffer {
		l.buf = nil
	}
	l.buf = l.buf[:0]
	var (
		skip hash.Hash
		out  line
	)
	for {
		chunk, err := l.r.ReadSlice('\n')
		ended := err == nil
		if ended {
			chunk = chunk[:len(chunk)-1]
		}
		out.size += int64(len(chunk))
		switch {
		case skip != nil:
			_, _ = skip.Write(chunk) // hash.Hash never returns an error
		case len(l.buf)+len(chunk) > l.max:
			skip = sha256.New()
			_, _ = skip.Write(l.buf) // hash.Hash never returns an error
			_, _ = skip.Write(chunk) // hash.Hash never returns an error
			out.head = head(l.buf, chunk)
			l.buf = nil
		default:
			l.buf = append(l.buf, chunk...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && out.size == 0 {
			return line{}, err
		}
		out.partial = !ended
		if skip != nil {
			out.skipped = true
			out.sum = hex.EncodeToString(skip.Sum(nil))
			return out, nil
		}
		out.text = l.buf
		return out, nil
	}
}

func head(a, b []byte) []byte {
	out := make([]byte, 0, HeadLength)
	out = append(out, a[:min(len(a), HeadLength)]...)
	return append(out, b[:min(len(b), HeadLength-len(out))]...)
}

// trim removes what a line may carry around its object: a byte order mark and
// JSON white space.
func trim(text []byte) []byte {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	return bytes.Trim(text, " \t\r\n")
}
