//go:build xla

package xla

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	if err := t.cfg.CheckDerivatives(d); err != nil {
		return fmt.Errorf("xla: %w", err)
	}
	for _, x := range []struct {
		name, of string
		d        *[]float32
		want     int
	}{{"logprob", "scored", &d.LogProbs, t.scored}, {"entropy", "scored", &d.Entropy, t.scored},
		{"mean logprob", "scored", &d.MeanLogProb, t.scored}, {"value", "valued", &d.Values, t.valued}} {
		if *x.d == nil {
			*x.d = make([]float32, x.want)
		}
		if len(*x.d) != x.want {
			return fmt.Errorf("xla: %d %s derivatives for %d %s tokens", len(*x.d), x.name, x.want, x.of)
		}
	}
	parts := make([]model.Scores, len(t.passes))
	turn := make([]chan struct{}, len(t.passes)+1) // closed when batch i may add its gradient
	for i := range turn {
		turn[i] = make(chan struct{})
	}
	pick := func(x []float32, at []int32) []float32 {
		out := make([]float32, len(at))
		for i, k := range at {
			out[i] = x[k]
		}
		return out
	}
	for i, p := range t.passes {
		parts[i] = model.Scores{LogProbs: pick(d.LogProbs, p.at), Entropy: pick(d.Entropy, p.at), MeanLogProb: pick(d.MeanLogProb, p.at), Values: pick(d.Values, p.valuedAt)}
	}
	close(turn[0])
	sum := slices.Clone(t.grad)
	err := t.deal(ctx, len(parts), func(ctx context.Context, l *lane, i int) error {
		g, err := l.gradient(ctx, t.passes[i], parts[i])
		if err != nil {
			return err
		}
		select {
		case <-turn[i]:
		case <-ctx.Done():
			return ctx.Err()
		}
		for k, x := range g {
			sum[k] += x
		}
		close(turn[i+1])
		return nil
	})
	if err == nil {
		copy(t.grad, sum)
	}
	return err
}

// gradient is one batch's, in the trainer's layout; nil when its derivatives are
// all zero.
func (l *lane) gradient(ctx context.Context, p *pass, d model.Scores) ([]float32, error) {
	if allZero(d.LogProbs) && allZero(d.Entropy) && allZero(d.MeanLogProb) && allZero(d.Values) {
		return nil, nil
	}
	t := l.t
	value := make([]float32, t.b.shape.hidden)
	layers := make([]*pjrt.Buffer, t.b.shape.layers)
	defer func() { free(layers...) }()
	if err := l.backward(ctx, p, d, layers, value); err != nil {
		return nil, err
	}
	out := make([]float32, 0, t.layout.Size())
	for i, b := range layers {
		g, err := get[float32](b, t.lora[i].size)
		if err != nil {
			return nil, err
		}
		out = append(out, g...)
	}
	if t.cfg.Value {
		out = append(out, value...)
	}
	return out, nil
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
// gradient and sets each layer's.
func (l *lane) backward(ctx context.Context, p *pass, g model.Scores, grads []*pjrt.Buffer, value []float32) error {
	t, dev := l.t, l.dev
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
		next, err := dev.run(scatter, []*pjrt.Buffer{d, c.rows, dh})
		if err != nil {
			return err
		}
		free(d)
		d = next[0]
		return nil
	}
	if err := l.valuesBack(ctx, p, g.Values, value, into); err != nil {
		return err
	}
	head, done, err := t.b.weights.take(dev, t.b.weights.head)
	if err != nil {
		return err
	}
	defer done()
	by := [][]float32{g.LogProbs, g.Entropy}
	if t.cfg.MeanLogProb {
		by = append(by, g.MeanLogProb)
	}
	err = l.chunks(ctx, p.scored, func(c chunk) error {
		if !slices.ContainsFunc(by, func(d []float32) bool { return !allZero(d[c.lo:c.hi]) }) {
			return nil
		}
		program, err := t.head(fmt.Sprintf("head backward mean=%v", t.cfg.MeanLogProb), c.size, emitHeadBack(t.cfg.MeanLogProb))
		if err != nil {
			return err
		}
		args, owned, err := l.headArgs(p, c, head, t.inv)
		defer func() { free(owned...) }()
		if err != nil {
			return err
		}
		for _, d := range by {
			x := make([]float32, c.size)
			copy(x, d[c.lo:c.hi])
			buf, err := dev.putF32(x, c.size)
			if err != nil {
				return err
			}
			args, owned = append(args, buf), append(owned, buf)
		}
		dh, err := dev.run(program, args)
		if err != nil {
			return err
		}
		owned = append(owned, dh...)
		return into(c, dh[0])
	})
	if err != nil {
		return err
	}
	for i := t.b.shape.layers - 1; i >= 0; i-- {
		if err := ctx.Err(); err != nil {
			return err
		}
		layer, err := t.layerBackward(p.layout, i, p.dropout)
		if err != nil {
			return err
		}
		out, err := l.layer(layer, p, i, l.params.layers, p.inputs[i], d)
		if err != nil {
			return err
		}
		free(d)
		d, grads[i] = out[0], out[1]
	}
	return nil
}
