package main

import (
	"testing"
)

func BenchmarkX(b *testing.B) {
	for _, n := range []struct {
		name string
		each int
	}{{"1", 1}, {"8", 8}} {
		b.Run(n.name, func(b *testing.B) {
			c := &contender{writers: 64}
			var err error
			c.commit, c.end, err = ours(64, n.each)(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			for range b.N {
				if err := c.turn(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(median(c.rate), "ev/s")
			if err := c.end(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
