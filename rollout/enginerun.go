package rollout

import (
	"context"
	"errors"
	"fmt"

	"github.com/skein-rl/skein/model"
)

// RunEngine is the Engine of one run on a LocalEngine that serves several: it has
// its own policy with its own versions, at a place of its own in the decoder,
// while its requests share the batch with everybody's. What a request gives does
// not depend on the others.
type RunEngine struct {
	e      *LocalEngine
	name   string
	maxLen int
}

var _ Engine = (*RunEngine)(nil)

// ForRun reserves a place for a run's policy, which is version 0 of the base
// until SetPolicy. maxLen is the run's own context limit, at most the engine's.
// Errors: ErrAdapterPlaces; a name that is taken; a limit that does not fit. Close
// gives the place back.
func (e *LocalEngine) ForRun(name string, maxLen int) (*RunEngine, error) {
	if name == "" || maxLen < 2 || maxLen > e.cfg.MaxLen {
		return nil, fmt.Errorf("engine: run %q with a context of %d tokens: give a name, and 2 to %d", name, maxLen, e.cfg.MaxLen)
	}
	err := e.do(func() error {
		if e.named[name] != nil {
			return fmt.Errorf("engine: run %q: an adapter or run of that name is loaded", name)
		}
		home, err := e.freePlace()
		if err != nil {
			return err
		}
		e.install(&binding{name: name, home: home}, 0, 0)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &RunEngine{e: e, name: name, maxLen: maxLen}, nil
}

// Generate implements Engine. A request names no adapter: the run's policy is
// meant.
func (r *RunEngine) Generate(ctx context.Context, req GenerateRequest) (Generation, error) {
	if req.Adapter != "" {
		return Generation{}, fmt.Errorf("engine: run %q: adapter %q: a run's requests are for its policy", r.name, req.Adapter)
	}
	if room := r.maxLen - len(req.Prompt); req.MaxNew > room {
		return Generation{}, fmt.Errorf("%w: a prompt of %d tokens and %d new ones, limit %d of run %q; shorten the prompt, ask for fewer, or raise the context limit",
			ErrContextFull, len(req.Prompt), req.MaxNew, r.maxLen, r.name)
	}
	req.Adapter, req.Session = r.name, r.session(req.Session)
	return r.e.Generate(ctx, req)
}

// session keeps equal names of several runs apart.
func (r *RunEngine) session(name string) string {
	if name == "" {
		return ""
	}
	return r.name + "\x00" + name
}

// SetPolicy implements Engine.
func (r *RunEngine) SetPolicy(version uint64, adapter *model.Adapter) error {
	return r.e.do(func() error {
		b := r.e.named[r.name] // only this goroutine writes the map
		if b == nil {
			return fmt.Errorf("%w: run %q has left the engine", ErrNoAdapter, r.name)
		}
		return r.e.setPolicy(b, version, adapter)
	})
}

// Version implements Engine; 0 after Close.
func (r *RunEngine) Version() uint64 { return r.stats().Version }

// Stats is the engine's; what is sampled and what runs is the run's share.
func (r *RunEngine) Stats() EngineStats {
	s, own := r.e.Stats(), r.stats()
	s.Requests, s.Generated, s.Active, s.Adapters = own.Requests, own.Generated, own.Active, []AdapterStats{own}
	return s
}

func (r *RunEngine) stats() AdapterStats {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	if b := r.e.named[r.name]; b != nil {
		return b.stats
	}
	return AdapterStats{Name: r.name}
}

// EndSession implements Engine.
func (r *RunEngine) EndSession(session string) { r.e.EndSession(r.session(session)) }

// MaxLen implements Engine: the run's limit.
func (r *RunEngine) MaxLen() int { return r.maxLen }

// Close gives the run's place back; its requests fail with ErrNoAdapter. The
// engine goes on.
func (r *RunEngine) Close() error {
	if err := r.e.UnloadAdapter(r.name); !errors.Is(err, ErrEngineClosed) && !errors.Is(err, ErrNoAdapter) {
		return err
	}
	return nil
}
