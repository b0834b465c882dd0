package learner

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/loss"
	"github.com/skein-rl/skein/model"
)

func sftConfig() Config {
	c := DefaultSFTConfig()
	c.LearningRate, c.NumTrainEpochs, c.BatchTokens, c.LRSchedulerType = .2, 4, 12, "cosine"
	return c
}

func sftRows() []data.Example {
	var rows []data.Example
	for i := range 9 {
		rows = append(rows, data.Example{Prompt: []int32{1, int32(i % 3)}, Chosen: data.Completion{Tokens: []int32{3, 4, 5}, Weights: []float32{1, 0, 2}}})
	}
	return rows
}

func shuffled(rows []data.Example) *data.Set {
	return data.NewSet("demo", rows, data.Order{Shuffle: true})
}

func newSFT(t testing.TB, c Config, tr model.Trainer) *Learner {
	t.Helper()
	l, err := New(c, Identity{Base: base, Full: true, Dataset: DatasetOf(shuffled(sftRows()))}, tr, make([]float32, tr.Layout().Size()))
	require.NoError(t, err)
	return l
}

func TestSFTLearnsTrainedTokensOnly(t *testing.T) {
	b := newBandit(vocab)
	l := newSFT(t, sftConfig(), b)
	var losses []float64
	require.NoError(t, RunOffline(ctx, l, shuffled(sftRows()), OfflineOptions{OnStep: func(p OfflineStep) error {
		losses = append(losses, p.Metrics["loss"])
		require.Equal(t, uint64(len(losses)), p.Step)
		require.Equal(t, 2*p.Rows, p.Tokens)
		return nil
	}}))
	require.InDelta(t, math.Log(vocab), losses[0], 1e-5)
	require.Less(t, losses[len(losses)-1], .7*losses[0])
	require.Equal(t, uint64(4), l.epoch)
	p := l.Params()
	for j := range vocab {
		require.Zero(t, p[3*vocab+j], "token 4 after 3 has weight 0: row 3 never trained")
	}
	require.Greater(t, logSoftmax(p, vocab, 4, 1)[5], math.Log(1./vocab))
}

// cases/training.tsv loss-agg: the partition into micro-batches cannot change
// the result.
func TestCaseLossAggSFTPartition(t *testing.T) {
	var want []float32
	for _, budget := range []int{1, 7, 1000} {
		c := sftConfig()
		c.TokenBudget = budget
		l := newSFT(t, c, newBandit(vocab))
		require.NoError(t, RunOffline(ctx, l, shuffled(sftRows()), OfflineOptions{}))
		if want == nil {
			want = l.Params()
		}
		for i, x := range l.Params() {
			require.InDelta(t, want[i], x, 1e-5)
		}
	}
}

func TestSFTStopsSavesAndResumesWithTheSameNumbers(t *testing.T) {
	set := shuffled(sftRows())
	straight := newSFT(t, sftConfig(), newBandit(vocab))
	var order []float64
	require.NoError(t, RunOffline(ctx, straight, set, OfflineOptions{OnStep: func(p OfflineStep) error { order = append(order, p.Metrics["loss"]); return nil }}))

	dir := t.TempDir()
	cctx, cancel := context.WithCancel(ctx)
	l := newSFT(t, sftConfig(), newBandit(vocab))
	var got []float64
	err := RunOffline(cctx, l, set, OfflineOptions{Dir: dir, OnStep: func(p OfflineStep) error {
		if got = append(got, p.Metrics["loss"]); p.Step == 7 { // inside an epoch
			cancel()
		}
		return nil
	}})
	require.ErrorIs(t, err, context.Canceled)
	ck, err := LoadLatest(dir, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(7), ck.Step)
	require.NotZero(t, ck.Cursor)

	c := sftConfig()
	c.SaveSteps = 2
	l = newSFT(t, c, newBandit(vocab))
	require.NoError(t, l.Restore(ck))
	require.NoError(t, RunOffline(ctx, l, set, OfflineOptions{Dir: dir, OnStep: func(p OfflineStep) error { got = append(got, p.Metrics["loss"]); return nil }}))
	require.Equal(t, order, got)
	require.Equal(t, straight.Params(), l.Params())

	// another seed would make another order: refused in the middle of an epoch
	c.Seed = 9
	require.ErrorContains(t, newSFT(t, c, newBandit(vocab)).Restore(ck), "keep the seed")
	// and so is another dataset (cases/training.tsv resume)
	other, err := New(sftConfig(), Identity{Base: base, Full: true, Dataset: DatasetOf(shuffled(sftRows()[:4]))}, newBandit(vocab), make([]float32, vocab*vocab))
	require.NoError(t, err)
	require.ErrorContains(t, other.Restore(ck), "dataset digest")
}

func TestSFTEpochSeesEveryRowOnce(t *testing.T) {
	set := shuffled(sftRows())
	c := sftConfig()
	for epoch := range uint64(3) {
		order := set.Epoch(c.Seed, epoch)
		seen := map[int]bool{}
		for len(order) > 0 {
			b := cutBatch(c, set.Rows(), order)
			require.Len(t, b, min(2, len(order)))
			for _, i := range b {
				require.False(t, seen[i])
				seen[i] = true
			}
			order = order[len(b):]
		}
		require.Len(t, seen, 9)
	}
	require.NotEqual(t, set.Epoch(c.Seed, 0), set.Epoch(c.Seed, 1))
	require.Equal(t, uint64(20), offlineSteps(c, set))
	c.MaxSteps = 3
	require.Equal(t, uint64(3), offlineSteps(c, set))
	c.BatchSize = 1
	require.Len(t, cutBatch(c, set.Rows(), set.Epoch(c.Seed, 0)), 1)
}

func TestSFTRefusesRowsWithCount(t *testing.T) {
	l := newSFT(t, sftConfig(), newBandit(vocab))
	one := func(prompt []int32, w ...float32) data.Example {
		return data.Example{Prompt: prompt, Chosen: data.Completion{Tokens: []int32{2}, Weights: w}, Where: "f:1"}
	}
	bad := append(sftRows(), one([]int32{1}, 0), one(nil), one([]int32{1}, -1), one([]int32{1}, 1, 1), data.Example{Prompt: []int32{1}})
	err := RunOffline(ctx, l, shuffled(bad), OfflineOptions{})
	require.ErrorContains(t, err, "5 of 14 rows cannot be trained (no_prompt=1, no_trained_tokens=2, weight_invalid=1, weights_length=1), the first is row 9 (f:1)")
	require.ErrorContains(t, RunOffline(ctx, l, shuffled(nil), OfflineOptions{}), "no rows")
	g, _ := newLearner(t, small(2), nil)
	require.ErrorContains(t, RunOffline(ctx, g, shuffled(sftRows()), OfflineOptions{}), "algorithm")
	require.ErrorIs(t, RunOffline(ctx, l, shuffled(sftRows()), OfflineOptions{OnStep: func(OfflineStep) error { return errInjected }}), errInjected)
	l.cfg.LossType = loss.DFT
	require.NoError(t, RunOffline(ctx, l, shuffled(sftRows()), OfflineOptions{}))
}
