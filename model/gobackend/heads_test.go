package gobackend

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

const headsDir = "../testdata/heads"

// headsGolden are torch's numbers; see README.md in headsDir.
type headsGolden struct {
	Temperature float64   `json:"temperature"`
	Epsilon     float32   `json:"label_smoothing"`
	MeanLogProb []float64 `json:"mean_log_prob"`
	LogSumSq    []float64 `json:"log_sum_sq"`
	Mixed       float64   `json:"mixed"`
	Smoothed    float64   `json:"smoothed"`
}

// TestGoldenHeads: the mean logprob, log Σp² and gradients through the first are
// torch's, as is its label-smoothed cross entropy.
func TestGoldenHeads(t *testing.T) {
	m, c := loadGolden(t)
	raw, err := os.ReadFile(headsDir + "/golden.json")
	require.NoError(t, err)
	var g headsGolden
	require.NoError(t, json.Unmarshal(raw, &g))
	a := goldenLoRA(t, m)
	tr := newTrainer(t, newBackend(t, m, Options{}), model.TrainerConfig{LoRA: a.LoRA, MeanLogProb: true, LogSumSq: true}, a.Params)

	s, err := tr.Forward(ctx, c.groups(), g.Temperature)
	require.NoError(t, err)
	requireClose(t, g.MeanLogProb, s.MeanLogProb, 1e-5, "mean logprob")
	requireClose(t, g.LogSumSq, s.LogSumSq, 1e-5, "log sum of squares")
	d := model.Scores{}
	var loss float64
	for i := range s.LogProbs {
		c := math.Sin(float64(i))
		d.MeanLogProb = append(d.MeanLogProb, float32(c))
		d.LogProbs = append(d.LogProbs, float32(-0.3*c))
		d.Entropy = append(d.Entropy, float32(0.2*math.Cos(c)))
		loss += c*float64(s.MeanLogProb[i]) - 0.3*c*float64(s.LogProbs[i]) + 0.2*math.Cos(c)*float64(s.Entropy[i])
	}
	require.InDelta(t, g.Mixed, loss, 1e-5)
	require.NoError(t, tr.Backward(ctx, d))
	requireHeadsGradient(t, tr, "mixed.")

	s, err = tr.Forward(ctx, c.groups(), 1)
	require.NoError(t, err)
	n := float32(len(s.LogProbs))
	d, loss = model.Scores{}, 0
	for i, lp := range s.LogProbs {
		d.LogProbs, d.MeanLogProb = append(d.LogProbs, (g.Epsilon-1)/n), append(d.MeanLogProb, -g.Epsilon/n)
		loss -= float64((1-g.Epsilon)*lp+g.Epsilon*s.MeanLogProb[i]) / float64(n)
	}
	require.InDelta(t, g.Smoothed, loss, 1e-5)
	tr.ZeroGrad()
	require.NoError(t, tr.Backward(ctx, d))
	requireHeadsGradient(t, tr, "smoothed.")
}

func requireHeadsGradient(t *testing.T, tr model.Trainer, prefix string) {
	t.Helper()
	for _, p := range tr.Layout() {
		want := readTensor(t, "../../"+headsDir+"/golden.safetensors", prefix+p.Name, p.Shape)
		require.Less(t, relative(want, tr.Grad()[p.Offset:p.Offset+p.Len()]), 1e-4, prefix+p.Name)
	}
}

// meanGradient is a loss of mean logprobs beside logprobs, its gradient, and the
// scores; parts are passed one after the other.
func meanGradient(t testing.TB, tr model.Trainer, parts [][]model.PrefixGroup) (loss float64, grad []float32, all model.Scores) {
	t.Helper()
	tr.ZeroGrad()
	for _, groups := range parts {
		s, err := tr.Forward(ctx, groups, 0.8)
		require.NoError(t, err)
		d := model.Scores{LogProbs: make([]float32, len(s.LogProbs)), MeanLogProb: make([]float32, len(s.LogProbs))}
		at := 0
		for _, g := range groups {
			for _, m := range g.Members {
				for i, id := range m.Tokens {
					if m.Train[i] {
						d.LogProbs[at] = float32(math.Sin(float64(id) + 0.3*float64(i)))
						d.MeanLogProb[at] = float32(math.Cos(float64(id) - 0.7*float64(i)))
						loss += float64(d.LogProbs[at])*float64(s.LogProbs[at]) + float64(d.MeanLogProb[at])*float64(s.MeanLogProb[at])
						at++
					}
				}
			}
		}
		require.NoError(t, tr.Backward(ctx, d))
		all.LogProbs, all.MeanLogProb, all.LogSumSq = append(all.LogProbs, s.LogProbs...), append(all.MeanLogProb, s.MeanLogProb...), append(all.LogSumSq, s.LogSumSq...)
	}
	return loss, append([]float32(nil), tr.Grad()...), all
}

// TestMeanLogProbGradient: the gradient through the mean logprob by finite
// differences along random directions, for LoRA and full training and with
// capped logits; parts change no score and, but for rounding, no gradient.
func TestMeanLogProbGradient(t *testing.T) {
	for _, name := range []string{"llama", "all", "fused"} {
		c := oddConfigs()[name]
		m := randomModel(t, c, 71)
		b := newBackend(t, m, Options{})
		r := rand.New(rand.NewPCG(72, 1))
		groups := randomGroups(r, c, 3, 3, 7, 9)
		full, err := m.Weights.Flatten(c)
		require.NoError(t, err)
		lora := everyLoRA(c)
		for kind, params := range map[string][]float32{"full": full, "lora": randomAdapter(t, m, lora, 73).Params} {
			cfg := model.TrainerConfig{Full: kind == "full", LoRA: lora, MeanLogProb: true, LogSumSq: true}
			tr := newTrainer(t, b, cfg, params)
			_, grad, scores := meanGradient(t, tr, [][]model.PrefixGroup{groups})
			_, apart, again := meanGradient(t, tr, [][]model.PrefixGroup{groups[:1], groups[1:]})
			require.Equal(t, scores, again)
			require.Less(t, relative(grad, apart), 2e-5)
			for _, p := range tr.Layout() {
				dir := make([]float64, p.Len())
				var want, norm float64
				for i := range dir {
					g := float64(grad[p.Offset+i])
					dir[i] = r.NormFloat64()
					want, norm = want+dir[i]*g, norm+g*g
				}
				at := func(h float64) float64 {
					moved := append([]float32(nil), params...)
					for i, d := range dir {
						moved[p.Offset+i] += float32(h * d)
					}
					require.NoError(t, tr.SetParams(moved))
					loss, _, _ := meanGradient(t, tr, [][]model.PrefixGroup{groups})
					return loss
				}
				h := 5e-4
				got := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
				require.InDelta(t, want, got, 6e-3*(math.Sqrt(norm)+1), "%s %s %s", name, kind, p.Name)
			}
		}
	}
}

// TestHeadsNotAskedFor: what is asked for besides changes no bit of the rest, and
// what is not asked for is neither given nor taken back.
func TestHeadsNotAskedFor(t *testing.T) {
	c := oddConfigs()["all"]
	m := randomModel(t, c, 81)
	b := newBackend(t, m, Options{})
	lora := everyLoRA(c)
	params := randomAdapter(t, m, lora, 82).Params
	groups := randomGroups(rand.New(rand.NewPCG(83, 1)), c, 2, 3, 9, 12)
	plain := newTrainer(t, b, model.TrainerConfig{LoRA: lora}, params)
	asked := newTrainer(t, b, model.TrainerConfig{LoRA: lora, MeanLogProb: true, LogSumSq: true}, params)
	grad, scores := gradient(t, plain, [][]model.PrefixGroup{groups}, 0.9)
	grad2, scores2 := gradient(t, asked, [][]model.PrefixGroup{groups}, 0.9)
	require.Equal(t, grad, grad2)
	require.Equal(t, scores, scores2)

	s, err := plain.Score(ctx, groups, 1, nil)
	require.NoError(t, err)
	require.Nil(t, s.MeanLogProb)
	require.Nil(t, s.LogSumSq)
	s, err = asked.Score(ctx, groups, 1, nil)
	require.NoError(t, err)
	require.Len(t, s.MeanLogProb, len(s.LogProbs))
	require.Len(t, s.LogSumSq, len(s.LogProbs))
	for i, lp := range s.LogSumSq {
		require.Less(t, s.MeanLogProb[i], float32(-math.Log(float64(c.VocabSize))), "the mean of logs is below the log of the mean")
		require.True(t, lp < 0 && lp > float32(-math.Log(float64(c.VocabSize))))
	}
	_, err = plain.Forward(ctx, groups, 1)
	require.NoError(t, err)
	require.ErrorContains(t, plain.Backward(ctx, model.Scores{MeanLogProb: make([]float32, len(s.LogProbs))}), "TrainerConfig.MeanLogProb")
	_, err = asked.Forward(ctx, groups, 1)
	require.NoError(t, err)
	require.ErrorContains(t, asked.Backward(ctx, model.Scores{LogSumSq: make([]float32, len(s.LogProbs))}), "not differentiated")
	require.ErrorContains(t, asked.Backward(ctx, model.Scores{MeanLogProb: []float32{1}}), "1 mean logprob gradients")
	require.ErrorIs(t, asked.Backward(ctx, model.Scores{MeanLogProb: append(make([]float32, len(s.LogProbs)-1), float32(math.NaN()))}), ErrNonFinite)
}
