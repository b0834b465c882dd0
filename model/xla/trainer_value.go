//go:build xla

package xla

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// The value head v = w·h on the marked rows of a pass, h being the final normed
// hidden state (model.TrainerConfig.Value).

// valueProgram: x [m, hidden], norm, w [hidden] -> v [m]; with back also dv [m],
// after w -> dx [m, hidden], dw [hidden].
func (t *trainer) valueProgram(m int, back bool) (*program, error) {
	return t.b.stablehlo(fmt.Sprintf("value head rows=%d back=%v", m, back), func(e *emitter) []value {
		n := &net{emitter: e, s: t.b.shape, elem: t.b.dev.elem}
		h := n.s.hidden
		x, norm, w := e.arg("x", "f32", m, h), e.arg("norm", "f32", h), e.arg("w", "f32", h)
		y, ws := n.rmsNorm(x, norm), e.broadcast(w, []int{1}, m, h)
		if !back {
			return []value{e.reduce(e.mul(y.out, ws), "add", 1)}
		}
		dv := e.spread(e.arg("dv", "f32", m), h)
		return []value{n.normBack(y, e.mul(dv, ws)), e.reduce(e.mul(dv, y.out), "add", 0)}
	})
}

// values appends a pass's values; w is nil without a head.
func (l *lane) values(ctx context.Context, p *pass, w *pjrt.Buffer, out *model.Scores) error {
	if w == nil && len(p.valued) > 0 {
		return errors.New("xla: value marks, but the base has no value head: score with parameters")
	}
	return l.chunks(ctx, p.valued, func(c chunk) error {
		head, err := l.t.valueProgram(c.size, false)
		if err != nil {
			return err
		}
		h, err := l.gathered(p, c)
		if err != nil {
			return err
		}
		defer free(h)
		res, err := l.dev.run(head, []*pjrt.Buffer{h, l.t.b.weights.norm[l.dev.index], w})
		if err != nil {
			return err
		}
		defer free(res...)
		v, err := get[float32](res[0], c.size)
		if err != nil {
			return err
		}
		for i, x := range v[:c.hi-c.lo] {
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
				return fmt.Errorf("xla: the value of marked token %d is %v: check the parameters for NaN or overflow", c.lo+i, x)
			}
		}
		out.Values = append(out.Values, v[:c.hi-c.lo]...)
		return nil
	})
}

// valuesBack adds to dw the head's gradient for dv, and passes on the gradient
// of each chunk's rows.
func (l *lane) valuesBack(ctx context.Context, p *pass, dv, dw []float32, into func(chunk, *pjrt.Buffer) error) error {
	return l.chunks(ctx, p.valued, func(c chunk) error {
		part := make([]float32, c.size)
		copy(part, dv[c.lo:c.hi])
		if allZero(part) {
			return nil
		}
		head, err := l.t.valueProgram(c.size, true)
		if err != nil {
			return err
		}
		h, err := l.gathered(p, c)
		if err != nil {
			return err
		}
		defer free(h)
		d, err := l.dev.putF32(part, c.size)
		if err != nil {
			return err
		}
		defer free(d)
		res, err := l.dev.run(head, []*pjrt.Buffer{h, l.t.b.weights.norm[l.dev.index], l.params.value, d})
		if err != nil {
			return err
		}
		defer free(res...)
		sum, err := get[float32](res[1], l.t.b.shape.hidden)
		if err != nil {
			return err
		}
		for i, x := range sum {
			dw[i] += x
		}
		return into(c, res[0])
	})
}
