package learner

import (
	"fmt"
	"math"
	"strings"

	"github.com/skein-rl/skein/model"
)

// AdamW is the optimizer's state over a flat f32 vector (Loshchilov and Hutter
// 2019, arXiv:1711.05101, algorithm 2, as torch.optim.AdamW computes it).
// Moments are kept in f32, each update computed in f64.
type AdamW struct {
	M, V []float32
	T    uint64 // updates made
}

// NewAdamW is the zero state for n parameters.
func NewAdamW(n int) AdamW { return AdamW{M: make([]float32, n), V: make([]float32, n)} }

func (a AdamW) clone() AdamW {
	return AdamW{M: append([]float32(nil), a.M...), V: append([]float32(nil), a.V...), T: a.T}
}

// Decay gives parameters [From, To) of the flat vector a weight decay.
type Decay struct {
	From, To int
	Weight   float64
}

// DecayOf gives every tensor the weight decay wd, except those that
// regularisation would distort: vectors (norm gains, biases) and whatever is
// named a norm or bias, as the transformers Trainer does.
func DecayOf(layout model.Layout, wd float64) []Decay {
	var out []Decay
	for _, p := range layout {
		d := Decay{p.Offset, p.Offset + p.Len(), wd}
		name := strings.ToLower(p.Name)
		if len(p.Shape) < 2 || strings.Contains(name, "norm") || strings.HasSuffix(name, "bias") {
			d.Weight = 0
		}
		out = append(out, d)
	}
	return out
}

// Hyper are one update's numbers.
type Hyper struct {
	LR, Beta1, Beta2, Epsilon float64
	// Scale multiplies the gradient first: ClipScale's result, or 1.
	Scale float64
}

// Update moves params against grad. spans partition the vector.
func (a *AdamW) Update(params, grad []float32, spans []Decay, h Hyper) error {
	if len(params) != len(grad) || len(params) != len(a.M) || len(params) != len(a.V) {
		return fmt.Errorf("learner: adamw: %d parameters, %d gradients, %d and %d moments", len(params), len(grad), len(a.M), len(a.V))
	}
	a.T++
	c1 := 1 - math.Pow(h.Beta1, float64(a.T))
	c2 := math.Sqrt(1 - math.Pow(h.Beta2, float64(a.T)))
	step := h.LR / c1
	for _, s := range spans {
		keep := 1 - h.LR*s.Weight
		for i := s.From; i < s.To; i++ {
			g := float64(grad[i]) * h.Scale
			m := h.Beta1*float64(a.M[i]) + (1-h.Beta1)*g
			v := h.Beta2*float64(a.V[i]) + (1-h.Beta2)*g*g
			a.M[i], a.V[i] = float32(m), float32(v)
			params[i] = float32(float64(params[i])*keep - step*m/(math.Sqrt(v)/c2+h.Epsilon))
		}
	}
	return nil
}

// GradNorm is the L2 norm of the whole vector.
func GradNorm(grad []float32) float64 {
	sum := 0.0
	for _, g := range grad {
		sum += float64(g) * float64(g)
	}
	return math.Sqrt(sum)
}

// ClipScale is what torch's clip_grad_norm_ multiplies a gradient of this norm
// by: min(1, limit/(norm+1e-6)); limit 0 = no clipping.
func ClipScale(norm, limit float64) float64 {
	if limit == 0 {
		return 1
	}
	return min(1, limit/(norm+1e-6))
}
