package seglog

import (
	"testing"

	"bowline/wire"
)

// FuzzSegment opens a log whose only segment holds any bytes: it is refused as
// damaged, or it works.
func FuzzSegment(f *testing.F) {
	d, _ := sample(f)
	for _, file := range d.files {
		f.Add(file.data)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		d := newMemDisk()
		d.files[segmentName(1)] = &memFile{disk: d, data: data}
		l, got, err := tryOpen(d)
		if err != nil {
			if wire.CodeOf(err) != wire.CodeLogDamaged {
				t.Fatalf("no code: %v", err)
			}
			return
		}
		mustAppend(t, l, []byte("after"))
		mustClose(t, l)
		l, again := open(t, d)
		mustClose(t, l)
		wantRecords(t, again, append(got[:len(got):len(got)], []byte("after")))
	})
}
