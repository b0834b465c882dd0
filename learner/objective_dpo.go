package learner

import (
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/preference"
)

// dpoObjective is a loss on pairs. Both completions share their prompt, which is
// computed once. A row's weight multiplies its pair's loss. Tokens of weight 0
// are masked; other token weights count as 1, since a ratio of probabilities has
// none.
type dpoObjective struct {
	cfg   preference.DPOConfig
	tot   preference.DPOTotals
	stats preference.PairStats
}

func (o *dpoObjective) sequences(e *data.Example) []sequence {
	c, _ := scored(e.Prompt, e.Chosen)
	r, _ := scored(e.Prompt, e.Rejected)
	return []sequence{c, r}
}

func (o *dpoObjective) reference() bool { return o.cfg.NeedsReference() }
func (o *dpoObjective) whole() bool     { return o.cfg.WholeStep() }
func (o *dpoObjective) done()           {}
func (o *dpoObjective) reset()          { *o = dpoObjective{cfg: o.cfg} }

// pair splits a row's scores into its two completions.
func (o *dpoObjective) pair(b *offBatch, k int) preference.Pair {
	n := b.seqs[k][0].trained
	p := preference.Pair{Chosen: preference.Seq{LogP: b.logp[k][:n]}, Rejected: preference.Seq{LogP: b.logp[k][n:]}}
	if o.reference() {
		p.Chosen.Ref, p.Rejected.Ref = b.ref[k][:n], b.ref[k][n:]
	}
	if b.sumSq != nil {
		p.Chosen.LogSumSq, p.Rejected.LogSumSq = b.sumSq[k][:n], b.sumSq[k][n:]
	}
	return p
}

func (o *dpoObjective) begin(_ *rowRun, b *offBatch) (err error) {
	pairs := make([]preference.Pair, len(b.rows))
	for k := range pairs {
		pairs[k] = o.pair(b, k)
	}
	o.tot, err = preference.NewDPOTotals(pairs)
	return err
}

func (o *dpoObjective) loss(b *offBatch, part []int) (float64, func(), error) {
	if o.whole() {
		x, stats, err := o.share(b, part, 1)
		return x, func() { o.stats.Merge(stats) }, err
	}
	sum := 0.0
	all := make([]preference.PairStats, len(part))
	for j, k := range part {
		x, stats, err := o.share(b, []int{k}, b.rows[k].RowWeight())
		if err != nil {
			return 0, nil, err
		}
		sum, all[j] = sum+x, stats
	}
	return sum, func() {
		for _, s := range all {
			o.stats.Merge(s)
		}
	}, nil
}

// share is the loss of some rows of one weight.
func (o *dpoObjective) share(b *offBatch, part []int, weight float64) (float64, preference.PairStats, error) {
	pairs := make([]preference.Pair, len(part))
	for j, k := range part {
		pairs[j] = o.pair(b, k)
	}
	res, err := preference.DPO(o.cfg, pairs, o.tot)
	if err != nil {
		return 0, res.Stats, err
	}
	for j, k := range part {
		d := append(append(make([]float64, 0, len(b.logp[k])), res.DLogP[j].Chosen...), res.DLogP[j].Rejected...)
		for t := range d {
			d[t] *= weight
		}
		b.dLogP[k] = d
	}
	return weight * res.Loss, res.Stats, nil
}

func (o *dpoObjective) metrics() map[string]float64 { return o.stats.Metrics(o.cfg) }
