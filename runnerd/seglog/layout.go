package seglog

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

const (
	segmentMagic = "BOWSEG01"
	headerSize   = 32
	recordHead   = 48
	alignment    = 8
	sectorSize   = 512 // what a disk writes wholly or not at all
	fillerByte   = 0xA5
	suffix       = ".seg"

	// MaxRecord is the longest record in bytes (ours: above any event, command
	// result or provider state; it bounds what a damaged length can make us read).
	MaxRecord = 32 << 20
)

func castagnoli(parts ...[]byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli) // cached by the package
	var sum uint32
	for _, p := range parts {
		sum = crc32.Update(sum, table, p)
	}
	return sum
}

func segmentName(number uint64) string { return fmt.Sprintf("%016x%s", number, suffix) }

func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || n == 0 || segmentName(n) != name {
		return 0, false
	}
	return n, true
}

func putHeader(number, firstRecord uint64) []byte {
	b := make([]byte, headerSize)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint64(b[8:], number)
	binary.LittleEndian.PutUint64(b[16:], firstRecord)
	binary.LittleEndian.PutUint32(b[24:], castagnoli(b[:24]))
	return b
}

func parseHeader(b []byte) (number, firstRecord uint64, ok bool) {
	if string(b[:8]) != segmentMagic || binary.LittleEndian.Uint32(b[24:]) != castagnoli(b[:24]) ||
		binary.LittleEndian.Uint32(b[28:]) != 0 {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), true
}

// span is the length a record of n bytes takes.
func span(n int) int { return (recordHead + n + alignment - 1) &^ (alignment - 1) }

func appendRecord(dst []byte, commit uint64, data []byte) []byte {
	start := len(dst)
	var head [recordHead]byte
	binary.LittleEndian.PutUint32(head[0:], uint32(len(data))) //nolint:gosec // G115: at most MaxRecord
	binary.LittleEndian.PutUint64(head[8:], commit)
	sum := sha256.Sum256(data)
	copy(head[16:], sum[:])
	binary.LittleEndian.PutUint32(head[4:], castagnoli(head[0:4], head[8:]))
	dst = append(dst, head[:]...)
	dst = append(dst, data...)
	for len(dst)-start < span(len(data)) {
		dst = append(dst, fillerByte)
	}
	return dst
}

type recordHeader struct {
	length int
	commit uint64
	digest [sha256.Size]byte
}

// parseRecordHead gives the header if its checksum and length are right.
func parseRecordHead(b []byte) (h recordHeader, ok bool) {
	if binary.LittleEndian.Uint32(b[4:]) != castagnoli(b[0:4], b[8:recordHead]) {
		return h, false
	}
	length := binary.LittleEndian.Uint32(b)
	if length > MaxRecord {
		return h, false
	}
	h.length = int(length)
	h.commit = binary.LittleEndian.Uint64(b[8:])
	copy(h.digest[:], b[16:])
	return h, true
}

// allZero tells whether nothing was ever written to b.
func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// hasUnwrittenSector tells whether b, which lies at offset of a segment, has a
// piece within one sector that still reads as zeros.
func hasUnwrittenSector(b []byte, offset int64) bool {
	for len(b) > 0 {
		n := min(sectorSize-int(offset%sectorSize), len(b))
		if allZero(b[:n]) {
			return true
		}
		b, offset = b[n:], offset+int64(n)
	}
	return false
}
