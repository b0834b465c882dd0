package replay

import (
	"bytes"
	"strings"
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
// use, and not to be written while it is iterated.
type overlay struct {
	base   Reader
	writes map[string][]byte // nil value = deleted
	sorted keySet            // of writes
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
		o.sorted.add(k)
	}
	o.writes[k] = value
}

func (o *overlay) Set(key, value []byte) error {
	v := make([]byte, len(value)) // never nil: nil means deleted
	copy(v, value)
	o.put(key, v)
	return nil
}

func (o *overlay) Delete(key []byte) error {
	if o.base == nil { // nothing to hide
		if _, ok := o.writes[string(key)]; ok {
			delete(o.writes, string(key))
			o.sorted.remove(string(key))
		}
		return nil
	}
	o.put(key, nil)
	return nil
}

// each calls fn with every write in key order, nil value = deleted.
func (o *overlay) each(fn func(key string, value []byte)) {
	for c := o.sorted.from(""); ; c.next() {
		k, ok := c.key()
		if !ok {
			return
		}
		fn(k, o.writes[k])
	}
}

func (o *overlay) Iterate(prefix, from []byte, fn func(key, value []byte) bool) error {
	start := prefix
	if bytes.Compare(from, prefix) > 0 {
		start = from
	}
	c := o.sorted.from(string(start))
	// own yields overlay pairs below limit (nil = all that remain) under the
	// prefix; false when fn has enough.
	own := func(limit []byte) bool {
		for {
			k, ok := c.key()
			if !ok || !strings.HasPrefix(k, string(prefix)) || limit != nil && k >= string(limit) {
				return true
			}
			v := o.writes[k]
			c.next()
			if v != nil && !fn([]byte(k), v) {
				return false
			}
		}
	}
	if o.base != nil {
		stopped := false
		err := o.base.Iterate(prefix, from, func(k, v []byte) bool {
			if !own(k) {
				stopped = true
				return false
			}
			if mine, ok := c.key(); ok && mine == string(k) {
				v = o.writes[mine]
				c.next()
				if v == nil {
					return true
				}
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
