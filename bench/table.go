package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// table collects what is printed at the end.
type table struct {
	notes []string
	rows  [][]string
}

func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// row adds a line: what, figure, ratio or syncs, budget, verdict.
func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) head(title string) { t.row(""); t.row(title) }

func (t *table) print(w io.Writer) error {
	for _, n := range t.notes {
		if _, err := fmt.Fprintln(w, n); err != nil {
			return err
		}
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range t.rows {
		if _, err := fmt.Fprintln(tw, strings.Join(r, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// verdict compares a figure with its budget.
func verdict(value, budget float64, atLeast bool) string {
	if atLeast && value >= budget || !atLeast && value < budget {
		return "ok"
	}
	if atLeast {
		return fmt.Sprintf("BEHIND: %.2f of the budget", value/budget)
	}
	return fmt.Sprintf("BEHIND: %.2f times the budget", value/budget)
}

// machine notes where the figures come from.
func machine(t *table) {
	var uts unix.Utsname
	kernel := "unknown"
	if err := unix.Uname(&uts); err == nil {
		kernel = unix.ByteSliceToString(uts.Release[:])
	}
	t.note("%s, %d cores, Linux %s, %s, %s", cpuModel(), runtime.NumCPU(), kernel, runtime.Version(), time.Now().UTC().Format(time.DateOnly))
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer func() { _ = f.Close() }() // read-only, nothing to lose
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if name, value, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// percentile of unsorted durations; p between 0 and 1.
func percentile(v []time.Duration, p float64) time.Duration {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)-1, int(float64(len(s))*p))]
}

// spread is max over min of the rounds: what the medians are worth.
func spread(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return slices.Max(v) / slices.Min(v)
}
