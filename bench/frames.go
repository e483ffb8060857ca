package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	cryptoprp "bowline/crypto/prp"
	"bowline/wire/prp"
)

//go:embed frames.mjs
var nodeScript []byte

// The ticket, challenge and keys of prp.md, appendix A: with them Node seals
// the very bytes we seal.
const (
	frameTicket    = "bootstrap_00000000-0000-4000-8000-000000000001"
	frameSessionID = "sha256:db4d126e0a4db3c1577ca48129965ad3d97d1f0039edca83c3774218187135f5"
	frameClientKey = "c5546cddc443bb012e7285bcaa1136a2fb3f2eb3e18c82f577cc3253ec79b86d"
)

const frameTurn = 400 * time.Millisecond

func frameChallenge() []byte {
	return []byte(`{"clientNonce":"client-nonce","credentialExpiresAt":"2026-01-01T00:00:05.000Z",` +
		`"credentialExpiresAtUnixMs":1767225605000,"credentialId":"` + cryptoprp.CredentialID(frameTicket) +
		`","credentialKind":"bootstrap","credentialLeaseId":null,"environmentLeaseId":"lease-1","itemId":"item-1",` +
		`"normalizedSessionId":"session-1","revocationEpoch":0,"runId":"run-1","runnerDigest":"sha256:` +
		strings.Repeat("a", 64) + `","runnerInstanceId":"runner-1","runnerVersion":"0.3.0","selectedVersion":1,` +
		`"serverNonce":"00000000-0000-4000-8000-000000000002","turnId":"turn-1"}`)
}

// channels makes both ends of a connection.
func channels() (runner, authority *prp.Channel, err error) {
	key := cryptoprp.DeriveAuthKey(frameTicket)
	server, client := cryptoprp.NewServerHandshake(key, frameChallenge()), cryptoprp.NewClientHandshake(key, frameChallenge())
	proof, err := client.Verify(server.Proof())
	if err != nil {
		return nil, nil, err
	}
	s, err := server.Finish(proof)
	if err != nil {
		return nil, nil, err
	}
	return prp.NewChannel(prp.RoleRunner, client.Finish(), prp.MaxFrameBytes), prp.NewChannel(prp.RoleAuthority, s, prp.MaxFrameBytes), nil
}

// framePlain is the same text as in the script.
func framePlain(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(32 + i%95)
	}
	return b
}

func framesPart(ctx context.Context, t *table, dir, _ string) error {
	node, err := exec.LookPath("node")
	if err != nil {
		t.head("PRP frames: NOT COMPARED, node is not on PATH")
	} else {
		t.head("PRP frames: seal, encode, parse, open; one core, associated data of 121 B")
	}
	script := filepath.Join(dir, "frames.mjs")
	if err := os.WriteFile(script, nodeScript, 0o600); err != nil {
		return err
	}
	t.row("plaintext", "ours MB/s", "Node MB/s", "ratio", "spread of ours", "allocations a frame", "budget", "")
	for _, size := range []int{256, 1 << 10, 16 << 10} {
		var our, theirs []float64
		for range rounds {
			rate, err := ourFrames(ctx, size)
			if err != nil {
				return err
			}
			our = append(our, rate)
			if node == "" {
				continue
			}
			if rate, err = nodeFrames(ctx, node, script, size); err != nil {
				return err
			}
			theirs = append(theirs, rate)
		}
		allocs, err := frameAllocs(size)
		if err != nil {
			return err
		}
		budget, says, ratio := "", "", "-"
		if node != "" {
			r := median(our) / median(theirs)
			ratio = fmt.Sprintf("%.1f", r)
			switch size {
			case 1 << 10:
				budget, says = "≥ 6, 0 allocations", verdict(r, 6, true)
			case 16 << 10:
				budget, says = "≥ 3, 0 allocations", verdict(r, 3, true)
			}
		}
		if allocs > 0 {
			says = "BEHIND: allocates"
		}
		mbs := func(perSecond []float64) string {
			if len(perSecond) == 0 {
				return "-"
			}
			return fmt.Sprintf("%.0f", median(perSecond)*float64(size)/1e6)
		}
		t.row(fmt.Sprintf("%d B", size), mbs(our), mbs(theirs), ratio, fmt.Sprintf("%.2f", spread(our)), fmt.Sprintf("%.0f", allocs), budget, says)
	}
	return nil
}

// ourFrames gives frames per second.
func ourFrames(ctx context.Context, size int) (float64, error) {
	runner, authority, err := channels()
	if err != nil {
		return 0, err
	}
	plain := framePlain(size)
	var frame []byte
	loop := func(d time.Duration) (float64, error) {
		start, frames := time.Now(), 0
		for time.Since(start) < d && ctx.Err() == nil {
			for range 16 {
				if frame, err = runner.Seal(frame[:0], plain); err != nil {
					return 0, err
				}
				got, err := authority.Open(frame)
				if err != nil {
					return 0, err
				}
				if len(got) != size {
					return 0, fmt.Errorf("opened %d bytes of %d", len(got), size)
				}
				frames++
			}
		}
		return float64(frames) / time.Since(start).Seconds(), ctx.Err()
	}
	if _, err := loop(frameTurn / 2); err != nil { // warm-up, as the script does
		return 0, err
	}
	return loop(frameTurn)
}

// nodeFrames gives Node's frames per second, after its first frame was found
// to be ours byte for byte and to open here.
func nodeFrames(ctx context.Context, node, script string, size int) (float64, error) {
	cmd := exec.CommandContext(ctx, node, script, frameClientKey, frameSessionID, strconv.Itoa(size), fmt.Sprint(frameTurn.Seconds()))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("node: %w", err)
	}
	var said struct {
		First     string
		PerSecond float64
	}
	if err := json.Unmarshal(out, &said); err != nil {
		return 0, fmt.Errorf("node said %q: %w", out, err)
	}
	runner, authority, err := channels()
	if err != nil {
		return 0, err
	}
	want, err := runner.Seal(nil, framePlain(size))
	if err != nil {
		return 0, err
	}
	if said.First != string(want) {
		return 0, fmt.Errorf("node's frame of %d bytes differs from ours of %d", len(said.First), len(want))
	}
	got, err := authority.Open([]byte(said.First))
	if err != nil || !bytes.Equal(got, framePlain(size)) {
		return 0, fmt.Errorf("node's frame does not open: %w", err)
	}
	return said.PerSecond, nil
}

func frameAllocs(size int) (float64, error) {
	runner, authority, err := channels()
	if err != nil {
		return 0, err
	}
	plain := framePlain(size)
	var frame []byte
	allocs := testing.AllocsPerRun(200, func() {
		var e error
		if frame, e = runner.Seal(frame[:0], plain); e == nil {
			_, e = authority.Open(frame)
		}
		if e != nil {
			err = e
		}
	})
	return allocs, err
}
