package redact

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"bowline/driver"
)

// typeDelta is the one event type that carries a piece of a stream (prp.md 7.2).
const typeDelta = "item.delta"

// Filter redacts the events of one session in the order of Emit. Deltas are
// redacted as streams, one per item, channel and stream name: what is held
// back comes out as a delta of its own before the event that ends the item,
// the turn or the session.
type Filter struct {
	redactor *Redactor
	streams  map[streamKey]*deltaStream
	order    []streamKey // as they began: flushed in this order
}

type streamKey struct{ item, channel, stream string }

// deltaStream remembers the members of its last delta, for the one that
// carries the rest.
type deltaStream struct {
	stream  *Stream
	members map[string]json.RawMessage
}

// NewFilter begins a session.
func NewFilter(r *Redactor) *Filter {
	return &Filter{redactor: r, streams: make(map[streamKey]*deltaStream)}
}

// Event returns what to send instead of ev: mostly one event, none when all of
// a delta is held back, more when held bytes come out first. A delta with a
// resume state always comes out, with an empty text if need be, since the state
// belongs to it.
func (f *Filter) Event(ev driver.Event) ([]driver.Event, error) {
	if f.redactor.Empty() {
		return []driver.Event{ev}, nil
	}
	if ev.Type == typeDelta {
		return f.delta(ev)
	}
	var out []driver.Event
	var err error
	switch {
	case ev.Terminal || ev.Type == "session.closed" || ev.Type == "session.failed":
		out, err = f.Flush()
	case ev.Type == "item.completed" || ev.Type == "item.failed":
		var item struct {
			ItemID string `json:"itemId"`
		}
		if err := json.Unmarshal(ev.Payload, &item); err != nil {
			return nil, fmt.Errorf("redact: %s: %w", ev.Type, err)
		}
		out, err = f.flush(func(k streamKey) bool { return k.item == item.ItemID })
	}
	if err != nil {
		return nil, err
	}
	if ev.Payload, err = f.redactor.JSON(ev.Payload); err != nil {
		return nil, err
	}
	return append(out, ev), nil
}

// Flush returns everything held back, as deltas, and forgets the streams.
func (f *Filter) Flush() ([]driver.Event, error) {
	return f.flush(func(streamKey) bool { return true })
}

func (f *Filter) flush(want func(streamKey) bool) ([]driver.Event, error) {
	var out []driver.Event
	kept := f.order[:0]
	for _, k := range f.order {
		if !want(k) {
			kept = append(kept, k)
			continue
		}
		s := f.streams[k]
		delete(f.streams, k)
		rest := s.stream.Flush()
		if len(rest) == 0 {
			continue
		}
		payload, err := f.rebuild(s.members, rest)
		if err != nil {
			return nil, err
		}
		const priority = 2 // prp.md 7.5
		out = append(out, driver.Event{Type: typeDelta, Priority: priority, Payload: payload})
	}
	f.order = kept
	return out, nil
}

// delta puts one piece through its stream.
func (f *Filter) delta(ev driver.Event) ([]driver.Event, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(ev.Payload, &members); err != nil {
		return nil, fmt.Errorf("redact: %s: %w", ev.Type, err)
	}
	var body struct {
		ItemID  string  `json:"itemId"`
		Channel string  `json:"channel"`
		Stream  string  `json:"stream"`
		Text    *string `json:"text"`
		Data    *string `json:"data"`
	}
	if err := json.Unmarshal(ev.Payload, &body); err != nil {
		return nil, fmt.Errorf("redact: %s: %w", ev.Type, err)
	}
	var piece []byte
	switch {
	case body.Data != nil:
		var err error
		if piece, err = base64.StdEncoding.DecodeString(*body.Data); err != nil {
			return nil, fmt.Errorf("redact: %s data: %w", ev.Type, err)
		}
	case body.Text != nil:
		piece = []byte(*body.Text)
	default:
		payload, err := f.redactor.JSON(ev.Payload)
		ev.Payload = payload
		return []driver.Event{ev}, err
	}
	for _, name := range []string{"text", "data", "encoding"} {
		delete(members, name)
	}
	key := streamKey{body.ItemID, body.Channel, body.Stream}
	s, ok := f.streams[key]
	if !ok {
		s = &deltaStream{stream: f.redactor.Stream()}
		f.streams[key] = s
		f.order = append(f.order, key)
	}
	s.members = members
	certain := s.stream.Write(piece)
	if len(certain) == 0 && ev.Resume == nil {
		return nil, nil
	}
	payload, err := f.rebuild(members, certain)
	ev.Payload = payload
	return []driver.Event{ev}, err
}

// rebuild makes the payload of a delta that carries piece: as text where it is
// UTF-8, else as base64.
func (f *Filter) rebuild(members map[string]json.RawMessage, piece []byte) (json.RawMessage, error) {
	rest, err := json.Marshal(members)
	if err != nil {
		return nil, fmt.Errorf("redact: %w", err)
	}
	if rest, err = f.redactor.JSON(rest); err != nil {
		return nil, err
	}
	out := rest[: len(rest)-1 : len(rest)-1] // without the closing brace
	if len(members) > 0 {
		out = append(out, ',')
	}
	if utf8.Valid(piece) {
		out = append(out, `"text":`...)
		out, err = appendString(out, string(piece))
	} else {
		out = append(out, `"encoding":"base64","data":"`...)
		out = base64.StdEncoding.AppendEncode(out, piece)
		out = append(out, '"')
	}
	return append(out, '}'), err
}
