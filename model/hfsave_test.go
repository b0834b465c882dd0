package model

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A saved model is the same one. With SKEIN_SAVE_OUT the folders are kept
// there, for scripts/check_families.py to compute with transformers.
func TestSaveFamilies(t *testing.T) {
	out := os.Getenv("SKEIN_SAVE_OUT")
	if out == "" {
		out = t.TempDir()
	}
	for _, name := range families(t) {
		t.Run(name, func(t *testing.T) {
			m := openFamily(t, name)
			dir := filepath.Join(out, name)
			require.NoError(t, m.Save(dir, F32))
			back, err := OpenWeights(dir)
			require.NoError(t, err)
			require.Equal(t, m.Config, back.Config)
			require.Equal(t, m.Weights, loaded(t, back).Weights)
			require.Equal(t, m.Digest, back.Digest)
		})
	}
	long := openFamily(t, "phi3", WithLongContext())
	dir := t.TempDir()
	require.NoError(t, long.Save(dir, F32))
	back, err := OpenWeights(dir, WithLongContext())
	require.NoError(t, err)
	require.Equal(t, long.Digest, back.Digest, "long contexts are the reader's choice")
}

// GGUF files may hold what HF's classes can't say.
func TestSaveRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		family string
		change func(*Config)
		want   string
	}{
		"one bias":         {"llama2", func(c *Config) { c.QKVBias = true }, "model_type \"llama\" can't say qkv_bias true"},
		"attention scale":  {"gemma2", func(c *Config) { c.AttnScale = 0.3 }, "can't say attn_scale 0.3"},
		"windows":          {"mistral", func(c *Config) { c.FullLayers = []bool{false, true} }, "full_layers"},
		"unknown type":     {"llama2", func(c *Config) { c.ModelType = "falcon" }, `model_type "falcon"`},
		"head of phi3":     {"phi4", func(c *Config) { c.HeadDim = 4 }, "head_dim 4"},
		"gelu in mistral":  {"mistral", func(c *Config) { c.LogitSoftcap = 3 }, "logit_softcap 3"},
		"other local rope": {"gemma3", func(c *Config) { c.LocalRopeTheta = 0 }, "rope_local_base_freq is 0"},
	} {
		m := openFamily(t, tc.family)
		tc.change(&m.Config)
		dir := filepath.Join(t.TempDir(), "new")
		require.ErrorContains(t, m.Save(dir, F32), tc.want, name)
		require.NoDirExists(t, dir, name)
	}
}
