//go:build xla

package xla

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/go-xla/pkg/pjrt"

	"github.com/skein-rl/skein/model"
)

// Backward adds the gradient of the loss to Grad, given its derivatives by the
// last Forward's scores (nil parts are zero). Groups whose derivatives are all
// zero cost nothing. On error the gradient is unchanged.
func (t *trainer) Backward(ctx context.Context, d model.Scores) error {
	if !t.ready {
		return errors.New("xla: Backward without a Forward since the last SetParams")
	}
	for _, x := range []struct {
		name, of string
		d        *[]float32
		want     int
	}{{"logprob", "scored", &d.LogProbs, t.scored}, {"entropy", "scored", &d.Entropy, t.scored}, {"value", "valued", &d.Values, t.valued}} {
		if *x.d == nil {
			*x.d = make([]float32, x.want)
		}
		if len(*x.d) != x.want {
			return fmt.Errorf("xla: %d %s derivatives for %d %s tokens", len(*x.d), x.name, x.want, x.of)
		}
	}
	layers := t.b.shape.layers
	acc := make([]*pjrt.Buffer, layers)
	defer func() {
		for _, a := range acc {
			if a != t.zeros {
				free(a)
			}
		}
	}()
	for i := range acc {
		acc[i] = t.zeros
	}
	some := false
	value := make([]float32, t.b.shape.hidden)
	for i := range t.passes {
		p := &t.passes[i]
		n, v := len(p.scored), len(p.valued)
		part := model.Scores{LogProbs: d.LogProbs[:n], Entropy: d.Entropy[:n], Values: d.Values[:v]}
		d.LogProbs, d.Entropy, d.Values = d.LogProbs[n:], d.Entropy[n:], d.Values[v:]
		if allZero(part.LogProbs) && allZero(part.Entropy) && allZero(part.Values) {
			continue
		}
		some = true
		if err := t.backward(ctx, p, part, acc, value); err != nil {
			return err
		}
	}
	if !some {
		return nil
	}
	sum := make([]float32, 0, t.lora.size*layers+len(value))
	for _, a := range acc {
		g, err := get[float32](a, t.lora.size)
		if err != nil {
			return err
		}
		sum = append(sum, g...)
	}
	if t.cfg.Value {
		sum = append(sum, value...)
	}
	for i, x := range sum {
		t.grad[i] += x
	}
	return nil
}

func allZero(x []float32) bool {
	for _, v := range x {
		if v != 0 {
			return false
		}
	}
	return true
}

// backward runs one pass from the heads down; it adds to the value head's
// gradient and replaces acc layer by layer.
func (t *trainer) backward(ctx context.Context, p *pass, g model.Scores, acc []*pjrt.Buffer, value []float32) error {
	dev := t.b.dev
	d, err := dev.putF32(make([]float32, p.rows()*t.b.shape.hidden), p.rows(), t.b.shape.hidden)
	if err != nil {
		return err
	}
	defer func() { free(d) }()
	// into adds a chunk's gradient to the rows it belongs to.
	into := func(c chunk, dh *pjrt.Buffer) error {
		scatter, err := t.scatter(p.rows(), c.size)
		if err != nil {
			return err
		}
		next, err := scatter.run([]*pjrt.Buffer{d, c.rows, dh})
		if err != nil {
			return err
		}
		free(d)
		d = next[0]
		return nil
	}
	if err := t.valuesBack(ctx, p, g.Values, value, into); err != nil {
		return err
	}
	err = t.chunks(ctx, p.scored, func(c chunk) error {
		ca, cb := make([]float32, c.size), make([]float32, c.size)
		copy(ca, g.LogProbs[c.lo:c.hi])
		copy(cb, g.Entropy[c.lo:c.hi])
		if allZero(ca) && allZero(cb) {
			return nil
		}
		head, err := t.head("head backward", c.size, emitHeadBack)
		if err != nil {
			return err
		}
		args, owned, err := t.headArgs(p, c, t.inv)
		defer func() { free(owned...) }()
		if err != nil {
			return err
		}
		for _, x := range [][]float32{ca, cb} {
			buf, err := dev.putF32(x, c.size)
			if err != nil {
				return err
			}
			args, owned = append(args, buf), append(owned, buf)
		}
		dh, err := head.run(args)
		if err != nil {
			return err
		}
		owned = append(owned, dh...)
		return into(c, dh[0])
	})
	if err != nil {
		return err
	}
	for l := t.b.shape.layers - 1; l >= 0; l-- {
		if err := ctx.Err(); err != nil {
			return err
		}
		layer, err := t.layerBackward(p.layout, t.b.shape.kinds[l])
		if err != nil {
			return err
		}
		out, err := layer.run(append([]*pjrt.Buffer{p.inputs[l], d, acc[l]}, t.layerArgs(p, l, t.params.layers)...))
		if err != nil {
			return err
		}
		free(d)
		if acc[l] != t.zeros {
			free(acc[l])
		}
		d, acc[l] = out[0], out[1]
	}
	return nil
}
