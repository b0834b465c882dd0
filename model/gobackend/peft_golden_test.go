package gobackend

import (
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/tiny"
)

// testdata/peft holds adapters of the embedded model, written by Adapter.Save
// and by PEFT, and what transformers and PEFT compute with them in float32.
// model/testdata/probe_peft.py says how to make it again, which a new embedded
// model needs.
const (
	peftDir       = "testdata/peft"
	peftTolerance = 1e-4 // on a logprob
)

var peftBase = flag.String("peft-base", "", "folder to write the embedded model to, and the adapters to "+peftDir)

// peftOwn are the adapters that Skein writes.
var peftOwn = map[string]model.LoRAConfig{
	"lora":   {Rank: 8, Alpha: 16, Targets: model.Projections},
	"rslora": {Rank: 16, Alpha: 16, RSLoRA: true, Targets: []string{"q_proj", "v_proj"}},
}

func TestWritePEFT(t *testing.T) {
	if *peftBase == "" {
		t.Skip("writes testdata: see -peft-base")
	}
	m, err := tiny.Open()
	require.NoError(t, err)
	require.NoError(t, m.Save(*peftBase, model.BF16))
	for name, lora := range peftOwn {
		a, err := model.NewAdapter(m.Config, lora, m.Digest, 7)
		require.NoError(t, err)
		layout, err := model.LoRALayout(m.Config, lora)
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(7, 7))
		for _, p := range layout {
			if strings.HasSuffix(p.Name, "lora_B.weight") {
				for i := range p.Len() {
					a.Params[p.Offset+i] = float32(0.1 * r.NormFloat64())
				}
			}
		}
		require.NoError(t, a.Save(filepath.Join(peftDir, name), m.Config, "tiny"))
	}
}

type peftGolden struct {
	Text     string               `json:"text"`
	IDs      []int32              `json:"ids"`
	Base     []float64            `json:"base"` // logprob of ids[t] given ids[:t], t from 1
	Adapters map[string][]float64 `json:"adapters"`
}

func TestPEFTAdaptersMeanTheSame(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(peftDir, "golden.json"))
	require.NoError(t, err)
	var golden peftGolden
	require.NoError(t, json.Unmarshal(data, &golden))
	m, err := tiny.Open()
	require.NoError(t, err)
	require.Equal(t, golden.IDs, m.Tokenizer.Encode(golden.Text, true), "transformers reads our tokenizer.json otherwise")
	b := newBackend(t, m, Options{})
	require.Less(t, apart(golden.Base, scoreIDs(t, b, golden.IDs, nil)), peftTolerance, "the base")

	want := map[string]model.LoRAConfig{
		"peft-all-linear":  {Rank: 2, Alpha: 3, Targets: model.Projections},
		"peft-rslora-bf16": {Rank: 3, Alpha: 5, RSLoRA: true, Targets: []string{"q_proj", "v_proj", "down_proj"}},
	}
	for name, lora := range peftOwn {
		want[name] = lora
	}
	require.Len(t, golden.Adapters, len(want))
	for name, lora := range want {
		t.Run(name, func(t *testing.T) {
			ref := golden.Adapters[name]
			a, err := model.LoadAdapter(filepath.Join(peftDir, name), m.Config)
			require.NoError(t, err)
			require.True(t, a.LoRA.Equal(lora), "%+v", a.LoRA)
			if _, own := peftOwn[name]; own {
				require.NoError(t, a.CheckBase(m.Digest))
			} else {
				require.Empty(t, a.BaseDigest)
				a.BaseDigest = m.Digest // PEFT doesn't record it
			}

			got := scoreIDs(t, b, golden.IDs, a)
			t.Logf("trainer: off by at most %.2g of a change of at most %.2g", apart(ref, got), apart(golden.Base, got))
			require.Less(t, apart(ref, got), peftTolerance, "the trainer")
			for i := 1; i < len(golden.IDs); i += 9 {
				logits := logitsAfter(t, b, a, golden.IDs[:i+1])
				require.InDelta(t, ref[i], logProb(logits, golden.IDs[i+1]), peftTolerance, "the decoder, token %d", i+1)
			}

			// The numbers tell adapters apart: without this one, or with another
			// scale, they differ by far more than the tolerance.
			require.Greater(t, apart(golden.Base, got), 0.5)
			a.LoRA.RSLoRA = !a.LoRA.RSLoRA
			require.Greater(t, apart(ref, scoreIDs(t, b, golden.IDs, a)), 0.1)
		})
	}
}

// scoreIDs gives the logprob of every token but the first.
func scoreIDs(t *testing.T, b *backend, ids []int32, a *model.Adapter) []float32 {
	t.Helper()
	lora, params := peftOwn["lora"], []float32(nil)
	if a != nil {
		lora, params = a.LoRA, a.Params
	}
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: lora})
	require.NoError(t, err)
	defer tr.Close()
	group := model.PrefixGroup{Prompt: ids[:1], Members: []model.Sequence{{Tokens: ids[1:], Train: slices.Repeat([]bool{true}, len(ids)-1)}}}
	s, err := tr.Score(t.Context(), []model.PrefixGroup{group}, 1, params)
	require.NoError(t, err)
	return s.LogProbs
}

// apart is the largest difference; different lengths are infinitely apart.
func apart(want []float64, got []float32) float64 {
	if len(want) != len(got) {
		return math.Inf(1)
	}
	var d float64
	for i, w := range want {
		d = max(d, math.Abs(w-float64(got[i])))
	}
	return d
}

func logProb(logits []float32, id int32) float64 {
	top := float64(slices.Max(logits))
	var sum float64
	for _, x := range logits {
		sum += math.Exp(float64(x) - top)
	}
	return float64(logits[id]) - top - math.Log(sum)
}
