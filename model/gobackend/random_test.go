package gobackend

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// tinyConfig is a small shape with nothing a multiple of a panel.
func tinyConfig() model.Config {
	return model.Config{ModelType: "llama", VocabSize: 71, HiddenSize: 20, IntermediateSize: 27, NumHiddenLayers: 3,
		NumAttentionHeads: 6, NumKeyValueHeads: 2, HeadDim: 6, MaxPositionEmbeddings: 400, RMSNormEps: 1e-5, RopeTheta: 10000}
}

// quickConfig is the shape of the embedded tiny model.
func quickConfig() model.Config {
	return model.Config{ModelType: "llama", VocabSize: 512, HiddenSize: 128, IntermediateSize: 384, NumHiddenLayers: 4,
		NumAttentionHeads: 4, NumKeyValueHeads: 2, HeadDim: 32, MaxPositionEmbeddings: 1024, RMSNormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true}
}

// oddConfigs switch on everything that a plain Llama does not have, in shapes
// with nothing a multiple of a panel. Together they cover every field of
// model.Config that changes a computation.
func oddConfigs() map[string]model.Config {
	all := tinyConfig()
	all.NumHiddenLayers, all.HeadDim = 4, 8
	all.HiddenAct, all.QKVBias, all.OutputBias, all.QKNorm, all.SandwichNorm = "gelu_pytorch_tanh", true, true, true, true
	all.EmbedScale, all.AttnScale, all.AttnSoftcap, all.LogitSoftcap = 1.7, 0.4, 2.5, 4
	all.SlidingWindow, all.FullLayers = 37, []bool{false, true, false, false}
	all.RotaryDim, all.LocalRopeTheta, all.NoRopeLayers = 6, 300, []bool{false, false, true, false}
	all.RopeScaling = model.RopeScaling{Type: "linear", Factor: 2}
	fused := tinyConfig()
	fused.FusedProjections, fused.SlidingWindow, fused.RotaryDim, fused.TieWordEmbeddings = true, 5, 4, true
	mixed := tinyConfig()
	mixed.Experts, mixed.ExpertsPerToken, mixed.ExpertSize, mixed.NormTopK = 7, 3, 11, true
	mixed.QKNorm, mixed.SandwichNorm, mixed.DenseLayers = true, true, []bool{false, true, false}
	plain := tinyConfig()
	plain.Experts, plain.ExpertsPerToken, plain.ExpertSize = 5, 2, 35
	return map[string]model.Config{"llama": tinyConfig(), "all": all, "fused": fused, "mixture": mixed, "mixture, weights as they are": plain}
}

func randomModel(t testing.TB, c model.Config, seed uint64) *model.Model {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	flat := make([]float32, model.FullLayout(c).Size())
	for _, p := range model.FullLayout(c) {
		scale, mean := 1/math.Sqrt(float64(p.Shape[len(p.Shape)-1])), 0.0
		if len(p.Shape) == 1 {
			scale, mean = 0.2, 1
			if strings.HasSuffix(p.Name, ".bias") {
				mean = 0
			}
		}
		for i := range p.Len() {
			flat[p.Offset+i] = float32(mean + scale*r.NormFloat64())
		}
	}
	w, err := model.UnflattenWeights(c, flat)
	require.NoError(t, err)
	return &model.Model{Name: "random", Config: c, Weights: w, Digest: "blake3:random"}
}

func randomAdapter(t testing.TB, m *model.Model, cfg model.LoRAConfig, seed uint64) *model.Adapter {
	t.Helper()
	layout, err := model.LoRALayout(m.Config, cfg)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(seed, 2))
	a := &model.Adapter{LoRA: cfg, BaseDigest: m.Digest, Params: make([]float32, layout.Size())}
	for i := range a.Params {
		a.Params[i] = float32(0.2 * r.NormFloat64())
	}
	return a
}

func randomIDs(r *rand.Rand, c model.Config, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(r.IntN(c.VocabSize))
	}
	return ids
}

// randomGroups makes groups of unlike shapes with tool-like holes in the masks.
func randomGroups(r *rand.Rand, c model.Config, groups, members, prompt, length int) []model.PrefixGroup {
	var out []model.PrefixGroup
	for range groups {
		g := model.PrefixGroup{Prompt: randomIDs(r, c, 1+r.IntN(prompt))}
		for range members {
			s := model.Sequence{Tokens: randomIDs(r, c, r.IntN(length+1))}
			for range s.Tokens {
				s.Train = append(s.Train, r.IntN(4) > 0)
			}
			g.Members = append(g.Members, s)
		}
		out = append(out, g)
	}
	return out
}

// coefficients are arbitrary dLoss/dLogProb and dLoss/dEntropy.
func coefficients(r *rand.Rand, n int) (dlp, dent []float32) {
	for range n {
		dlp, dent = append(dlp, float32(r.NormFloat64())), append(dent, float32(0.3*r.NormFloat64()))
	}
	return dlp, dent
}
