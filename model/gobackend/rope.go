package gobackend

import (
	"math"
	"slices"

	"github.com/skein-rl/skein/model"
)

// rope rotates the pairs (i, i+half) of a head's leading numbers by
// position*inv[i], angles in float32 as HF computes them (Su et al. 2021,
// arXiv:2104.09864, equation 15, in the half-split layout). A nil rope rotates
// nothing.
type rope struct {
	half  int
	at    int // where its angles stand in a row of them
	inv   []float32
	scale float32 // of cosines and sines
}

// ropes are the different ropes of a model.
type ropes struct {
	distinct []*rope
	width    int // of a row of angles, one part for each of distinct
}

// newRopes also gives each layer its rope.
func newRopes(c model.Config) (rs ropes, layers []*rope) {
	for l := range c.NumHiddenLayers {
		t := c.Rope(l)
		if len(t.Inv) == 0 {
			layers = append(layers, nil)
			continue
		}
		i := slices.IndexFunc(rs.distinct, func(r *rope) bool { return r.scale == t.Scale && slices.Equal(r.inv, t.Inv) })
		if i < 0 {
			i = len(rs.distinct)
			rs.distinct = append(rs.distinct, &rope{half: len(t.Inv), at: rs.width, inv: t.Inv, scale: t.Scale})
			rs.width += 2 * len(t.Inv)
		}
		layers = append(layers, rs.distinct[i])
	}
	return rs, layers
}

// angles writes one position's row [width].
func (rs ropes) angles(row []float32, pos int) {
	for _, r := range rs.distinct {
		r.angles(row[r.at:], pos)
	}
}

// angles writes the cosines [half] and sines [half] of one position.
func (r *rope) angles(dst []float32, pos int) {
	for i, f := range r.inv {
		s, c := math.Sincos(float64(float32(pos) * f))
		dst[i], dst[r.half+i] = float32(c)*r.scale, float32(s)*r.scale
	}
}

// rotate rotates heads of width d that stand side by side, in place; inverse
// applies the transposed rotation, its backward.
func (r *rope) rotate(x, angles []float32, heads, d int, inverse bool) {
	h := r.half
	cos, sin := angles[:h], angles[h:2*h]
	for k := range heads {
		a, b := x[k*d:k*d+h], x[k*d+h:k*d+2*h]
		if inverse {
			for i, c := range cos {
				s, u, v := sin[i], a[i], b[i]
				a[i], b[i] = u*c+v*s, v*c-u*s
			}
			continue
		}
		for i, c := range cos {
			s, u, v := sin[i], a[i], b[i]
			a[i], b[i] = u*c-v*s, v*c+u*s
		}
	}
}
