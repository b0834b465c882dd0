package gobackend

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

const valueDir = "../testdata/value"

// valueOf is d of the sum over marked tokens of sin(token + 0.3 index) * v.
func valueOf(id int32, i int) float32 { return float32(math.Sin(float64(id) + 0.3*float64(i))) }

// valueGradient runs one Forward and Backward of that sum; index counts from the
// start of the prompt, so that any cut of a sequence has the same sum. With
// mixed, log-probabilities and entropies are in the loss too.
func valueGradient(t testing.TB, tr model.Trainer, parts [][]model.PrefixGroup, mixed bool) ([]float32, []float32) {
	t.Helper()
	tr.ZeroGrad()
	var all []float32
	for _, groups := range parts {
		s, err := tr.Forward(ctx, groups, .9)
		require.NoError(t, err)
		var d model.Scores
		for _, g := range groups {
			for _, m := range g.Members {
				for i, id := range m.Tokens {
					at := i + len(g.Prompt)
					if m.Value != nil && m.Value[i] {
						d.Values = append(d.Values, valueOf(id, at))
					}
					if m.Train[i] && mixed {
						d.LogProbs, d.Entropy = append(d.LogProbs, .5*valueOf(id, at+1)), append(d.Entropy, .2*valueOf(id, at+2))
					}
				}
			}
		}
		require.Len(t, s.Values, len(d.Values))
		require.NoError(t, tr.Backward(ctx, d))
		all = append(all, s.Values...)
	}
	return slices.Clone(tr.Grad()), all
}

// marked adds value marks.
func marked(r *rand.Rand, groups []model.PrefixGroup) []model.PrefixGroup {
	for _, g := range groups {
		for i := range g.Members {
			m := &g.Members[i]
			m.Value = make([]bool, len(m.Tokens))
			for t := range m.Value {
				m.Value[t] = r.IntN(3) > 0
			}
		}
	}
	return groups
}

// TestValueGolden: values and gradients are those of transformers'
// LlamaForSequenceClassification and peft.
func TestValueGolden(t *testing.T) {
	m, err := model.OpenWeights(filepath.Join(familiesDir, "llama2"))
	require.NoError(t, err)
	a, err := model.LoadScoreAdapter(valueDir, m.Config)
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(valueDir, "golden.json"))
	require.NoError(t, err)
	var doc struct{ Sequences [][]int32 }
	require.NoError(t, json.Unmarshal(data, &doc))
	golden := openTensors(t, filepath.Join(valueDir, "golden.safetensors"))
	h := m.Config.HiddenSize
	full, err := m.Weights.Flatten(m.Config)
	require.NoError(t, err)
	full = append(full, golden.read("score", 1, h)...)
	b := newBackend(t, m, Options{})

	// A prompt of nothing: the head is read after the first token too.
	groups := func(every bool) (out []model.PrefixGroup) {
		for _, ids := range doc.Sequences {
			s := model.Sequence{Tokens: ids, Train: make([]bool, len(ids)), Value: make([]bool, len(ids))}
			for i := range ids {
				s.Value[i] = every || i == len(ids)-1
			}
			out = append(out, model.PrefixGroup{Members: []model.Sequence{s}})
		}
		return out
	}
	for prefix, tc := range map[string]struct {
		cfg    model.TrainerConfig
		params []float32
	}{
		"":      {model.TrainerConfig{Full: true, Value: true}, full},
		"lora.": {model.TrainerConfig{LoRA: a.LoRA, Value: true}, a.Flat()},
	} {
		tr := newTrainer(t, b, tc.cfg, tc.params)
		compare := func(loss string, grad []float32) {
			seen := 0
			for _, p := range tr.Layout() {
				name := p.Name
				if prefix != "" && name == model.ScoreWeight {
					name = "base_model.model." + name
				}
				if name = prefix + loss + ".grad." + name; !golden.has(name) {
					require.Empty(t, prefix, name)
					continue
				}
				seen++
				want := golden.read(name, p.Shape...)
				require.Less(t, relative(want, grad[p.Offset:p.Offset+p.Len()]), familyTolerance, name)
			}
			require.GreaterOrEqual(t, seen, 3)
		}
		grad, values := valueGradient(t, tr, [][]model.PrefixGroup{groups(true)}, false)
		at := 0
		for i, ids := range doc.Sequences {
			want := golden.read(prefix+"values."+strconv.Itoa(i), len(ids))
			require.Less(t, relative(want, values[at:at+len(ids)]), familyTolerance, "%svalues.%d", prefix, i)
			at += len(ids)
		}
		compare("dense", grad)

		s, err := tr.Forward(ctx, groups(false), 1)
		require.NoError(t, err)
		d := model.Scores{Values: make([]float32, 4)}
		for i := 0; i < 4; i += 2 {
			g := 1 / (1 + math.Exp(float64(s.Values[i]-s.Values[i+1]))) / 2
			d.Values[i], d.Values[i+1] = float32(-g), float32(g)
		}
		tr.ZeroGrad()
		require.NoError(t, tr.Backward(ctx, d))
		compare("pair", tr.Grad())
	}
}

func TestValueFiniteDifferences(t *testing.T) {
	for name, c := range oddConfigs() {
		c.ExpertsPerToken = c.Experts
		m := randomModel(t, c, 11)
		b := newBackend(t, m, Options{})
		r := rand.New(rand.NewPCG(12, 14))
		groups := marked(r, randomGroups(r, c, 3, 3, 7, 9))
		full, err := m.Weights.Flatten(c)
		require.NoError(t, err)
		head := make([]float32, c.HiddenSize)
		for i := range head {
			head[i] = float32(r.NormFloat64())
		}
		lora := everyLoRA(c)
		for kind, tc := range map[string]struct {
			cfg    model.TrainerConfig
			params []float32
		}{
			"full": {model.TrainerConfig{Full: true, Value: true}, append(full, head...)},
			"lora": {model.TrainerConfig{LoRA: lora, Value: true}, append(randomAdapter(t, m, lora, 15).Params, head...)},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				tr := newTrainer(t, b, tc.cfg, tc.params)
				grad, _ := valueGradient(t, tr, [][]model.PrefixGroup{groups}, false)
				dir := make([]float64, len(tc.params))
				var want, norm float64
				for i := range dir {
					dir[i] = r.NormFloat64() / math.Sqrt(float64(len(dir)))
					want += dir[i] * float64(grad[i])
					norm += float64(grad[i]) * float64(grad[i])
				}
				at := func(h float64) (sum float64) {
					moved := slices.Clone(tc.params)
					for i, d := range dir {
						moved[i] += float32(h * d)
					}
					s, err := tr.Score(ctx, groups, 1, moved)
					require.NoError(t, err)
					k := 0
					for _, g := range groups {
						for _, m := range g.Members {
							for i, id := range m.Tokens {
								if m.Value[i] {
									sum += float64(valueOf(id, i+len(g.Prompt))) * float64(s.Values[k])
									k++
								}
							}
						}
					}
					return sum
				}
				h := 1e-2
				got := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
				require.InDelta(t, want, got, 6e-3*(math.Sqrt(norm/float64(len(dir)))+1))
				require.Greater(t, norm, 1e-2)
			})
		}
	}
}

// TestValuePacking: any packing, any cut between prompt and members, and
// recomputed activations give the same values and gradient, alone and beside
// log-probabilities.
func TestValuePacking(t *testing.T) {
	for _, name := range []string{"all", "mixture"} {
		t.Run(name, func(t *testing.T) { testValuePacking(t, oddConfigs()[name]) })
	}
}

func testValuePacking(t *testing.T, c model.Config) {
	m := randomModel(t, c, 21)
	lora := everyLoRA(c)
	cfg := model.TrainerConfig{LoRA: lora, Value: true}
	params := randomAdapter(t, m, lora, 22).Params
	for i := range c.HiddenSize {
		params = append(params, float32(math.Cos(float64(i))))
	}
	b := newBackend(t, m, Options{})
	lean := newBackend(t, m, Options{Threads: 1, ActivationBytes: -1})
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3))
		groups := marked(r, randomGroups(r, c, rapid.IntRange(1, 3).Draw(rt, "groups"), rapid.IntRange(1, 4).Draw(rt, "members"),
			rapid.IntRange(1, 12).Draw(rt, "prompt"), rapid.IntRange(0, 10).Draw(rt, "length")))
		mixed := rapid.Bool().Draw(rt, "mixed")
		want, values := valueGradient(t, newTrainer(t, b, cfg, params), [][]model.PrefixGroup{groups}, mixed)

		var alone, cut [][]model.PrefixGroup
		for _, g := range groups {
			k := rapid.IntRange(0, len(g.Prompt)).Draw(rt, "cut")
			short := model.PrefixGroup{Prompt: g.Prompt[:k]}
			for _, s := range g.Members {
				alone = append(alone, []model.PrefixGroup{{Prompt: g.Prompt, Members: []model.Sequence{s}}})
				none := make([]bool, len(g.Prompt)-k)
				short.Members = append(short.Members, model.Sequence{Tokens: slices.Concat(g.Prompt[k:], s.Tokens),
					Train: slices.Concat(none, s.Train), Value: slices.Concat(none, s.Value)})
			}
			if k == 0 && slices.ContainsFunc(short.Members, func(s model.Sequence) bool { return s.Train[0] }) {
				short = g
			}
			cut = append(cut, []model.PrefixGroup{short})
		}
		for name, parts := range map[string][][]model.PrefixGroup{"members apart": alone, "cut elsewhere": cut} {
			got, v := valueGradient(t, newTrainer(t, b, cfg, params), parts, mixed)
			require.Equal(t, values, v, "%s: values are the same bits", name)
			require.Less(t, relative(want, got), 2e-5, name)
		}
		got, v := valueGradient(t, newTrainer(t, lean, cfg, params), [][]model.PrefixGroup{groups}, mixed)
		require.Equal(t, values, v)
		require.Equal(t, want, got, "threads and recomputation change nothing at all")
	})
}

func TestValueErrors(t *testing.T) {
	c := tinyConfig()
	m := randomModel(t, c, 51)
	b := newBackend(t, m, Options{})
	lora := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"v_proj"}}
	params := randomAdapter(t, m, lora, 52).Params
	one := func(value ...bool) []model.PrefixGroup {
		return []model.PrefixGroup{{Prompt: []int32{1}, Members: []model.Sequence{{Tokens: []int32{2, 3}, Train: []bool{true, false}, Value: value}}}}
	}
	plain := newTrainer(t, b, model.TrainerConfig{LoRA: lora}, params)
	_, err := plain.Forward(ctx, one(true, false), 1)
	require.ErrorContains(t, err, "the trainer has no value head")
	s, err := plain.Forward(ctx, one(), 1)
	require.NoError(t, err)
	require.Nil(t, s.Values)
	require.ErrorContains(t, plain.Backward(ctx, model.Scores{Values: []float32{1}}), "1 value gradients for 0")

	cfg := model.TrainerConfig{LoRA: lora, Value: true}
	tr, err := b.NewTrainer(cfg)
	require.NoError(t, err)
	require.ErrorContains(t, tr.SetParams(params), "the layout has")
	bad := append(slices.Clone(params), make([]float32, c.HiddenSize)...)
	bad[len(bad)-1] = float32(math.Inf(1))
	require.ErrorContains(t, tr.SetParams(bad), model.ScoreWeight)
	bad[len(bad)-1] = 0
	require.NoError(t, tr.SetParams(bad))
	_, err = tr.Forward(ctx, one(true), 1)
	require.ErrorContains(t, err, "1 value marks for 2 tokens")
	_, err = tr.Score(ctx, one(true, true), 1, nil)
	require.ErrorContains(t, err, "no value head")
	s, err = tr.Forward(ctx, one(true, true), 1)
	require.NoError(t, err)
	require.Equal(t, []float32{0, 0}, s.Values)
	require.ErrorContains(t, tr.Backward(ctx, model.Scores{Values: []float32{1}}), "1 value gradients for 2")
	require.ErrorIs(t, tr.Backward(ctx, model.Scores{Values: []float32{1, float32(math.NaN())}}), ErrNonFinite)
	require.NoError(t, tr.Backward(ctx, model.Scores{}))
	require.Equal(t, make([]float32, len(bad)), tr.Grad())
	require.NoError(t, tr.Backward(ctx, model.Scores{Entropy: []float32{1}, Values: []float32{1, 0}}))
	require.True(t, slices.ContainsFunc(tr.Grad(), func(x float32) bool { return x != 0 }))
	require.True(t, strings.HasSuffix(tr.Layout()[len(tr.Layout())-1].Name, "score.weight"))
}
