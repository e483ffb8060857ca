package runs

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"bowline/controlplane/store"
	"bowline/wire"
)

// A host sees the payload that was judged, whatever else the envelope holds.
func TestEventShowsWhatWasJudged(t *testing.T) {
	t.Parallel()
	f := &Follower{sessionID: "s"}
	row := func(body string) *store.EventRow {
		return &store.EventRow{Seq: 4, Origin: store.OriginRunner, Type: "item.delta", SourceSeq: 2, SourceEventID: "e2", Body: []byte(body)}
	}
	show := func(body string) (turnID, payload string) {
		t.Helper()
		ev, err := f.event(row(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if !utf8.Valid(ev.Payload) || !json.Valid(ev.Payload) {
			t.Errorf("%s: payload is not JSON in UTF-8", body)
		}
		return ev.TurnID, string(ev.Payload)
	}
	const head = `"sourceSeq":2,"sourceEventId":"e2","eventType":"item.delta",`
	const judged = `"payload":{` + head + `"turnId":"t","payload":{"text":"judged","n":1.50}}`
	for _, body := range []string{
		`{` + judged + `}`,
		`{` + judged + `,"PAYLOAD":{"turnId":"x","payload":{"text":"other"}}}`,
		`{"payload":{"turnId":"x","payload":{"text":"first","more":1}},` + judged + `}`,
		`{"payload":{` + head + `"Payload":{"text":"other"},"TURNID":"x","turnId":"t","payload":{"text":"judged","n":1.50},"payLoad":2}}`,
	} {
		if turn, payload := show(body); turn != "t" || payload != `{"text":"judged","n":1.50}` {
			t.Errorf("%s: shown as turn %q, payload %s", body, turn, payload)
		}
	}
	if _, payload := show("{\"payload\":{" + head + "\"payload\":{\"text\":\"\xff\"}}}"); payload != "{\"text\":\"\uFFFD\"}" {
		t.Errorf("broken UTF-8 is shown as %q", payload)
	}
	for _, body := range []string{
		``, `{`, `{"payload":{}}`,
		`{"payload":{` + head + `"turnId":"t"}}`, `{"payload":{"payload":{}}}`,
		`{"payload":{"sourceSeq":3,"sourceEventId":"e2","eventType":"item.delta","payload":{}}}`,
		`{"payload":{"sourceSeq":2,"sourceEventId":"e3","eventType":"item.delta","payload":{}}}`,
		`{"payload":{"sourceSeq":2,"sourceEventId":"e2","eventType":"turn.completed","payload":{}}}`,
	} {
		if _, err := f.event(row(body)); wire.CodeOf(err) != wire.CodeLogDamaged {
			t.Errorf("%q: %v, want log_damaged", body, err)
		}
	}
}
