package api

import (
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"bowline/wire"
)

// maxViolations told in one answer (ours).
const maxViolations = 8

// violation is one broken rule of a body. Rule holds what the schema says,
// never what the body holds.
type violation struct {
	Path string `json:"path"`
	Rule string `json:"rule"`
	Size *int   `json:"size,omitempty"` // of a string, list or object
}

// validate checks a parsed body against a schema.
func validate(reg huma.Registry, schema *huma.Schema, body any) error {
	if v := unknownMember(reg, schema, "body", body); v != nil {
		return wire.Errorf(wire.CodeBadRequest, "%s: %s", v.Path, v.Rule).With("violations", []violation{*v})
	}
	var res huma.ValidateResult
	huma.Validate(reg, schema, huma.NewPathBuffer([]byte("body"), len("body")), huma.ModeWriteToServer, body, &res)
	if len(res.Errors) == 0 {
		return nil
	}
	var list []violation
	for _, err := range res.Errors {
		if len(list) == maxViolations {
			break
		}
		d, ok := err.(*huma.ErrorDetail) //nolint:errorlint // huma hands out exactly this type
		if !ok {
			list = append(list, violation{Path: "body", Rule: "schema"})
			continue
		}
		list = append(list, explain(reg, schema, d))
	}
	first := list[0]
	return wire.Errorf(wire.CodeBadRequest, "%s: %s", first.Path, first.Rule).With("violations", list)
}

// unknownMember finds the first member, in order of the schema's depth and the
// name, that the schema does not have. huma would take a name in another case
// for the known one, and encoding/json too: "Driver" would silently replace
// "driver".
func unknownMember(reg huma.Registry, schema *huma.Schema, path string, v any) *violation {
	schema = resolve(reg, schema)
	if schema == nil {
		return nil
	}
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			if found := unknownMember(reg, schema.Items, path+"["+strconv.Itoa(i)+"]", item); found != nil {
				return found
			}
		}
	case map[string]any:
		names := keys(v)
		slices.Sort(names)
		if closed, ok := schema.AdditionalProperties.(bool); ok && !closed {
			for _, name := range names {
				if schema.Properties[name] != nil {
					continue
				}
				rule := "unknown member"
				if near := nearest(name, keys(schema.Properties)); near != "" {
					rule += "; did you mean " + near + "?"
				}
				return &violation{Path: path, Rule: rule}
			}
		}
		for _, name := range names {
			if found := unknownMember(reg, schema.Properties[name], path+"."+name, v[name]); found != nil {
				return found
			}
		}
	}
	return nil
}

// explain turns huma's detail into one without values. In the path, only names
// of the schema are shown; anything else is "*".
func explain(reg huma.Registry, schema *huma.Schema, d *huma.ErrorDetail) violation {
	v := violation{Path: "body", Rule: d.Message, Size: sizeOf(d.Value)}
	cur := resolve(reg, schema)
	for _, seg := range segments(strings.TrimPrefix(d.Location, "body")) {
		if seg[0] == '[' {
			v.Path += seg
			if cur != nil {
				cur = resolve(reg, cur.Items)
			}
			continue
		}
		known := cur != nil && cur.Properties[seg] != nil
		if known {
			v.Path += "." + seg
			cur = resolve(reg, cur.Properties[seg])
			continue
		}
		v.Path += ".*"
		cur = nil
	}
	return v
}

// segments splits huma's location: ".limits.turnTimeMs", ".argv[3]".
func segments(loc string) []string {
	var out []string
	for part := range strings.SplitSeq(loc, ".") {
		name, rest, bracket := strings.Cut(part, "[")
		if name != "" {
			out = append(out, name)
		}
		for bracket {
			var index string
			index, rest, _ = strings.Cut(rest, "]")
			out = append(out, "["+index+"]")
			_, rest, bracket = strings.Cut(rest, "[")
		}
	}
	return out
}

func resolve(reg huma.Registry, s *huma.Schema) *huma.Schema {
	for s != nil && s.Ref != "" {
		s = reg.SchemaFromRef(s.Ref)
	}
	return s
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

func sizeOf(v any) *int {
	var n int
	switch t := v.(type) {
	case string:
		n = len(t)
	case []any:
		n = len(t)
	case map[string]any:
		n = len(t)
	default:
		return nil
	}
	return &n
}

// nearest finds the known name that was probably meant, or "". A name that is
// close to no known one is not told back: it could be anything.
func nearest(name string, known []string) string {
	const maxNameBytes = 64
	if len(name) > maxNameBytes {
		return ""
	}
	best, bestDistance := "", len(name)/3+2 // further away is not "meant" any more
	for _, k := range known {
		d := distance(strings.ToLower(name), strings.ToLower(k))
		if d < bestDistance || d == bestDistance && best != "" && k < best {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		prev := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := prev
			if a[i-1] != b[j-1] {
				cost++
			}
			prev = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
