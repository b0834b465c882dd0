package model

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// scoreAdapter is a reward model's adapter as peft saved it.
func scoreAdapter(t *testing.T) (Config, *Adapter) {
	t.Helper()
	m, err := OpenWeights("testdata/families/llama2")
	require.NoError(t, err)
	a, err := LoadScoreAdapter("testdata/value", m.Config)
	require.NoError(t, err)
	require.Len(t, a.Score, m.Config.HiddenSize)
	return m.Config, a
}

func TestScoreAdapterRoundTrips(t *testing.T) {
	c, a := scoreAdapter(t)
	require.NotZero(t, a.Score[0])
	dir := t.TempDir()
	require.NoError(t, a.Save(dir, c, "base"))
	back, err := LoadScoreAdapter(dir, c)
	require.NoError(t, err)
	require.Equal(t, a, back)
	back, err = DecodeAdapter(a.Encode())
	require.NoError(t, err)
	require.Equal(t, a, back)
	plain := *a
	plain.Score = nil
	require.NotEqual(t, a.Digest(), plain.Digest())

	flat := a.Flat()
	layout, err := TrainerConfig{LoRA: a.LoRA, Value: true}.Layout(c)
	require.NoError(t, err)
	require.Len(t, flat, layout.Size())
	last := layout[len(layout)-1]
	require.Equal(t, Param{Name: ScoreWeight, Shape: []int{1, c.HiddenSize}, Offset: len(a.Params)}, last)
	back, err = AdapterOf(c, a.LoRA, "", flat, true)
	require.NoError(t, err)
	require.Equal(t, a, back)
	_, err = AdapterOf(c, a.LoRA, "", flat, false)
	require.ErrorIs(t, err, ErrAdapter)

	zero := plain.WithScore(c)
	require.NoError(t, zero.Check(c))
	require.Equal(t, make([]float32, c.HiddenSize), zero.Score)
	require.Nil(t, plain.Score)
}

func TestScoreAdapterRefusals(t *testing.T) {
	c, a := scoreAdapter(t)
	_, err := LoadAdapter("testdata/value", c)
	require.ErrorIs(t, err, ErrAdapter)
	require.ErrorContains(t, err, "modules_to_save")
	_, err = LoadScoreAdapter("testdata/families/llama2", c)
	require.ErrorIs(t, err, ErrAdapter)
	require.ErrorContains(t, err, "no value head")

	dir := t.TempDir()
	require.NoError(t, a.Save(dir, c, ""))
	path := filepath.Join(dir, "adapter_config.json")
	var conf map[string]any
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &conf))
	require.Equal(t, "SEQ_CLS", conf["task_type"])
	conf["modules_to_save"] = []string{"score", "embed_tokens"}
	data, err = json.Marshal(conf)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	_, err = LoadScoreAdapter(dir, c)
	require.ErrorContains(t, err, `modules_to_save: "embed_tokens"`)

	a.Score = a.Score[1:]
	require.ErrorContains(t, a.Check(c), "value head has 31 weights")
}
