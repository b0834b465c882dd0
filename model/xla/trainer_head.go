//go:build xla

package xla

import (
	"context"
	"fmt"
	"math"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// chunk is a run of marked rows on the device.
type chunk struct {
	lo, hi, size int
	rows         *pjrt.Buffer
}

// chunks calls f for each chunk of a pass's marked rows, padded with row 0.
func (l *lane) chunks(ctx context.Context, marked []int32, f func(chunk) error) error {
	for lo := 0; lo < len(marked); {
		if err := ctx.Err(); err != nil {
			return err
		}
		size := l.t.b.headChunk(len(marked) - lo)
		c := chunk{lo: lo, hi: min(lo+size, len(marked)), size: size}
		rows := make([]int32, size)
		copy(rows, marked[c.lo:c.hi])
		var err error
		if c.rows, err = l.dev.putI32(rows, size); err != nil {
			return err
		}
		err = f(c)
		free(c.rows)
		if err != nil {
			return err
		}
		lo = c.hi
	}
	return nil
}

// gathered are the last layer's rows of a chunk.
func (l *lane) gathered(p *pass, c chunk) (*pjrt.Buffer, error) {
	gather, err := l.t.gather(p.rows(), c.size)
	if err != nil {
		return nil, err
	}
	h, err := l.dev.run(gather, []*pjrt.Buffer{p.out, c.rows})
	if err != nil {
		return nil, err
	}
	return h[0], nil
}

// headArgs are a head program's first arguments for a chunk; head is the unit's
// tensor on the device.
func (l *lane) headArgs(p *pass, c chunk, head []*pjrt.Buffer, inv float32) (args, owned []*pjrt.Buffer, err error) {
	h, err := l.gathered(p, c)
	if err != nil {
		return nil, nil, err
	}
	owned = append(owned, h)
	target := make([]int32, c.size)
	copy(target, p.target[c.lo:c.hi])
	want, err := l.dev.putI32(target, c.size)
	if err == nil {
		owned = append(owned, want)
		var temp *pjrt.Buffer
		if temp, err = l.dev.putF32([]float32{inv}); err == nil {
			owned = append(owned, temp)
			return []*pjrt.Buffer{h, l.t.b.weights.norm[l.dev.index], head[0], want, temp}, owned, nil
		}
	}
	free(owned...)
	return nil, nil, err
}

// score appends a pass's logprobs and entropies, and what the trainer is asked
// for besides.
func (l *lane) score(ctx context.Context, p *pass, inv float32, out *model.Scores) error {
	if len(p.scored) == 0 {
		return nil
	}
	head, done, err := l.t.b.weights.take(l.dev, l.t.b.weights.head)
	if err != nil {
		return err
	}
	defer done()
	kind := l.t.headKind()
	into := []*[]float32{&out.LogProbs, &out.Entropy}
	if kind.mean {
		into = append(into, &out.MeanLogProb)
	}
	if kind.sumSq {
		into = append(into, &out.LogSumSq)
	}
	return l.chunks(ctx, p.scored, func(c chunk) error {
		program, err := l.t.head(fmt.Sprintf("head %+v", kind), c.size, emitHead(kind))
		if err != nil {
			return err
		}
		args, owned, err := l.headArgs(p, c, head, inv)
		if err != nil {
			return err
		}
		defer free(owned...)
		res, err := l.dev.run(program, args)
		if err != nil {
			return err
		}
		defer free(res...)
		for k, to := range into {
			x, err := get[float32](res[k], c.size)
			if err != nil {
				return err
			}
			*to = append(*to, x[:c.hi-c.lo]...)
		}
		n := len(out.LogProbs) - (c.hi - c.lo)
		for i, x := range out.LogProbs[n:] {
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
				return fmt.Errorf("xla: the logprob of token %d is %v: check the parameters for NaN or overflow", p.target[c.lo+i], x)
			}
		}
		return nil
	})
}
