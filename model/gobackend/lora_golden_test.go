package gobackend

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// loraGolden is testdata/lora/golden.json: see scripts/golden_lora.py.
type loraGolden struct {
	Prompt     []int32
	Members    [][]int32
	Rate       float64
	Seed, Step uint64
	Adapters   map[string]struct {
		Plain, Dropped []float64
		Scales         map[string][2]float64 // rank and scale of each module
	}
}

// TestGoldenLoRAPatterns: adapters with ranks and alphas of their own, as peft
// saved them, mean what they mean in peft, in training, merged, decoded and saved
// again; and LoRA dropout is peft's, given the same masks.
func TestGoldenLoRAPatterns(t *testing.T) {
	const dir = "../testdata/lora"
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(t, err)
	var golden loraGolden
	require.NoError(t, json.Unmarshal(data, &golden))
	m, _ := loadGolden(t)
	b := newBackend(t, m, Options{})
	group := model.PrefixGroup{Prompt: golden.Prompt}
	var weights []float32
	for _, ids := range golden.Members {
		s := model.Sequence{Tokens: ids, Train: make([]bool, len(ids))}
		for i, id := range ids {
			s.Train[i] = true
			weights = append(weights, float32(math.Sin(float64(id)+0.3*float64(i))))
		}
		group.Members = append(group.Members, s)
	}
	for name, want := range golden.Adapters {
		t.Run(name, func(t *testing.T) {
			a, err := model.LoadAdapter(filepath.Join(dir, name), m.Config)
			require.NoError(t, err)
			a.BaseDigest = m.Digest
			modules, err := model.LoRAModules(m.Config, a.LoRA)
			require.NoError(t, err)
			require.Len(t, want.Scales, len(modules))
			for _, x := range modules {
				require.Equal(t, want.Scales[x.Path][0], float64(x.Rank), x.Path)
				require.InEpsilon(t, want.Scales[x.Path][1], x.Scale, 1e-12, x.Path)
			}
			grads, err := os.Open(filepath.Join(dir, name, "grads.safetensors"))
			require.NoError(t, err)
			defer grads.Close()
			info, err := grads.Stat()
			require.NoError(t, err)
			st, err := model.ReadSafeTensors(grads, info.Size())
			require.NoError(t, err)

			tr := newTrainer(t, b, model.TrainerConfig{LoRA: a.LoRA}, a.Params)
			for kind, scores := range map[string][]float64{"plain": want.Plain, "dropped": want.Dropped} {
				g := group
				if kind == "dropped" {
					g.Dropout = model.Dropout{Rate: golden.Rate, Key: model.DropoutKey(golden.Seed, model.DropoutPolicy, golden.Step)}
				}
				tr.ZeroGrad()
				s, err := tr.Forward(ctx, []model.PrefixGroup{g}, 1)
				require.NoError(t, err)
				requireNear(t, scores, s.LogProbs, kind)
				require.NoError(t, tr.Backward(ctx, model.Scores{LogProbs: weights}))
				for _, p := range tr.Layout() {
					grad := make([]float32, p.Len())
					require.NoError(t, st.ReadF32(kind+"."+p.Name, p.Shape, grad))
					require.Less(t, relative(grad, tr.Grad()[p.Offset:p.Offset+p.Len()]), 5e-5, "%s %s", kind, p.Name)
				}
			}
			require.Greater(t, math.Abs(want.Plain[3]-want.Dropped[3]), 1e-3)

			merged, err := m.Merge(a)
			require.NoError(t, err)
			folded := newTrainer(t, newBackend(t, &model.Model{Config: m.Config, Weights: merged, Digest: "merged"}, Options{}), model.TrainerConfig{LoRA: a.LoRA}, make([]float32, len(a.Params)))
			s, err := folded.Forward(ctx, []model.PrefixGroup{group}, 1)
			require.NoError(t, err)
			requireNear(t, want.Plain, s.LogProbs, "merged")

			out := os.Getenv("SKEIN_SAVE_OUT") // for scripts/golden_lora.py to read
			if out == "" {
				out = t.TempDir()
			}
			out = filepath.Join(out, name)
			require.NoError(t, a.Save(out, m.Config, "tiny_llama"))
			back, err := model.LoadAdapter(out, m.Config)
			require.NoError(t, err)
			require.Equal(t, a, back)

			ids := append(append([]int32(nil), golden.Prompt...), golden.Members[0]...)
			d := newDecoder(t, b, 1, 32, a)
			scored, err := d.Score(ctx, []model.ScoreRow{{Adapter: 1, Tokens: ids}})
			require.NoError(t, err)
			requireNear(t, want.Plain[:len(golden.Members[0])], scored[0].Logprobs[len(golden.Prompt)-1:], "decoder")
		})
	}
	require.Len(t, golden.Adapters, 2)
}

func requireNear(t *testing.T, want []float64, got []float32, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, w := range want {
		require.InDelta(t, w, got[i], 1e-5, "%s: logprob %d", what, i)
	}
}
