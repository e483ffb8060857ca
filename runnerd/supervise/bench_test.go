package supervise

import (
	"bufio"
	"os"
	"testing"

	"bowline/driver"
)

// BenchmarkKillThousand ends a tree of 1 000 processes (budget of quality.md:
// below one second).
func BenchmarkKillThousand(b *testing.B) {
	s, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.Close(b.Context()); err != nil {
			b.Error(err)
		}
	}()
	for b.Loop() {
		b.StopTimer()
		p, err := s.Spawn(b.Context(), driver.ProcessSpec{
			Argv:      []string{"sh", "-c", `i=0; while [ $i -lt 1000 ]; do sleep 1000 & i=$((i+1)); done; echo ready; wait`},
			Env:       []string{"PATH=" + os.Getenv("PATH")},
			StdinNull: true,
		})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := bufio.NewReader(p.Stdout()).ReadString('\n'); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := p.Stop(b.Context(), 0); err != nil {
			b.Fatal(err)
		}
	}
}
