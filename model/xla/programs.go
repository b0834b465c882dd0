//go:build xla

package xla

import (
	"errors"
	"sync"
)

// programCache holds a backend's compiled programs, shared by its decoders and
// trainers. Adapters and caches are inputs, so a program belongs to no one.
type programCache struct {
	mu sync.Mutex
	m  map[string]*cached
}

// cached compiles under its own lock: others' programs don't wait for it.
type cached struct {
	mu sync.Mutex
	p  interface{ close() error }
}

// compiled returns the program of a key, building it at first. A failed build is
// tried again at the next call.
func compiled[P interface{ close() error }](c *programCache, key string, build func() (P, error)) (P, error) {
	c.mu.Lock()
	if c.m == nil {
		c.m = map[string]*cached{}
	}
	e, ok := c.m[key]
	if !ok {
		e = &cached{}
		c.m[key] = e
	}
	c.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.p == nil {
		p, err := build()
		if err != nil {
			var none P
			return none, err
		}
		e.p = p
	}
	return e.p.(P), nil
}

// size is the number of programs held.
func (c *programCache) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.m)
}

func (c *programCache) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, e := range c.m {
		if e.p != nil {
			errs = append(errs, e.p.close())
		}
	}
	c.m = nil
	return errors.Join(errs...)
}

// stablehlo compiles an emitted program.
func (b *backend) stablehlo(key string, emit func(*emitter) []value) (*program, error) {
	return compiled(&b.programs, key, func() (*program, error) {
		e := b.dev.emitter()
		return b.dev.compile(key, e, emit(e))
	})
}
