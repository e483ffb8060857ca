package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"bowline/wire"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("SEGLOG_CRASH_DIR"); dir != "" {
		crashChild(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

const testSegment = 2048

func open(t testing.TB, d Disk) (*Log, [][]byte) {
	t.Helper()
	l, got, err := tryOpen(d)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return l, got
}

func tryOpen(d Disk) (*Log, [][]byte, error) {
	var got [][]byte
	l, err := Open(d, Options{SegmentSize: testSegment}, func(_ Position, b []byte) error {
		got = append(got, b)
		return nil
	})
	return l, got, err
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func mustAppend(t testing.TB, l *Log, records ...[]byte) {
	t.Helper()
	if err := l.Append(records...); err != nil {
		t.Fatalf("append: %v", err)
	}
}

func text(i, n int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("record %d;", i)), n)
}

func wantRecords(t testing.TB, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records came back, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("record %d changed", i)
		}
	}
}

func TestRecordsComeBackExactly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := newMemDisk()
		var want [][]byte
		for range rapid.IntRange(1, 4).Draw(t, "sessions") {
			l, got, err := tryOpen(d)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			if len(got) != len(want) {
				t.Fatalf("%d records came back, want %d", len(got), len(want))
			}
			for i := range want {
				if !bytes.Equal(got[i], want[i]) {
					t.Fatalf("record %d changed", i)
				}
			}
			for range rapid.IntRange(0, 12).Draw(t, "appends") {
				recs := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 700), 0, 4).Draw(t, "records")
				p := l.enqueue(rapid.Bool().Draw(t, "roll"), recs)
				if err := p.Wait(); err != nil {
					t.Fatalf("append: %v", err)
				}
				want = append(want, recs...)
			}
			if err := l.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
		}
	})
}

func TestConcurrentWritersShareASync(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	l, _ := open(t, d)
	d.mu.Lock()
	d.hold, d.entered, d.syncs = make(chan struct{}), make(chan struct{}, 8), 0
	d.mu.Unlock()
	first := l.Enqueue([]byte("first"))
	<-d.entered // the writer is in its sync: what comes now has to share the next
	var rest []*Pending
	for i := range 50 {
		rest = append(rest, l.Enqueue(text(i, 1)))
	}
	close(d.hold)
	if err := first.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, p := range rest {
		if err := p.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, l)
	if d.syncs != 2 {
		t.Fatalf("%d syncs for one record and 50 that waited, want 2", d.syncs)
	}
}

func TestManyWritersKeepOrderPerWriter(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	l, _ := open(t, d)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100 {
				if err := l.Append([]byte(fmt.Sprintf("%d %d", w, i))); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
	mustClose(t, l)
	l, got := open(t, d)
	defer mustClose(t, l)
	next := make([]int, 8)
	for _, r := range got {
		w, i, ok := strings.Cut(string(r), " ")
		wn, err1 := strconv.Atoi(w)
		in, err2 := strconv.Atoi(i)
		if !ok || err1 != nil || err2 != nil || in != next[wn] {
			t.Fatalf("record %q out of order", r)
		}
		next[wn]++
	}
	if len(got) != 800 {
		t.Fatalf("%d records, want 800", len(got))
	}
}

// sample is a log of two segments and several commits, some of several records.
func sample(t testing.TB) (*memDisk, [][]byte) {
	d := newMemDisk()
	l, _ := open(t, d)
	var want [][]byte
	for i := range 6 {
		recs := [][]byte{text(i, 1+i), text(100+i, 7)}
		p := l.enqueue(i == 3, recs)
		if err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		want = append(want, recs...)
	}
	mustClose(t, l)
	d.uncloseAll()
	return d, want
}

func TestTruncatedAnywhereGivesAPrefix(t *testing.T) {
	t.Parallel()
	d, want := sample(t)
	newest := segmentName(2)
	for size := range testSegment + 1 {
		c := d.copyWith(newest, func(b []byte) []byte { return b[:size] })
		l, got, err := tryOpen(c)
		if err != nil {
			t.Fatalf("cut to %d bytes: %v", size, err)
		}
		wantRecords(t, got, want[:len(got)])
		if len(got) < 6 {
			t.Fatalf("cut to %d bytes: records of the older segment are gone", size)
		}
		// It goes on from there.
		mustAppend(t, l, []byte("after"))
		mustClose(t, l)
		l, again := open(t, c)
		mustClose(t, l)
		wantRecords(t, again, append(got[:len(got):len(got)], []byte("after")))
	}
}

func TestTruncatedOlderSegmentIsDamage(t *testing.T) {
	t.Parallel()
	d, want := sample(t)
	for size := range testSegment {
		c := d.copyWith(segmentName(1), func(b []byte) []byte { return b[:size] })
		l, got, err := tryOpen(c)
		if err == nil {
			mustClose(t, l)
			wantRecords(t, got, want) // only zeros were cut away
			continue
		}
		if wire.CodeOf(err) != wire.CodeLogDamaged {
			t.Fatalf("cut to %d bytes: %v", size, err)
		}
	}
}

func TestFlippedBitIsFoundAnywhere(t *testing.T) {
	t.Parallel()
	d, want := sample(t)
	for _, name := range []string{segmentName(1), segmentName(2)} {
		found := 0
		for bit := range testSegment * 8 {
			c := d.copyWith(name, func(b []byte) []byte {
				b[bit/8] ^= 1 << (bit % 8)
				return b
			})
			l, got, err := tryOpen(c)
			if err == nil {
				mustClose(t, l)
				wantRecords(t, got, want) // it was in unused space
				continue
			}
			found++
			var e *wire.Error
			if !errors.As(err, &e) || e.Code != wire.CodeLogDamaged || e.Details["segment"] == nil || e.Details["offset"] == nil {
				t.Fatalf("%s bit %d: %v", name, bit, err)
			}
			if name == segmentName(1) && e.Details["segment"] != uint64(1) {
				t.Fatalf("%s bit %d: the fault names another segment: %v", name, bit, err)
			}
		}
		if found < 300*8 {
			t.Fatalf("%s: only %d flips were found", name, found)
		}
	}
}

func TestDamagedLogIsLeftAlone(t *testing.T) {
	t.Parallel()
	d, _ := sample(t)
	c := d.copyWith(segmentName(2), func(b []byte) []byte { b[100] ^= 4; return b })
	before := bytes.Clone(c.files[segmentName(2)].data)
	if _, _, err := tryOpen(c); wire.CodeOf(err) != wire.CodeLogDamaged {
		t.Fatalf("open: %v", err)
	}
	if !bytes.Equal(before, c.files[segmentName(2)].data) {
		t.Fatal("a damaged segment was altered")
	}
}

func TestMissingSegmentsAreDamage(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	l, _ := open(t, d)
	for i := range 3 {
		if err := l.Roll(text(i, 3)).Wait(); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, l)
	if err := d.Remove(segmentName(3)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tryOpen(d); wire.CodeOf(err) != wire.CodeLogDamaged {
		t.Fatalf("open with a hole: %v", err)
	}
}

// TestPowerCut writes commits, then lets any subset of the sectors of an
// unsynced last commit reach the disk: nothing that was synced may be lost, and
// it must never read as damage.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		d := newMemDisk()
		l, _ := open(t, d)
		var durable [][]byte
		for i := range 1 + rng.IntN(4) {
			r := text(i, 1+rng.IntN(60))
			mustAppend(t, l, r)
			durable = append(durable, r)
		}
		name := segmentName(1)
		before := bytes.Clone(d.files[name].synced)
		var last [][]byte
		for i := range 1 + rng.IntN(5) {
			last = append(last, text(50+i, 1+rng.IntN(90)))
		}
		mustAppend(t, l, last...)
		mustClose(t, l)
		d.uncloseAll()
		after := bytes.Clone(d.files[name].data)
		before = append(before, make([]byte, len(after)-len(before))...)
		for s := 0; s < len(after); s += sectorSize {
			if rng.IntN(2) == 0 {
				copy(after[s:min(s+sectorSize, len(after))], before[s:])
			}
		}
		c := d.copyWith(name, func([]byte) []byte { return after })
		l, got, err := tryOpen(c)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		wantRecords(t, got, append(durable, last...)[:len(got)])
		if len(got) < len(durable) {
			t.Fatalf("seed %d: %d of %d durable records are gone", seed, len(durable)-len(got), len(durable))
		}
		mustAppend(t, l, []byte("after"))
		mustClose(t, l)
		l, again := open(t, c)
		mustClose(t, l)
		wantRecords(t, again, append(got[:len(got):len(got)], []byte("after")))
	}
}

func TestDroppedSegmentsStayDropped(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	l, _ := open(t, d)
	for i := range 4 {
		if err := l.Roll(text(i, 2)).Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.DropBefore(4); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	l, got := open(t, d)
	wantRecords(t, got, [][]byte{text(2, 2), text(3, 2)})
	if err := l.DropBefore(99); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, []byte("more"))
	mustClose(t, l)
	l, got = open(t, d)
	mustClose(t, l)
	wantRecords(t, got, [][]byte{text(3, 2), []byte("more")})
}

func TestFailuresLatch(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, tc := range []struct {
		name   string
		inject func(*memDisk)
		want   wire.Code
	}{
		{"write", func(d *memDisk) { d.failWrite = boom }, wire.CodeStoreIndeterminate},
		{"sync", func(d *memDisk) { d.failSync = boom }, wire.CodeStoreIndeterminate},
		{"no space", func(d *memDisk) { d.failWrite = &os.PathError{Op: "write", Err: syscall.ENOSPC} }, wire.CodeDiskFull},
		{"no space for a segment", func(d *memDisk) { d.failAllocate = syscall.ENOSPC }, wire.CodeDiskFull},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := newMemDisk()
			l, _ := open(t, d)
			mustAppend(t, l, []byte("good"))
			d.mu.Lock()
			tc.inject(d)
			d.mu.Unlock()
			err := l.Roll([]byte("lost")).Wait()
			if err == nil || wire.CodeOf(err) != tc.want {
				t.Fatalf("append: %v, want code %s", err, tc.want)
			}
			d.mu.Lock()
			d.failWrite, d.failSync, d.failAllocate = nil, nil, nil
			d.mu.Unlock()
			if err := l.Append([]byte("later")); err == nil {
				t.Fatal("a log whose write failed accepts more")
			}
			if err := l.Close(); err == nil {
				t.Fatal("Close hides the failure")
			}
			l, got := open(t, d)
			mustClose(t, l)
			if len(got) == 0 || string(got[0]) != "good" {
				t.Fatalf("the durable record is gone: %q", got)
			}
		})
	}
}

func TestCleanCloseGivesSpaceBack(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	l, _ := open(t, d)
	mustAppend(t, l, []byte("x"))
	mustClose(t, l)
	if n := len(d.files[segmentName(1)].data); n != headerSize+span(1) {
		t.Fatalf("the closed segment has %d bytes", n)
	}
	l, _ = open(t, d)
	mustAppend(t, l, []byte("y"))
	if n := len(d.files[segmentName(1)].data); n != testSegment {
		t.Fatalf("the opened segment has %d bytes", n)
	}
	mustClose(t, l)
}

func TestClosedLogRefuses(t *testing.T) {
	t.Parallel()
	l, _ := open(t, newMemDisk())
	mustClose(t, l)
	if err := l.Append([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Fatalf("append after Close: %v", err)
	}
}

func TestDirectoryIsPrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(path, 0o755); err != nil { //nolint:gosec // G301: that is the case
		t.Fatal(err)
	}
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	l, _ := open(t, d)
	mustAppend(t, l, []byte("x"))
	mustClose(t, l)
	dir, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Stat(filepath.Join(path, segmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	if dir.Mode().Perm() != 0o700 || file.Mode().Perm() != 0o600 {
		t.Fatalf("directory %v, segment %v", dir.Mode(), file.Mode())
	}
}

// crashChild appends numbered records for ever and prints each number once it
// is durable.
func crashChild(dir string) {
	d, err := OpenDir(dir)
	if err != nil {
		panic(err)
	}
	next := 0
	l, err := Open(d, Options{SegmentSize: 16 << 10}, func(Position, []byte) error { next++; return nil })
	if err != nil {
		panic(err)
	}
	for ; ; next++ {
		append := l.Enqueue
		if next%37 == 0 {
			append = l.Roll
		}
		if err := append([]byte(fmt.Sprintf("%d %s", next, text(next, 1+next%50)))).Wait(); err != nil {
			panic(err)
		}
		if _, err := fmt.Println(next); err != nil {
			panic(err)
		}
	}
}

// TestKilledWriter kills real processes at points they do not choose: every
// record they reported durable is there.
func TestKilledWriter(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2)) //nolint:gosec // G404: not a secret
	last := -1
	for round := range 8 {
		cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // G204: this test binary
		cmd.Env = append(os.Environ(), "SEGLOG_CRASH_DIR="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop := 1 + rng.IntN(120)
		var num int
		for range stop {
			if _, err := fmt.Fscan(out, &num); err != nil {
				t.Fatalf("round %d: reading what is durable: %v", round, err)
			}
			last = num
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := fmt.Fscan(out, &num); err != nil {
				break // the pipe ended with the process
			}
			last = num
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the killed process ended by itself")
		}
		d, err := OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		l, got := open(t, d)
		for i, r := range got {
			if want := fmt.Sprintf("%d %s", i, text(i, 1+i%50)); string(r) != want {
				t.Fatalf("round %d: record %d is not what was written", round, i)
			}
		}
		if len(got) < last+1 {
			t.Fatalf("round %d: record %d was durable, only %d are there", round, last, len(got))
		}
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
