package gobackend

import (
	"math"

	"github.com/skein-rl/skein/model/internal/f32"
)

// softcap replaces every x by limit*tanh(x*scale/limit) (Gemma Team 2024,
// arXiv:2408.00118, section 2).
func softcap(x []float32, scale, limit float32) {
	tanh(x, scale/limit)
	f32.Scale(x, limit)
}

// tanh replaces every x by tanh(x*scale), with a relative error of a few units
// in the last place: near zero by the polynomial of Cephes' tanhf, elsewhere as
// 1 - 2/(exp(2x)+1).
func tanh(x []float32, scale float32) {
	var e [256]float32
	for len(x) > 0 {
		n := copy(e[:], x)
		f32.Exp(e[:n], 2*scale, 0)
		for i, v := range x[:n] {
			v *= scale
			if v > -0.625 && v < 0.625 {
				z := v * v
				p := ((((-5.70498872745e-3*z+2.06390887954e-2)*z-5.37397155531e-2)*z+1.33314422036e-1)*z - 3.33332819422e-1)
				x[i] = v + v*z*p
			} else {
				x[i] = 1 - 2/(e[i]+1)
			}
		}
		x = x[n:]
	}
}

// gate is the activation of a gated MLP, act = g*sigmoid(k(g)) * up:
//
//	SiLU:            k(g) = g
//	GELU, tanh form: k(g) = 2 sqrt(2/pi) (g + 0.044715 g^3)
//
// The second is 0.5 g (1 + tanh(k/2)) (Hendrycks & Gimpel 2016,
// arXiv:1606.08415, section 2), for tanh(x) = 2 sigmoid(2x) - 1.
type gate struct{ gelu bool }

const geluScale = 2 * 0.7978845608028654 // 2 sqrt(2/pi)

// exponents writes k(g).
func (a gate) exponents(dst, g []float32) {
	if !a.gelu {
		copy(dst, g)
		return
	}
	for i, v := range g {
		dst[i] = geluScale * (v + 0.044715*v*v*v)
	}
}

// forward computes act [N, F] from gu [N, 2F].
func (a gate) forward(ex *exec, act, gu []float32, inter, rows int) {
	ex.pool.Rows(rows, rowGrain(4*inter), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			out := act[i*inter : (i+1)*inter]
			g, up := gu[2*i*inter:(2*i+1)*inter], gu[(2*i+1)*inter:(2*i+2)*inter]
			a.exponents(out, g)
			f32.Exp(out, -1, 0)
			f32.SiLUMul(out, g, up)
		}
	})
}

// backward computes dgu [N, 2F] from dact [N, F]: with s = sigmoid(k(g)),
// dgate = dact up s (1 + g (1-s) k'(g)) and dup = dact g s.
func (a gate) backward(ex *exec, dgu, dact, gu []float32, inter, rows int) {
	ex.pool.Rows(rows, rowGrain(4*inter), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			g, up := gu[2*i*inter:(2*i+1)*inter], gu[(2*i+1)*inter:(2*i+2)*inter]
			dg, du := dgu[2*i*inter:(2*i+1)*inter], dgu[(2*i+1)*inter:(2*i+2)*inter]
			da := dact[i*inter : (i+1)*inter]
			a.exponents(dg, g)
			f32.Exp(dg, -1, 0)
			for j, v := range g {
				s := 1 / (1 + dg[j])
				slope := v
				if a.gelu {
					slope *= geluScale * (1 + 3*0.044715*v*v)
				}
				du[j] = da[j] * v * s
				dg[j] = da[j] * up[j] * s * (1 + slope*(1-s))
			}
		}
	})
}

// softcapSlope is the derivative of a soft cap where its output is y.
func softcapSlope(y, limit float32) float32 {
	t := y / limit
	return 1 - t*t
}

// logSumExp joins what softmaxTerms returned.
func logSumExp(top, sum float32) float32 { return top + float32(math.Log(float64(sum))) }
