// Package config reads the config file of the bowline command (YAML, strict):
//
//	drivers:
//	  NAME:                       # how --driver names it
//	    kind: codex               # command | codex | scripted; default: NAME
//	    command: [codex, app-server]
//	    env:
//	      CODEX_HOME: /home/me/.codex
//	      OPENAI_API_KEY: {from: MY_KEY}   # taken from bowline's own environment
//
// An unknown key, a wrong type or a missing variable is a wire.CodeConfigInvalid
// error that names line and column. Values are never part of an error.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"bowline/wire"
)

// MaxFile is the largest config file read, in bytes (ours).
const MaxFile = 1 << 20

// Config is a whole config file.
type Config struct {
	Drivers map[string]Driver `yaml:"drivers"`
}

// Driver configures one driver under a name of the user's choice.
type Driver struct {
	Kind    string         `yaml:"kind"`
	Command []string       `yaml:"command"`
	Env     map[string]Env `yaml:"env"`
}

// Env is a variable of the provider's environment: a literal value, or the name
// of a variable of bowline's own environment.
type Env struct {
	Value string
	From  string
}

// UnmarshalYAML accepts a scalar or {from: NAME}.
func (e *Env) UnmarshalYAML(node ast.Node) error {
	switch n := node.(type) {
	case *ast.StringNode:
		e.Value = n.Value
		return nil
	case *ast.LiteralNode:
		e.Value = n.Value.Value
		return nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		e.Value = n.GetToken().Value
		return nil
	case *ast.MappingNode, *ast.MappingValueNode:
		var from struct {
			From string `yaml:"from"`
		}
		if err := yaml.NodeToValue(node, &from, yaml.Strict()); err != nil {
			return err
		}
		if from.From == "" {
			return at(node.GetToken(), "from is missing or empty: {from: NAME} takes the value of another variable")
		}
		e.From = from.From
		return nil
	}
	return at(node.GetToken(), "a variable is a value or {from: NAME}")
}

// positioned is a failure at a place of the file.
type positioned struct {
	line, column int
	message      string
}

func (p *positioned) Error() string { return p.message }

func at(tok *token.Token, message string) error {
	p := &positioned{message: message}
	if tok != nil && tok.Position != nil {
		p.line, p.column = tok.Position.Line, tok.Position.Column
	}
	return p
}

// Kinds are the driver kinds of this build.
func Kinds() []string { return []string{"codex", "command", "scripted"} }

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Load reads path. An empty path is an empty config.
func Load(path string) (*Config, error) {
	if path == "" {
		return &Config{}, nil
	}
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeConfigInvalid, Message: fmt.Sprintf("config file cannot be opened: %v", err)}
	}
	raw, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeConfigInvalid, Message: fmt.Sprintf("config file cannot be read: %v", err)}
	}
	if len(raw) > MaxFile {
		return nil, wire.Errorf(wire.CodeConfigInvalid, "config file is larger than %d bytes", MaxFile)
	}
	c, err := Parse(raw)
	var we *wire.Error
	if errors.As(err, &we) {
		return nil, &wire.Error{Code: we.Code, Message: path + ": " + we.Message, Details: we.Details}
	}
	return c, err
}

// Parse reads a config file's bytes.
func Parse(raw []byte) (*Config, error) {
	file, err := parser.ParseBytes(raw, 0)
	if err != nil {
		return nil, invalid(err)
	}
	var c Config
	if len(bytes.TrimSpace(raw)) > 0 {
		if err := yaml.UnmarshalWithOptions(raw, &c, yaml.Strict(), yaml.DisallowUnknownField()); err != nil && !errors.Is(err, io.EOF) {
			return nil, invalid(err)
		}
	}
	for name, d := range c.Drivers {
		if err := d.check(name, file); err != nil {
			return nil, err
		}
		if d.Kind == "" {
			d.Kind = name
			c.Drivers[name] = d
		}
	}
	return &c, nil
}

func (d Driver) check(name string, file *ast.File) error {
	fail := func(path, format string, args ...any) error {
		e := wire.Errorf(wire.CodeConfigInvalid, "%s: "+format, append([]any{path}, args...)...)
		if tok := locate(file, path); tok != nil && tok.Position != nil {
			e.Message = fmt.Sprintf("line %d, column %d: %s", tok.Position.Line, tok.Position.Column, e.Message)
			return e.With("line", tok.Position.Line).With("column", tok.Position.Column)
		}
		return e
	}
	base := "$.drivers." + name
	switch {
	case d.Kind == "" && !slices.Contains(Kinds(), name):
		return fail(base, "kind is missing: one of %v", Kinds())
	case d.Kind != "" && !slices.Contains(Kinds(), d.Kind):
		return fail(base+".kind", "unknown kind: one of %v", Kinds())
	}
	for i, arg := range d.Command {
		if i == 0 && arg == "" {
			return fail(base+".command", "the program's name is empty")
		}
	}
	for v := range d.Env {
		if !envName.MatchString(v) {
			return fail(base+".env", "a variable's name is letters, digits and underscores")
		}
	}
	return nil
}

func locate(file *ast.File, path string) *token.Token {
	p, err := yaml.PathString(path)
	if err != nil {
		return nil
	}
	node, err := p.FilterFile(file)
	if err != nil || node == nil {
		return nil
	}
	return node.GetToken()
}

// invalid turns the library's errors into ours. The library prints the source
// around a fault, which may be a secret, so only message and place are kept.
func invalid(err error) error {
	var p *positioned
	if errors.As(err, &p) {
		return placed(p.line, p.column, p.message)
	}
	var ye yaml.Error
	if errors.As(err, &ye) {
		if tok := ye.GetToken(); tok != nil && tok.Position != nil {
			return placed(tok.Position.Line, tok.Position.Column, describe(ye, tok))
		}
		return wire.Errorf(wire.CodeConfigInvalid, "%s", ye.GetMessage())
	}
	return wire.Errorf(wire.CodeConfigInvalid, "not a YAML document")
}

func placed(line, column int, message string) error {
	return wire.Errorf(wire.CodeConfigInvalid, "line %d, column %d: %s", line, column, message).
		With("line", line).With("column", column)
}

func describe(err yaml.Error, tok *token.Token) string {
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		s := fmt.Sprintf("unknown key %q", tok.Value)
		if near := nearest(tok.Value, []string{"drivers", "kind", "command", "env", "from"}); near != "" {
			s += fmt.Sprintf(", did you mean %q?", near)
		}
		return s
	}
	var typ *yaml.TypeError
	if errors.As(err, &typ) {
		return "wrong type: expected " + typ.DstType.String()
	}
	return err.GetMessage()
}

// nearest finds the candidate within two edits of word.
func nearest(word string, candidates []string) string {
	best, bestD := "", 3
	for _, c := range candidates {
		if d := distance(word, c); d < bestD {
			best, bestD = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur := make([]int, len(b)+1)
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
		}
		prev = cur
	}
	return prev[len(b)]
}
