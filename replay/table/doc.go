// Package table holds the parts of a replay table, one a file: the structures
// that choose what is sampled and what is removed (selectors), the rule that
// says when (limiters), and the configuration that joins them. The names and
// definitions are those of Reverb (Cassirer et al. 2021, "Reverb: A Framework
// For Experience Replay"); departures stand beside the part.
//
// Everything is a pure function over a key-value store: nothing reads a clock,
// and chance comes from a counter ([Draw]), so that replicas that apply the
// same commands hold the same bytes on every architecture. No operation scans:
// inserting, removing, updating and taking cost O(log n) keys.
//
// The fold in package replay decides what happens to a group; this package
// only keeps it findable.
package table

// Reader is the read side of the store. Keys are compared as bytes.
type Reader interface {
	// Get returns the value under key, or ok == false.
	Get(key []byte) (value []byte, ok bool, err error)
	// Iterate calls fn with every pair whose key has the prefix and is not
	// below from (nil = the first), in key order, until fn returns false. fn
	// must not write and must copy what it keeps.
	Iterate(prefix, from []byte, fn func(key, value []byte) bool) error
}

// KV is what selectors keep their structures in.
type KV interface {
	Reader
	Set(key, value []byte) error
	Delete(key []byte) error
}
