//go:build xla

package xla

import (
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

func TestGoldenGreedy(t *testing.T) {
	m, c := tinyLlama(t)
	b := open(t, m, "f32")
	d := newDecoder(t, b, 3, 64)
	require.Equal(t, c.Greedy, decode(t, d, 1, c.IDs[0], 12, model.Sampling{}).IDs)
	a := &model.Adapter{LoRA: tinyLoRA, BaseDigest: m.Digest, Params: tinyAdapter(t, m, "w")}
	require.NoError(t, d.SetAdapter(a))
	require.Equal(t, c.LoRA.Greedy, decode(t, d, 2, c.IDs[0], 12, model.Sampling{}).IDs)
	require.NoError(t, d.SetAdapter(nil))
	require.Equal(t, c.Greedy, decode(t, d, 0, c.IDs[0], 12, model.Sampling{}).IDs)
}
