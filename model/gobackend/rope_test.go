package gobackend

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRopesAreShared: equal tables are computed once per position, layers
// without positions have none.
func TestRopesAreShared(t *testing.T) {
	rs, layers := newRopes(oddConfigs()["all"]) // local, global, none, local
	require.Len(t, rs.distinct, 2)
	require.Equal(t, 2*6, rs.width)
	require.Same(t, layers[0], layers[3])
	require.NotSame(t, layers[0], layers[1])
	require.Nil(t, layers[2])

	// The transposed rotation undoes a rotation, and what is not rotated stays.
	r := layers[1]
	row := make([]float32, rs.width)
	rs.angles(row, 77)
	x := []float32{1, -2, 3, 4, 5, -6, 7, 8}
	y := append([]float32(nil), x...)
	r.rotate(y, row[r.at:], 1, 8, false)
	require.NotEqual(t, x[:6], y[:6])
	require.Equal(t, x[6:], y[6:])
	r.rotate(y, row[r.at:], 1, 8, true)
	require.InDeltaSlice(t, x, y, 2e-6)
}
