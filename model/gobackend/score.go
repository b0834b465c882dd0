package gobackend

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
)

// scoreLogits bounds the logits held at once, in numbers.
const scoreLogits = 1 << 24

var _ model.Scorer = (*decoder)(nil)

// Score implements model.Scorer.
func (d *decoder) Score(ctx context.Context, rows []model.ScoreRow) ([]model.ScoreOut, error) {
	defer runtime.KeepAlive(d) // the cache's memory
	prefill := make([]model.PrefillRow, len(rows))
	for i, r := range rows {
		prefill[i] = model.PrefillRow{Slot: r.Slot, Adapter: r.Adapter, Tokens: r.Tokens}
		if r.Top < 0 {
			return nil, fmt.Errorf("gobackend: score: row %d: top is %d, want 0 or more", i, r.Top)
		}
	}
	if err := d.checkPrefill(prefill); err != nil {
		return nil, fmt.Errorf("gobackend: score: %w", err)
	}
	outs := make([]model.ScoreOut, len(rows))
	for i, r := range rows {
		if err := d.scoreRow(ctx, r, &outs[i]); err != nil {
			return outs[:i], fmt.Errorf("gobackend: score: row %d: %w", i, err)
		}
	}
	return outs, nil
}

// scoreRow runs a row in passes; the row of logits after a token is about the
// token that follows it.
func (d *decoder) scoreRow(ctx context.Context, r model.ScoreRow, out *model.ScoreOut) error {
	if len(r.Tokens) < 2 {
		return d.Prefill(ctx, []model.PrefillRow{{Slot: r.Slot, Adapter: r.Adapter, Tokens: r.Tokens}})
	}
	n, ln := d.net(r.Adapter), d.lanes[0]
	var release func()
	ln.pool, release = d.b.pool.Crew()
	defer release()
	out.Logprobs = make([]float32, len(r.Tokens)-1)
	if r.Top > 0 {
		out.Top = make([][]model.TokenLogprob, len(r.Tokens)-1)
	}
	pass := max(1, min(prefillRows, scoreLogits/n.vocab))
	for at := 0; at < len(r.Tokens); at += pass {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := r.Tokens[at:min(at+pass, len(r.Tokens))]
		ln.begin(n)
		c := d.slot(r.Slot)
		ln.add(c, d.adapters[r.Adapter], c.len, part...)
		d.forward(ln, false)
		followed := min(len(part), len(r.Tokens)-1-at)
		a := &ln.acts
		ln.logits = resize(ln.logits, followed*n.vocab)
		ln.rmsNorm(a.xn, a.inv1, a.x, n.norm, n.eps, followed)
		n.logits(&ln.exec, ln.logits, a.xn, followed)
		errs := make([]error, followed)
		ln.pool.For(followed, func(i int) {
			lp, top, err := sample.Likelihood(ln.logits[i*n.vocab:(i+1)*n.vocab], r.Tokens[at+i+1], r.Top)
			errs[i] = err
			out.Logprobs[at+i] = lp
			if r.Top > 0 {
				out.Top[at+i] = top
			}
		})
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}
