// Package harness puts one PRP authority behind JSON lines, so that an outside
// suite can drive it as a black box: a real store in a folder, a real listener
// on loopback, requests on stdin and one answer each on stdout.
//
// # What it promises
//
// Requests are handled one after another, in order; a request is answered when
// its effect is durable. [Run] returns after the operation stop, at the end of
// input, or when ctx ends.
//
//	{"id":n,"op":"start","identity":{…},"runnerVersion":…,"runnerDigest":…,"stateDir":…,
//	 "leaseTtlMs":…,"tool":"ok|hold|throw","commit":"ok|fail-once"} → {"id":n,"ok":true,"connectUrl":…}
//	{"id":n,"op":"ticket","ttlMs":…}                                → "ticket"
//	{"id":n,"op":"queue","type":…,"payload":{…},"commandId":…,"deliver":…} → "commandId"
//	{"id":n,"op":"restart","tool":…}
//	{"id":n,"op":"state"} → ackedSourceSeq, connections, malformedFrames, fault, faults, settled, tools, commands, events
//	{"id":n,"op":"stop"}
package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"bowline/wire/canonjson"
)

// maxLineBytes bounds one request.
const maxLineBytes = 64 << 20

// Options of [Run].
type Options struct {
	// Log may be nil.
	Log *slog.Logger
}

// Run serves requests from in until stop, the end of input or the end of ctx.
func Run(ctx context.Context, in io.Reader, out io.Writer, opt Options) (err error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	h := &harness{log: opt.Log}
	defer func() { err = errors.Join(err, h.shut(context.WithoutCancel(ctx))) }()
	lines := bufio.NewReaderSize(in, 64<<10)
	for ctx.Err() == nil {
		line, readErr := readLine(lines)
		if readErr != nil && !errors.Is(readErr, io.EOF) {
			return readErr
		}
		if len(line) > 0 {
			answer, stop := h.handle(ctx, line)
			if stop {
				err := h.shut(context.WithoutCancel(ctx))
				return errors.Join(err, writeAnswer(out, answer))
			}
			if err := writeAnswer(out, answer); err != nil {
				return err
			}
		}
		if readErr != nil {
			return nil
		}
	}
	return ctx.Err()
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLineBytes {
			return nil, fmt.Errorf("harness: a request is longer than %d bytes", maxLineBytes)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return trim(line), err
		}
	}
}

func trim(line []byte) []byte {
	for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r' || line[n-1] == ' '); n-- {
		line = line[:n-1]
	}
	return line
}

func writeAnswer(w io.Writer, answer canonjson.Value) error {
	_, err := w.Write(append(answer.JSON(), '\n'))
	return err
}

// handle answers one request; stop tells that it was the last.
func (h *harness) handle(ctx context.Context, line []byte) (answer canonjson.Value, stop bool) {
	answer = canonjson.ObjectValue()
	req, err := canonjson.Parse(line)
	if err != nil || !req.IsObject() {
		answer.Set("id", canonjson.NullValue())
		return refused(answer, errors.New("request is not a JSON object")), false
	}
	id := req.Get("id")
	if !id.Exists() {
		id = canonjson.NullValue()
	}
	answer.Set("id", id)
	op := req.Get("op").Str()
	members, err := h.do(ctx, op, req)
	if err != nil {
		return refused(answer, err), false
	}
	answer.Set("ok", canonjson.BoolValue(true))
	for _, m := range members {
		answer.Set(m.Key, m.Value)
	}
	return answer, op == "stop"
}

func refused(answer canonjson.Value, err error) canonjson.Value {
	answer.Set("ok", canonjson.BoolValue(false))
	answer.Set("error", canonjson.StringValue(err.Error()))
	return answer
}

func member(key string, v canonjson.Value) canonjson.Member {
	return canonjson.Member{Key: key, Value: v}
}
