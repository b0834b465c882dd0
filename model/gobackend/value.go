package gobackend

import (
	"errors"
	"fmt"

	"github.com/skein-rl/skein/model/internal/f32"
)

// valueState is the value head v = w.h on the K marked rows of a batch, h being
// the final normed hidden state.
type valueState struct {
	x, hn, inv []float32 // [K, H] residual and normed rows, [K] reciprocal RMS
	values     []float32 // [K]
}

// forwardValues computes the values; w [H] is nil without a head.
func (n *net) forwardValues(ex *exec, b *batch, x, w []float32, s *valueState) error {
	rows := len(b.valued)
	if w == nil {
		s.values = nil
		if rows > 0 {
			return errors.New("value marks, but the base has no value head: score with parameters")
		}
		return nil
	}
	s.x, s.hn, s.inv = resize(s.x, rows*n.hidden), resize(s.hn, rows*n.hidden), resize(s.inv, rows)
	s.values = resize(s.values, rows)
	for i, r := range b.valued {
		copy(s.x[i*n.hidden:(i+1)*n.hidden], x[r*n.hidden:])
	}
	ex.rmsNorm(s.hn, s.inv, s.x, n.norm, n.eps, rows)
	for i := range s.values {
		s.values[i] = f32.Dot(s.hn[i*n.hidden:(i+1)*n.hidden], w)
		if v := s.values[i]; v-v != 0 {
			return fmt.Errorf("%w: value %v after token %d at position %d", ErrNonFinite, v, b.tokens[b.valued[i]], b.pos[b.valued[i]])
		}
	}
	return nil
}

// backwardValues adds dvalues' share to bs.dx [N, H] and to the gradients of the
// head and (nil: not trained) the final norm.
func (n *net) backwardValues(bs *backwardScratch, b *batch, s *valueState, dvalues, w, dw, dNorm []float32) {
	dhn, dx := make([]float32, len(s.hn)), make([]float32, len(s.hn))
	for i, d := range dvalues {
		h := s.hn[i*n.hidden : (i+1)*n.hidden]
		for j, x := range h {
			dhn[i*n.hidden+j] = d * w[j]
			dw[j] += d * x
		}
	}
	bs.rmsNormBackward(dx, dhn, s.x, s.inv, n.norm, len(dvalues), dNorm)
	bs.addRows(b.valued, dx, n.hidden)
}

// addRows adds dx's rows to those of bs.dx that they belong to.
func (bs *backwardScratch) addRows(rows []int, dx []float32, h int) {
	for i, r := range rows {
		f32.Add(bs.dx[r*h:(r+1)*h], dx[i*h:(i+1)*h])
	}
}
