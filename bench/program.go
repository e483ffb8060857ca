package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Budgets of the slim runner (quality.md).
const (
	maxBinaryMiB = 20
	maxIdleMiB   = 20
	maxStart     = 50 * time.Millisecond
	starts       = 11
	// idleFor is how long a joined runner is left alone before it is weighed.
	idleFor = time.Second
)

// programPart weighs bin/runnerd: its size, its memory when idle and the time
// from its start until the control plane has authenticated it.
func programPart(ctx context.Context, t *table, dir, bin string) (err error) {
	if bin == "" {
		t.head("runnerd: NOT MEASURED, no -bin was given")
		return nil
	}
	path := filepath.Join(bin, "runnerd")
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	plane, err := openPlane(ctx, filepath.Join(dir, "program-plane"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plane.close()) }()
	var took []time.Duration
	var rss []float64
	for i := range starts {
		idle := time.Duration(0)
		if i%5 == 0 {
			idle = idleFor
		}
		d, kib, err := plane.startProgram(ctx, path, filepath.Join(dir, fmt.Sprint("program", i)), idle)
		if err != nil {
			return fmt.Errorf("start %d: %w", i, err)
		}
		took = append(took, d)
		if idle > 0 {
			rss = append(rss, kib/1024)
		}
	}
	t.head("runnerd as a program")
	t.row("", "", "", "", "", "", "budget", "")
	size := float64(info.Size()) / (1 << 20)
	start := percentile(took, 0.5)
	t.row("stripped binary", fmt.Sprintf("%.1f MiB", size), "", "", "", "", fmt.Sprintf("≤ %d MiB", maxBinaryMiB), verdict(size, maxBinaryMiB, false))
	t.row("resident memory, joined and idle", fmt.Sprintf("%.1f MiB", median(rss)), "", "", "", "", fmt.Sprintf("≤ %d MiB", maxIdleMiB), verdict(median(rss), maxIdleMiB, false))
	t.row("start to authenticated, median of 11", micro(start), "", "", "", "", "< 50 ms", verdict(float64(start), float64(maxStart), false))
	return nil
}

// startProgram runs the program until it has joined and been idle for a while,
// and gives how long the join took and, with idle, its resident memory in KiB.
func (p *plane) startProgram(ctx context.Context, path, dir string, idle time.Duration) (took time.Duration, kib float64, err error) {
	seat, err := p.seat(ctx)
	if err != nil {
		return 0, 0, err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return 0, 0, err
	}
	id := seat.identity
	const ticketFD = 3
	cmd := exec.CommandContext(ctx, path, "--connect-url", seat.url, "--state-dir", dir, "--runner-id", id.RunnerInstanceID,
		"--environment-lease-id", id.EnvironmentLeaseID, "--run-id", id.RunID, "--session-id", id.NormalizedSessionID,
		"--turn-id", id.TurnID, "--item-id", id.ItemID, "--runner-version", runnerVersion, "--runner-digest", seat.digest,
		"--ticket-fd", strconv.Itoa(ticketFD))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.ExtraFiles = []*os.File{in}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, errors.Join(err, in.Close(), out.Close())
	}
	_, werr := out.WriteString(seat.ticket + "\n")
	err = errors.Join(werr, in.Close(), out.Close())
	select {
	case <-seat.joined:
		took = time.Since(begun)
	case <-time.After(10 * time.Second):
		err = errors.Join(err, errors.New("runnerd did not join within 10 s: "+stderr.String()))
	case <-ctx.Done():
		err = errors.Join(err, ctx.Err())
	}
	if err == nil && idle > 0 {
		timer := time.NewTimer(idle)
		<-timer.C
		kib, err = residentKiB(cmd.Process.Pid)
	}
	if serr := cmd.Process.Signal(syscall.SIGKILL); serr != nil {
		err = errors.Join(err, serr)
	}
	var exit *exec.ExitError
	if werr := cmd.Wait(); werr != nil && !errors.As(werr, &exit) {
		err = errors.Join(err, werr)
	}
	return took, kib, err
}

func residentKiB(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
		}
	}
	return 0, errors.New("no VmRSS in the status of the process")
}
