package journal

import (
	"os"
	"path/filepath"
	"testing"

	"bowline/runnerd/supervise"
	"bowline/wire"
)

// FuzzRecord feeds any bytes to the reader of records: it refuses them with a
// code or takes them, and what it takes it writes again as it was.
func FuzzRecord(f *testing.F) {
	for _, c := range []change{
		&headerChange{header{Format: format, Identity: identity()}},
		&checkpointChange{durable: newState().durable, prepare: []byte("p"), resume: []byte("r")},
		&beginChange{Command{CommandID: "c", ControllerSeq: 1}},
		&finishChange{finishMeta{"c", "completed"}, []byte("{}")},
		&eventChange{eventMeta: eventMeta{Seq: 1, Type: "item.delta"}, event: []byte("{}")},
		&resumeChange{[]byte("{}")},
		&ackChange{ackMeta{7}},
		&metaChange{Meta{Lifecycle: LifecycleReady}},
		&prepareChange{[]byte("{}")},
		&spawnChange{supervise.Record{Marker: "m"}},
		&goneChange{supervise.Record{Marker: "m"}},
		&diagnosticChange{diagnosticMeta{"x"}},
	} {
		f.Add(encode([]op{c.operation()}))
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		st := newState()
		err := decode(record, func(kind byte, sections [][]byte) error {
			c, err := changeOf(kind, sections)
			if err != nil {
				return err
			}
			again := encode([]op{c.operation()})
			if err := decode(again, func(kind byte, sections [][]byte) error {
				_, err := changeOf(kind, sections)
				return err
			}); err != nil {
				t.Fatalf("what was read cannot be written and read: %v", err)
			}
			return c.apply(st)
		})
		if err != nil && wire.CodeOf(err) != wire.CodeLogDamaged {
			t.Fatalf("no code: %v", err)
		}
	})
}

// FuzzImport feeds any bytes as runner-state.json: refused with a code, or a
// journal that can be opened again.
func FuzzImport(f *testing.F) {
	f.Add([]byte(`{"schema":"` + stateSchema + `"}`))
	f.Add([]byte(`{"schema":"` + stateSchema + `","nextSourceSeq":1,"ackedSourceSeq":0,"maxOutboxBytes":1048576,"p0ReserveBytes":262144,"runnerInstanceId":"runner-1","environmentLeaseId":"lease-1","runId":"run-1","normalizedSessionId":"session-1","turnId":"turn-1","itemId":"item-1","processedCommands":{"c":{"commandId":"c","controllerSeq":1,"commandType":"x","status":"pending","result":null}},"lastControllerCommandSeq":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, StateFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		par := params(dir)
		imported, err := Import(par.View, par.MaxOutbox)
		if err != nil {
			if wire.CodeOf(err) != wire.CodeLogDamaged {
				t.Fatalf("no code: %v", err)
			}
			return
		}
		par.Import = imported
		j, err := tryOpen(dir, par)
		if err != nil {
			return // another identity or other limits
		}
		if _, err := j.Interrupted(); err != nil {
			t.Fatal(err)
		}
		want := j.Stats()
		mustClose(t, j)
		par.Import = nil
		j = openIn(t, dir, par)
		if got := j.Stats(); got.NextSeq != want.NextSeq || got.LastCmd != want.LastCmd || got.Events != want.Events {
			t.Fatalf("opened again: %+v, was %+v", got, want)
		}
		mustClose(t, j)
	})
}
