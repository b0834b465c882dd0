package learner

import (
	"errors"
	"slices"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/preference"
)

// ktoObjective is KTO on completions with verdicts. The step's KL is estimated
// on mismatched rows: each prompt with the completion of the nearest row before
// it in the step that has another prompt, failing that of the set.
type ktoObjective struct {
	cfg   preference.KTOConfig
	tot   preference.KTOTotals
	stats preference.UnpairedStats
}

func (o *ktoObjective) sequences(e *data.Example) []sequence {
	s, _ := scored(e.Prompt, e.Chosen)
	return []sequence{s}
}

func (o *ktoObjective) reference() bool { return true }
func (o *ktoObjective) whole() bool     { return false }
func (o *ktoObjective) done()           {}
func (o *ktoObjective) reset()          { *o = ktoObjective{cfg: o.cfg} }

func (o *ktoObjective) begin(r *rowRun, b *offBatch) error {
	o.tot.Rows = float64(len(b.rows))
	if !o.cfg.NeedsKL() || r.sameAsReference() {
		return nil // the KL of a policy to itself is 0
	}
	seqs := make([][]sequence, len(b.rows))
	for k, e := range b.rows {
		other := mismatch(b, k, r.set.Rows())
		if other == nil {
			return errors.New("kto: all rows have the same prompt, so that its KL cannot be estimated on mismatched ones; give rows of several prompts or use loss_type apo_zero_unpaired")
		}
		s, _ := scored(e.Prompt, other.Chosen)
		seqs[k] = []sequence{s}
	}
	lp, err := r.logprobs(seqs, r.l.numbered(placePolicy, r.l.params))
	if err != nil {
		return err
	}
	ref, err := r.logprobs(seqs, r.l.reference(r.l.refParams()))
	if err != nil {
		return err
	}
	rows := make([]preference.Seq, len(seqs))
	for k := range rows {
		rows[k] = preference.Seq{LogP: lp[k], Ref: ref[k]}
	}
	if o.tot.KL, err = preference.KTOKL(rows); err != nil {
		return errors.Join(ErrDiverged, err)
	}
	return nil
}

// mismatch finds a row of another prompt; nil when there is none.
func mismatch(b *offBatch, k int, set []data.Example) *data.Example {
	n := len(b.rows)
	for d := 1; d < n; d++ {
		if e := b.rows[(k+n-d)%n]; !slices.Equal(e.Prompt, b.rows[k].Prompt) {
			return e
		}
	}
	for d := range set {
		if e := &set[(b.idx[k]+1+d)%len(set)]; !slices.Equal(e.Prompt, b.rows[k].Prompt) {
			return e
		}
	}
	return nil
}

// verdicts are rows of a batch for package preference.
func verdicts(b *offBatch, part []int) []preference.Unpaired {
	rows := make([]preference.Unpaired, len(part))
	for j, k := range part {
		rows[j] = preference.Unpaired{Seq: preference.Seq{LogP: b.logp[k], Ref: b.ref[k]}, Desirable: b.rows[k].Label, Weight: b.rows[k].Weight}
	}
	return rows
}

func (o *ktoObjective) loss(b *offBatch, part []int) (float64, func(), error) {
	res, err := preference.KTO(o.cfg, verdicts(b, part), o.tot)
	if err != nil {
		return 0, nil, err
	}
	for j, k := range part {
		b.dLogP[k] = res.DLogP[j]
	}
	return res.Loss, func() { o.stats.Merge(res.Stats) }, nil
}

func (o *ktoObjective) metrics() map[string]float64 {
	m := o.stats.Metrics()
	if o.cfg.NeedsKL() {
		m["kl"] = o.tot.KL
	}
	return m
}
