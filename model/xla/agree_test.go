//go:build xla

package xla

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/gobackend"
	"github.com/stretchr/testify/require"
)

// shapes differ in everything a program depends on.
func agreeConfigs() []model.Config {
	a := smallConfig
	b := smallConfig
	b.NumHiddenLayers, b.NumAttentionHeads, b.NumKeyValueHeads, b.HeadDim = 1, 4, 4, 6
	b.VocabSize, b.TieWordEmbeddings, b.HiddenSize, b.RopeTheta, b.SlidingWindow = 1100, true, 20, 500000, 29
	return []model.Config{a, b}
}

var agreeLoRA = []model.LoRAConfig{
	{Rank: 3, Alpha: 5, Targets: []string{"down_proj", "k_proj", "gate_proj"}, RankPattern: model.Pattern[int]{{Key: `layers\.0\.mlp\..*`, Value: 9}}},
	{Rank: 2, Alpha: 3, RSLoRA: true, Targets: []string{"q_proj", "v_proj", "o_proj", "up_proj"},
		RankPattern: model.Pattern[int]{{Key: "v_proj", Value: 5}, {Key: "mlp.*", Value: 1}}, AlphaPattern: model.Pattern[float64]{{Key: "o_proj", Value: 7}}},
}

func goBackend(t *testing.T, m *model.Model) model.Backend {
	b, err := gobackend.New(m, gobackend.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// The same seeds draw the same tokens as the pure-Go backend, filters included.
func TestDecodesAsGo(t *testing.T) {
	for i, c := range agreeConfigs() {
		m := randomModel(t, c, uint64(i))
		a := randomAdapter(t, m, agreeLoRA[i], 1)
		prompt := randomTokens(rand.New(rand.NewPCG(1, 1)), 17, c.VocabSize)
		ours, theirs := newDecoder(t, open(t, m, "f32"), 2, 128), newDecoder(t, goBackend(t, m), 2, 128)
		require.NoError(t, ours.SetAdapter(1, a))
		require.NoError(t, theirs.SetAdapter(1, a))
		for _, s := range []model.Sampling{
			{}, {Temperature: 1, Seed: 1}, {Temperature: 0.3, Seed: 1 << 40}, {Temperature: 3, Seed: 9},
			{Temperature: 1.5, TopK: 1}, {Temperature: 1.5, TopK: 7, Seed: 2}, {Temperature: 1.5, TopP: 0.6, Seed: 3},
			{Temperature: 2, TopP: 0.5, TopK: 40, Seed: 4}, {Temperature: 1.5, TopK: 5000, TopP: 1, Seed: 5}, {TopK: 3, TopP: 0.1},
		} {
			x, y := decodeAt(t, ours, 1, 1, prompt, 24, s), decodeAt(t, theirs, 1, 1, prompt, 24, s)
			require.Equal(t, y.IDs, x.IDs, "%+v", s)
			require.InDeltaSlice(t, y.Logprobs, x.Logprobs, 2e-4, "%+v", s)
		}
	}
}

// randomGroups have prompts and members of all lengths, tool results inside
// (untrained runs), two members that go on from another with nothing to train,
// and a group with nothing to train.
func randomGroups(rng *rand.Rand, vocab int) []model.PrefixGroup {
	var out []model.PrefixGroup
	for g := range 2 {
		group := model.PrefixGroup{Prompt: randomTokens(rng, 1+rng.IntN(60), vocab)}
		for m := range 1 + 3*g {
			n := 20 + rng.IntN(12)
			s := model.Sequence{Tokens: randomTokens(rng, n, vocab), Train: make([]bool, n), Parent: []int{0, 1, 1, 0}[m]}
			for i := range s.Train {
				s.Train[i] = i/5%2 == m%2
			}
			group.Members = append(group.Members, s)
		}
		out = append(out, group)
	}
	out[1].Members[0].Train = make([]bool, len(out[1].Members[0].Tokens))
	return append(out, model.PrefixGroup{Prompt: []int32{1}, Members: []model.Sequence{{Tokens: []int32{2}, Train: []bool{false}}}})
}

func randomWeights(rng *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(rng.NormFloat64()) / float32(n)
	}
	return out
}

// step is one Forward and Backward; the gradient is added to tr's.
func step(t testing.TB, tr model.Trainer, groups []model.PrefixGroup, temperature float64, dlogp, dent []float32) model.Scores {
	t.Helper()
	s, err := tr.Forward(t.Context(), groups, temperature)
	require.NoError(t, err)
	require.NoError(t, tr.Backward(t.Context(), model.Scores{LogProbs: dlogp, Entropy: dent}))
	return s
}

// Logprobs, entropies and the gradients of both are those of the pure-Go
// backend.
func TestTrainsAsGo(t *testing.T) {
	for i, c := range agreeConfigs() {
		m := randomModel(t, c, uint64(i))
		a := randomAdapter(t, m, agreeLoRA[i], 1)
		ours, theirs := newTrainer(t, open(t, m, "f32"), a.LoRA), newTrainer(t, goBackend(t, m), a.LoRA)
		require.Equal(t, theirs.Layout(), ours.Layout())
		require.NoError(t, ours.SetParams(a.Params))
		require.NoError(t, theirs.SetParams(a.Params))
		rng := rand.New(rand.NewPCG(5, 5))
		groups := randomGroups(rng, c.VocabSize)
		x, err := ours.Score(t.Context(), groups, 0.7, nil)
		require.NoError(t, err)
		y, err := theirs.Score(t.Context(), groups, 0.7, nil)
		require.NoError(t, err)
		require.InDeltaSlice(t, y.LogProbs, x.LogProbs, 2e-4)
		require.InDeltaSlice(t, y.Entropy, x.Entropy, 2e-4)
		dl, de := randomWeights(rng, len(x.LogProbs)), randomWeights(rng, len(x.LogProbs))
		for _, entropy := range [][]float32{nil, de} {
			ours.ZeroGrad()
			theirs.ZeroGrad()
			x, y := step(t, ours, groups, 1.3, dl, entropy), step(t, theirs, groups, 1.3, dl, entropy)
			require.InDeltaSlice(t, y.LogProbs, x.LogProbs, 2e-4)
			for _, p := range ours.Layout() {
				at := func(v []float32) []float32 { return v[p.Offset : p.Offset+p.Len()] }
				require.Lessf(t, relative(at(ours.Grad()), at(theirs.Grad())), 1e-4, "gradient of %s", p.Name)
			}
		}
	}
}

// What the decoder says it sampled with is what the trainer computes for the
// same tokens and adapter; and a decoder that ignored the adapter would be seen.
func TestDecoderAgreesWithTrainer(t *testing.T) {
	for dtype, limit := range map[string]float64{"f32": 1e-4, "bf16": 0.15} {
		m, b := small(t, dtype)
		d, tr := newDecoder(t, b, 4, 100), newTrainer(t, b, tinyLoRA)
		a := randomAdapter(t, m, tinyLoRA, 3)
		require.NoError(t, d.SetAdapter(1, a))
		require.NoError(t, tr.SetParams(a.Params))
		prompt := randomTokens(rand.New(rand.NewPCG(3, 3)), 40, m.Config.VocabSize)
		g := model.PrefixGroup{Prompt: prompt}
		var sampled []float32
		for slot := range 2 {
			out := decodeAt(t, d, slot, 1, prompt, 50, model.Sampling{Temperature: 0.7, Seed: uint64(slot)})
			sampled = append(sampled, out.Logprobs...)
			train := make([]bool, 50)
			for i := range train {
				train[i] = true
			}
			g.Members = append(g.Members, model.Sequence{Tokens: out.IDs, Train: train})
		}
		with, err := tr.Forward(t.Context(), []model.PrefixGroup{g}, 0.7)
		require.NoError(t, err)
		require.Less(t, maxDiff(t, sampled, with.LogProbs), limit, dtype)
		without, err := tr.Score(t.Context(), []model.PrefixGroup{g}, 0.7, nil)
		require.NoError(t, err)
		require.Greater(t, maxDiff(t, sampled, without.LogProbs), 0.3, "the adapter makes no difference")
	}
}

// A finite difference of the loss along the gradient, as a check that shares
// nothing with either backend's calculus.
func TestGradientByDifference(t *testing.T) {
	m, b := small(t, "f32")
	tr := newTrainer(t, b, tinyLoRA)
	params := randomAdapter(t, m, tinyLoRA, 4).Params
	require.NoError(t, tr.SetParams(params))
	rng := rand.New(rand.NewPCG(6, 6))
	groups := randomGroups(rng, m.Config.VocabSize)[1:2]
	s, err := tr.Score(t.Context(), groups, 1, params)
	require.NoError(t, err)
	dl, de := randomWeights(rng, len(s.LogProbs)), randomWeights(rng, len(s.LogProbs))
	step(t, tr, groups, 1, dl, de)
	var norm float64
	for _, g := range tr.Grad() {
		norm += float64(g) * float64(g)
	}
	norm = math.Sqrt(norm)
	loss := func(h float64) (l float64) {
		moved := make([]float32, len(params))
		for i, g := range tr.Grad() {
			moved[i] = params[i] + float32(h*float64(g)/norm)
		}
		s, err := tr.Score(t.Context(), groups, 1, moved)
		require.NoError(t, err)
		for i := range dl {
			l += float64(dl[i])*float64(s.LogProbs[i]) + float64(de[i])*float64(s.Entropy[i])
		}
		return l
	}
	const h = 1e-2
	require.InEpsilon(t, norm, (loss(h)-loss(-h))/(2*h), 5e-3)
}
