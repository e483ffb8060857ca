package config

import (
	"errors"
	"strings"
	"testing"

	"bowline/wire"
)

func TestParse(t *testing.T) {
	c, err := Parse([]byte(`
drivers:
  codex:
    command: [/opt/codex, app-server]
    env:
      CODEX_HOME: /home/me/.codex
      N: 12
      OPENAI_API_KEY: {from: MY_KEY}
  quick:
    kind: command
`))
	if err != nil {
		t.Fatal(err)
	}
	d := c.Drivers["codex"]
	if d.Kind != "codex" || len(d.Command) != 2 || d.Command[0] != "/opt/codex" {
		t.Errorf("codex = %+v", d)
	}
	if d.Env["CODEX_HOME"].Value != "/home/me/.codex" || d.Env["N"].Value != "12" || d.Env["OPENAI_API_KEY"].From != "MY_KEY" {
		t.Errorf("env = %+v", d.Env)
	}
	if c.Drivers["quick"].Kind != "command" {
		t.Errorf("quick = %+v", c.Drivers["quick"])
	}
	for _, empty := range []string{"", "\n", "# nothing\n", "drivers: {}\n"} {
		if _, err := Parse([]byte(empty)); err != nil {
			t.Errorf("%q: %v", empty, err)
		}
	}
}

func TestParseErrors(t *testing.T) {
	const secret = "hunter2hunter2"
	tests := []struct{ name, in, want string }{
		{"unknown top key", "driver:\n  x: {}\n", `line 1, column 1: unknown key "driver", did you mean "drivers"?`},
		{"unknown key", "drivers:\n  codex:\n    comand: [a]\n", `line 3, column 5: unknown key "comand", did you mean "command"?`},
		{"unknown kind", "drivers:\n  x:\n    kind: gemini\n", "line 3, column 11: "},
		{"no kind", "drivers:\n  x:\n    command: [a]\n", "kind is missing"},
		{"wrong type", "drivers:\n  codex:\n    command: {a: 1}\n", "line 3, column "},
		{"not yaml", "drivers: [\n", "line "},
		{"bad env", "drivers:\n  codex:\n    env:\n      \"A B\": " + secret + "\n", "letters, digits"},
		{"bad from", "drivers:\n  codex:\n    env:\n      A: {form: " + secret + "}\n", "line 4, column "},
		{"env list", "drivers:\n  codex:\n    env:\n      A: [" + secret + "]\n", "line 4, column "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.in))
			var we *wire.Error
			if !errors.As(err, &we) || we.Code != wire.CodeConfigInvalid {
				t.Fatalf("error is %v", err)
			}
			if !strings.Contains(we.Message, tt.want) {
				t.Errorf("message %q does not contain %q", we.Message, tt.want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error shows a value of the file: %v", err)
			}
		})
	}
}

func TestLoadMissing(t *testing.T) {
	if _, err := Load(t.TempDir() + "/none.yaml"); wire.CodeOf(err) != wire.CodeConfigInvalid {
		t.Errorf("error is %v", err)
	}
	if c, err := Load(""); err != nil || len(c.Drivers) != 0 {
		t.Errorf("%+v, %v", c, err)
	}
}
