package f32

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKernelsAgree compares the assembly with the portable kernel (which
// rounds twice per step) and AVX2 with AVX-512 bit for bit.
func TestKernelsAgree(t *testing.T) {
	best := active
	defer func() { active = best }()
	if best == portable {
		t.Skip("no AVX2 and FMA on this machine")
	}
	r := rand.New(rand.NewPCG(9, 10))
	for i := range 26 * 6 {
		m, acc, form := 1+i/6, i%2 == 1, Form(i%3)
		const n, k = 75, 61
		a, w, c0 := random(r, m*k), exactly(form, random(r, n*k)), random(r, m*n)
		x0 := random(r, 83)
		b := NewMatrixAs(nil, form, k, w).B()
		results, exps := map[level][]float32{}, map[level][]float32{}
		for l := portable; l <= best; l++ {
			active = l
			c := append([]float32(nil), c0...)
			Gemm(nil, m, n, k, A{a, k, 1}, b, c, n, acc)
			x := append([]float32(nil), x0...)
			Exp(x, 1.7, -0.3)
			results[l], exps[l] = c, x
		}
		require.InDeltaSlice(t, results[portable], results[avx2], 2e-5)
		require.InEpsilonSlice(t, exps[portable], exps[avx2], 1e-6)
		if best == avx512 {
			require.Equal(t, results[avx2], results[avx512])
			require.Equal(t, exps[avx2], exps[avx512])
		}
	}
}

// TestLoopsAgree compares the vector loops of every instruction set bit for
// bit, and checks that they ignore what lies behind them.
func TestLoopsAgree(t *testing.T) {
	best := active
	defer func() { active = best }()
	r := rand.New(rand.NewPCG(11, 12))
	for n := 1; n < 100; n++ {
		x, y, z := random(r, n), random(r, n), random(r, n)
		type result struct {
			sum, max  float32
			silu, add []float32
			offset    []float32
			dot       float32
			norm      []float32
		}
		var first, before result
		for l := portable; l <= best; l++ {
			active = l
			e, s := append([]float32(nil), x...), append([]float32(nil), x...)
			Exp(e, 0, 0.5) // 1.6 everywhere
			SiLUMul(e, y, z)
			Add(s, y)
			got := result{Sum(x), Max(x), e, s, make([]float32, n), Dot(x, y), make([]float32, n)}
			NormMul(got.norm, x, 0.3, y)
			Offset(got.offset, x, -0.7)
			if l == portable {
				first = got
				require.Equal(t, slices.Max(x), got.max)
				for i := range s {
					require.Equal(t, x[i]+y[i], s[i])
				}
				continue
			}
			require.Equal(t, first.sum, got.sum)
			require.Equal(t, first.max, got.max)
			require.Equal(t, first.add, got.add)
			require.Equal(t, first.offset, got.offset)
			require.Equal(t, first.norm, got.norm)
			require.InDelta(t, first.dot, got.dot, 1e-4)
			if l == avx512 {
				require.Equal(t, before.dot, got.dot)
			}
			before = got
			require.InEpsilonSlice(t, first.silu, got.silu, 1e-6)
		}
		nan := append([]float32(nil), x...)
		nan[n-1] = float32(math.NaN())
		if n > 1 {
			require.Equal(t, slices.Max(x[:n-1]), Max(nan))
		}
	}
}
