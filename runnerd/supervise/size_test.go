//go:build !race

package supervise_test

// largeOutput is how much the test of a large output writes, in bytes.
const largeOutput = 100 << 20
