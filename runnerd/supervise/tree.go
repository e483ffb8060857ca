package supervise

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxFreezePasses bounds how often a tree is looked through for processes
	// not yet stopped. A pass finds at least everything that was forked before
	// the pass before it, so a handful is normal.
	maxFreezePasses = 64
	// killPatience is how long SIGKILL may take to show, for all of a tree. A
	// process that is still there then sits in the kernel (a dead mount).
	killPatience = 30 * time.Second
	// Looks at a tree that is about to end come this often.
	minLook = 2 * time.Millisecond
	maxLook = 50 * time.Millisecond
	// minSession is the lowest session a tree can be in: 0 is the kernel's, 1 is
	// init's.
	minSession = 2
	// minMarker is the shortest marker that is looked for, in bytes: an empty
	// or tiny one would fit strangers.
	minMarker = 16
)

// tree finds the processes of one tree. What was seen once is remembered, so a
// process that is orphaned between two looks stays known.
type tree struct {
	marker string
	leader ident // pid 0: unknown, only the marker counts
	self   int
	// adopter: orphans of the tree become children of self.
	adopter bool
	// only, if set, tells that every child of self that is nobody's is an orphan
	// of this tree.
	only func() bool

	mu     sync.Mutex // one look at a time
	scan   *scanner
	known  map[ident]struct{}
	groups map[int]struct{} // process groups and sessions seen in the tree
}

func newTree(marker string, leader ident, self int, adopter bool) *tree {
	t := &tree{
		marker: marker, leader: leader, self: self, adopter: adopter,
		scan: newScanner(), known: make(map[ident]struct{}), groups: make(map[int]struct{}),
	}
	if leader.pid != 0 {
		t.groups[leader.pid] = struct{}{}
	}
	return t
}

// look returns the living processes of the tree.
func (t *tree) look() ([]procStat, error) {
	all, err := t.scan.snapshot()
	if err != nil {
		return nil, err
	}
	spared := ancestors(all, t.self)
	children := make(map[int][]procStat, len(all))
	sessions := make(map[int][]procStat)
	var queue []procStat
	member := make(map[int]bool)
	add := func(p procStat) {
		if !member[p.pid] && !spared[p.pid] {
			member[p.pid] = true
			queue = append(queue, p)
		}
	}
	// While the leader, even dead, holds its pid, group and session of that
	// number are its own.
	holder, ok := all[t.leader.pid]
	leaderHolds := ok && holder.ident == t.leader
	for _, p := range all {
		children[p.ppid] = append(children[p.ppid], p)
		sessions[p.sid] = append(sessions[p.sid], p)
		if _, ok := t.known[p.ident]; ok || t.belongs(p, leaderHolds) {
			add(p)
		}
	}
	for len(queue) > 0 {
		p := queue[0]
		queue = queue[1:]
		for _, c := range children[p.pid] {
			if c.start >= p.start {
				add(c)
			}
		}
		// A session is only ever inherited, and the leader began one of its
		// own: who shares a session with the tree is of the tree.
		if p.sid != all[t.self].sid && p.sid >= minSession {
			for _, c := range sessions[p.sid] {
				add(c)
			}
			delete(sessions, p.sid)
		}
	}
	alive := make([]procStat, 0, len(member))
	for pid := range member {
		p := all[pid]
		t.known[p.ident] = struct{}{}
		t.groups[p.pgrp] = struct{}{}
		t.groups[p.sid] = struct{}{}
		if !p.dead {
			alive = append(alive, p)
		}
	}
	return alive, nil
}

// belongs judges a process by itself, without its ancestry.
func (t *tree) belongs(p procStat, leaderHolds bool) bool {
	if p.ident == t.leader {
		return true
	}
	// Nothing of the tree is older than its leader.
	if p.start < t.leader.start {
		return false
	}
	if leaderHolds && (p.pgrp == t.leader.pid || p.sid == t.leader.pid) {
		return true
	}
	if t.adopter && p.ppid == t.self && p.pgrp != t.self && t.inGroup(p) && p.pid != p.sid {
		// Adopted: an orphan of a group of this tree. A session leader is
		// judged by its marker, it may lead another tree.
		return true
	}
	if !p.dead && t.scan.carries(p.pid, t.marker) {
		return true
	}
	return t.only != nil && p.ppid == t.self && t.only()
}

func (t *tree) inGroup(p procStat) bool {
	_, group := t.groups[p.pgrp]
	_, session := t.groups[p.sid]
	return group || session
}

// ancestors are the processes that must survive: self and what it lives under.
func ancestors(all table, self int) map[int]bool {
	spared := map[int]bool{0: true, 1: true}
	for pid := self; pid > 1 && !spared[pid]; pid = all[pid].ppid {
		spared[pid] = true
	}
	return spared
}

// living counts the living processes of the tree.
func (t *tree) living() (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	alive, err := t.look()
	return len(alive), err
}

// terminate sends SIGTERM to everything in the tree, to newcomers as they are
// found, until nothing is alive or ctx ends.
func (t *tree) terminate(ctx context.Context) error {
	asked := make(map[ident]struct{})
	for pause := minLook; ; pause = min(2*pause, maxLook) {
		alive, err := t.ask(asked)
		if err != nil || alive == 0 || !sleep(ctx, pause) {
			return err
		}
	}
}

// ask sends SIGTERM to what is not in asked yet and returns how many live.
func (t *tree) ask(asked map[ident]struct{}) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	alive, err := t.look()
	if err != nil {
		return 0, err
	}
	for _, p := range alive {
		if _, ok := asked[p.ident]; ok {
			continue
		}
		asked[p.ident] = struct{}{}
		// A stopped process takes no SIGTERM until it continues. One that may
		// not be signalled is reported by the kill that follows.
		for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGCONT} {
			if _, err := send(p.ident, sig, t.scan.stat); err != nil {
				break
			}
		}
	}
	return len(alive), nil
}

// kill ends the tree: stop everything until nothing new is found, then kill
// until nothing is left.
func (t *tree) kill(ctx context.Context) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, killPatience)
	defer cancel()

	stopped := make(map[ident]struct{})
	for range maxFreezePasses {
		alive, err := t.look()
		if err != nil {
			return 0, err
		}
		fresh := 0
		for _, p := range alive {
			if _, ok := stopped[p.ident]; ok {
				continue
			}
			stopped[p.ident] = struct{}{}
			fresh++
			if _, err := send(p.ident, unix.SIGSTOP, t.scan.stat); err != nil {
				continue // the same refusal of SIGKILL is reported below
			}
		}
		if fresh == 0 {
			break
		}
	}
	killed := make(map[ident]struct{})
	for pause := minLook; ; pause = min(2*pause, maxLook) {
		alive, err := t.look()
		if err != nil {
			return len(killed), err
		}
		if len(alive) == 0 {
			return len(killed), nil
		}
		var failed error
		for _, p := range alive {
			ok, err := send(p.ident, unix.SIGKILL, t.scan.stat)
			if err != nil {
				failed = err
			}
			if ok {
				killed[p.ident] = struct{}{}
			}
		}
		if !sleep(ctx, pause) {
			if failed != nil {
				return len(killed), failed
			}
			return len(killed), fmt.Errorf("supervise: %d processes of the tree have not ended: %w", len(alive), ctx.Err())
		}
	}
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// KillTree kills a tree this process did not start: what carries marker, the
// leader if it is still the process with that start time, and what descends
// from either. leaderPID 0 means that the leader is unknown. It returns how
// many processes it killed when none is left; an error says what is. The
// caller compares boot ids first, or uses [KillRecord].
func KillTree(ctx context.Context, marker string, leaderPID int, leaderStart uint64) (int, error) {
	if len(marker) < minMarker {
		return 0, fmt.Errorf("supervise: marker of %d bytes, shortest is %d", len(marker), minMarker)
	}
	leader := ident{pid: leaderPID, start: leaderStart}
	if leaderPID <= 1 || leaderStart == 0 {
		leader = ident{}
	}
	return newTree(marker, leader, os.Getpid(), false).kill(ctx)
}

// KillRecord is [KillTree] for a record that another runnerd left. A record of
// another boot has nothing to kill.
func KillRecord(ctx context.Context, r Record) (int, error) {
	boot, err := BootID()
	if err != nil {
		return 0, err
	}
	if r.BootID != boot {
		return 0, nil
	}
	return KillTree(ctx, r.Marker, r.PID, r.StartTicks)
}
