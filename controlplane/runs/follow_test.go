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
	show := func(body string) (turnID, payload string) {
		t.Helper()
		ev, err := f.event(&store.EventRow{Seq: 4, Origin: store.OriginRunner, Body: []byte(body)})
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if !utf8.Valid(ev.Payload) || !json.Valid(ev.Payload) {
			t.Errorf("%s: payload is not JSON in UTF-8", body)
		}
		return ev.TurnID, string(ev.Payload)
	}
	const judged = `"payload":{"turnId":"t","payload":{"text":"judged","n":1.50}}`
	for _, body := range []string{
		`{` + judged + `}`,
		`{` + judged + `,"PAYLOAD":{"turnId":"x","payload":{"text":"other"}}}`,
		`{"payload":{"turnId":"x","payload":{"text":"first","more":1}},` + judged + `}`,
		`{"payload":{"Payload":{"text":"other"},"TURNID":"x","turnId":"t","payload":{"text":"judged","n":1.50},"payLoad":2}}`,
	} {
		if turn, payload := show(body); turn != "t" || payload != `{"text":"judged","n":1.50}` {
			t.Errorf("%s: shown as turn %q, payload %s", body, turn, payload)
		}
	}
	if _, payload := show("{\"payload\":{\"payload\":{\"text\":\"\xff\"}}}"); payload != "{\"text\":\"\uFFFD\"}" {
		t.Errorf("broken UTF-8 is shown as %q", payload)
	}
	for _, body := range []string{``, `{`, `{"payload":{}}`, `{"payload":{"payload":{},"turnId":7}}`} {
		if _, err := f.event(&store.EventRow{Seq: 4, Origin: store.OriginRunner, Body: []byte(body)}); wire.CodeOf(err) != wire.CodeLogDamaged {
			t.Errorf("%q: %v, want log_damaged", body, err)
		}
	}
}
