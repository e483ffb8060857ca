//go:build !race

package codex_test

// fakeBig is the length of a long line, in bytes.
const fakeBig = 23 << 20
