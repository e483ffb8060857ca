package peer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"strings"
)

// Limits of canonical JSON (3.9): the root has depth 0, every value is a node,
// member names are not.
const (
	CanonicalMaxDepth = 64
	CanonicalMaxNodes = 10_000
)

var (
	errCanonicalInvalid  = errors.New("durable_prp_canonical_json_invalid")
	errCanonicalTooLarge = errors.New("durable_prp_canonical_json_too_large")
)

type canon struct {
	b       strings.Builder
	nodes   int
	bounded bool
}

// Canonical returns the canonical JSON of 3.9 or an error where its limits are
// exceeded or a number is not finite.
func Canonical(v any) (string, error) {
	c := &canon{bounded: true}
	if err := c.value(Clone(v), 0); err != nil {
		return "", err
	}
	return c.b.String(), nil
}

// CanonicalUnbounded is [Canonical] without depth and node limits (7.4).
func CanonicalUnbounded(v any) (string, error) {
	c := &canon{}
	if err := c.value(Clone(v), 0); err != nil {
		return "", err
	}
	return c.b.String(), nil
}

// Nodes counts the values of v as the node limit of 3.9 does.
func Nodes(v any) int {
	n := 1
	switch v := v.(type) {
	case A:
		for _, e := range v {
			n += Nodes(e)
		}
	case M:
		for _, e := range v {
			n += Nodes(e)
		}
	}
	return n
}

func (c *canon) value(v any, depth int) error {
	c.nodes++
	if c.bounded && (depth > CanonicalMaxDepth || c.nodes > CanonicalMaxNodes) {
		return errCanonicalTooLarge
	}
	switch v := v.(type) {
	case Num:
		f := v.Float()
		if math.IsInf(f, 0) || math.IsNaN(f) {
			return errCanonicalInvalid
		}
		c.b.WriteString(ecmaNumber(f))
	case A:
		c.b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				c.b.WriteByte(',')
			}
			if err := c.value(e, depth+1); err != nil {
				return err
			}
		}
		c.b.WriteByte(']')
	case M:
		c.b.WriteByte('{')
		for i, k := range sortedKeys(v) {
			if i > 0 {
				c.b.WriteByte(',')
			}
			writeString(&c.b, k)
			c.b.WriteByte(':')
			if err := c.value(v[k], depth+1); err != nil {
				return err
			}
		}
		c.b.WriteByte('}')
	default:
		write(&c.b, v)
	}
	return nil
}

// SHA256Hex returns the lower-case hex SHA-256 of a text.
func SHA256Hex(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// CommandFingerprint is the runner's fingerprint of a wire command (9.7).
func CommandFingerprint(command M) (string, error) {
	full := CloneM(command)
	for _, k := range []string{"deadlineAt", "precondition"} {
		if _, ok := full[k]; !ok {
			full[k] = nil
		}
	}
	text, err := CanonicalUnbounded(full)
	if err != nil {
		return "", err
	}
	return SHA256Hex(text), nil
}

// ToolCommandID is the id of the command that answers a semantic call (6.4).
func ToolCommandID(runID, callID string) string {
	return "command_tool_" + SHA256Hex(runID + "\x00" + callID)[:32]
}
