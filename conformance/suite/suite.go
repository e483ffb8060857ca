// Package suite runs lists of conformance cases against a foreign process and
// reports which section of the protocol document each failure breaks.
//
// A case is data: a name, the section it tests and a function. The function
// runs in its own goroutine with a [T] and stops at the first failed check, as
// a test does. Every case is bounded in time: when its context ends, the
// clean-ups run (they kill the process under test), which ends every wait of
// the case.
package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// CaseTimeout bounds a case that does not say otherwise.
const CaseTimeout = 10 * time.Second

// DefaultParallel is how many cases run at the same time.
const DefaultParallel = 4

// Case is one conformance case.
type Case struct {
	Name    string
	Section string // of prp.md
	// Timeout is the bound of this case; zero means [CaseTimeout].
	Timeout time.Duration
	Run     func(ctx context.Context, t *T) error
	// Slow marks cases that have to wait for a minute; runs leave them out
	// unless they ask for them.
	Slow bool
}

// Do makes a Run function of one that reports through [T] alone.
func Do(f func(t *T)) func(context.Context, *T) error {
	return func(_ context.Context, t *T) error {
		f(t)
		return nil
	}
}

// Result is the outcome of one case; Err is empty for a pass.
type Result struct {
	Name     string        `json:"name"`
	Section  string        `json:"section"`
	Err      string        `json:"error,omitempty"`
	Log      []string      `json:"log,omitempty"`
	Duration time.Duration `json:"durationNs"`
}

// Report is the outcome of a suite, in the order of its cases.
type Report struct {
	Results []Result `json:"results"`
}

// Failed returns the failures.
func (r *Report) Failed() []Result {
	return slices.DeleteFunc(slices.Clone(r.Results), func(x Result) bool { return x.Err == "" })
}

// Write prints one line a case and a summary.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	for _, x := range r.Results {
		state := "ok  "
		if x.Err != "" {
			state = "FAIL"
		}
		fmt.Fprintf(&b, "%s %-60s %-12s %6d ms\n", state, x.Name, x.Section, x.Duration.Milliseconds())
		if x.Err != "" {
			fmt.Fprintf(&b, "     %s\n", x.Err)
		}
	}
	failed := len(r.Failed())
	fmt.Fprintf(&b, "%d cases, %d passed, %d failed\n", len(r.Results), len(r.Results)-failed, failed)
	_, err := io.WriteString(w, b.String())
	return err
}

// T is what a case reports to. Its methods are safe for one goroutine.
type T struct {
	ctx context.Context //nolint:containedctx // the case's bound is part of its handle, as in testing.T.

	mu       sync.Mutex
	err      error
	log      []string
	cleanups []func()
	done     bool
}

// Context ends when the case's time is over.
func (t *T) Context() context.Context { return t.ctx }

// Fatalf fails the case and ends its goroutine.
func (t *T) Fatalf(format string, args ...any) {
	t.mu.Lock()
	if t.err == nil {
		t.err = fmt.Errorf(format, args...)
	}
	t.mu.Unlock()
	runtime.Goexit()
}

// OK fails the case when err is not nil.
func (t *T) OK(err error, format string, args ...any) {
	if err != nil {
		t.Fatalf("%s: %w", fmt.Sprintf(format, args...), err)
	}
}

// Check fails the case when cond is false.
func (t *T) Check(cond bool, format string, args ...any) {
	if !cond {
		t.Fatalf(format, args...)
	}
}

// Logf adds a line that is shown when the case fails.
func (t *T) Logf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log = append(t.log, fmt.Sprintf(format, args...))
}

// Cleanup registers a function that runs when the case is over, last one first.
func (t *T) Cleanup(f func()) {
	t.mu.Lock()
	late := t.done
	if !late {
		t.cleanups = append(t.cleanups, f)
	}
	t.mu.Unlock()
	if late {
		f()
	}
}

func (t *T) runCleanups() {
	t.mu.Lock()
	t.done = true
	list := t.cleanups
	t.cleanups = nil
	t.mu.Unlock()
	for i := len(list) - 1; i >= 0; i-- {
		list[i]()
	}
}

// Options configure [Execute].
type Options struct {
	Parallel int // zero means DefaultParallel
	// Match, when set, selects cases.
	Match func(Case) bool
	// Slow includes the slow cases.
	Slow bool
	// Progress, when set, is called after each case, from several goroutines.
	Progress func(Result)
}

// Execute runs the cases and returns when all are over.
func Execute(ctx context.Context, cases []Case, o Options) *Report {
	if o.Match != nil {
		cases = slices.DeleteFunc(slices.Clone(cases), func(c Case) bool { return !o.Match(c) })
	}
	if !o.Slow {
		cases = slices.DeleteFunc(slices.Clone(cases), func(c Case) bool { return c.Slow })
	}
	n := o.Parallel
	if n <= 0 {
		n = DefaultParallel
	}
	results := make([]Result, len(cases))
	next := make(chan int)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for i := range next {
				results[i] = RunCase(ctx, cases[i])
				if o.Progress != nil {
					o.Progress(results[i])
				}
			}
		})
	}
	for i := range cases {
		next <- i
	}
	close(next)
	wg.Wait()
	return &Report{Results: results}
}

// RunCase runs one case within its bound.
func RunCase(ctx context.Context, c Case) Result {
	limit := c.Timeout
	if limit == 0 {
		limit = CaseTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := &T{ctx: ctx}
	start := time.Now()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		// The clean-ups of a case end whatever it waits for.
		defer t.runCleanups()
		defer func() {
			if p := recover(); p != nil {
				t.mu.Lock()
				t.err = fmt.Errorf("panic: %v", p)
				t.mu.Unlock()
			}
		}()
		if err := c.Run(ctx, t); err != nil {
			t.Fatalf("%w", err)
		}
	}()
	select {
	case <-finished:
	case <-ctx.Done():
		t.mu.Lock()
		if t.err == nil {
			t.err = fmt.Errorf("case not finished within %v", limit)
		}
		t.mu.Unlock()
		t.runCleanups()
		<-finished
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := Result{Name: c.Name, Section: c.Section, Duration: time.Since(start)}
	if t.err != nil {
		r.Err = t.err.Error()
		r.Log = t.log
	}
	return r
}

// Validate checks that names are unique and every case is complete.
func Validate(cases []Case) error {
	seen := map[string]bool{}
	var errs []error
	for _, c := range cases {
		if c.Name == "" || c.Section == "" || c.Run == nil {
			errs = append(errs, fmt.Errorf("case %q is not complete", c.Name))
		}
		if seen[c.Name] {
			errs = append(errs, fmt.Errorf("case %q exists twice", c.Name))
		}
		seen[c.Name] = true
	}
	return errors.Join(errs...)
}
