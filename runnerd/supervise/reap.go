package supervise

import (
	"errors"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// reapPause collects a burst of SIGCHLD into one look at the process table.
	reapPause = 20 * time.Millisecond
	// foreignGrace is how long a dead child that belongs to no known tree is
	// left to whoever may have started it. An orphan whose lineage was never
	// seen waits as long.
	foreignGrace = 30 * time.Second
)

// reapLoop collects orphans until Close.
func (s *Supervisor) reapLoop() {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	defer signal.Stop(died)

	seen := make(map[ident]time.Time) // dead children of nobody we know
	scan := newScanner()
	timer := time.NewTimer(foreignGrace)
	defer timer.Stop()
	soon := false // the timer runs for reapPause; a stream of deaths must not put it off
	for {
		select {
		case <-s.stop:
			s.reap(scan, seen)
			return
		case <-died:
			if !soon {
				soon = true
				timer.Reset(reapPause)
			}
		case <-timer.C:
			s.reap(scan, seen)
			soon = false
			timer.Reset(foreignGrace)
		}
	}
}

// reap collects dead children that were not started here: leaders are waited
// for by their own watchers, and the status of a child that other code started
// is not ours to take.
func (s *Supervisor) reap(scan *scanner, seen map[ident]time.Time) {
	all, err := scan.snapshot()
	if err != nil {
		return // the process table is looked at again on the next signal
	}
	leaders := make(map[int]bool)
	trees := make([]*tree, 0)
	for _, p := range s.processes() {
		leaders[p.record.PID] = true
		trees = append(trees, p.tree)
	}
	now := time.Now()
	current := make(map[ident]bool)
	for pid, st := range all {
		if !st.zombie || st.ppid != s.self || leaders[pid] {
			continue
		}
		current[st.ident] = true
		if !ours(trees, st) {
			since, ok := seen[st.ident]
			if !ok {
				seen[st.ident] = now
				continue
			}
			if now.Sub(since) < foreignGrace {
				continue
			}
		}
		s.onReap(ReapedOrphan, collect(pid))
	}
	for id := range seen {
		if !current[id] {
			delete(seen, id)
		}
	}
}

// onReap tells of n processes that were waited for.
func (s *Supervisor) onReap(how string, n int) {
	for range n {
		if s.options.OnReap != nil {
			s.options.OnReap(how)
		}
	}
}

// collect reaps one dead child and returns how many that were: 0 when somebody
// else was faster.
func collect(pid int) int {
	for {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && got == pid:
			return 1
		default:
			return 0
		}
	}
}

// reap collects the orphans of a tree that has ended, before what is known of
// them is forgotten, and returns how many there were.
func (t *tree) reap() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	all, err := t.scan.snapshot()
	if err != nil {
		return 0 // the loop collects them later, as foreign
	}
	n := 0
	for pid, st := range all {
		if !st.zombie || st.ppid != t.self || st.ident == t.leader {
			continue
		}
		if _, ok := t.known[st.ident]; ok || (st.start >= t.leader.start && t.inGroup(st)) {
			n += collect(pid)
		}
	}
	return n
}

// ours reports whether a dead child is an orphan of one of trees.
func ours(trees []*tree, st procStat) bool {
	for _, t := range trees {
		if t.remembers(st) {
			return true
		}
	}
	return false
}

// remembers reports whether p was seen in the tree or is in one of its groups.
func (t *tree) remembers(p procStat) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.known[p.ident]; ok {
		return true
	}
	return p.start >= t.leader.start && t.inGroup(p)
}
