package gobackend

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/tiny"
)

// What the headers promise is what New finds in the values.
func TestPlanIsWhatNewDoes(t *testing.T) {
	m, err := tiny.Open()
	require.NoError(t, err)
	for _, typ := range []string{"Q8_0", "Q4_0", "BF16"} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		_, err := m.SaveGGUF(path, typ, nil)
		require.NoError(t, err)
		info, err := model.Inspect(path)
		require.NoError(t, err)
		plan := Plan(info.Tensors, info.Config.TieWordEmbeddings)
		require.Len(t, plan, 5)
		got := map[string]int64{}
		for _, p := range plan {
			require.NotEmpty(t, p.Stored, p.Group)
			for form, n := range p.Bytes {
				got[form] += n
			}
		}
		opened, err := model.Open(path)
		require.NoError(t, err)
		b, err := New(opened, Options{Threads: 1})
		require.NoError(t, err)
		want := Storage(b)
		require.NoError(t, b.Close())
		require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(got)), typ)
		for form, n := range want {
			require.InEpsilon(t, n, got[form], 0.1, "%s %s: up to padding", typ, form)
		}
	}
}

func TestPlanOfNames(t *testing.T) {
	tensor := func(name, dtype string, shape ...int) model.TensorInfo {
		return model.TensorInfo{Name: name, DType: dtype, Shape: shape}
	}
	plan := Plan([]model.TensorInfo{
		tensor("model.layers.0.self_attn.q_proj.weight", "BF16", 64, 64), tensor("model.layers.0.self_attn.k_proj.weight", "F16", 64, 64),
		tensor("model.layers.0.self_attn.q_proj.bias", "F32", 64),
		tensor("model.layers.0.mlp.experts.3.gate_proj.weight", "BF16", 64, 64), tensor("model.layers.0.mlp.experts.4.up_proj.weight", "F32", 64, 64),
		tensor("model.layers.0.mlp.gate.weight", "BF16", 4, 64),
		tensor("model.embed_tokens.weight", "BF16", 100, 64), tensor("lm_head.weight", "BF16", 100, 64),
		tensor("blk.1.attn_qkv.weight", "Q8_0", 64, 48), tensor("blk.1.ffn_down_exps.weight", "Q6_K", 2, 64, 64),
	}, false)
	require.Equal(t, []Planned{
		{"qkv", []string{"BF16", "F16", "Q8_0"}, map[string]int64{"f32": 4 * (2*64*64 + 64*48)}},
		{"gate and up", []string{"BF16", "F32"}, map[string]int64{"bf16": 2 * 64 * 64, "f32": 4 * 64 * 64}},
		{"down", []string{"Q6_K"}, map[string]int64{"f32": 4 * 2 * 64 * 64}},
		{"router", []string{"BF16"}, map[string]int64{"bf16": 2 * 4 * 64}},
		{"head", []string{"BF16"}, map[string]int64{"bf16": 2 * 100 * 64}},
	}, plan)
}
