package project

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/skein-rl/skein/model"
)

// bases are the base models of one process: however many runs stand on one, its
// weights are on the device once. Safe for concurrent use.
type bases struct {
	mu    sync.Mutex
	open  map[string]*base
	limit int // largest memory limit asked for, MB
}

// base is one of them.
type base struct {
	of      *bases
	key     string
	model   *model.Model
	backend model.Backend
	users   int
}

func newBases() *bases { return &bases{open: map[string]*base{}} }

// take opens what a configuration names, or shares what is open. Give it back
// with base.release.
func (b *bases) take(c Config, log *slog.Logger) (*base, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.MemoryLimitMB > b.limit {
		b.limit = c.MemoryLimitMB
		debug.SetMemoryLimit(int64(c.MemoryLimitMB) << 20)
	}
	m, err := OpenModel(c.Model)
	if err != nil {
		return nil, err
	}
	key := baseKey(c, m.Digest)
	if x := b.open[key]; x != nil {
		x.users++
		return x, m.Close()
	}
	backend, err := OpenBackend(c, m, log)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	x := &base{of: b, key: key, model: m, backend: backend, users: 1}
	b.open[key] = x
	return x, nil
}

// baseKey is equal for configurations that can share a base: same weights, same
// arithmetic. On a device of XLA the number of threads is part of that.
func baseKey(c Config, digest string) string {
	key := fmt.Sprintf("%s %s %s", digest, c.Backend, c.Dtype)
	if c.Backend != "go" {
		key += fmt.Sprintf(" %d %v %d", c.Devices, c.ShardBase, c.Threads)
	}
	return key
}

// retain counts one more user.
func (x *base) retain() *base {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.users++
	return x
}

// release gives the base back; the last one closes it.
func (x *base) release() error {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if x.users--; x.users > 0 {
		return nil
	}
	delete(x.of.open, x.key)
	return errors.Join(x.backend.Close(), x.model.Close())
}
