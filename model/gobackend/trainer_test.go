package gobackend

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
)

var ctx = context.Background()

func newTrainer(t testing.TB, b *backend, cfg model.TrainerConfig, params []float32) model.Trainer {
	t.Helper()
	tr, err := b.NewTrainer(cfg)
	require.NoError(t, err)
	require.NoError(t, tr.SetParams(params))
	return tr
}

// gradient runs one Forward and Backward on groups. The coefficients are
// functions of the scored token's id and score order inside its member, so that
// any packing of the same sequences has the same loss.
func gradient(t testing.TB, tr model.Trainer, parts [][]model.PrefixGroup, temperature float64) ([]float32, model.Scores) {
	t.Helper()
	tr.ZeroGrad()
	var all model.Scores
	for _, groups := range parts {
		s, err := tr.Forward(ctx, groups, temperature)
		require.NoError(t, err)
		var dlp, dent []float32
		for _, g := range groups {
			for _, m := range g.Members {
				for i, id := range m.Tokens {
					if m.Train[i] {
						dlp = append(dlp, float32(math.Sin(float64(id)+0.3*float64(i))))
						dent = append(dent, 0.3*float32(math.Cos(float64(id)-0.7*float64(i))))
					}
				}
			}
		}
		require.NoError(t, tr.Backward(ctx, model.Scores{LogProbs: dlp, Entropy: dent}))
		all.LogProbs, all.Entropy = append(all.LogProbs, s.LogProbs...), append(all.Entropy, s.Entropy...)
	}
	return append([]float32(nil), tr.Grad()...), all
}

// loss is the scalar whose gradient `gradient` computes, in float64.
func loss(groups []model.PrefixGroup, s model.Scores) float64 {
	sum, at := 0.0, 0
	for _, g := range groups {
		for _, m := range g.Members {
			for i, id := range m.Tokens {
				if m.Train[i] {
					sum += math.Sin(float64(id)+0.3*float64(i))*float64(s.LogProbs[at]) + 0.3*math.Cos(float64(id)-0.7*float64(i))*float64(s.Entropy[at])
					at++
				}
			}
		}
	}
	return sum
}

// TestFiniteDifferences checks the gradient along random directions of every
// tensor: (loss(p + h d) - loss(p - h d)) / 2h against grad . d. Prompts reach
// beyond windows. Mixtures use all their experts, since the loss jumps where a
// choice changes; TestFamilyGradients has those that choose.
func TestFiniteDifferences(t *testing.T) {
	for name, c := range oddConfigs() {
		c.ExpertsPerToken = c.Experts
		m := randomModel(t, c, 11)
		b := newBackend(t, m, Options{})
		r := rand.New(rand.NewPCG(12, 13))
		groups := randomGroups(r, c, 3, 3, 7, 9)
		if c.SlidingWindow > 0 {
			groups[0].Prompt = randomIDs(r, c, c.SlidingWindow+35)
		}
		full, err := m.Weights.Flatten(c)
		require.NoError(t, err)
		some := model.LoRAConfig{Rank: 3, Alpha: 5, RSLoRA: true, Targets: c.Projections()[1:],
			RankPattern:  model.Pattern[int]{{Key: c.Projections()[2], Value: 1}, {Key: `layers\.0\..*`, Value: 6}},
			AlphaPattern: model.Pattern[float64]{{Key: c.Projections()[1], Value: 2}}}
		every := model.LoRAConfig{Rank: 5, Alpha: 5, Targets: c.Projections()}
		for kind, tc := range map[string]struct {
			cfg    model.TrainerConfig
			params []float32
		}{
			"full":      {model.TrainerConfig{Full: true}, full},
			"lora some": {model.TrainerConfig{LoRA: some}, randomAdapter(t, m, some, 14).Params},
			"lora all":  {model.TrainerConfig{LoRA: every}, randomAdapter(t, m, every, 15).Params},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				tr := newTrainer(t, b, tc.cfg, tc.params)
				r := rand.New(rand.NewPCG(16, 17))
				grad, _ := gradient(t, tr, [][]model.PrefixGroup{groups}, 0.8)
				for _, p := range tr.Layout() {
					dir := make([]float64, p.Len())
					var want, norm float64
					for i := range dir {
						dir[i] = r.NormFloat64()
						want += dir[i] * float64(grad[p.Offset+i])
						norm += float64(grad[p.Offset+i]) * float64(grad[p.Offset+i])
					}
					at := func(h float64) float64 {
						moved := append([]float32(nil), tc.params...)
						for i, d := range dir {
							moved[p.Offset+i] += float32(h * d)
						}
						s, err := tr.Score(ctx, groups, 0.8, moved)
						require.NoError(t, err)
						return loss(groups, s)
					}
					h := 5e-4
					// Fourth-order central difference: float32 noise stays below 1e-3.
					got := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
					require.InDelta(t, want, got, 6e-3*(math.Sqrt(norm)+1), p.Name)
				}
			})
		}
	}
}

// TestPackingDoesNotMatter: groups together, one by one, members as groups of
// one, and with activations recomputed give the same scores and gradient.
func TestPackingDoesNotMatter(t *testing.T) {
	for name, c := range oddConfigs() {
		t.Run(name, func(t *testing.T) { testPacking(t, c) })
	}
}

func testPacking(t *testing.T, c model.Config) {
	m := randomModel(t, c, 21)
	lora := everyLoRA(c)
	params := randomAdapter(t, m, lora, 22).Params
	b := newBackend(t, m, Options{})
	lean := newBackend(t, m, Options{Threads: 1, ActivationBytes: -1})
	some := newBackend(t, m, Options{ActivationBytes: 300 << 10}) // of some layers, for most sizes
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3))
		groups := randomGroups(r, c, rapid.IntRange(1, 3).Draw(rt, "groups"), rapid.IntRange(1, 4).Draw(rt, "members"),
			rapid.IntRange(1, 70).Draw(rt, "prompt"), rapid.IntRange(0, 60).Draw(rt, "length"))
		tr := newTrainer(t, b, model.TrainerConfig{LoRA: lora}, params)
		want, scores := gradient(t, tr, [][]model.PrefixGroup{groups}, 0.9)

		var single, alone [][]model.PrefixGroup
		for _, g := range groups {
			single = append(single, []model.PrefixGroup{g})
			for _, s := range g.Members {
				alone = append(alone, []model.PrefixGroup{{Prompt: g.Prompt, Members: []model.Sequence{s}}})
			}
		}
		for name, parts := range map[string][][]model.PrefixGroup{"groups apart": single, "members apart": alone} {
			got, s := gradient(t, tr, parts, 0.9)
			require.Equal(t, scores, s, "%s: scores are the same bits", name)
			require.Less(t, relative(want, got), 2e-5, name)
		}
		for _, b := range []*backend{lean, some} {
			got, s := gradient(t, newTrainer(t, b, model.TrainerConfig{LoRA: lora}, params), [][]model.PrefixGroup{groups}, 0.9)
			require.Equal(t, scores, s)
			require.Equal(t, want, got, "threads and recomputation change nothing at all")
		}
	})
}

func TestScoreKeepsTheForward(t *testing.T) {
	c := tinyConfig()
	m := randomModel(t, c, 31)
	lora := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "o_proj"}}
	params := randomAdapter(t, m, lora, 32).Params
	for _, opts := range []Options{{}, {ActivationBytes: -1}} {
		r := rand.New(rand.NewPCG(33, 1))
		groups, other := randomGroups(r, c, 2, 3, 20, 20), randomGroups(r, c, 3, 3, 30, 30)
		tr := newTrainer(t, newBackend(t, m, opts), model.TrainerConfig{LoRA: lora}, params)
		s, err := tr.Forward(ctx, groups, 1)
		require.NoError(t, err)
		dlp, dent := coefficients(r, len(s.LogProbs))
		require.NoError(t, tr.Backward(ctx, model.Scores{LogProbs: dlp, Entropy: dent}))
		want := append([]float32(nil), tr.Grad()...)

		again, err := tr.Forward(ctx, groups, 1)
		require.NoError(t, err)
		require.Equal(t, s, again)
		_, err = tr.Score(ctx, other, 0.5, nil)
		require.NoError(t, err)
		tr.ZeroGrad()
		require.NoError(t, tr.Backward(ctx, model.Scores{LogProbs: dlp, Entropy: dent}))
		require.Equal(t, want, tr.Grad())
		require.NoError(t, tr.Backward(ctx, model.Scores{LogProbs: dlp, Entropy: dent})) // accumulates
		for i := range want {
			require.InDelta(t, 2*want[i], tr.Grad()[i], 1e-5*math.Abs(float64(want[i]))+1e-6)
		}
	}
}

// TestNothingTrained is cases/training.tsv's loss-mask row: a batch whose
// tokens are all masked, inside an accumulation, adds a zero gradient.
func TestNothingTrained(t *testing.T) {
	c := tinyConfig()
	m := randomModel(t, c, 41)
	lora := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"v_proj"}}
	tr := newTrainer(t, newBackend(t, m, Options{}), model.TrainerConfig{LoRA: lora}, randomAdapter(t, m, lora, 42).Params)
	masked := model.PrefixGroup{Prompt: []int32{1, 2}, Members: []model.Sequence{{Tokens: []int32{3, 4}, Train: []bool{false, false}}, {}}}
	live := model.PrefixGroup{Prompt: []int32{1, 2}, Members: []model.Sequence{{Tokens: []int32{3, 4}, Train: []bool{true, true}}}}
	want, _ := gradient(t, tr, [][]model.PrefixGroup{{live}}, 1)
	for _, parts := range [][][]model.PrefixGroup{{{masked}, {live}}, {{live}, {masked}}, {{masked, live}}, {{live}, {}}} {
		got, s := gradient(t, tr, parts, 1)
		require.Len(t, s.LogProbs, 2)
		require.Equal(t, want, got)
	}
}

func TestTrainerRefuses(t *testing.T) {
	c := tinyConfig()
	m := randomModel(t, c, 51)
	b := newBackend(t, m, Options{})
	_, err := b.NewTrainer(model.TrainerConfig{LoRA: model.LoRAConfig{Rank: 0, Alpha: 1, Targets: []string{"q"}}})
	require.ErrorContains(t, err, "rank is 0")

	lora := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"v_proj"}}
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: lora})
	require.NoError(t, err)
	one := func(prompt []int32, tokens []int32, train ...bool) []model.PrefixGroup {
		return []model.PrefixGroup{{Prompt: prompt, Members: []model.Sequence{{Tokens: tokens, Train: train}}}}
	}
	good := one([]int32{1}, []int32{2}, true)
	_, err = tr.Forward(ctx, good, 1)
	require.ErrorContains(t, err, "call SetParams first")
	require.ErrorContains(t, tr.SetParams(make([]float32, 3)), "the layout has")
	params := randomAdapter(t, m, lora, 52).Params
	bad := append([]float32(nil), params...)
	bad[5] = float32(math.NaN())
	err = tr.SetParams(bad)
	require.ErrorIs(t, err, ErrNonFinite)
	require.ErrorContains(t, err, "layers.0.self_attn.v_proj.lora_A.weight")
	require.NoError(t, tr.SetParams(params))
	require.ErrorContains(t, tr.Backward(ctx, model.Scores{}), "call Forward first")

	for want, groups := range map[string][]model.PrefixGroup{
		"group 0: member 0: the prompt is empty": one(nil, []int32{2}, true),
		"member 0: 1 train marks for 2 tokens":   one([]int32{1}, []int32{2, 3}, true),
		"token 71 at index 1, the vocabulary":    one([]int32{1}, []int32{2, 71}, true, true),
		"prompt: token -1 at index 0":            one([]int32{-1}, []int32{2}, true),
		"member 0: 401 tokens with its prompt":   one(make([]int32, 400), []int32{2}, true),
	} {
		_, err := tr.Forward(ctx, groups, 1)
		require.ErrorContains(t, err, want)
	}
	for _, temp := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		_, err := tr.Score(ctx, good, temp, nil)
		require.ErrorContains(t, err, "temperature is")
	}
	_, err = tr.Forward(ctx, good, 1)
	require.NoError(t, err)
	require.ErrorContains(t, tr.Backward(ctx, model.Scores{LogProbs: []float32{1, 2}}), "2 logprob gradients for 1")
	require.ErrorContains(t, tr.Backward(ctx, model.Scores{LogProbs: []float32{1}, Entropy: []float32{1, 2}}), "2 entropy gradients for 1")
	require.ErrorIs(t, tr.Backward(ctx, model.Scores{LogProbs: []float32{float32(math.Inf(1))}}), ErrNonFinite)
	require.NoError(t, tr.Backward(ctx, model.Scores{LogProbs: []float32{1}}))

	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = tr.Forward(done, good, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, tr.Close())
	_, err = tr.Forward(ctx, good, 1)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, tr.SetParams(params), ErrClosed)
}

// TestOverflowIsNamed: weights that overflow are an error that says where.
func TestOverflowIsNamed(t *testing.T) {
	c := tinyConfig()
	m := randomModel(t, c, 61)
	for i := range m.Weights.Layers[1].Down {
		m.Weights.Layers[1].Down[i] = 3e38
	}
	b := newBackend(t, m, Options{})
	lora := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"v_proj"}}
	tr := newTrainer(t, b, model.TrainerConfig{LoRA: lora}, randomAdapter(t, m, lora, 62).Params)
	_, err := tr.Forward(ctx, []model.PrefixGroup{{Prompt: []int32{1, 2}, Members: []model.Sequence{{Tokens: []int32{3, 4}, Train: []bool{true, true}}}}}, 1)
	require.ErrorIs(t, err, ErrNonFinite)
	require.ErrorContains(t, err, "id 3, position 2")
	require.ErrorContains(t, err, "the input of layer 2")

	dec, err := b.NewDecoder(model.DecoderConfig{Slots: 3, MaxLen: 8})
	require.NoError(t, err)
	outs, err := dec.Decode(ctx, []model.DecodeRow{{Slot: 2, Last: 1, MaxNew: 1}}, 1)
	require.NoError(t, err)
	require.ErrorIs(t, outs[0].Err, sample.ErrNonFinite)
	require.ErrorContains(t, outs[0].Err, "row 0, slot 2, position 1")

	m.Weights.Layers[2].Up[7] = float32(math.Inf(-1))
	_, err = New(m, Options{})
	require.ErrorContains(t, err, `tensor "model.layers.2.mlp.up_proj.weight" element 7 is -Inf`)
	m.Weights.Layers[2].Up = m.Weights.Layers[2].Up[1:]
	_, err = New(m, Options{})
	require.ErrorContains(t, err, "has 539 elements, the configuration wants 540")
}
