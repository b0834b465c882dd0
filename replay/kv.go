package replay

import (
	"bytes"
	"slices"
	"sort"
)

// Reader is the read side of the fold's store. Keys are compared as bytes.
type Reader interface {
	// Get returns the value under key, or ok == false. The caller must not
	// change the returned slice.
	Get(key []byte) (value []byte, ok bool, err error)
	// Iterate calls fn with every pair whose key has the prefix and is not
	// below from (nil = the first), in key order, until fn returns false. The
	// slices are valid during the call only, and fn must not write.
	Iterate(prefix, from []byte, fn func(key, value []byte) bool) error
}

// KV is what the fold runs on: Badger in production, memory in tests.
type KV interface {
	Reader
	Set(key, value []byte) error
	Delete(key []byte) error
}

// overlay collects writes over a base without touching it. The base may be nil
// (empty), which makes an overlay an in-memory store. Not safe for concurrent
// use.
type overlay struct {
	base   Reader
	writes map[string][]byte // nil value = deleted
	sorted []string          // the keys of writes, when !dirty
	fresh  []string          // keys of writes not yet in sorted
	bytes  int               // rough size of the writes
}

func newOverlay(base Reader) *overlay {
	return &overlay{base: base, writes: map[string][]byte{}}
}

// NewMemKV returns an empty in-memory KV, for tests and simulation.
func NewMemKV() KV { return newOverlay(nil) }

func (o *overlay) Get(key []byte) ([]byte, bool, error) {
	if v, ok := o.writes[string(key)]; ok {
		return v, v != nil, nil
	}
	if o.base == nil {
		return nil, false, nil
	}
	return o.base.Get(key)
}

func (o *overlay) put(key, value []byte) {
	k := string(key)
	if _, ok := o.writes[k]; !ok {
		o.fresh = append(o.fresh, k)
		o.bytes += len(k)
	}
	o.writes[k] = value
	o.bytes += len(value)
}

func (o *overlay) Set(key, value []byte) error {
	v := make([]byte, len(value)) // never nil: nil means deleted
	copy(v, value)
	o.put(key, v)
	return nil
}

func (o *overlay) Delete(key []byte) error {
	o.put(key, nil)
	return nil
}

// keys returns the written keys in order.
func (o *overlay) keys() []string {
	if len(o.fresh) > 0 {
		slices.Sort(o.fresh)
		merged := make([]string, 0, len(o.sorted)+len(o.fresh))
		i, j := 0, 0
		for i < len(o.sorted) && j < len(o.fresh) {
			if o.sorted[i] < o.fresh[j] {
				merged = append(merged, o.sorted[i])
				i++
			} else {
				merged = append(merged, o.fresh[j])
				j++
			}
		}
		merged = append(merged, o.sorted[i:]...)
		o.sorted = append(merged, o.fresh[j:]...)
		o.fresh = o.fresh[:0]
	}
	return o.sorted
}

func (o *overlay) Iterate(prefix, from []byte, fn func(key, value []byte) bool) error {
	keys := o.keys()
	start := string(prefix)
	if bytes.Compare(from, prefix) > 0 {
		start = string(from)
	}
	i := sort.SearchStrings(keys, start)
	in := func() bool { return i < len(keys) && bytes.HasPrefix([]byte(keys[i]), prefix) }
	// own yields overlay pairs below limit (nil = all that remain).
	own := func(limit []byte) bool {
		for in() && (limit == nil || keys[i] < string(limit)) {
			v := o.writes[keys[i]]
			if v != nil && !fn([]byte(keys[i]), v) {
				return false
			}
			i++
		}
		return true
	}
	if o.base != nil {
		stopped := false
		err := o.base.Iterate(prefix, from, func(k, v []byte) bool {
			if !own(k) {
				stopped = true
				return false
			}
			if in() && keys[i] == string(k) {
				own := o.writes[keys[i]]
				i++
				if own == nil {
					return true
				}
				v = own
			}
			if !fn(k, v) {
				stopped = true
				return false
			}
			return true
		})
		if err != nil || stopped {
			return err
		}
	}
	own(nil)
	return nil
}
