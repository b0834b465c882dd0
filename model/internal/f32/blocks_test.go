package f32

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// quantised rounds the rows of x [*, 32n] as GGUF does: q8_0, q4_0 or q4_1.
func quantised(kind string, x []float32) []float32 {
	for at := 0; at < len(x); at += blockLen {
		v := x[at : at+blockLen]
		lo, hi := v[0], v[0]
		for _, x := range v {
			lo, hi = min(lo, x), max(hi, x)
		}
		far := hi
		if -lo > hi {
			far = lo
		}
		round := func(d, m float32, least, most float64) {
			d, m = half16(nearest16(float64(d))), half16(nearest16(float64(m)))
			for i, x := range v {
				q := 0.0
				if d != 0 {
					q = min(max(math.RoundToEven(float64((x-m)/d)), least), most)
				}
				product := d * float32(q)
				v[i] = product + m
			}
		}
		switch kind {
		case "q8_0":
			round(max(hi, -lo)/127, 0, -127, 127)
		case "q4_0":
			d := half16(nearest16(float64(far / -8)))
			for i, x := range v {
				q := float32(0)
				if d != 0 {
					q = float32(min(max(math.RoundToEven(float64(x/d)), -8), 7))
				}
				v[i] = d * q
			}
		case "q4_1":
			round((hi-lo)/15, lo, 0, 15)
		}
	}
	return x
}

// TestBlocksGiveTheSameBits finds the blocks again in dequantised numbers and
// compares everything made of them with the float32 numbers'.
func TestBlocksGiveTheSameBits(t *testing.T) {
	if !blockKernels() {
		t.Skip("no micro-kernels for block forms on this machine")
	}
	rapid.Check(t, func(t *rapid.T) {
		m, n, k := rapid.IntRange(1, 30).Draw(t, "m"), rapid.IntRange(1, 80).Draw(t, "n"), 32*rapid.IntRange(1, 4).Draw(t, "k")
		kind := rapid.SampledFrom([]string{"q8_0", "q4_0", "q4_1"}).Draw(t, "kind")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		w := random(r, n*k)
		for i := range w {
			w[i] *= 0.05
		}
		if rapid.Bool().Draw(t, "constant block") {
			for i := range blockLen {
				w[i] = 0
			}
		}
		quantised(kind, w)
		want := Q4
		if kind == "q8_0" {
			want = Q8
		}
		if form := ExactForm(NewPool(2), k, w); form != want && n*k > blockLen {
			t.Fatalf("%s is kept as %v", kind, form)
		}
		full, packed := NewMatrixAs(nil, Full, k, w), NewMatrix(NewPool(2), NewMemory(), k, w)
		a := A{Data: random(r, m*k), RowStride: k, ColStride: 1}
		same := func(what string, want, got []float32) {
			for i := range want {
				if math.Float32bits(want[i]) != math.Float32bits(got[i]) && (what == "product" || want[i] != got[i]) {
					t.Fatalf("%s: element %d: %v, want %v", what, i, got[i], want[i])
				}
			}
		}
		c0 := random(r, m*n)
		for _, acc := range []bool{false, true} {
			c1, c2 := append([]float32(nil), c0...), append([]float32(nil), c0...)
			Gemm(nil, m, n, k, a, full.B(), c1, n, acc)
			Gemm(NewPool(2), m, n, k, a, packed.B(), c2, n, acc)
			same("product", c1, c2)
		}
		row := make([]float32, k)
		for j := range n {
			packed.Row(row, j)
			same("row", w[j*k:(j+1)*k], row)
		}
		t1, t2 := make([]float32, PackedLen(n, k)), make([]float32, PackedLen(n, k))
		full.Transpose(nil, t1, 0, n)
		packed.Transpose(nil, t2, 0, n)
		same("transpose", t1, t2)
	})
}

// TestBlocksRefuse keeps what is not exactly a block of the form in another.
func TestBlocksRefuse(t *testing.T) {
	if !blockKernels() {
		t.Skip("no micro-kernels for block forms on this machine")
	}
	r := rand.New(rand.NewPCG(13, 14))
	w := quantised("q4_1", random(r, 64*64))
	require.Equal(t, Q4, ExactForm(nil, 64, w))
	require.Equal(t, Full, ExactForm(nil, 48, w[:48*64]), "rows are no whole blocks")
	w[77] = math.Nextafter32(w[77], 10)
	require.Equal(t, Full, ExactForm(nil, 64, w))
	require.Equal(t, Full, ExactForm(nil, 64, random(r, 64*64)))
	zero := make([]float32, 64)
	require.Equal(t, Q4, ExactForm(nil, 64, zero))
	zero[3] = float32(math.NaN())
	require.Equal(t, BF16, ExactForm(nil, 64, zero))
}
