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
// last Forward's logprobs and (nil is zero) entropies. Groups whose derivatives
// are all zero cost nothing. On error the gradient is unchanged.
func (t *trainer) Backward(ctx context.Context, d model.Scores) error {
	dLogProbs, dEntropy := d.LogProbs, d.Entropy
	if !t.ready {
		return errors.New("xla: Backward without a Forward since the last SetParams")
	}
	if dEntropy == nil {
		dEntropy = make([]float32, len(dLogProbs))
	}
	if len(dLogProbs) != t.scored || len(dEntropy) != t.scored {
		return fmt.Errorf("xla: %d logprob and %d entropy derivatives for %d scored tokens", len(dLogProbs), len(dEntropy), t.scored)
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
	at, some := 0, false
	for i := range t.passes {
		p := &t.passes[i]
		n := len(p.scored)
		a, b := dLogProbs[at:at+n], dEntropy[at:at+n]
		at += n
		if allZero(a) && allZero(b) {
			continue
		}
		some = true
		if err := t.backward(ctx, p, a, b, acc); err != nil {
			return err
		}
	}
	if !some {
		return nil
	}
	sum := make([]float32, 0, len(t.grad))
	for _, a := range acc {
		g, err := get[float32](a, t.lora.size)
		if err != nil {
			return err
		}
		sum = append(sum, g...)
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

// backward runs one pass from the head down and replaces acc layer by layer.
func (t *trainer) backward(ctx context.Context, p *pass, a, b []float32, acc []*pjrt.Buffer) error {
	dev := t.b.dev
	d, err := dev.putF32(make([]float32, p.rows()*t.b.shape.hidden), p.rows(), t.b.shape.hidden)
	if err != nil {
		return err
	}
	defer func() { free(d) }()
	err = t.chunks(ctx, p, func(c chunk) error {
		ca, cb := make([]float32, c.size), make([]float32, c.size)
		copy(ca, a[c.lo:c.hi])
		copy(cb, b[c.lo:c.hi])
		if allZero(ca) && allZero(cb) {
			return nil
		}
		head, err := t.head("head backward", c.size, emitHeadBack)
		if err != nil {
			return err
		}
		scatter, err := t.scatter(p.rows(), c.size)
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
		next, err := scatter.run([]*pjrt.Buffer{d, c.rows, dh[0]})
		if err != nil {
			return err
		}
		free(d)
		d = next[0]
		return nil
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
		out, err := layer.run(append([]*pjrt.Buffer{p.inputs[l], d, acc[l]}, t.layerArgs(p, l, t.params)...))
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
