package learner

import (
	"context"
	"fmt"
	"slices"
)

// sameAsReference: while the parameters are still the start's, the reference is
// the very same pass, so that rewards are exactly 0 whatever the kernels'
// rounding.
func (r *rowRun) sameAsReference() bool {
	return r.ref == nil && r.l.cfg.Reference == ReferenceStart && slices.Equal(r.l.params, r.l.start)
}

// precompute scores every row of the training set under the reference, in the
// order of the set, so that a resumed training has the same numbers.
func (r *offline) precompute(ctx context.Context) error {
	if !r.l.cfg.PrecomputeRefLogProbs || !r.obj.reference() || r.l.step >= r.total {
		return nil
	}
	rows := r.set.Rows()
	r.dealer = r.l.dealer(ctx)
	r.ref = make([][]float32, len(rows))
	// A chunk at a time bounds what is held beside the result.
	const chunk = 1024
	for from := 0; from < len(rows); from += chunk {
		to := min(from+chunk, len(rows))
		seqs := make([][]sequence, to-from)
		for k := range seqs {
			seqs[k] = r.obj.sequences(&rows[from+k])
		}
		lps, err := r.logprobs(seqs, r.l.reference(r.l.refParams()))
		if err != nil {
			r.ref = nil
			return fmt.Errorf("learner: %s: reference of rows %d to %d: %w", r.l.cfg.Algorithm, from, to-1, err)
		}
		for k, lp := range lps {
			r.ref[from+k] = make([]float32, len(lp))
			for t, x := range lp {
				r.ref[from+k][t] = float32(x)
			}
		}
	}
	return nil
}

// references fills a batch's reference log-probabilities; train says that it is
// of the training set.
func (r *rowRun) references(b *offBatch, train bool) error {
	if train && r.ref != nil {
		for k, i := range b.idx {
			for t, x := range r.ref[i] {
				b.ref[k][t] = float64(x)
			}
		}
		return nil
	}
	defer b.spend(&b.time.Reference)()
	lps, err := r.logprobs(b.seqs, r.l.reference(r.l.refParams()))
	if err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	b.ref = lps
	return nil
}
