package model

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func familyDirs(t testing.TB) []string {
	t.Helper()
	dirs, err := filepath.Glob("testdata/families/*/config.json")
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	for i := range dirs {
		dirs[i] = filepath.Dir(dirs[i])
	}
	return dirs
}

// HF folder -> GGUF -> HF folder: every number of every family, bit for bit, and
// a configuration that computes the same.
func TestEveryFamilySurvivesGGUF(t *testing.T) {
	for _, dir := range familyDirs(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := OpenWeights(dir)
			require.NoError(t, err)
			loaded(t, m)
			tmp := t.TempDir()
			path := filepath.Join(tmp, "m.gguf")
			var last, total int64
			save := func() error {
				_, err := m.SaveGGUF(path, "F32", func(done, of int64) { last, total = done, of })
				return err
			}
			err = save()
			switch filepath.Base(dir) {
			case "qwen3moe": // llama.cpp always renormalises
				require.ErrorContains(t, err, "can't say norm_topk_prob false")
				require.NoFileExists(t, path)
				m.Config.NormTopK = true
				err = save()
			case "gemma2", "gemma3": // llama.cpp takes it from the sizes
				require.ErrorContains(t, err, "can't say attn_scale")
				m.Config.AttnScale = 1 / math.Sqrt(float64(m.Config.HeadDim))
				err = save()
			case "smollm3": // llama.cpp knows one interval, of four
				require.ErrorContains(t, err, "can't say no_rope_layers")
				m.Config.NoRopeLayers = nil
				err = save()
			}
			require.NoError(t, err)
			require.Positive(t, last)
			require.LessOrEqual(t, total-last, int64(32*1000), "the rest is padding")
			g, err := Open(path)
			require.NoError(t, err)
			loaded(t, g)
			require.Equal(t, m.Weights, g.Weights)
			require.Equal(t, m.StopIDs, g.StopIDs)
			field, a, b := ggufDifference(m.Config, g.Config)
			require.Empty(t, field, "%v, %v", a, b)
			if g.Config.RopeScaling.Type == "longrope" && m.Config.RopeScaling.Type == "llama3" {
				return // the formula's parameters are gone
			}
			back := filepath.Join(tmp, "hf")
			_, err = g.Write(back, WriteOptions{})
			require.NoError(t, err)
			again, err := OpenWeights(back)
			require.NoError(t, err)
			loaded(t, again)
			require.Equal(t, m.Weights, again.Weights)
		})
	}
}

// Rounded types are rounded once: what is read back from GGUF equals what
// safetensors of that type give.
func TestRoundedTypesAgree(t *testing.T) {
	m, err := OpenWeights("testdata/families/qwen2")
	require.NoError(t, err)
	for _, typ := range []DType{F16, BF16} {
		tmp := t.TempDir()
		_, err := m.Write(filepath.Join(tmp, "m.gguf"), WriteOptions{Type: string(typ)})
		require.NoError(t, err)
		_, err = m.Write(filepath.Join(tmp, "hf"), WriteOptions{Type: string(typ)})
		require.NoError(t, err)
		a, err := Open(filepath.Join(tmp, "m.gguf"))
		require.NoError(t, err)
		b, err := OpenWeights(filepath.Join(tmp, "hf"))
		require.NoError(t, err)
		loaded(t, a)
		loaded(t, b)
		require.Equal(t, b.Weights.Layers[0].Q, a.Weights.Layers[0].Q)
		require.NotEqual(t, m.Weights.Layers[0].Q, a.Weights.Layers[0].Q)
		require.Equal(t, m.Weights.Norm, a.Weights.Norm, "vectors stay F32 in GGUF")
	}
}

func TestQuantisedFilesKeepTheirErrorsSmall(t *testing.T) {
	dir := t.TempDir()
	m := wideModel(t)
	for typ, worst := range map[string]float64{"Q8_0": 0.006, "Q5_1": 0.04, "Q5_0": 0.05, "Q4_1": 0.08, "Q4_0": 0.1} {
		path := filepath.Join(dir, typ+".gguf")
		_, err := m.SaveGGUF(path, typ, nil)
		require.NoError(t, err)
		info, err := Inspect(path)
		require.NoError(t, err)
		require.Positive(t, info.ByType[typ])
		g, err := Open(path)
		require.NoError(t, err)
		d, err := DiffModels(m, g, nil, nil)
		require.NoError(t, err)
		require.Less(t, d.Total.RelNorm, worst, typ)
		require.Greater(t, d.Total.RelNorm, worst/20, typ)
		for _, s := range info.Tensors {
			switch {
			case len(s.Shape) == 1:
				require.Equal(t, "F32", s.DType, s.Name)
			case s.Name == "token_embd.weight":
				require.Equal(t, "Q8_0", s.DType)
			}
		}
	}
}

// wideModel has rows of whole blocks, with normal weights.
func wideModel(t testing.TB) *Model {
	t.Helper()
	c := tinyModel(t).Config
	c.HiddenSize, c.IntermediateSize, c.HeadDim, c.NumAttentionHeads, c.NumKeyValueHeads = 64, 128, 32, 2, 1
	flat := make([]float32, FullLayout(c).Size())
	x := uint32(1)
	for i := range flat {
		var sum float32
		for range 4 {
			x = x*1664525 + 1013904223
			sum += float32(x>>8)/(1<<24) - 0.5
		}
		flat[i] = sum * 0.05
	}
	w, err := UnflattenWeights(c, flat)
	require.NoError(t, err)
	return &Model{Name: "wide", Config: c, Weights: w, StopIDs: []int32{c.EOSTokenID}}
}

// A dynamic model opened for long contexts has other frequencies than GGUF can
// say; opened for short ones it is an unscaled one, and a note says so.
func TestDynamicRopeInGGUF(t *testing.T) {
	m, err := OpenWeights("testdata/families/llama-dynamic")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "m.gguf")
	notes, err := m.SaveGGUF(path, "F32", nil)
	require.NoError(t, err)
	require.Contains(t, strings.Join(notes, "\n"), "dynamic rope scaling is not in GGUF")
	m.Config.RopeScaling.Long = true
	_, err = m.SaveGGUF(path, "F32", nil)
	require.ErrorContains(t, err, "can't say rope_scaling")
}

func TestSaveGGUFRefusals(t *testing.T) {
	dir := t.TempDir()
	m := tinyModel(t)
	_, err := m.SaveGGUF(filepath.Join(dir, "a.gguf"), "Q4_K", nil)
	require.ErrorContains(t, err, `type "Q4_K" is not written (have BF16, F16, F32, Q4_0`)
	other := *m
	other.Config.ModelType = "bert"
	_, err = other.SaveGGUF(filepath.Join(dir, "a.gguf"), "F32", nil)
	require.ErrorContains(t, err, `model_type "bert" has no architecture in GGUF`)
	other = *m
	other.Config.EmbedScale = 2
	_, err = other.SaveGGUF(filepath.Join(dir, "a.gguf"), "F32", nil)
	require.ErrorContains(t, err, "GGUF's architecture llama can't say embed_scale 2 (readers would take 0)")
	require.NoFileExists(t, filepath.Join(dir, "a.gguf"))
}

func TestWriteReplacesOnlyModels(t *testing.T) {
	dir := t.TempDir()
	m := tinyModel(t)
	hf, gguf := filepath.Join(dir, "m"), filepath.Join(dir, "m.gguf")
	for _, dst := range []string{hf, gguf} {
		_, err := m.Write(dst, WriteOptions{})
		require.NoError(t, err)
		_, err = m.Write(dst, WriteOptions{})
		require.ErrorIs(t, err, fs.ErrExist)
		_, err = m.Write(dst, WriteOptions{Replace: true, Type: "F16"})
		require.NoError(t, err)
		info, err := Inspect(dst)
		require.NoError(t, err)
		require.Positive(t, info.ByType["F16"])
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "home"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "home", "thesis.tex"), nil, 0o644))
	_, err := m.Write(filepath.Join(dir, "home"), WriteOptions{Replace: true})
	require.ErrorContains(t, err, "is left alone")
	require.FileExists(t, filepath.Join(dir, "home", "thesis.tex"))
	_, err = m.Write(filepath.Join(dir, "x"), WriteOptions{Type: "Q8_0"})
	require.ErrorContains(t, err, "not for safetensors")
	_, err = m.Write(filepath.Join(dir, "nowhere", "x"), WriteOptions{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3, "nothing temporary is left: %v", entries)
}
