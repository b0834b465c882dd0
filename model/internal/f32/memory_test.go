package f32

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPackStreams packs rows that come in blocks like the same rows in memory,
// in the form that all of them fit.
func TestPackStreams(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const k = 2048
	n := 3*streamed/k + 17
	w := exactly(F16, random(r, n*k))
	copy(w, exactly(BF16, append([]float32(nil), w[:n*k/2]...))) // the form shows in the second half only
	asked := 0
	rows := func(lo, hi int) ([]float32, error) {
		require.LessOrEqual(t, (hi-lo)*k, streamed)
		asked += hi - lo
		return append([]float32(nil), w[lo*k:hi*k]...), nil
	}
	got, err := Pack(NewPool(2), NewMemory(), n, k, rows)
	require.NoError(t, err)
	require.Equal(t, 2*n, asked)
	want := NewMatrix(NewPool(2), nil, k, w)
	require.Equal(t, F16, got.Form())
	require.Equal(t, want.b.half, got.b.half)

	cut := errors.New("cut")
	_, err = Pack(nil, nil, n, k, func(lo, hi int) ([]float32, error) {
		if lo > 0 {
			return nil, cut
		}
		return rows(lo, hi)
	})
	require.ErrorIs(t, err, cut)
}

// TestMemory: what is taken is zero, apart and aligned, over the end of a slab,
// and outlives the allocator while a matrix needs it.
func TestMemory(t *testing.T) {
	mem := NewMemory()
	sizes := []int{1, 64, 1000, slabBytes - 1, slabBytes + 5, 7}
	var all [][]byte
	for i, n := range sizes {
		b := numbers[byte](mem, n)
		require.Len(t, b, n)
		require.Zero(t, b[0]|b[n-1])
		for j := range b {
			b[j] = byte(i + 1)
		}
		all = append(all, b)
	}
	for i, b := range all {
		require.Equal(t, [2]byte{byte(i + 1), byte(i + 1)}, [2]byte{b[0], b[len(b)-1]})
	}
	require.Empty(t, numbers[float32](mem, 0))
	mem.Free()
	mem.Free()
	require.Equal(t, byte(0), numbers[byte](mem, 64)[63], "it can be used anew")
	mem.Free()
	w := random(rand.New(rand.NewPCG(1, 2)), 96)
	m := NewMatrix(nil, NewMemory(), 3, w)
	for range 3 {
		runtime.GC()
	}
	row := make([]float32, 3)
	m.Row(row, 31)
	require.Equal(t, w[93:], row)
}
