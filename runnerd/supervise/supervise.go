// Package supervise starts the processes of drivers and ends their whole
// trees, on Linux.
//
// What it promises:
//
//   - Every process it starts leads a session of its own and carries
//     BOWLINE_TREE=<marker> in its environment. The marker is handed to
//     [Options.OnSpawn] before the process exists, so it can be made durable
//     first: a successor of a killed runnerd finds the tree with [KillTree].
//   - A tree is everything that descends from the leader, shares its process
//     group or session, or carries the marker. A grandchild that called setsid
//     and was reparented is still found. One that also dropped its environment
//     is found as a child nobody else has started ([Options.OwnsChildren]); it
//     is out of reach only for the successor of a killed runnerd, and while
//     several trees run.
//   - Ending a tree stops (SIGSTOP) what it finds until a look finds nothing
//     new, then kills it: a stopped process cannot fork, so nothing escapes
//     between the look and the kill. A pid is signalled through a pidfd after
//     its start time was compared, so a reused pid is never hit. The caller
//     itself and its ancestors are never touched.
//   - Output is read from the kernel by the driver, never buffered here: a slow
//     reader slows the process. What the leader wrote before it exited is
//     readable to the last byte.
//
// Concurrency: a [Supervisor] and the processes it returns may be used from
// several goroutines. [Supervisor.Close] waits for every goroutine started
// here.
//
// PR_SET_CHILD_SUBREAPER belongs to the whole process: orphans of the trees
// become children of this process and are reaped here. Children that other
// code started are left alone for [foreignGrace] after they died.
package supervise

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"bowline/driver"
)

// TreeVariable is the environment variable every process of a tree carries.
// Its value is a list of markers joined by commas, outermost first: a Bowline
// inside a command of another Bowline keeps the outer marker.
const TreeVariable = "BOWLINE_TREE"

// markerBytes is the length of a marker before hex encoding.
const markerBytes = 16

// Record identifies one tree durably.
type Record struct {
	// Marker of the tree: 32 hex digits.
	Marker string `json:"marker"`
	// PID of the leader, 0 before it runs.
	PID int `json:"pid,omitempty"`
	// StartTicks is the leader's start time in clock ticks since boot (field
	// 22 of /proc/PID/stat), 0 before it runs.
	StartTicks uint64 `json:"startTicks,omitempty"`
	// BootID of the kernel the ticks belong to. After a reboot there is
	// nothing to kill.
	BootID string `json:"bootId"`
}

// What [Options.OnReap] is told.
const (
	ReapedLeader = "leader" // of a tree that was spawned here
	ReapedOrphan = "orphan" // a descendant whose parent had gone
)

// Options of a Supervisor.
type Options struct {
	// OnSpawn is called twice for a process: before it exists (PID 0) and
	// right after it was started. An error from the first call starts nothing;
	// an error from the second kills the tree. Spawn returns the error. May be
	// nil.
	OnSpawn func(Record) error
	// OnGone is called once per record when its tree is proven gone. It may be
	// called for a record whose process never started. May be nil.
	OnGone func(Record)
	// OnReap is told of every process that was waited for: [ReapedLeader] or
	// [ReapedOrphan]. May be nil.
	OnReap func(how string)
	// OwnsChildren says that this program starts processes through this
	// Supervisor only. Then a child that no tree knows is an orphan that dropped
	// its environment and took a session of its own, and belongs to the one tree
	// that runs. While several trees run it cannot be told whose it is.
	OwnsChildren bool
	// OuterTree is the value of TreeVariable in this program's own
	// environment, "" outside any tree.
	OuterTree string
	// Random makes markers; nil means crypto/rand.
	Random io.Reader
}

// Supervisor starts processes and owns what is left of them.
type Supervisor struct {
	options Options
	bootID  string
	self    int

	stop chan struct{}
	work sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	starting int                   // spawns whose process is not in process yet
	process  map[*process]struct{} // until the tree is proven gone
}

// New makes this process a subreaper and starts the loop that reaps orphans.
// Close ends it.
func New(options Options) (*Supervisor, error) {
	if options.Random == nil {
		options.Random = rand.Reader
	}
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("supervise: become subreaper: %w", err)
	}
	s := &Supervisor{
		options: options,
		bootID:  boot,
		self:    os.Getpid(),
		stop:    make(chan struct{}),
		process: make(map[*process]struct{}),
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		s.reapLoop()
	}()
	return s, nil
}

// errClosed is returned by Spawn after Close.
var errClosed = errors.New("supervise: closed")

// Close kills every tree that is still there, and returns when they are gone
// and every goroutine has ended, or when ctx ends (then with its error). Later
// calls do the same again for what is left.
func (s *Supervisor) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	left := make([]*process, 0, len(s.process))
	for p := range s.process {
		left = append(left, p)
	}
	s.mu.Unlock()

	var errs []error
	for _, p := range left {
		if err := p.Stop(ctx, 0); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, p.release())
	}
	if first {
		close(s.stop)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.work.Wait()
	return nil
}

// newMarker makes the id of one tree.
func (s *Supervisor) newMarker() (string, error) {
	var raw [markerBytes]byte
	if _, err := io.ReadFull(s.options.Random, raw[:]); err != nil {
		return "", fmt.Errorf("supervise: marker: %w", err)
	}
	return hex.EncodeToString(raw[:]), nil
}

func (s *Supervisor) onSpawn(r Record) error {
	if s.options.OnSpawn == nil {
		return nil
	}
	return s.options.OnSpawn(r)
}

func (s *Supervisor) onGone(r Record) {
	if s.options.OnGone != nil {
		s.options.OnGone(r)
	}
}

func (s *Supervisor) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// add registers a running process. It reports false after Close.
func (s *Supervisor) add(p *process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.process[p] = struct{}{}
	return true
}

// begin and begun bracket the time in which a leader exists and is not
// registered.
func (s *Supervisor) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting++
}

func (s *Supervisor) begun() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting--
}

// only tells whether t is the one tree there is. A caller that took its look at
// the process table before has seen no leader of another one.
func (s *Supervisor) only(t *tree) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting > 0 || len(s.process) != 1 {
		return false
	}
	for p := range s.process {
		return p.tree == t
	}
	return false
}

func (s *Supervisor) remove(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.process, p)
}

// processes is a copy of the registered ones.
func (s *Supervisor) processes() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*process, 0, len(s.process))
	for p := range s.process {
		list = append(list, p)
	}
	return list
}

var _ interface {
	Spawn(ctx context.Context, spec driver.ProcessSpec) (driver.Process, error)
} = (*Supervisor)(nil)
