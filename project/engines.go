package project

import (
	"errors"
	"slices"

	"github.com/skein-rl/skein/rollout"
)

// runsPerEngine bounds the policies in one decoder: on XLA every row pays for all
// of them.
const runsPerEngine = 4

// engine is one decoder with the runs on it.
type engine struct {
	*rollout.LocalEngine
	shares *rollout.Shares
	runs   int
}

// seat gives a run a place on an engine of the base: one that has room, or a new
// one that would suit the likes on this base too. leave gives it back; the last run closes
// the engine.
func (x *base) seat(c Config, likes []Config) (at place, leave func() error, err error) {
	if x.of.remote != nil {
		return x.of.remote.seat(c, x.model)
	}
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	e, view, err := x.find(c, likes)
	if err != nil {
		return at, nil, err
	}
	e.runs++
	at = place{engine: view, members: membersOf(e.Slots()), seat: e.shares.Join(c.Share)}
	return at, func() error {
		at.seat.Leave()
		err := view.Close()
		x.of.mu.Lock()
		defer x.of.mu.Unlock()
		if e.runs--; e.runs > 0 {
			return err
		}
		for i, other := range x.engines {
			if other == e {
				x.engines = append(x.engines[:i:i], x.engines[i+1:]...)
			}
		}
		return errors.Join(err, e.Close())
	}, nil
}

func (x *base) find(c Config, likes []Config) (*engine, *rollout.RunEngine, error) {
	r := c.Rollout
	for _, e := range x.engines {
		if e.MaxLen() < r.MaxLen || e.OnSwap() != r.onSwap() {
			continue
		}
		view, err := e.ForRun(c.Run, r.MaxLen)
		if !errors.Is(err, rollout.ErrAdapterPlaces) {
			return e, view, err
		}
	}
	slots, maxLen := r.Slots, r.MaxLen
	for _, o := range slices.Concat(likes, x.of.likes) {
		if baseKey(o, o.Model) != baseKey(c, c.Model) {
			continue
		}
		slots, maxLen = max(slots, o.Rollout.Slots), max(maxLen, o.Rollout.MaxLen)
	}
	local, err := newEngine(x.Backend, rollout.EngineConfig{Slots: slots, MaxLen: maxLen, Adapters: 1 + runsPerEngine, OnSwap: r.onSwap()})
	if err != nil {
		return nil, nil, err
	}
	view, err := local.ForRun(c.Run, r.MaxLen)
	if err != nil {
		return nil, nil, errors.Join(err, local.Close())
	}
	e := &engine{LocalEngine: local, shares: rollout.NewShares(membersOf(slots))}
	x.engines = append(x.engines, e)
	return e, view, nil
}
