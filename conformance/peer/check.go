package peer

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
)

// Violation is a breach of the protocol by the other side.
type Violation struct{ What string }

func (v *Violation) Error() string { return "violation: " + v.What }

func violationf(format string, args ...any) error {
	return &Violation{What: fmt.Sprintf(format, args...)}
}

// ErrClosed means that the other side closed or reset the connection.
var ErrClosed = errors.New("connection closed by the other side")

// ErrTimeout means that nothing (more) came in time.
var ErrTimeout = errors.New("timeout")

// Identity is the six ids every envelope carries.
type Identity struct {
	RunnerInstanceID, EnvironmentLeaseID, RunID, NormalizedSessionID, TurnID, ItemID string
}

// IdentityNames returns the member names of [Identity] in the order of 3.1.
func IdentityNames() []string {
	return []string{"runnerInstanceId", "environmentLeaseId", "runId", "normalizedSessionId", "turnId", "itemId"}
}

// Members returns the six ids as JSON members.
func (id Identity) Members() M {
	return M{
		"runnerInstanceId": id.RunnerInstanceID, "environmentLeaseId": id.EnvironmentLeaseID,
		"runId": id.RunID, "normalizedSessionId": id.NormalizedSessionID, "turnId": id.TurnID, "itemId": id.ItemID,
	}
}

// NewIdentity returns six fresh ids.
func NewIdentity() Identity {
	tail := RandomHex(4)
	return Identity{"runner-" + tail, "lease-" + tail, NewUUID(), "session-" + tail, "turn-" + tail, "item-" + tail}
}

// Merge returns the union of objects; later ones win.
func Merge(objects ...M) M {
	out := M{}
	for _, o := range objects {
		for k, v := range o {
			out[k] = v
		}
	}
	return out
}

// Members checks that m has exactly these members; a name that ends in "?" may
// be absent.
func Members(m M, names ...string) error {
	allowed := map[string]bool{}
	for _, n := range names {
		name, optional := strings.CutSuffix(n, "?")
		allowed[name] = true
		if _, ok := m[name]; !ok && !optional {
			return violationf("member %q is missing", name)
		}
	}
	var extra []string
	for k := range m {
		if !allowed[k] {
			extra = append(extra, k)
		}
	}
	if len(extra) > 0 {
		sort.Strings(extra)
		return violationf("unexpected members %v", extra)
	}
	return nil
}

// Get follows a path of member names; it returns nil where one is missing.
func Get(v any, path ...string) any {
	for _, p := range path {
		m, ok := v.(M)
		if !ok {
			return nil
		}
		v = m[p]
	}
	return v
}

// Str returns the string at a path, or "".
func Str(v any, path ...string) string {
	s, ok := Get(v, path...).(string)
	if !ok {
		return ""
	}
	return s
}

// Int returns the integer at a path, or -1 << 62 where there is none.
func Int(v any, path ...string) int64 {
	const none = -1 << 62
	var f float64
	switch n := Get(v, path...).(type) {
	case int:
		return int64(n)
	case int64:
		return n
	case uint64:
		f = float64(n)
	case Num:
		f = n.Float()
	default:
		return none
	}
	if f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return none
	}
	return int64(f)
}

// Obj returns the object at a path, or an empty one.
func Obj(v any, path ...string) M {
	m, ok := Get(v, path...).(M)
	if !ok {
		return M{}
	}
	return m
}

// List returns the array at a path, or nil.
func List(v any, path ...string) A {
	a, ok := Get(v, path...).(A)
	if !ok {
		return nil
	}
	return a
}

// Equal compares two values canonically.
func Equal(a, b any) bool {
	x, err := CanonicalUnbounded(a)
	if err != nil {
		return false
	}
	y, err := CanonicalUnbounded(b)
	return err == nil && x == y
}

// ISO is the time form of the protocol: UTC with milliseconds.
const ISO = "2006-01-02T15:04:05.000Z"

// FormatISO prints a time as the protocol does.
func FormatISO(t time.Time) string { return t.UTC().Format(ISO) }

func checkISO(what string, v any) error {
	s, ok := v.(string)
	if !ok {
		return violationf("%s is not a string", what)
	}
	if _, err := time.Parse(ISO, s); err != nil || len(s) != len(ISO) {
		return violationf("%s %q is not an ISO time with milliseconds", what, s)
	}
	return nil
}

func matches(what string, v any, pattern string) error {
	s, ok := v.(string)
	if !ok || !regexp.MustCompile(`^(?:`+pattern+`)$`).MatchString(s) {
		return violationf("%s is %v, expected %s", what, v, pattern)
	}
	return nil
}

const uuid4 = `[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`

func checkIdentity(env M, id Identity) error {
	want := id.Members()
	for _, n := range IdentityNames() {
		if env[n] != want[n] {
			return violationf("%s is %v, expected %v", n, env[n], want[n])
		}
	}
	return nil
}

func names(groups ...[]string) []string { return slices.Concat(groups...) }

// CheckEvent checks what 7.1 says of every event and 9.6 of its ids.
func CheckEvent(ev M, id Identity) error {
	err := Members(ev, "schema", "sourceEventId", "sourceSeq", "sourceInstanceId", "sourceKind", "runId", "eventType", "schemaVersion",
		"priority", "emittedAt", "payload", "normalizedSessionId", "turnId", "itemId", "observedAt?", "debug?")
	if err != nil {
		return fmt.Errorf("event: %w", err)
	}
	v := Int(ev, "schemaVersion")
	if ev["schema"] != fmt.Sprintf("paperclip.prp.event.v%d", v) || (v != 1 && v != 2) {
		return violationf("event schema %v, schemaVersion %v", ev["schema"], ev["schemaVersion"])
	}
	want := M{
		"sourceInstanceId": id.RunnerInstanceID, "sourceKind": "runner", "runId": id.RunID,
		"normalizedSessionId": id.NormalizedSessionID, "turnId": id.TurnID, "itemId": id.ItemID,
	}
	for n, w := range want {
		if ev[n] != w {
			return violationf("event %s is %v, expected %v", n, ev[n], w)
		}
	}
	seq := Int(ev, "sourceSeq")
	if seq < 1 {
		return violationf("sourceSeq %v", ev["sourceSeq"])
	}
	fact := fmt.Sprintf("event_%s_%016d", id.RunnerInstanceID, seq)
	if ev["sourceEventId"] != fact {
		if err := matches("sourceEventId", ev["sourceEventId"], "event_executor_[0-9a-f]{64}"); err != nil {
			return err
		}
	}
	if p := Int(ev, "priority"); p < 0 || p > 2 {
		return violationf("priority %v", ev["priority"])
	}
	if _, ok := ev["payload"].(M); !ok {
		return violationf("event payload is not an object")
	}
	s := Str(ev, "emittedAt")
	if _, err := time.Parse(time.RFC3339Nano, s); err != nil || !strings.HasSuffix(s, "Z") {
		return violationf("emittedAt %q", s)
	}
	return matches("eventType", ev["eventType"], `[a-z_]+(?:\.[a-z_]+)+`)
}
