package gobackend

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoof(t *testing.T) {
	read, flops := Roof(2)
	require.Greater(t, read, 1e8)
	require.Greater(t, flops, 1e8)
}

// A step's cost is that of the sizes in the configuration.
func TestStepCost(t *testing.T) {
	c := tinyConfig()
	b := newBackend(t, randomModel(t, c, 3), Options{})
	d := b.net.dims
	weights := c.NumParams() - int64(c.HiddenSize*(2*c.NumHiddenLayers+1)) // norms
	if !c.TieWordEmbeddings {
		weights -= int64(c.VocabSize * c.HiddenSize)
	}
	bytes, flops := StepCost(b, 3, 0)
	require.Equal(t, float64(b.net.bytes()), bytes)
	require.Equal(t, float64(3*2*weights), flops)
	more, moreFlops := StepCost(b, 3, 10)
	require.Equal(t, float64(4*30*d.layers*d.kvHeads*(d.headDim+d.hdPad)), more-bytes)
	require.Equal(t, float64(4*30*d.layers*d.heads*d.headDim), moreFlops-flops)
	bytes, _ = StepCost(nil, 1, 1)
	require.Zero(t, bytes)
}
