package rollout

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/skein-rl/skein/model"
)

// policyPlace is the policy adapter's place in the decoder.
const policyPlace = 1

// binding is one adapter that requests can name: the policy, that of a run, or a
// loaded one.
// The goroutine owns it; others read stats and gone under the engine's lock.
type binding struct {
	name    string
	home    int // its place in the decoder
	place   int // home, or 0 = the base without adapter
	version uint64
	epoch   uint64 // names the weights; every swap gives a new one
	gone    bool   // unloaded
	counts  AdapterStats
	stats   AdapterStats // published
}

func (b *binding) publish() {
	b.stats = b.counts
	b.stats.Name, b.stats.Version = b.name, b.version
}

// SetPolicy implements Engine: it returns once later tokens are sampled under
// the new policy. On an error (an adapter that does not fit) the old policy
// stays.
func (e *LocalEngine) SetPolicy(version uint64, adapter *model.Adapter) error {
	return e.do(func() error { return e.setPolicy(e.policy, version, adapter) })
}

func (e *LocalEngine) setPolicy(b *binding, version uint64, adapter *model.Adapter) error {
	if err := e.dec.SetAdapter(b.home, adapter); err != nil {
		return fmt.Errorf("engine: set policy version %d: %w", version, err)
	}
	place := b.home
	if adapter == nil {
		place = 0
	}
	e.install(b, place, version)
	return nil
}

// Version implements Engine.
func (e *LocalEngine) Version() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.policy.stats.Version
}

// LoadAdapter makes an adapter available by name beside the policy, for
// GenerateRequest.Adapter; under a loaded name it replaces that adapter, in
// flight. The version that tokens record counts the adapters set since the
// engine started; the call returns it. Errors: ErrAdapterPlaces; an adapter that
// does not fit (what was loaded stays).
func (e *LocalEngine) LoadAdapter(name string, adapter *model.Adapter) (version uint64, err error) {
	if name == "" || adapter == nil {
		return 0, errors.New("engine: load adapter: give a name and an adapter; the policy is SetPolicy's")
	}
	err = e.do(func() error {
		b := e.named[name] // only this goroutine writes the map
		if b == nil {
			home, err := e.freePlace()
			if err != nil {
				return err
			}
			b = &binding{name: name, home: home}
		}
		if err := e.dec.SetAdapter(b.home, adapter); err != nil {
			return fmt.Errorf("engine: load adapter %q: %w", name, err)
		}
		version = e.sched.counts.Swaps + 1
		e.install(b, b.home, version)
		return nil
	})
	return version, err
}

// UnloadAdapter forgets a named adapter and its caches. Requests for it, running
// or waiting, fail with ErrNoAdapter.
func (e *LocalEngine) UnloadAdapter(name string) error {
	return e.do(func() error {
		e.mu.Lock()
		b, err := e.lookup(name)
		e.mu.Unlock()
		if err != nil {
			return err
		}
		if b == e.policy {
			return errors.New("engine: unload adapter: give a name; the policy is SetPolicy's")
		}
		if err := e.dec.SetAdapter(b.home, nil); err != nil {
			return fmt.Errorf("engine: unload adapter %q: %w", name, err)
		}
		e.mu.Lock()
		b.gone = true
		delete(e.named, name)
		e.mu.Unlock()
		return nil
	})
}

// Adapters lists the named adapters loaded now.
func (e *LocalEngine) Adapters() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.named))
}

// install puts new weights behind a binding, on the engine's goroutine.
func (e *LocalEngine) install(b *binding, place int, version uint64) {
	e.sched.counts.Swaps++
	e.sched.renew(b, e.cfg.OnSwap)
	e.mu.Lock()
	defer e.mu.Unlock()
	b.place, b.version = place, version
	if b != e.policy {
		e.named[b.name] = b
	}
	e.publish()
}

// freePlace is a place of the decoder that nobody has.
func (e *LocalEngine) freePlace() (int, error) {
	for place := policyPlace + 1; place <= e.cfg.Adapters; place++ {
		taken := false
		for _, b := range e.named {
			taken = taken || b.home == place
		}
		if !taken {
			return place, nil
		}
	}
	return 0, fmt.Errorf("%w: %d of %d are taken, the policy's included; unload one or raise EngineConfig.Adapters", ErrAdapterPlaces, e.cfg.Adapters, e.cfg.Adapters)
}

// lookup finds a binding by name, "" being the policy. The caller holds the
// lock.
func (e *LocalEngine) lookup(name string) (*binding, error) {
	if name == "" {
		return e.policy, nil
	}
	if b := e.named[name]; b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("%w: %q; loaded are: %s", ErrNoAdapter, name, strings.Join(slices.Sorted(maps.Keys(e.named)), ", "))
}
