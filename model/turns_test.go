package model

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// slowBackend's passes take a second each; joint ones too.
type slowBackend struct {
	Backend
	mu    sync.Mutex
	joins bool
	log   []string // who passed, together in one entry
	busy  int
}

type slowTrainer struct {
	Trainer
	b    *slowBackend
	name string
}

func (b *slowBackend) NewTrainer(c TrainerConfig) (Trainer, error) {
	return &slowTrainer{b: b, name: string(c.LoRA.Targets[0])}, nil
}

func (b *slowBackend) pass(name string) {
	b.mu.Lock()
	if b.busy++; b.busy > 1 && !b.joins {
		panic("two passes at once")
	}
	b.log = append(b.log, name)
	b.mu.Unlock()
	time.Sleep(time.Second)
	b.mu.Lock()
	b.busy--
	b.mu.Unlock()
}

func (t *slowTrainer) Forward(ctx context.Context, _ []PrefixGroup, _ float64) (Scores, error) {
	if ctx.Err() == nil {
		t.b.pass("f" + t.name)
	}
	return Scores{}, ctx.Err()
}

func (t *slowTrainer) Backward(context.Context, Scores) error { t.b.pass("b" + t.name); return nil }
func (t *slowTrainer) Close() error                           { return nil }

// joining is a slowBackend that joins.
type joining struct {
	*slowBackend
	sets [][]string
}

func (j *joining) Together(calls []JointCall) []error {
	var names []string
	var wg sync.WaitGroup
	errs := make([]error, len(calls))
	for i, c := range calls {
		names = append(names, c.Trainer.(*slowTrainer).name)
		wg.Go(func() { errs[i] = c.Do() })
	}
	j.sets = append(j.sets, names)
	wg.Wait()
	return errs
}

func turnsTrainer(t *testing.T, s *Turns, name string, weight float64) Trainer {
	tr, err := s.User(weight).NewTrainer(TrainerConfig{LoRA: LoRAConfig{Targets: []string{name}}})
	require.NoError(t, err)
	return tr
}

func tokens(n int) []PrefixGroup { return []PrefixGroup{{Prompt: make([]int32, n)}} }

// Without a Joiner one trainer passes at a time, in proportion to the weights,
// however eager one of them is.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBackend{}
		s := NewTurns(b, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 40500*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		count := map[string]*int{}
		for name, weight := range map[string]float64{"a": 1, "b": 1, "c": 2} {
			tr, n := turnsTrainer(t, s, name, weight), new(int)
			count[name] = n
			wg.Go(func() {
				for {
					if _, err := tr.Forward(ctx, tokens(100), 1); err != nil {
						return
					}
					*n++
				}
			})
		}
		wg.Wait()
		require.InDelta(t, 10, *count["a"], 1)
		require.InDelta(t, 10, *count["b"], 1)
		require.InDelta(t, 20, *count["c"], 1)
	})
}

// What waits is done together as far as it fits, and partners are waited for a
// moment, so that they stay together; one that does not come back holds nobody up.
func TestTurnsJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &joining{slowBackend: &slowBackend{joins: true}}
		s := NewTurns(b, 250)
		var wg sync.WaitGroup
		loop := func(name string, passes, n int, loss time.Duration) {
			tr := turnsTrainer(t, s, name, 1)
			wg.Go(func() {
				for range passes {
					_, err := tr.Forward(t.Context(), tokens(n), 1)
					require.NoError(t, err)
					time.Sleep(loss)
					require.NoError(t, tr.Backward(t.Context(), Scores{}))
				}
			})
		}
		blocker := turnsTrainer(t, s, "blocker", 1)
		wg.Go(func() { _, _ = blocker.Forward(t.Context(), tokens(250), 1) })
		synctest.Wait()
		loop("a", 3, 100, 5*time.Millisecond)
		loop("b", 2, 100, 20*time.Millisecond)
		start := time.Now()
		wg.Wait()
		require.Len(t, b.sets, 4, "two rounds of a and b together")
		require.Less(t, time.Since(start), 7500*time.Millisecond)
	})
}

func TestTurnsEndWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBackend{}
		s := NewTurns(b, 0)
		first, second := turnsTrainer(t, s, "a", 1), turnsTrainer(t, s, "b", 1)
		go func() { _, _ = first.Forward(context.Background(), tokens(1), 1) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("stopped"))
		defer cancel()
		_, err := second.Forward(ctx, tokens(1), 1)
		require.ErrorContains(t, err, "waiting for the base model's turn: stopped")
		_, err = second.Forward(t.Context(), tokens(1), 1)
		require.NoError(t, err)
		require.Equal(t, []string{"fa", "fb"}, b.log)
		require.NoError(t, second.Close())
	})
}
