package journal

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"bowline/runnerd/supervise"
	"bowline/wire"
	"bowline/wire/prp"
)

// Kinds of operations. A number never gets another meaning.
const (
	opHeader     = 1  // {header}
	opCheckpoint = 2  // {checkpoint} prepare resume
	opBegin      = 3  // {Command without result}
	opFinish     = 4  // {id, status} result
	opEvent      = 5  // {eventMeta} event
	opResume     = 6  // {} state; with the event of the same record
	opAck        = 7  // {seq}
	opMeta       = 8  // {Meta}
	opPrepare    = 9  // {} payload of run.prepare
	opSpawn      = 10 // {supervise.Record}
	opGone       = 11 // {supervise.Record}
	opDiagnostic = 12 // {text}
)

type op struct {
	kind  byte
	meta  any
	blobs [][]byte
}

func encode(ops []op) []byte {
	var b []byte
	for _, o := range ops {
		meta, err := json.Marshal(o.meta)
		if err != nil {
			panic(fmt.Sprintf("bug: journal: operation %d has no JSON: %v", o.kind, err))
		}
		b = append(b, o.kind, byte(1+len(o.blobs))) //nolint:gosec // G115: at most 3 sections
		b = appendSection(b, meta)
		for _, blob := range o.blobs {
			b = appendSection(b, blob)
		}
	}
	return b
}

func appendSection(b, section []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(section))) //nolint:gosec // G115: below seglog.MaxRecord
	return append(b, section...)
}

// decode splits a record; the sections share its memory.
func decode(record []byte, fn func(kind byte, sections [][]byte) error) error {
	for len(record) > 0 {
		if len(record) < 2 || record[1] == 0 {
			return errFormat("operation is cut off")
		}
		kind, count := record[0], int(record[1])
		record = record[2:]
		sections := make([][]byte, count)
		for i := range sections {
			if len(record) < 4 {
				return errFormat("section is cut off")
			}
			n := binary.LittleEndian.Uint32(record)
			if uint64(n) > uint64(len(record)-4) {
				return errFormat("section is cut off")
			}
			sections[i] = record[4 : 4+n : 4+n]
			record = record[4+n:]
		}
		if err := fn(kind, sections); err != nil {
			return err
		}
	}
	return nil
}

// errFormat is a record whose checksums are right and whose content is not
// ours: written by another version, or by a bug.
func errFormat(what string) *wire.Error {
	return wire.Errorf(wire.CodeLogDamaged, "session log has a record this version cannot read: %s", what)
}

func unmarshal(section []byte, into any) error {
	if err := json.Unmarshal(section, into); err != nil {
		e := errFormat("bad JSON")
		e.Cause = err
		return e
	}
	return nil
}

// change is an operation that was encoded, or is about to be.
type change interface {
	operation() op
	apply(*state) error
}

type (
	headerChange     struct{ header }
	checkpointChange struct {
		durable
		prepare, resume []byte
	}
	beginChange struct{ Command }
	finishMeta  struct {
		ID     string `json:"id"`
		Status string `json:"status"`
	}
	finishChange struct {
		finishMeta
		result []byte
	}
	eventMeta struct {
		Seq        int64  `json:"seq"`
		Priority   int    `json:"priority"`
		Type       string `json:"type"`
		At         int64  `json:"at"`   // Unix ms
		Size       int64  `json:"size"` // bytes of the envelope
		ExecutorID string `json:"executorId,omitempty"`
		// ProviderSeq numbers the events of the provider, 0 for a fact of the runner.
		ProviderSeq int64  `json:"providerSeq,omitempty"`
		V2          []byte `json:"v2,omitempty"` // payload of a version 2 event
	}
	eventChange struct {
		eventMeta
		event []byte
		entry *Entry // set by apply
	}
	resumeChange struct{ resume []byte }
	ackMeta      struct {
		Seq int64 `json:"seq"`
	}
	ackChange      struct{ ackMeta }
	metaChange     struct{ Meta }
	prepareChange  struct{ payload []byte }
	spawnChange    struct{ supervise.Record }
	goneChange     struct{ supervise.Record }
	diagnosticMeta struct {
		Text string `json:"text"`
	}
	diagnosticChange struct{ diagnosticMeta }
)

type empty struct{}

func (c *headerChange) operation() op { return op{kind: opHeader, meta: c.header} }
func (c *checkpointChange) operation() op {
	return op{opCheckpoint, c.durable, [][]byte{c.prepare, c.resume}}
}
func (c *beginChange) operation() op      { return op{kind: opBegin, meta: c.Command} }
func (c *finishChange) operation() op     { return op{opFinish, c.finishMeta, [][]byte{c.result}} }
func (c *eventChange) operation() op      { return op{opEvent, c.eventMeta, [][]byte{c.event}} }
func (c *resumeChange) operation() op     { return op{opResume, empty{}, [][]byte{c.resume}} }
func (c *ackChange) operation() op        { return op{kind: opAck, meta: c.ackMeta} }
func (c *metaChange) operation() op       { return op{kind: opMeta, meta: c.Meta} }
func (c *prepareChange) operation() op    { return op{opPrepare, empty{}, [][]byte{c.payload}} }
func (c *spawnChange) operation() op      { return op{kind: opSpawn, meta: c.Record} }
func (c *goneChange) operation() op       { return op{kind: opGone, meta: c.Record} }
func (c *diagnosticChange) operation() op { return op{kind: opDiagnostic, meta: c.diagnosticMeta} }

func (c *headerChange) apply(s *state) error {
	s.Header, s.complete = c.header, true
	return nil
}

func (c *checkpointChange) apply(s *state) error {
	s.restore(c.durable, c.prepare, c.resume)
	return nil
}

func (c *beginChange) apply(s *state) error {
	s.begin(c.Command)
	return nil
}

func (c *finishChange) apply(s *state) error {
	if !s.finish(c.ID, c.Status, c.result) {
		return errFormat("result of a command that is not there")
	}
	return nil
}

func (c *eventChange) apply(s *state) error {
	if n := len(s.outbox); n > 0 && s.outbox[n-1].Seq+1 != c.Seq {
		return errFormat("event numbers have a gap")
	}
	c.entry = s.event(c.eventMeta, c.event)
	if family := prp.V2Family(c.Type); family != "" {
		if s.V2 == nil {
			s.V2 = make(map[string]V2Event)
		}
		s.V2[family] = V2Event{Type: c.Type, Priority: c.Priority, Payload: c.V2}
	}
	return nil
}

func (c *resumeChange) apply(s *state) error {
	s.resume = c.resume
	return nil
}

func (c *ackChange) apply(s *state) error {
	s.ack(c.Seq)
	return nil
}

func (c *metaChange) apply(s *state) error {
	s.Meta = c.Meta
	return nil
}

func (c *prepareChange) apply(s *state) error {
	s.prepare = c.payload
	return nil
}

func (c *spawnChange) apply(s *state) error {
	if s.Processes == nil {
		s.Processes = make(map[string]supervise.Record)
	}
	s.Processes[c.Marker] = c.Record
	return nil
}

func (c *goneChange) apply(s *state) error {
	delete(s.Processes, c.Marker)
	return nil
}

func (c *diagnosticChange) apply(s *state) error {
	s.diagnostic(c.Text)
	return nil
}

// changeOf reads an operation back.
func changeOf(kind byte, sections [][]byte) (change, error) {
	need := 1
	var c change
	var meta any
	var blobs []*[]byte
	switch kind {
	case opHeader:
		v := &headerChange{}
		c, meta = v, &v.header
	case opCheckpoint:
		v := &checkpointChange{}
		c, meta, blobs = v, &v.durable, []*[]byte{&v.prepare, &v.resume}
	case opBegin:
		v := &beginChange{}
		c, meta = v, &v.Command
	case opFinish:
		v := &finishChange{}
		c, meta, blobs = v, &v.finishMeta, []*[]byte{&v.result}
	case opEvent:
		v := &eventChange{}
		c, meta, blobs = v, &v.eventMeta, []*[]byte{&v.event}
	case opResume:
		v := &resumeChange{}
		c, meta, blobs = v, &empty{}, []*[]byte{&v.resume}
	case opAck:
		v := &ackChange{}
		c, meta = v, &v.ackMeta
	case opMeta:
		v := &metaChange{}
		c, meta = v, &v.Meta
	case opPrepare:
		v := &prepareChange{}
		c, meta, blobs = v, &empty{}, []*[]byte{&v.payload}
	case opSpawn:
		v := &spawnChange{}
		c, meta = v, &v.Record
	case opGone:
		v := &goneChange{}
		c, meta = v, &v.Record
	case opDiagnostic:
		v := &diagnosticChange{}
		c, meta = v, &v.diagnosticMeta
	default:
		return nil, errFormat(fmt.Sprintf("unknown operation %d", kind))
	}
	need += len(blobs)
	if len(sections) != need {
		return nil, errFormat("operation has another number of sections")
	}
	if err := unmarshal(sections[0], meta); err != nil {
		return nil, err
	}
	for i, b := range blobs {
		if len(sections[i+1]) > 0 {
			*b = sections[i+1]
		}
	}
	return c, nil
}
