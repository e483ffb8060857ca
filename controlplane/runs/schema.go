package runs

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"bowline/wire"
)

// schemas are the input schemas of the described driver kinds.
type schemas map[string]*jsonschema.Resolved

// compile prepares the descriptors' schemas. A descriptor whose schema is no
// schema is wire.CodeConfigInvalid.
func compile(descriptors []wire.Descriptor) (schemas, error) {
	out := make(schemas, len(descriptors))
	for _, d := range descriptors {
		var s jsonschema.Schema
		err := json.Unmarshal(d.InputSchema, &s)
		if err == nil {
			out[d.Name], err = s.Resolve(nil)
		}
		if err != nil {
			return nil, &wire.Error{Code: wire.CodeConfigInvalid, Message: fmt.Sprintf("the input schema of driver %s cannot be used", d.Name), Cause: err}
		}
	}
	return out, nil
}

// checkSchema checks a run's input against its driver's schema. Without any
// descriptor (an embedding that has none) the kinds are taken as they are.
func (m *Manager) checkSchema(c *checked) error {
	if len(m.schemas) == 0 {
		return nil
	}
	s := m.schemas[c.driver.Kind]
	if s == nil {
		return field(wire.CodeDriverUnknown, "driver", "nobody described drivers of kind %s", c.driver.Kind)
	}
	raw, err := json.Marshal(c.input())
	if err != nil {
		return err
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return field(wire.CodeInputInvalid, "script", "is not JSON")
	}
	if err := s.Validate(tree); err != nil {
		at, keyword := broken(err)
		return field(wire.CodeInputInvalid, at, "does not meet the driver's schema (%s)", keyword).With("rule", keyword)
	}
	return nil
}

// input is what the driver's schema speaks of.
func (c *checked) input() map[string]any {
	in := map[string]any{}
	if c.req.Prompt != "" {
		in["prompt"] = c.req.Prompt
	}
	switch c.driver.Kind {
	case KindScripted:
		if len(c.req.Script) > 0 {
			in["script"] = c.req.Script
		}
	case KindCommand:
		p := c.command("")
		in["argv"], in["envNames"], in["pty"], in["timeoutMs"] = p.Argv, p.EnvNames, p.PTY, p.TimeoutMs
	}
	return in
}

// chain matches how jsonschema names the place of a broken rule. What follows
// it begins with the keyword and then shows the value, which must not be told.
var chain = regexp.MustCompile(`^(?:validating ([^ :]+): )+([A-Za-z]*)`) //nolint:gochecknoglobals // a constant

// broken names the member and the keyword of a validation error.
func broken(err error) (at, keyword string) {
	at, keyword = "input", "schema"
	m := chain.FindStringSubmatch(err.Error())
	if m == nil {
		return at, keyword
	}
	if m[2] != "" {
		keyword = m[2]
	}
	var names []string
	parts := strings.Split(m[1], "/")
	for i := 1; i+1 < len(parts); i++ {
		if parts[i] == "properties" {
			names = append(names, parts[i+1])
			i++
		}
	}
	if len(names) > 0 {
		at = strings.Join(names, ".")
	}
	return at, keyword
}
