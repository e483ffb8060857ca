package codex_test

import (
	"encoding/json"
	"os"
	"testing"

	"bowline/driver/codex"
	"bowline/driver/codex/modelserver"
	"bowline/driver/drivertest"
)

// The kit looks for leaked goroutines, so it runs alone.
func TestConformFake(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	object := func(script string) json.RawMessage {
		return provider(t, map[string]any{"kind": "codex", "command": "/usr/bin/env", "args": []string{fakeVariable + "=" + script, self}})
	}
	drivertest.Conform(t, impatient(), drivertest.Cases{
		Quick: object("plain"), Hang: object("silent"), Prompt: "go",
		Invalid: []drivertest.Invalid{
			{Provider: json.RawMessage(`{"kind":"codex","model":1}`), Member: "model"},
			{Provider: json.RawMessage(`{"kind":"codex","surprise":1}`), Member: "surprise"},
		},
	})
}

func TestConformReal(t *testing.T) {
	bin := modelserver.RequireCodex(t)
	model, home := modelserver.Start(t), t.TempDir()
	if err := modelserver.WriteCodexHome(home, model.URL); err != nil {
		t.Fatal(err)
	}
	quick := provider(t, map[string]any{"kind": "codex", "command": bin})
	// The same prompt hangs or not by the model the provider object names.
	hang := provider(t, map[string]any{"kind": "codex", "command": bin, "model": modelserver.HangingModel})
	drivertest.Conform(t, codex.New(), drivertest.Cases{Quick: quick, Hang: hang, Prompt: "MODEL: text hello", Env: modelserver.Env(home)})
}
