package f32

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// naive is the product in float64, with the sum of |a*b| as error scale.
func naive(m, n, k int, a A, bt []float32, c []float32, acc bool) (want, scale []float64) {
	want, scale = make([]float64, m*n), make([]float64, m*n)
	for i := range m {
		for j := range n {
			var s, mag float64
			if acc {
				s = float64(c[i*n+j])
			}
			for t := range k {
				v := float64(a.Data[i*a.RowStride+t*a.ColStride]) * float64(bt[j*k+t])
				s += v
				mag += math.Abs(v)
			}
			want[i*n+j], scale[i*n+j] = s, mag+1
		}
	}
	return want, scale
}

func TestGemmMatchesFloat64(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, n, k := rapid.IntRange(1, 40).Draw(t, "m"), rapid.IntRange(1, 80).Draw(t, "n"), rapid.IntRange(0, 70).Draw(t, "k")
		acc, trans := rapid.Bool().Draw(t, "acc"), rapid.Bool().Draw(t, "trans")
		threads := rapid.IntRange(1, 3).Draw(t, "threads")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		a := A{Data: random(r, m*k), RowStride: k, ColStride: 1}
		if trans {
			a.RowStride, a.ColStride = 1, m
		}
		w, c := random(r, n*k), random(r, m*n)
		want, scale := naive(m, n, k, a, w, c, acc)
		b := make([]float32, PackedLen(k, n))
		PackT(NewPool(threads), b, w, n, k, k)
		Gemm(NewPool(threads), m, n, k, a, Packed(b, k), c, n, acc)
		for i := range want {
			if math.Abs(float64(c[i])-want[i]) > 2e-6*scale[i] {
				t.Fatalf("element %d: %v, want %v", i, c[i], want[i])
			}
		}
	})
}

// TestRowsDoNotDependOnTheBatch: a row alone, in any batch, on any number of
// goroutines gives the same bits.
func TestRowsDoNotDependOnTheBatch(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const m, n, k = 301, 133, 77
	a, w := random(r, m*k), random(r, n*k)
	b := make([]float32, PackedLen(k, n))
	PackT(nil, b, w, n, k, k)
	whole := make([]float32, m*n)
	Gemm(NewPool(4), m, n, k, A{a, k, 1}, Packed(b, k), whole, n, false)
	for size := 1; size <= 40; size++ {
		got := make([]float32, m*n)
		for lo := 0; lo < m; lo += size {
			rows := min(size, m-lo)
			Gemm(nil, rows, n, k, A{a[lo*k:], k, 1}, Packed(b, k), got[lo*n:], n, false)
		}
		require.Equal(t, whole, got, "batches of %d", size)
	}
	// Splitting the contracted index with acc continues the same chain.
	got := make([]float32, m*n)
	Gemm(nil, m, n, 30, A{a, k, 1}, Packed(b, k), got, n, false)
	tail := Packed(b, k)
	tail.Data = tail.Data[30*PanelWidth:]
	Gemm(nil, m, n, k-30, A{a[30:], k, 1}, tail, got, n, true)
	require.Equal(t, whole, got)
}

func TestPacking(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const n, k = 70, 45
	for form := Full; form <= F16; form++ {
		w := exactly(form, random(r, n*k))
		require.Equal(t, form, ExactForm(NewPool(2), k, w))
		m := NewMatrix(NewPool(2), NewMemory(), k, w[:33*k], w[33*k:])
		require.Equal(t, [2]int{n, k}, [2]int{m.Rows(), m.Cols()})
		require.Equal(t, int64(PackedLen(k, n)*map[Form]int{Full: 4, BF16: 2, F16: 2}[form]), m.Bytes())
		row := make([]float32, k)
		for j := range n {
			m.Row(row, j)
			require.Equal(t, w[j*k:(j+1)*k], row)
		}
		want, got := make([]float32, PackedLen(n, k)), make([]float32, PackedLen(n, k))
		PackN(nil, want, w, n, k, k)
		m.Transpose(NewPool(2), got, 0, n)
		require.Equal(t, want, got)
		part, wantPart := make([]float32, PackedLen(n-32, k)), make([]float32, PackedLen(n-32, k))
		PackN(nil, wantPart, w[32*k:], n-32, k, k)
		m.Transpose(nil, part, 32, n-32)
		require.Equal(t, wantPart, part)
	}
}

// exactly cuts numbers to what a form holds. With it, the smallest form that
// holds them is that form.
func exactly(form Form, x []float32) []float32 {
	for i, v := range x {
		if form != Full {
			x[i] = math.Float32frombits(widen(form, narrow(form, v)))
		}
	}
	return x
}

// TestSixteenBitsAreExact checks every binary16 and every bfloat16 number, and
// that numbers between them are refused.
func TestSixteenBitsAreExact(t *testing.T) {
	for h := range 1 << 16 {
		for _, f := range []Form{BF16, F16} {
			b := widen(f, uint16(h))
			v := math.Float32frombits(b)
			if v-v != 0 {
				continue // weights are finite
			}
			require.Equal(t, uint16(h), narrow(f, v))
			require.True(t, exact(nil, f, []float32{v}))
			require.False(t, exact(nil, f, []float32{math.Float32frombits(b + 1)}), "%v", v)
		}
	}
	require.False(t, exact(nil, F16, []float32{65536}))
	require.False(t, exact(nil, F16, []float32{1.0 / (1 << 25)}))
	require.Equal(t, math.Float32bits(float32(math.Copysign(0, -1))), widen(F16, 0x8000))
}

// TestFormsGiveTheSameBits compares products of 16-bit operands with those of
// the same numbers in float32.
func TestFormsGiveTheSameBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, n, k := rapid.IntRange(1, 40).Draw(t, "m"), rapid.IntRange(1, 80).Draw(t, "n"), rapid.IntRange(1, 70).Draw(t, "k")
		form := rapid.SampledFrom([]Form{BF16, F16}).Draw(t, "form")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		w := random(r, n*k)
		for i := range w {
			w[i] *= float32(math.Exp2(float64(r.IntN(30) - 20))) // binary16 subnormals too
		}
		exactly(form, w)
		a := A{Data: random(r, m*k), RowStride: k, ColStride: 1}
		want, got := make([]float32, m*n), make([]float32, m*n)
		Gemm(nil, m, n, k, a, NewMatrixAs(nil, Full, k, w).B(), want, n, false)
		Gemm(NewPool(2), m, n, k, a, NewMatrixAs(nil, form, k, w).B(), got, n, false)
		for i := range want {
			if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
				t.Fatalf("element %d: %v, want %v", i, got[i], want[i])
			}
		}
	})
}

func TestExp(t *testing.T) {
	var x []float32
	for v := float32(-90); v < 90; v += 0.0371 {
		x = append(x, v)
	}
	got := append([]float32(nil), x...)
	Exp(got, 1, 0)
	for i, v := range x {
		want := math.Exp(float64(min(v, expMax)))
		if v < expMin {
			require.Zero(t, got[i])
			continue
		}
		require.InEpsilon(t, want, float64(got[i]), 3e-7, "exp(%v)", v)
	}
	y := []float32{float32(math.NaN()), float32(math.Inf(-1)), float32(math.Inf(1)), 1}
	Exp(y, 0.5, -0.5)
	require.True(t, math.IsNaN(float64(y[0])))
	require.Zero(t, y[1])
	require.Greater(t, y[2], float32(1e38))
	require.Equal(t, float32(1), y[3])
}

func TestSumIgnoresZeroPadding(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for n := 1; n < 70; n++ {
		x := random(r, n)
		require.Equal(t, Sum(x), Sum(append(append([]float32(nil), x...), make([]float32, 37)...)))
	}
}

func TestPool(t *testing.T) {
	for _, threads := range []int{0, 1, 3} {
		for _, held := range []bool{false, true} {
			p := NewPool(threads)
			if held {
				var release func()
				p, release = p.Crew()
				defer release()
			}
			hits := make([]int, 100)
			p.For(100, func(i int) { hits[i]++ })
			p.Rows(100, 7, func(lo, hi int) {
				for i := lo; i < hi; i++ {
					hits[i]++
				}
			})
			for i, h := range hits {
				require.Equal(t, 2, h, "index %d", i)
			}
			require.PanicsWithValue(t, "boom", func() {
				p.For(8, func(i int) {
					if i == 3 {
						panic("boom")
					}
				})
			})
		}
	}
}

// TestCrew runs many short calls, nested ones and ones after a rest that lets
// the helpers fall asleep.
func TestCrew(t *testing.T) {
	p, release := NewPool(4).Crew()
	again, releaseAgain := p.Crew()
	require.Same(t, p, again)
	releaseAgain()
	var sum atomic.Int64
	for round := range 2000 {
		p.For(1+round%9, func(i int) {
			sum.Add(1)
			if i == 0 {
				p.For(2, func(int) { sum.Add(1) })
			}
		})
		if round%500 == 0 {
			require.Eventually(t, func() bool { return p.crew.asleep.Load() == 3 }, 10*time.Second, time.Millisecond)
		}
	}
	want := int64(0)
	for round := range 2000 {
		want += int64(1 + round%9 + 2)
	}
	require.Equal(t, want, sum.Load())
	release()
	require.Zero(t, p.crew.asleep.Load())
}

func BenchmarkGemm(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range [][3]int{{1, 576, 576}, {16, 1536, 576}, {16, 384, 128}, {512, 128, 128}, {512, 384, 128}, {512, 1536, 576}, {512, 576, 1536}} {
		for _, threads := range []int{1, 2} {
			m, n, k := s[0], s[1], s[2]
			b.Run(fmt.Sprintf("%dx%dx%d/threads=%d", m, n, k, threads), func(b *testing.B) {
				a, w, c := random(r, m*k), random(r, n*k), make([]float32, m*n)
				pk := make([]float32, PackedLen(k, n))
				PackT(nil, pk, w, n, k, k)
				p := NewPool(threads)
				for b.Loop() {
					Gemm(p, m, n, k, A{a, k, 1}, Packed(pk, k), c, n, false)
				}
				b.ReportMetric(2*float64(m)*float64(n)*float64(k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

func BenchmarkExp(b *testing.B) {
	x := make([]float32, 4096)
	for b.Loop() {
		Exp(x, 1, -1)
	}
	b.SetBytes(4 * 4096)
}
