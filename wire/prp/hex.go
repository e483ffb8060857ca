package prp

import "encoding/binary"

// Hex is where a frame's time goes, so eight digits are worked on at once, each
// in its own byte of a word. No sum below can carry into the next byte.

const (
	everyByte = 0x0101010101010101
	lowNibble = 0x0F * everyByte
	lanes     = 0x00FF00FF00FF00FF // the low byte of every pair
	// letterGap is how far 'a' lies behind where ':' would be, the next
	// character after '9'.
	letterGap = 'a' - '9' - 1
)

// digitsOf gives the lower-case digit of every byte, each of which is at most 24.
func digitsOf(nibbles uint64) uint64 {
	isLetter := (nibbles + 6*everyByte) >> 4 & everyByte
	return nibbles + '0'*everyByte + isLetter*letterGap
}

// spread replaces b, whose second half holds bytes, by their hex. It works from
// the front: what is written never reaches what is still to be read.
func spread(b []byte) {
	half := b[len(b)/2:]
	i := 0
	for ; i+4 <= len(half); i += 4 {
		v := uint64(binary.LittleEndian.Uint32(half[i:]))
		v = (v | v<<16) & 0x0000FFFF0000FFFF
		v = (v | v<<8) & lanes
		// The high nibble is the first digit.
		binary.LittleEndian.PutUint64(b[2*i:], digitsOf((v>>4|v<<8)&lowNibble))
	}
	for ; i < len(half); i++ {
		c := uint64(half[i])
		binary.LittleEndian.PutUint16(b[2*i:], uint16(digitsOf(c>>4|(c&0x0F)<<8)))
	}
}

// decodeHex fills dst from twice as many digits and tells whether all were hex.
func decodeHex(dst, text []byte, upperToo bool) bool {
	var wrong uint64
	i := 0
	for ; i+4 <= len(dst); i += 4 {
		n, bad := nibblesOf(binary.LittleEndian.Uint64(text[2*i:]), upperToo)
		wrong |= bad
		v := (n<<4 | n>>8) & lanes
		v = (v | v>>8) & 0x0000FFFF0000FFFF
		binary.LittleEndian.PutUint32(dst[i:], uint32(v|v>>16))
	}
	for ; i < len(dst); i++ {
		// Two digits, filled up with zeroes.
		n, bad := nibblesOf(uint64(text[2*i])|uint64(text[2*i+1])<<8|'0'*(everyByte&^0xFFFF), upperToo)
		wrong |= bad
		dst[i] = byte(n<<4 | n>>8)
	}
	return wrong == 0
}

// nibblesOf gives the value of eight digits; bad is not 0 when one is no digit.
func nibblesOf(digits uint64, upperToo bool) (n, bad uint64) {
	n = digits&lowNibble + digits>>6&everyByte*9
	if upperToo {
		// Bit 6 marks a letter: its bit 5 makes it lower case.
		digits |= digits >> 1 & (0x20 * everyByte)
	}
	// Spelled out again they must be the same; that still lets 'g' and beyond
	// through, whose value does not fit a nibble.
	return n, digits ^ digitsOf(n) | n&^lowNibble
}
