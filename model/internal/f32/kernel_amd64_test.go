package f32

import (
	"math/rand/v2"
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
