package model

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDiffModels(t *testing.T) {
	a := tinyModel(t)
	d, err := DiffModels(a, a, nil, nil)
	require.NoError(t, err)
	require.True(t, d.Equal)
	require.Zero(t, d.Total.MaxAbs)
	require.Equal(t, 1.0, d.Total.Cosine)

	b := *a
	flat, err := a.Weights.Flatten(a.Config)
	require.NoError(t, err)
	b.Weights, err = UnflattenWeights(a.Config, slices.Clone(flat))
	require.NoError(t, err)
	q := b.Weights.Layers[0].Q
	q[3] += 0.5
	b.Config.RopeTheta = 7
	d, err = DiffModels(a, &b, map[string]string{"model.norm.weight": "F16"}, nil)
	require.NoError(t, err)
	require.False(t, d.Equal)
	require.Equal(t, []FieldDifference{{"rope_theta", "10000", "7"}}, d.Fields)
	for _, x := range d.Tensors {
		require.Equal(t, x.Name != "model.layers.0.self_attn.q_proj.weight", x.Equal, x.Name)
		if !x.Equal {
			require.InDelta(t, 0.5, x.MaxAbs, 1e-6)
			require.Greater(t, x.RelNorm, 0.0)
			require.Less(t, x.Cosine, 1.0)
		}
	}
	require.InDelta(t, 0.5, d.Total.MaxAbs, 1e-6)

	// Another size: nothing is compared that has another shape.
	c := wideModel(t)
	d, err = DiffModels(a, c, nil, nil)
	require.NoError(t, err)
	require.False(t, d.Equal)
	require.NotEmpty(t, d.Fields)
}

// An adapter of twice the rank whose halves add up to another's product differs
// in every tensor and in no product.
func TestDiffAdapters(t *testing.T) {
	c := tinyModel(t).Config
	lora := LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "down_proj"}}
	a, err := NewAdapter(c, lora, "blake3:x", 1)
	require.NoError(t, err)
	for i := range a.Params {
		a.Params[i] += float32(i%7) * 0.01
	}
	layout, err := LoRALayout(c, lora)
	require.NoError(t, err)
	lora4 := LoRAConfig{Rank: 4, Alpha: 8, Targets: []string{"down_proj", "q_proj"}}
	b, err := NewAdapter(c, lora4, "blake3:x", 1)
	require.NoError(t, err)
	layout4, err := LoRALayout(c, lora4)
	require.NoError(t, err)
	for i := 0; i < len(layout); i += 2 {
		in, out := layout[i].Shape[1], layout[i+1].Shape[0]
		down, up := a.Params[layout[i].Offset:][:2*in], a.Params[layout[i+1].Offset:][:out*2]
		down4, up4 := b.Params[layout4[i].Offset:][:4*in], b.Params[layout4[i+1].Offset:][:out*4]
		copy(down4, down)
		copy(down4[2*in:], down)
		for o := range out {
			for r := range 4 {
				up4[o*4+r] = up[o*2+r%2] / 2
			}
		}
	}
	fa, err := a.File(c)
	require.NoError(t, err)
	fb, err := b.File(c)
	require.NoError(t, err)
	d, err := DiffAdapters(fa, fb)
	require.NoError(t, err)
	require.False(t, d.Equal)
	require.Equal(t, []FieldDifference{{"r", "2", "4"}, {"lora_alpha", "4", "8"}}, d.Fields)
	require.Len(t, d.Products, 2*c.NumHiddenLayers)
	for _, p := range d.Products {
		require.True(t, p.Equal, "%+v", p)
		require.InDelta(t, 1, p.Cosine, 1e-12)
	}

	// The same through PEFT's files; then one number is changed.
	dir := t.TempDir()
	require.NoError(t, a.Save(filepath.Join(dir, "a"), c, ""))
	fc, err := ReadAdapterFile(filepath.Join(dir, "a"))
	require.NoError(t, err)
	d, err = DiffAdapters(fa, fc)
	require.NoError(t, err)
	require.True(t, d.Equal, "%+v", d)
	fc.tensors[0].data[0] += 1
	d, err = DiffAdapters(fa, fc)
	require.NoError(t, err)
	require.False(t, d.Equal)
	differ := 0
	for _, p := range d.Products {
		if !p.Equal {
			differ++
			require.Greater(t, p.RelNorm, 1e-4)
		}
	}
	require.Equal(t, 1, differ)
}

// Merging equals computing with the adapter: checked per product against diff.
func TestMergeAddsTheProducts(t *testing.T) {
	m := tinyModel(t)
	a, err := NewAdapter(m.Config, LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"v_proj"}}, m.Digest, 1)
	require.NoError(t, err)
	for i := range a.Params {
		a.Params[i] = 0.01
	}
	merged := *m
	merged.Weights, err = m.Merge(a)
	require.NoError(t, err)
	d, err := DiffModels(m, &merged, nil, nil)
	require.NoError(t, err)
	for _, x := range d.Tensors {
		changed := filepath.Ext(x.Name) == ".weight" && len(x.ShapeA) == 2 && x.ShapeA[0] == kvDim(m.Config) && !x.Equal
		if changed {
			require.InDelta(t, 2*2*0.01*0.01, x.MaxAbs, 1e-6, x.Name)
		} else {
			require.True(t, x.Equal, x.Name)
		}
	}
	require.False(t, d.Equal)
}
