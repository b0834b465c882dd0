//go:build xla

package xla

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

func TestOpenWithoutPlugin(t *testing.T) {
	m := randomModel(t, smallConfig, 1)
	t.Setenv(PluginEnv, "")
	_, err := Open(m, Options{})
	require.ErrorIs(t, err, ErrNoPlugin)
	require.ErrorContains(t, err, "PJRT_PLUGIN_LIBRARY_PATH is not set; run make plugin")

	dir := t.TempDir()
	t.Setenv(PluginEnv, dir)
	_, err = Open(m, Options{Device: "cuda"})
	require.ErrorIs(t, err, ErrNoPlugin)
	require.ErrorContains(t, err, "pjrt_c_api_cuda_plugin.so")

	_, err = Open(m, Options{Plugin: filepath.Join(dir, "no")})
	require.ErrorIs(t, err, ErrNoPlugin)

	bad := filepath.Join(dir, "pjrt_c_api_cpu_plugin.so")
	require.NoError(t, os.WriteFile(bad, []byte("not a library"), 0o600))
	_, err = Open(m, Options{})
	require.ErrorContains(t, err, bad)
}

func TestOpenRefuses(t *testing.T) {
	m := randomModel(t, smallConfig, 1)
	_, err := Open(m, Options{Dtype: "f16", Threads: -1})
	require.ErrorContains(t, err, `dtype "f16"`)
	require.ErrorContains(t, err, "threads -1")
	if os.Getenv(PluginEnv) == "" {
		t.Skipf("%s is not set: run make plugin", PluginEnv)
	}
	cut := *m.Weights
	cut.Norm = cut.Norm[1:]
	_, err = Open(&model.Model{Config: m.Config, Weights: &cut}, Options{})
	require.ErrorContains(t, err, "weight norm has 31 numbers")
	_, err = Open(&model.Model{Config: m.Config}, Options{})
	require.ErrorContains(t, err, "no weights")
}

func TestCloseTwice(t *testing.T) {
	m := randomModel(t, smallConfig, 1)
	b := open(t, m, "f32")
	d, err := b.NewDecoder(model.DecoderConfig{Slots: 1, MaxLen: 20})
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	require.ErrorContains(t, d.SetAdapter(1, nil), "closed")
	_, err = d.Decode(t.Context(), nil, 1)
	require.ErrorContains(t, err, "closed")
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	_, err = b.NewDecoder(model.DecoderConfig{Slots: 1, MaxLen: 20})
	require.ErrorContains(t, err, "closed")
	require.Equal(t, "xla:cpu", b.Name())
}
