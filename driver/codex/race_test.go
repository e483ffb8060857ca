//go:build race

package codex_test

// fakeBig is less with the race detector, under which every byte of JSON costs
// some ten times as much.
const fakeBig = 3 << 20
