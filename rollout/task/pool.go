package task

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/skein-rl/skein/rollout"
)

// Sized sources have so many different training tasks; their stream starts over
// after the last.
type Sized interface{ TrainSize() int }

// Graded sources declare how hard a training task is: a number that only its order
// among the others' has a meaning of.
type Graded interface {
	Difficulty(i uint64) (float64, error)
}

// Pool gives a source whose training tasks 0 to n-1 are the first n of src; with
// easiestFirst, in the order of their declared difficulty, equal ones as they
// stand. Held-out tasks stay as they are. Errors: src has fewer tasks, or declares
// no difficulty.
func Pool(src rollout.Source, n uint64, easiestFirst bool) (rollout.Source, error) {
	if s, ok := src.(Sized); ok && uint64(s.TrainSize()) < n {
		return nil, fmt.Errorf("task %s has %d training tasks, fewer than tasks %d; lower it", src.Name(), s.TrainSize(), n)
	}
	p := pool{Source: src, order: make([]uint64, n)}
	for i := range p.order {
		p.order[i] = uint64(i)
	}
	if !easiestFirst {
		return p, nil
	}
	graded, ok := src.(Graded)
	if !ok {
		return nil, fmt.Errorf("task %s declares no difficulty; use order stream", src.Name())
	}
	hard := make([]float64, n)
	for i := range hard {
		var err error
		if hard[i], err = graded.Difficulty(uint64(i)); err != nil {
			return nil, fmt.Errorf("task %s: difficulty of %d: %w", src.Name(), i, err)
		}
	}
	slices.SortStableFunc(p.order, func(a, b uint64) int { return cmp.Compare(hard[a], hard[b]) })
	return p, nil
}

type pool struct {
	rollout.Source
	order []uint64
}

// Identity implements Identified.
func (p pool) Identity() string { return Identity(p.Source) }

// Train implements rollout.Source; i counts from the easiest.
func (p pool) Train(i uint64) (rollout.Task, error) {
	if i >= uint64(len(p.order)) {
		return rollout.Task{}, fmt.Errorf("task %s: index %d of a pool of %d", p.Name(), i, len(p.order))
	}
	return p.Source.Train(p.order[i])
}
