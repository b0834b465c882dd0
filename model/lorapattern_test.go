package model

import (
	"encoding/json"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// What re.match(rf"(.*\.)?({key})$", module) says in peft 0.21.2.
func TestPatternMatches(t *testing.T) {
	const module = "model.layers.1.self_attn.q_proj"
	for key, want := range map[string]bool{
		"q_proj": true, "self_attn.q_proj": true, module: true, "^" + module: true, `layers\.1\..*`: true, `layers\.[01]\.self_attn\.[qk]_proj`: true,
		"k_proj|q_proj": true, ".*": true, `.*q_proj$`: true, "(?:q|v)_proj": true, "q.proj": true,
		"proj": false, "_proj": false, "^q_proj": false, `layers\.1`: false, "layers.11.self_attn.q_proj": false, "q_proj.": false, "odel.layers.1.self_attn.q_proj": false,
		"Q_PROJ": false, "(?i)Q_PROJ": true,
	} {
		c, err := Pattern[int]{{key, 3}}.compile(checkRank)
		require.NoError(t, err, key)
		require.Equal(t, want, c.of(module, 1) == 3, key)
		require.Equal(t, want, len(c.unused()) == 0, key)
	}
	c, err := Pattern[int]{{"self_attn.*", 3}, {"q_proj", 4}, {".*", 5}}.compile(checkRank)
	require.NoError(t, err)
	require.Equal(t, []int{3, 5}, []int{c.of(module, 1), c.of("model.layers.0.mlp.up_proj", 1)}, "the first that matches")
}

func TestPatternsOfModules(t *testing.T) {
	m := tinyModel(t)
	l := LoRAConfig{
		Rank: 4, Alpha: 8, RSLoRA: true, Targets: []string{"q_proj", "up_proj"},
		RankPattern:  Pattern[int]{{`layers\.1\..*`, 9}, {"up_proj", 2}},
		AlphaPattern: Pattern[float64]{{"up_proj", 1}},
	}
	modules, err := LoRAModules(m.Config, l)
	require.NoError(t, err)
	type row struct {
		path  string
		rank  int
		scale float64
	}
	var got []row
	at := 0
	for _, x := range modules {
		got = append(got, row{x.Path, x.Rank, x.Scale})
		require.Equal(t, at, x.A)
		require.Equal(t, x.A+x.Rank*x.In, x.B)
		at = x.B + x.Out*x.Rank
	}
	require.Equal(t, []row{
		{"model.layers.0.self_attn.q_proj", 4, 4}, {"model.layers.0.mlp.up_proj", 2, 1 / math.Sqrt(2)},
		{"model.layers.1.self_attn.q_proj", 9, 8. / 3}, {"model.layers.1.mlp.up_proj", 9, 1. / 3},
	}, got)

	// Through every form that an adapter has.
	a, err := NewAdapter(m.Config, l, m.Digest, 1)
	require.NoError(t, err)
	require.Len(t, a.Params, at)
	for i := range a.Params {
		a.Params[i] += float32(i%7) / 100
	}
	blob, err := DecodeAdapter(a.Encode())
	require.NoError(t, err)
	require.Equal(t, a, blob)
	dir := t.TempDir()
	require.NoError(t, a.Save(dir, m.Config, "base"))
	back, err := LoadAdapter(dir, m.Config)
	require.NoError(t, err)
	require.Equal(t, a, back)

	// Merged it is W + scale B A of each module, and plain adapters of the same
	// products are no different.
	w, err := m.Merge(a)
	require.NoError(t, err)
	x := modules[1]
	for o := range 3 {
		want := float64(m.Weights.Layers[0].Up[o*x.In+5])
		for k := range x.Rank {
			want += x.Scale * float64(a.Params[x.B+o*x.Rank+k]) * float64(a.Params[x.A+k*x.In+5])
		}
		require.InDelta(t, want, w.Layers[0].Up[o*x.In+5], 1e-6)
	}
	flat := *a
	flat.LoRA.RankPattern, flat.LoRA.AlphaPattern = Pattern[int]{{`model\.layers\.0\.mlp\.up_proj`, 2}, {"layers.0.self_attn.q_proj", 4}}, l.AlphaPattern
	flat.LoRA.Rank, flat.LoRA.Alpha = 9, 8
	fa, err := a.File(m.Config)
	require.NoError(t, err)
	fb, err := flat.File(m.Config)
	require.NoError(t, err)
	d, err := DiffAdapters(fa, fb)
	require.NoError(t, err)
	for _, p := range d.Products {
		require.True(t, p.Equal, p.Name)
	}
	require.Equal(t, FieldDifference{"rank_pattern", `layers\.1\..*=9, up_proj=2`, `model\.layers\.0\.mlp\.up_proj=2, layers.0.self_attn.q_proj=4`}, d.Fields[1])
	read, err := ReadAdapterFile(dir)
	require.NoError(t, err)
	d, err = DiffAdapters(fa, read)
	require.NoError(t, err)
	require.True(t, d.Equal)
	require.False(t, a.LoRA.Equal(flat.LoRA))
}

func TestPatternRefusals(t *testing.T) {
	c := tinyModel(t).Config
	ok := LoRAConfig{Rank: 4, Alpha: 8, Targets: []string{"q_proj"}}
	for want, set := range map[string]func(*LoRAConfig){
		`rank_pattern: "o_proj" matches none of the 2 adapted modules (model.layers.0.self_attn.q_proj to model.layers.1.self_attn.q_proj)`: func(l *LoRAConfig) { l.RankPattern = Pattern[int]{{"o_proj", 1}} },
		`alpha_pattern: "layers.2.*" matches none`:                   func(l *LoRAConfig) { l.AlphaPattern = Pattern[float64]{{"layers.2.*", 1}} },
		`rank_pattern: "q_proj": rank is 5000, want 1 to 4096`:       func(l *LoRAConfig) { l.RankPattern = Pattern[int]{{"q_proj", 5000}} },
		`alpha_pattern: "q_proj": alpha is NaN`:                      func(l *LoRAConfig) { l.AlphaPattern = Pattern[float64]{{"q_proj", math.NaN()}} },
		`rank_pattern: "q_proj": the key is given twice`:             func(l *LoRAConfig) { l.RankPattern = Pattern[int]{{"q_proj", 1}, {"q_proj", 2}} },
		`rank_pattern: "": the key is empty`:                         func(l *LoRAConfig) { l.RankPattern = Pattern[int]{{"", 1}} },
		`rank_pattern: "q_(proj": not a regular expression`:          func(l *LoRAConfig) { l.RankPattern = Pattern[int]{{"q_(proj", 1}} },
		`alpha_pattern: "(?<=q)_proj": not a regular expression for`: func(l *LoRAConfig) { l.AlphaPattern = Pattern[float64]{{"(?<=q)_proj", 1}} },
	} {
		l := ok
		set(&l)
		_, err := NewAdapter(c, l, "", 1)
		require.ErrorContains(t, err, want)
	}
}

// A pattern is a mapping whose order is kept.
func TestPatternEncodings(t *testing.T) {
	type both struct {
		R Pattern[int]     `yaml:"r,omitempty" json:"r,omitempty"`
		A Pattern[float64] `yaml:"a,omitempty" json:"a,omitempty"`
	}
	v := both{R: Pattern[int]{{"z_proj", 1}, {`a\.b."c"`, 20}}, A: Pattern[float64]{{"yes", 0.5}, {"1", 16}}}
	js, err := json.Marshal(v)
	require.NoError(t, err)
	require.Equal(t, `{"r":{"z_proj":1,"a\\.b.\"c\"":20},"a":{"yes":0.5,"1":16}}`, string(js))
	var back both
	require.NoError(t, json.Unmarshal(js, &back))
	require.Equal(t, v, back)
	ym, err := yaml.Marshal(v)
	require.NoError(t, err)
	back = both{}
	require.NoError(t, yaml.Unmarshal(ym, &back), string(ym))
	require.Equal(t, v, back, string(ym))

	js, err = json.Marshal(both{})
	require.NoError(t, err)
	require.Equal(t, "{}", string(js), "blobs without patterns are as before")
	back = v
	require.NoError(t, json.Unmarshal([]byte(`{"r":null,"a":{}}`), &back))
	require.Equal(t, both{}, back)
	for _, bad := range []string{`{"r":[1]}`, `{"r":"q"}`, `{"r":{"q":"1"}}`, `{"r":{"q":1.5}}`} {
		require.Error(t, json.Unmarshal([]byte(bad), &back), bad)
		require.Error(t, yaml.Unmarshal([]byte(bad), &back), bad)
	}
}

// Patterns that peft wrote for a multimodal Gemma 3 name the modules as they are
// there.
func TestPatternsOfMultimodalGemma(t *testing.T) {
	c := openFamily(t, "gemma3").Config
	want, err := LoadAdapter(filepath.Join(familiesDir, "gemma3"), c)
	require.NoError(t, err)
	l := want.LoRA
	l.AlphaPattern = Pattern[float64]{{"model.language_model.layers.0.self_attn.q_proj", 77}, {"vision_tower.*", 3}}
	got := l.renamed(c, func(path string) string { return "model.language_model." + path[len("model."):] })
	require.Equal(t, Pattern[float64]{{`model\.layers\.0\.self_attn\.q_proj`, 77}}, got.AlphaPattern)
	modules, err := LoRAModules(c, got)
	require.NoError(t, err)
	require.Equal(t, 77., modules[0].Alpha)
}
