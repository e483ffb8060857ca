package scripted

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"bowline/driver"
)

// Limits of a script (ours).
const (
	// MaxEvents is how many deltas a turn may have.
	MaxEvents = 1_000_000
	// MaxTextBytes is the longest text of one delta: what still fits an event
	// on prp (architecture, "Limits") with its other members.
	MaxTextBytes = 400 << 10
)

// Ends of a turn.
const (
	EndCompleted     = "completed"
	EndFailed        = "failed"
	EndHang          = "hang"           // until interrupted or closed
	EndSessionFailed = "session_failed" // the turn fails, then the session
)

// Script is what a turn plays:
//
//	{"kind":"scripted","script":{"events":5000,"textBytes":64,"seed":7,"ledger":"/abs/file","gate":"/abs/file","gateAt":1,"end":"completed"}}
//
// Without a script a turn has no deltas and answers with one message.
type Script struct {
	// Events is how many item.delta a turn has, 0..MaxEvents.
	Events int `json:"events"`
	// TextBytes is the length of each delta's text, 0..MaxTextBytes.
	TextBytes int `json:"textBytes"`
	// Seed of the texts.
	Seed int64 `json:"seed"`
	// Ledger is an absolute path of a file that is appended to and synced
	// before every event and effect; "" for none.
	Ledger string `json:"ledger"`
	// Gate is an absolute path. The event with index GateAt of a turn waits
	// until something exists there; "" for none.
	Gate string `json:"gate"`
	// GateAt is an index of an event in the turn; 0 is turn.started.
	GateAt int `json:"gateAt"`
	// End of a turn; "" is EndCompleted.
	End string `json:"end"`
}

// Parse reads a provider object strictly. The Script is nil when there is
// none. Errors are *wire.Error naming the member.
func Parse(raw json.RawMessage) (*Script, error) {
	members, err := driver.Object(raw, "kind", "script")
	if err != nil {
		return nil, err
	}
	var kind string
	if json.Unmarshal(members["kind"], &kind) != nil || kind != Name {
		return nil, driver.MemberError("kind", fmt.Sprintf("is not %q", Name))
	}
	if members["script"] == nil {
		return nil, nil //nolint:nilnil // no script and no error is what the object says
	}
	return parseScript(members["script"])
}

func parseScript(raw json.RawMessage) (*Script, error) {
	members, err := driver.Object(raw, "events", "textBytes", "seed", "ledger", "gate", "gateAt", "end")
	if err != nil {
		return nil, err
	}
	s := &Script{GateAt: 1}
	for _, m := range []struct {
		name string
		into any
	}{
		{"events", &s.Events},
		{"textBytes", &s.TextBytes},
		{"seed", &s.Seed},
		{"ledger", &s.Ledger},
		{"gate", &s.Gate},
		{"gateAt", &s.GateAt},
		{"end", &s.End},
	} {
		value, ok := members[m.name]
		if !ok {
			continue
		}
		if bytes.Equal(bytes.TrimSpace(value), []byte("null")) || json.Unmarshal(value, m.into) != nil {
			return nil, driver.MemberError("script."+m.name, "has the wrong type")
		}
	}
	return s, s.check()
}

func (s *Script) check() error {
	if s.End == "" {
		s.End = EndCompleted
	}
	for _, n := range []struct {
		name       string
		value, max int
	}{{"events", s.Events, MaxEvents}, {"textBytes", s.TextBytes, MaxTextBytes}, {"gateAt", s.GateAt, MaxEvents}} {
		if n.value < 0 || n.value > n.max {
			return driver.MemberError("script."+n.name, fmt.Sprintf("is outside 0..%d", n.max))
		}
	}
	for _, p := range []struct{ name, value string }{{"ledger", s.Ledger}, {"gate", s.Gate}} {
		if p.value != "" && !filepath.IsAbs(p.value) {
			return driver.MemberError("script."+p.name, "is not an absolute path")
		}
	}
	switch s.End {
	case EndCompleted, EndFailed, EndHang, EndSessionFailed:
		return nil
	}
	return driver.MemberError("script.end", "is not one of completed, failed, hang, session_failed")
}

// Text is the text of the delta with index i, of exactly s.TextBytes ASCII
// characters: the same for the same seed and index in every process.
func (s *Script) Text(i int) string {
	var seed [32]byte
	binary.BigEndian.PutUint64(seed[0:], uint64(s.Seed)) //nolint:gosec // bits, not a number
	binary.BigEndian.PutUint64(seed[8:], uint64(i))      //nolint:gosec // never negative
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789 ."
	random := rand.NewChaCha8(seed)
	text := make([]byte, s.TextBytes)
	for at := range text {
		text[at] = alphabet[random.Uint64()%uint64(len(alphabet))]
	}
	return string(text)
}
