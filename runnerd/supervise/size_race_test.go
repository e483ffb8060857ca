//go:build race

package supervise_test

// largeOutput is smaller under the race detector, which makes JSON slow.
const largeOutput = 8 << 20
