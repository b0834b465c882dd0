package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

const tinyLlama = "../../model/testdata/tiny_llama"

// A model goes to GGUF and back without a change; a merged one differs from its
// base, and diff says so by its exit status.
func TestConvertMergeAndDiff(t *testing.T) {
	dir := t.TempDir()
	gguf, hf := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "m")
	var w writeReport
	lastJSON(t, output(t, time.Minute, "model", "convert", tinyLlama, gguf, "--json"), &w)
	require.Equal(t, "f32", w.DType)
	require.NotEmpty(t, w.Notes, "it has no tokenizer")
	output(t, time.Minute, "model", "convert", gguf, hf)
	require.Contains(t, output(t, time.Minute, "model", "diff", tinyLlama, hf), "are equal")

	m, err := model.OpenWeights(tinyLlama)
	require.NoError(t, err)
	a, err := model.NewAdapter(m.Config, model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj"}}, "", 1)
	require.NoError(t, err)
	for i := range a.Params {
		a.Params[i] += 0.01
	}
	adapter, merged := filepath.Join(dir, "adapter"), filepath.Join(dir, "merged")
	require.NoError(t, a.Save(adapter, m.Config, ""))
	fails := func(want string, args ...string) {
		t.Helper()
		out, err := skein(t, time.Minute, args...).CombinedOutput()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%v\n%s", err, out)
		require.Equal(t, 1, exit.ExitCode())
		require.Contains(t, string(out), want)
	}
	fails("pass --any-base", "model", "merge", hf, adapter, merged)
	output(t, time.Minute, "model", "merge", hf, adapter, merged, "--any-base")
	fails("model.layers.0.self_attn.q_proj.weight", "model", "diff", hf, merged)
	fails("replace it with --force", "model", "merge", hf, adapter, merged, "--any-base")
	fails("is for .gguf files only", "model", "convert", hf, filepath.Join(dir, "x"), "--dtype", "q8_0")
	fails("not one of f32", "model", "convert", hf, filepath.Join(dir, "x"), "--dtype", "int8")
	fails("merge the adapter first", "model", "diff", hf, adapter)
	require.Contains(t, output(t, time.Minute, "model", "diff", adapter, adapter), "are equal")
}
