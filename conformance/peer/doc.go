// Package peer is a second, independent implementation of the
// "paperclip.runner" protocol (PRP) for tests. It was written from the protocol
// document alone, shares no code with the product and imports none of it, so
// that the two can disagree.
//
// It plays both roles. [Runner] dials an authority and [Authority] listens for
// a runner. Both speak through [Sock], a WebSocket endpoint on a raw
// connection that can also send everything a correct endpoint never sends:
// unmasked or fragmented frames, reserved bits, wrong lengths, wrong counters,
// wrong keys. What is received is checked strictly: a server that sends a close
// frame, an envelope with a member too many or a gap in the counters is
// reported as a [Violation], not tolerated.
//
// A value of any type here is used by one goroutine at a time, except
// [Authority], whose listener feeds accepted connections through a channel.
// Section numbers in comments are those of prp.md.
package peer
