// Package canonjson is JSON with JavaScript's semantics, because both ends of
// "paperclip.runner" sign, hash and compare JSON text that a JavaScript engine
// could have written (prp.md 3.9, appendix B).
//
// # What it promises
//
//   - [Parse] accepts exactly what JSON.parse accepts: the last of several equal
//     keys wins, __proto__ is a key like any other, numbers are IEEE doubles
//     (1e999 is infinite), nothing but white space may follow the value. Bytes
//     that are not UTF-8 become U+FFFD as TextDecoder does it. A lone surrogate
//     escape is kept: a Go string of this package is WTF-8, so U+D83C alone is
//     the three bytes ED A0 BC.
//   - [Value.AppendJSON] writes what JSON.stringify writes: members in the order
//     JavaScript enumerates them, numbers in ECMAScript's shortest form, only
//     `"`, `\`, control characters and lone surrogates escaped.
//   - [Canonical] writes the same with keys sorted by UTF-16 code units, inside
//     the limits [MaxDepth] and [MaxNodes]; [CanonicalUnlimited] without them.
//
// The only difference to JSON.parse is [MaxParseDepth]: deeper text is refused,
// so that no peer can exhaust our stack.
//
// # Concurrency
//
// A [Value] is immutable except through [Value.Set] and [Value.Delete] on an
// object; like a map, it may be read by many goroutines as long as none writes.
package canonjson
