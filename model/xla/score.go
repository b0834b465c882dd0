//go:build xla

package xla

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
)

// scoreNumbers bounds the logits of one call.
const scoreNumbers = 1 << 24

var _ model.Scorer = (*decoder)(nil)

// Score implements model.Scorer: prefill with the logits of every token, which
// are reduced on the host.
func (d *decoder) Score(ctx context.Context, rows []model.ScoreRow) ([]model.ScoreOut, error) {
	if err := d.check(ctx); err != nil {
		return nil, err
	}
	prefill := make([]model.PrefillRow, len(rows))
	for i, r := range rows {
		prefill[i] = model.PrefillRow{Slot: r.Slot, Adapter: r.Adapter, Tokens: r.Tokens}
		if r.Top < 0 {
			return nil, fmt.Errorf("xla: score row %d: top is %d, want 0 or more", i, r.Top)
		}
	}
	if err := d.checkPrefill(prefill); err != nil {
		return nil, err
	}
	outs := make([]model.ScoreOut, len(rows))
	for i, r := range rows {
		if err := d.scoreRow(ctx, r, &outs[i]); err != nil {
			return outs[:i], fmt.Errorf("xla: score row %d: %w", i, err)
		}
	}
	return outs, nil
}

// scoreRow runs a row in steps; the logits after a token are about the token
// that follows it.
func (d *decoder) scoreRow(ctx context.Context, r model.ScoreRow, out *model.ScoreOut) error {
	n := len(r.Tokens) - 1
	if n > 0 {
		out.Logprobs = make([]float32, n)
		if r.Top > 0 {
			out.Top = make([][]model.TokenLogprob, n)
		}
	}
	v := d.b.shape.vocab
	sizes := d.b.dev.limits.prefill
	for len(sizes) > 1 && sizes[len(sizes)-1]*v > scoreNumbers {
		sizes = sizes[:len(sizes)-1]
	}
	p := &piece{PrefillRow: model.PrefillRow{Slot: r.Slot, Adapter: r.Adapter, Tokens: r.Tokens}}
	for at := 0; len(p.Tokens) > 0; at = len(r.Tokens) - len(p.Tokens) {
		if err := d.check(ctx); err != nil {
			return err
		}
		p.t = prefillChunk(sizes, len(p.Tokens), d.most()-d.length[r.Slot])
		followed := min(p.t, n-at)
		buf, err := d.prefill([]*piece{p}, 1, true)
		if err != nil {
			return err
		}
		logits, err := get[float32](buf, p.t*v)
		free(buf)
		if err != nil {
			return err
		}
		err = parallel(followed, func(i int) error {
			lp, top, err := sample.Likelihood(logits[i*v:(i+1)*v], r.Tokens[at+i+1], r.Top)
			out.Logprobs[at+i] = lp
			if r.Top > 0 {
				out.Top[at+i] = top
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// parallel calls f(0) to f(n-1) on all cores and joins the errors.
func parallel(n int, f func(int) error) error {
	workers := min(n, runtime.GOMAXPROCS(0))
	errs := make([]error, max(n, 0))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				errs[i] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
