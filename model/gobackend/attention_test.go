package gobackend

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// plainAttention is the definition, in float64: each query of each head over
// the positions it sees.
func plainAttention(d dims, qkv []float32, row, pos, window int) []float64 {
	out := make([]float64, d.q)
	for h := range d.heads {
		q := qkv[row*d.qkv+h*d.headDim:]
		at := h / d.group * d.headDim
		var sum float64
		acc := out[h*d.headDim : (h+1)*d.headDim]
		for j := 0; j <= pos; j++ {
			if window > 0 && j <= pos-window {
				continue
			}
			other := qkv[(row-pos+j)*d.qkv:]
			var s float64
			for i := range d.headDim {
				s += float64(q[i]) * float64(other[d.q+at+i])
			}
			s *= float64(d.scale)
			if d.attnCap > 0 {
				s = float64(d.attnCap) * math.Tanh(s/float64(d.attnCap))
			}
			p := math.Exp(s)
			sum += p
			for i := range acc {
				acc[i] += p * float64(other[d.q+d.kv+at+i])
			}
		}
		for i := range acc {
			acc[i] /= sum
		}
	}
	return out
}

// TestAttentionIsTheDefinition: windows that end inside, at and beyond panels
// and blocks of queries, with and without a soft cap, whole and token by token.
func TestAttentionIsTheDefinition(t *testing.T) {
	const rows = 150
	for _, limit := range []float64{0, 1.5} {
		c := tinyConfig()
		c.AttnSoftcap, c.AttnScale = limit, 0.6
		d := newDims(c)
		s := newCacheShape(d)
		r := rand.New(rand.NewPCG(241, 1))
		a := &acts{qkv: make([]float32, rows*d.qkv), att: make([]float32, rows*d.q)}
		for i := range a.qkv {
			a.qkv[i] = float32(r.NormFloat64())
		}
		for _, window := range []int{0, 1, 2, 31, 32, 33, 48, 64, 65, 149, 150, 1000} {
			t.Run(fmt.Sprintf("cap %v/window %d", limit, window), func(t *testing.T) {
				slot := &slotCache{}
				s.reserve(slot, 0, rows)
				s.attendCache(&exec{}, 1, window, a, []span{{slot, 0, rows, 0}}, nil)
				for i := range rows {
					for j, want := range plainAttention(d, a.qkv, i, i, window) {
						require.InDelta(t, want, a.att[i*d.q+j], 2e-6, "row %d", i)
					}
				}
				whole := append([]float32(nil), a.att...)
				slot = &slotCache{}
				for i := range rows {
					s.reserve(slot, i, i+1)
					s.attendCache(&exec{}, 1, window, a, []span{{slot, i, 1, i}}, []cluster{{0, 1, 0}})
				}
				require.Equal(t, whole, a.att)
			})
		}
	}
}
