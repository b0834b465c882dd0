package learner

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/gobackend"
)

// realBackend is a random Llama of a few thousand weights on the pure-Go
// backend: the same doors as a real model's.
func realBackend(t testing.TB) (*model.Model, model.Backend) {
	t.Helper()
	c := model.Config{ModelType: "llama", VocabSize: 23, HiddenSize: 16, IntermediateSize: 24, NumHiddenLayers: 2, NumAttentionHeads: 4, NumKeyValueHeads: 2, HeadDim: 4,
		MaxPositionEmbeddings: 64, RMSNormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true}
	rng := rand.New(rand.NewPCG(1, 2))
	flat := make([]float32, model.FullLayout(c).Size())
	for _, p := range model.FullLayout(c) {
		mean, scale := 0.0, .4
		if len(p.Shape) == 1 {
			mean, scale = 1, .1
		}
		for i := range p.Len() {
			flat[p.Offset+i] = float32(mean + scale*rng.NormFloat64())
		}
	}
	w, err := model.UnflattenWeights(c, flat)
	require.NoError(t, err)
	m := &model.Model{Name: "random", Config: c, Weights: w, Digest: base}
	b, err := gobackend.New(m, gobackend.Options{Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return m, b
}

func realLearner(t testing.TB, c Config) (*Learner, model.Backend) {
	t.Helper()
	m, b := realBackend(t)
	lc := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj", "down_proj"}}
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: lc})
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	a, err := model.NewAdapter(m.Config, lc, m.Digest, 7)
	require.NoError(t, err)
	id := identity()
	id.LoRA = lc
	l, err := New(c, id, tr, a.Params)
	require.NoError(t, err)
	return l, b
}

// decode samples groups with an engine's decoder under an adapter; the reward
// is the share of even tokens.
func decode(t testing.TB, b model.Backend, a *model.Adapter, version uint64, temp float64, seed uint64, ids ...string) []Group {
	t.Helper()
	dec, err := b.NewDecoder(model.DecoderConfig{Slots: 4, MaxLen: 32})
	require.NoError(t, err)
	defer dec.Close()
	require.NoError(t, dec.SetAdapter(1, a))
	place := 1
	if a == nil {
		place = 0
	}
	var out []Group
	for i, id := range ids {
		prompt := []int32{1, 5, int32(7 + i)}
		var pre []model.PrefillRow
		var rows []model.DecodeRow
		for s := range 4 {
			dec.Truncate(s, 0)
			pre = append(pre, model.PrefillRow{Slot: s, Adapter: place, Tokens: prompt[:2]})
			rows = append(rows, model.DecodeRow{Slot: s, Adapter: place, Last: prompt[2], MaxNew: 5, Sampling: model.Sampling{Temperature: temp, Seed: seed*1000 + uint64(10*i+s)}})
		}
		require.NoError(t, dec.Prefill(ctx, pre))
		res, err := dec.Decode(ctx, rows, 5)
		require.NoError(t, err)
		g := Group{ID: id, Index: uint64(i)}
		for m, o := range res {
			even := 0.0
			for _, x := range o.IDs {
				if x%2 == 0 {
					even++
				}
			}
			g.Logs = append(g.Logs, entry{group: id, member: uint32(m), size: 4, prompt: prompt, parts: []part{{eventlog.Policy, o.IDs, o.Logprobs, version}}, reward: r(even / float64(len(o.IDs)))}.log(t))
		}
		out = append(out, g)
	}
	return out
}

func TestRealBackendLearnsAndEngineAgreesWithLearner(t *testing.T) {
	c := small(4)
	c.LearningRate, c.Temperature, c.Beta, c.TokenBudget = .05, .8, .01, 30
	c.RolloutImportanceSampling = true
	l, b := realLearner(t, c)
	ids := []string{"a", "b", "c", "d"}
	var first, last float64
	for i := range 12 {
		res := step(t, l, decode(t, b, l.Adapter(), l.Version(), c.Temperature, uint64(i), ids...)...)
		require.LessOrEqual(t, res.Metrics["logprob_gap/same_version_max_abs"], 1e-4, "step %d", i)
		require.Greater(t, res.Metrics["micro_batches"], 1.0)
		if i == 0 {
			require.Zero(t, res.Metrics["kl"])
			first = res.Metrics["reward"]
		}
		last = res.Metrics["reward"]
	}
	require.Greater(t, last, first+.2)
	// an engine that ignores the adapter is seen at once
	res := step(t, l, decode(t, b, nil, l.Version(), c.Temperature, 99, ids...)...)
	require.Greater(t, res.Metrics["logprob_gap/same_version_max_abs"], 1e-2)
}

func TestRealBackendResumeIsBitIdentical(t *testing.T) {
	c := small(4)
	c.LearningRate, c.NumIterations, c.Beta = .02, 2, .05
	train := func(l *Learner, b model.Backend, from, to int) {
		for i := from; i < to; i++ {
			step(t, l, decode(t, b, l.Adapter(), l.Version(), 1, uint64(i), "a", "b")...)
		}
	}
	straight, b := realLearner(t, c)
	train(straight, b, 0, 6)
	first, b := realLearner(t, c)
	train(first, b, 0, 3)
	data, err := first.Checkpoint().Encode()
	require.NoError(t, err)
	ck, err := DecodeCheckpoint(data)
	require.NoError(t, err)
	second, b := realLearner(t, c)
	require.NoError(t, second.Restore(ck))
	train(second, b, 3, 6)
	require.Equal(t, straight.Params(), second.Params())
	require.Equal(t, straight.Adapter().Digest(), second.Adapter().Digest())
}

func TestRealBackendFullSFT(t *testing.T) {
	m, b := realBackend(t)
	tr, err := b.NewTrainer(model.TrainerConfig{Full: true})
	require.NoError(t, err)
	defer tr.Close()
	start, err := m.Weights.Flatten(m.Config)
	require.NoError(t, err)
	c := DefaultSFTConfig()
	c.LearningRate, c.NumTrainEpochs, c.BatchTokens, c.TokenBudget = .02, 6, 40, 20
	var rows []data.Example
	for i := range int32(12) {
		rows = append(rows, data.Example{Prompt: []int32{1, 2 + i}, Chosen: data.Completion{Tokens: []int32{2 + i, 9, 3}}})
	}
	set := data.NewSet("copy", rows, data.Order{Shuffle: true})
	l, err := New(c, Identity{Base: base, Full: true, Dataset: DatasetOf(set)}, tr, start)
	require.NoError(t, err)
	require.True(t, l.Adapter().Full)
	require.NoError(t, l.Adapter().Check(m.Config))
	var losses []float64
	require.NoError(t, RunOffline(ctx, l, set, OfflineOptions{OnStep: func(p OfflineStep) error { losses = append(losses, p.Metrics["loss"]); return nil }}))
	require.Less(t, losses[len(losses)-1], losses[0]/3)
	require.False(t, math.IsNaN(losses[0]))
}

// realPPO is realLearner with a critic of its own shape over the same base.
func realPPO(t testing.TB, c Config) (*Learner, model.Backend) {
	t.Helper()
	m, b := realBackend(t)
	return ppoOn(t, c, m, b)
}

func ppoOn(t testing.TB, c Config, m *model.Model, b model.Backend) (*Learner, model.Backend) {
	t.Helper()
	lc := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj", "down_proj"}}
	kc := model.LoRAConfig{Rank: 3, Alpha: 6, Targets: []string{"o_proj", "up_proj"}}
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: lc})
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	ktr, err := b.NewTrainer(model.TrainerConfig{LoRA: kc, Value: true})
	require.NoError(t, err)
	t.Cleanup(func() { ktr.Close() })
	a, err := model.NewAdapter(m.Config, lc, m.Digest, 7)
	require.NoError(t, err)
	k, err := model.NewAdapter(m.Config, kc, m.Digest, 8)
	require.NoError(t, err)
	id := identity()
	id.LoRA, id.Critic = lc, &kc
	l, err := NewPPO(c, id, tr, a.Params, Critic{ktr, k.WithScore(m.Config).Flat()})
	require.NoError(t, err)
	return l, b
}

func TestRealBackendPPOLearns(t *testing.T) {
	c := ppoConfig(4)
	c.LearningRate, c.Temperature, c.TokenBudget, c.NumMiniBatches, c.NumIterations = .03, .8, 30, 2, 2
	c.RolloutImportanceSampling = true
	l, b := realPPO(t, c)
	ids := []string{"a", "b", "c", "d"}
	var first, last map[string]float64
	for i := range 12 {
		res := step(t, l, decode(t, b, l.Adapter(), l.Version(), c.Temperature, uint64(i), ids...)...)
		require.LessOrEqual(t, res.Metrics["logprob_gap/same_version_max_abs"], 1e-4, "step %d", i)
		if i == 0 {
			require.Zero(t, res.Metrics["objective/kl"])
			first = res.Metrics
		}
		last = res.Metrics
	}
	require.Greater(t, last["reward"], first["reward"]+.2)
	require.InDelta(t, last["value/returns_mean"], last["value/mean"], .2)
	require.NotEqual(t, make([]float32, 4), l.CriticParams()[len(l.CriticParams())-4:])
}

func TestRealBackendPPOResumeIsBitIdentical(t *testing.T) {
	c := ppoConfig(4)
	c.LearningRate, c.NumIterations, c.NumMiniBatches = .02, 2, 2
	train := func(l *Learner, b model.Backend, from, to int) {
		for i := from; i < to; i++ {
			step(t, l, decode(t, b, l.Adapter(), l.Version(), 1, uint64(i), "a", "b")...)
		}
	}
	straight, b := realPPO(t, c)
	train(straight, b, 0, 6)
	first, b := realPPO(t, c)
	train(first, b, 0, 3)
	data, err := first.Checkpoint().Encode()
	require.NoError(t, err)
	ck, err := DecodeCheckpoint(data)
	require.NoError(t, err)
	second, b := realPPO(t, c)
	require.NoError(t, second.Restore(ck))
	train(second, b, 3, 6)
	require.Equal(t, straight.Params(), second.Params())
	require.Equal(t, straight.CriticParams(), second.CriticParams())
}
