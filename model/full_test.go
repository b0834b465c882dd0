package model

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A full adapter through its blob, merged, and where it has no form.
func TestFullAdapter(t *testing.T) {
	m := tinyModel(t)
	a, err := FullOf(m)
	require.NoError(t, err)
	require.NoError(t, a.Check(m.Config))
	require.NoError(t, a.CheckBase(m.Digest))
	same, err := m.Merge(a)
	require.NoError(t, err)
	require.Equal(t, m.Weights.Layers, same.Layers)
	a.Params[7] += 0.5
	blob := a.Encode()
	back, err := DecodeAdapter(blob)
	require.NoError(t, err)
	require.Equal(t, a, back)
	require.Equal(t, BlobDigest(blob), back.Digest())
	w, err := m.Merge(a)
	require.NoError(t, err)
	require.Equal(t, a.Params[7], w.Embed[7])
	w.Embed[7] = 0
	require.NotZero(t, a.Params[7], "its own memory")

	require.ErrorContains(t, a.Save(t.TempDir(), m.Config, ""), "it holds all weights and has no form in PEFT")
	_, err = a.File(m.Config)
	require.ErrorContains(t, err, "merge it with its base")
	short := *a
	short.Params = slices.Clone(a.Params[1:])
	require.ErrorContains(t, short.Check(m.Config), "all weights of this model wants")
	short.BaseDigest = "blake3:00"
	_, err = m.Merge(&short)
	require.ErrorIs(t, err, ErrAdapter)
}
