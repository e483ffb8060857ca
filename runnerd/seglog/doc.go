// Package seglog is an append-only log of opaque records in segment files: the
// durable memory of one session on a runner.
//
// # What it promises
//
//   - When [Pending.Wait] has returned nil, the records are on the disk: their
//     segment was written and fdatasync has returned.
//   - Records come back in the order they were enqueued, byte for byte.
//   - A write that was torn by a crash is cut away at the next [Open]; nothing
//     that was reported durable is in it.
//   - A record that was durable and has changed since is [wire.CodeLogDamaged],
//     with segment and offset; the log is not opened and nothing is altered.
//   - Concurrent writers share a sync: whatever waits when a write begins goes
//     out as one commit.
//
// One record is the unit of atomicity: what belongs together (an event and the
// provider state that explains it) is put into one record.
//
// # Byte layouts
//
// All integers are little-endian. A segment is the file NNNNNNNNNNNNNNNN.seg
// (16 hex digits, from 1), mode 0600, in a directory of mode 0700. It is
// preallocated and reads as zeros where nothing was written.
//
//	segment  = header record* zero*
//	header   = "BOWSEG01"  number u64  firstRecord u64  crc u32  reserved u32    (32 bytes)
//	record   = length u32  crc u32  commit u64  sha256 [32]  bytes  filler        (48 bytes + bytes + 0..7)
//
// The header's crc is CRC-32C of its first 24 bytes. A record's crc is CRC-32C
// of length, commit and sha256; sha256 is of the bytes. The filler (0xA5) makes
// the record a multiple of 8 bytes long, so no piece of a record in a disk
// sector is shorter than 8 bytes. commit numbers the sync that made the record
// durable: commit n+1 is written only after commit n was synced.
//
// # Torn or damaged
//
// Both show as a record that fails a checksum. It was torn if it belongs to the
// last commit, which may never have been synced, and if some 512-byte sector of
// it still reads as zeros, which is how preallocated space reads that was never
// written. It is damaged if a record of a later commit follows it, or if every
// sector of it was written: then something changed it afterwards. The one case
// this cannot tell apart is a sector of the last commit that was lost to zeros
// after its sync.
//
// # Concurrency
//
// All methods may be called from any goroutine. Each log owns one goroutine,
// which ends with [Log.Close].
package seglog
