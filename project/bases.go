package project

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/skein-rl/skein/model"
)

// bases are the base models of one process: however many runs stand on one, its
// files are read and its weights are on the device once. Safe for concurrent use.
type bases struct {
	// many makes the runs share engines and take turns in training.
	many  bool
	likes []Config // all of them on rollouts, so that an engine suits each
	runs  int      // that train at once; 0 = 1
	// remote, when set, generates: no weights are put on a device here.
	remote *servers

	mu       sync.Mutex
	models   map[string]*shared[*model.Model] // by the name in configurations
	backends map[string]*base                 // by baseKey
	limit    int                              // largest memory limit asked for, MB
}

// shared is what several runs use.
type shared[T any] struct {
	it    T
	users int
}

func newBases() *bases {
	return &bases{models: map[string]*shared[*model.Model]{}, backends: map[string]*base{}}
}

// model opens a model by its name in a configuration, or shares it.
func (b *bases) model(name string) (*model.Model, func() error, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.models[name]
	if x == nil {
		m, err := OpenModel(name)
		if err != nil {
			return nil, nil, err
		}
		x = &shared[*model.Model]{it: m}
		b.models[name] = x
	}
	x.users++
	return x.it, sync.OnceValue(func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if x.users--; x.users > 0 {
			return nil
		}
		delete(b.models, name)
		return x.it.Close()
	}), nil
}

// base is a base model on its device, as the runs on it have it.
type base struct {
	of            *bases
	key           string
	model.Backend // nil: a server generates
	turns         *model.Turns
	model         *model.Model // for its facts; it may be closed

	users   int
	engines []*engine
}

// bound sets the process's memory limit to the largest of its runs'.
func (b *bases) bound(c Config) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.MemoryLimitMB > b.limit {
		b.limit = c.MemoryLimitMB
		debug.SetMemoryLimit(int64(c.MemoryLimitMB) << 20)
	}
}

// backend puts the model of a configuration on its device, or shares it. Give it
// back with release.
func (b *bases) backend(c Config, m *model.Model, log *slog.Logger) (*base, error) {
	b.bound(c)
	b.mu.Lock()
	defer b.mu.Unlock()
	key := baseKey(c, m.Digest)
	x := b.backends[key]
	if x == nil {
		x = &base{of: b, key: key, model: m}
		if b.remote == nil {
			be, err := openBackend(c, m, log, b.runs)
			if err != nil {
				return nil, err
			}
			x.Backend, x.turns = be, model.NewTurns(be, 0)
		}
		b.backends[key] = x
	}
	x.users++
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
	delete(x.of.backends, x.key)
	if x.Backend == nil {
		return nil
	}
	return x.Backend.Close()
}

// user is the backend as one run trains on it.
func (x *base) user(share float64) model.Backend {
	if x.of.many {
		return x.turns.User(share)
	}
	return x.Backend
}
