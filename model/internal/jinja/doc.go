// Package jinja renders chat templates as transformers does: jinja2's immutable
// sandbox with trim_blocks, lstrip_blocks, loop controls and the generation
// tag, printing values as Python prints them.
//
// A template is untrusted: it comes with a model. Nothing it says reaches a
// file, the network or the environment (include, import and extends are refused
// at compile time), and a rendering ends with an error when it takes more than
// Limits allows: steps, bytes made, bytes written, depth. Integers are 64 bits
// wide; a result beyond that is an error, never a wrapped number.
//
// Values are Go values: nil (None), bool, int64, float64, string, *List (list or
// tuple), *Dict (ordered). DecodeJSON makes them from JSON.
package jinja
