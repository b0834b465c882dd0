package model

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// cases/training.tsv, lora: "scale used alpha instead of alpha/r" and
// "rank-stabilised adapters scaled by alpha/r".
func TestLoRAScale(t *testing.T) {
	require.Equal(t, 2.0, LoRAConfig{}.scale(8, 16))
	require.Equal(t, 4.0, LoRAConfig{RSLoRA: true}.scale(16, 16))
	require.Equal(t, 1.0, LoRAConfig{}.scale(16, 16))
}

// The merged weight is W + scale * B A with scale alpha/r, and without an
// adapter's contribution it is W.
func TestMergeAddsScaledProduct(t *testing.T) {
	m := tinyModel(t)
	a := goldenAdapter(t, m)
	w, err := m.Merge(a)
	require.NoError(t, err)
	layout, err := LoRALayout(m.Config, a.LoRA)
	require.NoError(t, err)
	byName := map[string]Param{}
	for _, p := range layout {
		byName[p.Name] = p
	}
	A := byName["base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"]
	B := byName["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"]
	for o := range 40 {
		for i := range 24 {
			want := float64(m.Weights.Layers[1].Up[o*24+i])
			for k := range 4 {
				want += 2 * float64(a.Params[B.Offset+o*4+k]) * float64(a.Params[A.Offset+k*24+i])
			}
			require.InDelta(t, want, w.Layers[1].Up[o*24+i], 1e-6)
		}
	}
	fresh, err := NewAdapter(m.Config, a.LoRA, m.Digest, 1)
	require.NoError(t, err)
	same, err := m.Merge(fresh)
	require.NoError(t, err)
	require.Equal(t, m.Weights, same)
	_, err = m.Merge(&Adapter{LoRA: a.LoRA, BaseDigest: "blake3:other", Params: a.Params})
	require.ErrorIs(t, err, ErrAdapter)
}

// cases/training.tsv, lora: "gate_proj adapter loaded into the up_proj slot,
// shapes equal so no assert fired".
func TestGateAndUpSlots(t *testing.T) {
	m := tinyModel(t)
	lora := LoRAConfig{Rank: 2, Alpha: 2, Targets: []string{"up_proj", "gate_proj"}}
	layout, err := LoRALayout(m.Config, lora)
	require.NoError(t, err)
	a := &Adapter{LoRA: lora, BaseDigest: m.Digest, Params: make([]float32, layout.Size())}
	for _, p := range layout {
		v := float32(1)
		if strings.Contains(p.Name, "up_proj") {
			v = 2
		}
		for i := range p.Len() {
			a.Params[p.Offset+i] = v
		}
	}
	dir := t.TempDir()
	require.NoError(t, a.Save(dir, m.Config, ""))
	b, err := LoadAdapter(dir, m.Config)
	require.NoError(t, err)
	require.Equal(t, a.Params, b.Params)
	w, err := m.Merge(b)
	require.NoError(t, err)
	// B A of ones over rank 2 is 2; of twos it is 8.
	require.InDelta(t, m.Weights.Layers[0].Gate[5]+2, w.Layers[0].Gate[5], 1e-6)
	require.InDelta(t, m.Weights.Layers[0].Up[5]+8, w.Layers[0].Up[5], 1e-6)

	f, err := os.Open(filepath.Join(dir, peftWeightsFile))
	require.NoError(t, err)
	defer f.Close()
	st, err := openSafeTensors(f)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, x := range st.Tensors() {
		require.False(t, names[x.Name])
		names[x.Name] = true
	}
	require.Len(t, names, len(layout), "every name is mapped exactly once")
}

func TestLayoutIsAPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{VocabSize: 11, HiddenSize: rapid.IntRange(1, 9).Draw(t, "hidden"), IntermediateSize: rapid.IntRange(1, 9).Draw(t, "inter"),
			NumHiddenLayers: rapid.IntRange(1, 4).Draw(t, "layers"), NumAttentionHeads: 2, NumKeyValueHeads: 1, HeadDim: 2}
		targets := rapid.SliceOfNDistinct(rapid.SampledFrom(Projections), 1, 7, rapid.ID[string]).Draw(t, "targets")
		layout, err := LoRALayout(c, LoRAConfig{Rank: rapid.IntRange(1, 5).Draw(t, "r"), Alpha: 1, Targets: targets})
		if err != nil {
			t.Fatal(err)
		}
		if len(layout) != 2*c.NumHiddenLayers*len(targets) {
			t.Fatal(len(layout))
		}
		for _, l := range []Layout{layout, FullLayout(c)} {
			at, names := 0, map[string]bool{}
			for _, p := range l {
				if p.Offset != at || names[p.Name] {
					t.Fatalf("%+v at %d", p, at)
				}
				names[p.Name] = true
				at += p.Len()
			}
			if at != l.Size() {
				t.Fatal(at)
			}
		}
	})
}

func TestAdapterRefusals(t *testing.T) {
	m := tinyModel(t)
	a := goldenAdapter(t, m)
	good := t.TempDir()
	require.NoError(t, a.Save(good, m.Config, "base"))
	confData, err := os.ReadFile(filepath.Join(good, peftConfigFile))
	require.NoError(t, err)
	weights, err := os.ReadFile(filepath.Join(good, peftWeightsFile))
	require.NoError(t, err)

	for name, tc := range map[string]struct {
		set  map[string]any
		want string // "" = accepted
	}{
		"as saved by peft":  {set: map[string]any{"alpha_pattern": map[string]any{}, "rank_pattern": map[string]any{}, "layers_to_transform": nil, "lora_bias": false, "megatron_core": "megatron.core", "qalora_group_size": 16, "loftq_config": map[string]any{}, "eva_config": nil, "exclude_modules": nil, "trainable_token_indices": nil, "use_qalora": false, "init_lora_weights": true}},
		"all linear":        {set: map[string]any{"target_modules": "all-linear"}},
		"gaussian start":    {set: map[string]any{"init_lora_weights": "gaussian"}},
		"DoRA":              {set: map[string]any{"use_dora": true}, want: "use_dora = true is not implemented"},
		"rank pattern":      {set: map[string]any{"rank_pattern": map[string]any{"q_proj": 8}}, want: "has shape [4 24]"},
		"other modules":     {set: map[string]any{"rank_pattern": map[string]any{"q_projection": 8, "^q_proj": 3}, "alpha_pattern": map[string]any{"vision.*": 1}}},
		"rank 0":            {set: map[string]any{"rank_pattern": map[string]any{"q_proj": 0}}, want: `rank_pattern: "q_proj": rank is 0`},
		"rank 1.5":          {set: map[string]any{"rank_pattern": map[string]any{"q_proj": 1.5}}, want: "rank_pattern"},
		"a list":            {set: map[string]any{"alpha_pattern": []int{1}}, want: "alpha_pattern: [1]: not an object of module names and numbers"},
		"lookaround":        {set: map[string]any{"rank_pattern": map[string]any{"(?!q)_proj": 8}}, want: "not a regular expression"},
		"saved modules":     {set: map[string]any{"modules_to_save": []string{"lm_head"}}, want: "modules_to_save"},
		"bias":              {set: map[string]any{"bias": "all"}, want: `bias "all"`},
		"lora bias":         {set: map[string]any{"lora_bias": true}, want: "lora_bias"},
		"fan in":            {set: map[string]any{"fan_in_fan_out": true}, want: "fan_in_fan_out"},
		"some layers":       {set: map[string]any{"layers_to_transform": []int{0}}, want: "layers_to_transform"},
		"tokens":            {set: map[string]any{"trainable_token_indices": []int{0}}, want: "trainable_token_indices"},
		"future field":      {set: map[string]any{"use_hyperlora": true}, want: "use_hyperlora"},
		"PiSSA":             {set: map[string]any{"init_lora_weights": "pissa_niter_4"}, want: "changes the base weights"},
		"other method":      {set: map[string]any{"peft_type": "IA3"}, want: `peft_type "IA3"`},
		"pattern":           {set: map[string]any{"target_modules": ".*_proj"}, want: "is a pattern"},
		"other module":      {set: map[string]any{"target_modules": []string{"q_proj", "lm_head"}}, want: `unknown projection "lm_head"`},
		"fewer targets":     {set: map[string]any{"target_modules": []string{"q_proj"}}, want: "doesn't have"},
		"other rank":        {set: map[string]any{"r": 8}, want: "has shape [4 24]"},
		"no rank":           {set: map[string]any{"r": nil}, want: "rank is 0"},
		"alpha not numeric": {set: map[string]any{"lora_alpha": "16"}, want: "lora_alpha"},
	} {
		t.Run(name, func(t *testing.T) {
			var conf map[string]any
			require.NoError(t, json.Unmarshal(confData, &conf))
			maps.Copy(conf, tc.set)
			data, err := json.Marshal(conf)
			require.NoError(t, err)
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, peftConfigFile), data, 0o644))
			require.NoError(t, os.WriteFile(filepath.Join(dir, peftWeightsFile), weights, 0o644))
			got, err := LoadAdapter(dir, m.Config)
			if tc.want == "" {
				require.NoError(t, err)
				require.Equal(t, a.Params, got.Params)
				return
			}
			require.ErrorIs(t, err, ErrAdapter)
			require.ErrorContains(t, err, tc.want)
		})
	}

	require.NoError(t, os.WriteFile(filepath.Join(good, peftWeightsFile), weights[:len(weights)/2], 0o644))
	_, err = LoadAdapter(good, m.Config)
	require.ErrorIs(t, err, ErrFormat)

	rs := *a
	rs.LoRA.RSLoRA = true
	dir := t.TempDir()
	require.NoError(t, rs.Save(dir, m.Config, ""))
	back, err := LoadAdapter(dir, m.Config)
	require.NoError(t, err)
	require.Equal(t, 4.0, back.LoRA.scale(back.LoRA.Rank, back.LoRA.Alpha), "the flag is read from the adapter's configuration")
}

func TestAdapterOfAnotherBase(t *testing.T) {
	m := tinyModel(t)
	a := goldenAdapter(t, m)
	require.NoError(t, a.CheckBase(m.Digest))
	require.ErrorContains(t, a.CheckBase("blake3:00"), "trained on base "+m.Digest+", the loaded model is blake3:00")
	a.BaseDigest = ""
	require.ErrorContains(t, a.CheckBase(m.Digest), "records no base model")

	other := m.Config
	other.HiddenSize, other.HeadDim = 48, 16
	require.ErrorContains(t, a.Check(other), "made for another base?")
	a.Params[9] = float32(math.NaN())
	require.ErrorContains(t, a.Check(m.Config), "element 9 is NaN")
	require.ErrorIs(t, a.Save(t.TempDir(), m.Config, ""), ErrAdapter)
}

func TestDecodeAdapterRefusals(t *testing.T) {
	m := tinyModel(t)
	blob := goldenAdapter(t, m).Encode()
	for n := range len(blob) {
		if n > 600 && n%977 != 0 {
			continue
		}
		_, err := DecodeAdapter(blob[:n])
		require.ErrorIs(t, err, ErrFormat)
	}
	lora := `{"r":1,"lora_alpha":1,"use_rslora":false,"target_modules":["q_proj"]}`
	meta := map[string]string{metaFormat: blobFormat, metaBase: "b", metaLoRA: lora}
	params := Tensor{Name: "params", Shape: []int{1}, Data: []float32{1}}
	_, err := DecodeAdapter(writeST(t, []Tensor{params}, meta))
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		tensors []Tensor
		set     map[string]string
		want    string
	}{
		"format":     {[]Tensor{params}, map[string]string{metaFormat: "v9"}, `format "v9"`},
		"lora":       {[]Tensor{params}, map[string]string{metaLoRA: "{"}, metaLoRA},
		"rank":       {[]Tensor{params}, map[string]string{metaLoRA: strings.Replace(lora, `"r":1`, `"r":0`, 1)}, "rank is 0"},
		"no params":  {nil, nil, `no vector "params"`},
		"two":        {[]Tensor{params, {Name: "x", Shape: []int{0}}}, nil, `"x" is F32`},
		"wrong type": {[]Tensor{{Name: "params", Shape: []int{1}, DType: F16, Data: []float32{1}}}, nil, `"params" is F16`},
		"two types":  {[]Tensor{params, {Name: "score", Shape: []int{1}, DType: BF16, Data: []float32{1}}}, nil, `"score" is BF16`},
	} {
		t.Run(name, func(t *testing.T) {
			mt := maps.Clone(meta)
			maps.Copy(mt, tc.set)
			_, err := DecodeAdapter(writeST(t, tc.tensors, mt))
			require.ErrorIs(t, err, ErrFormat)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestLoRAConfigValidate(t *testing.T) {
	err := LoRAConfig{Rank: 0, Alpha: math.Inf(1), Targets: []string{"q", "k_proj", "k_proj"}}.Validate()
	for _, want := range []string{"rank is 0", "alpha is +Inf", `unknown projection "q"`, `"k_proj" is listed twice`} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, LoRAConfig{Rank: 1, Alpha: 1}.Validate(), "targets is empty")
	require.True(t, LoRAConfig{Rank: 1, Targets: []string{"q_proj", "v_proj"}}.Equal(LoRAConfig{Rank: 1, Targets: []string{"v_proj", "q_proj"}}))
	require.False(t, LoRAConfig{Rank: 1}.Equal(LoRAConfig{Rank: 1, RSLoRA: true}))
}
