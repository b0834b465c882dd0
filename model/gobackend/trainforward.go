package gobackend

import (
	"context"
	"fmt"
)

// forwardRun is one pass over the layers.
type forwardRun struct {
	net    *net
	ad     *lora
	ex     *exec
	batch  *batch
	angles *[]float32
	layer  func(int) *acts // where a layer's activations go
}

// layers returns the final residual [N, H], which aliases scratch memory.
func (r forwardRun) layers(ctx context.Context) ([]float32, error) {
	n, rows := r.net, len(r.batch.tokens)
	if rows == 0 { // nothing is trained
		return nil, nil
	}
	*r.angles = resize(*r.angles, rows*n.ropes.width)
	for i, pos := range r.batch.pos {
		n.ropes.angles((*r.angles)[i*n.ropes.width:], pos)
	}
	all := []share{{r.ad, 0, rows, r.batch.drop}}
	x := make([]float32, rows*n.hidden)
	n.embedRows(r.ex, x, r.batch.tokens)
	for l := range n.layers {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("before layer %d: %w", l, err)
		}
		r.ex.enter(l)
		a := r.layer(l)
		a.resize(n.dims, rows)
		r.ex.pool.Rows(rows*n.hidden, 1<<14, func(lo, hi int) { copy(a.x[lo:hi], x[lo:hi]) })
		n.fill(r.ex, r.batch, l, r.ad, a, *r.angles, true)
		n.outRows(r.ex, l, all, a, x, rows)
	}
	return x, nil
}

// fill computes all activations of layer l from a.x, and from a.att and a.lse
// unless it is to attend.
func (n *net) fill(ex *exec, b *batch, l int, ad *lora, a *acts, angles []float32, attend bool) {
	rows := len(b.tokens)
	all := []share{{ad, 0, rows, b.drop}}
	n.qkvRows(ex, l, all, a, angles, rows)
	if attend {
		n.attendGroups(ex, b, n.layers[l].window, a)
	}
	n.midRows(ex, l, all, a, rows)
}

// checkScores reports the first scored token whose score is not finite, and
// the first layer whose input was already damaged.
func checkScores(b *batch, s *headState, kept []acts) error {
	for i := range s.logp {
		if v := s.logp[i] + s.ent[i]; v-v == 0 {
			continue
		}
		where := "the scores"
		for l := range kept {
			if firstBad(kept[l].x) >= 0 {
				where = fmt.Sprintf("the input of layer %d", l)
				break
			}
		}
		return fmt.Errorf("%w: logprob %v, entropy %v of scored token %d (id %d, position %d); first seen in %s",
			ErrNonFinite, s.logp[i], s.ent[i], i, b.target[i], b.pos[b.rows[i]]+1, where)
	}
	return nil
}
