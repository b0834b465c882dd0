package learner

import (
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/loss"
)

// sftObjective is the weighted cross entropy of demonstrations, Σ w·NLL / Σ w
// over the step, with label smoothing where asked for. A row's weight multiplies
// those of its tokens.
type sftObjective struct {
	kind      string
	smoothing float64
	total     float64
	rows      []loss.SFTRow
}

func (o *sftObjective) sequences(e *data.Example) []sequence {
	s, _ := scored(e.Prompt, e.Chosen)
	return []sequence{s}
}

func (o *sftObjective) reference() bool { return false }
func (o *sftObjective) whole() bool     { return false }
func (o *sftObjective) done()           {}
func (o *sftObjective) reset()          { *o = sftObjective{kind: o.kind, smoothing: o.smoothing} }

func (o *sftObjective) begin(_ *rowRun, b *offBatch) error {
	o.rows = make([]loss.SFTRow, len(b.rows))
	for k, e := range b.rows {
		_, w := scored(e.Prompt, e.Chosen)
		for t := range w {
			w[t] *= e.RowWeight()
		}
		o.rows[k] = loss.SFTRow{LogP: b.logp[k], Weight: w}
	}
	o.total = loss.SFTWeight(o.rows)
	return nil
}

func (o *sftObjective) loss(b *offBatch, part []int) (float64, func(), error) {
	rows := make([]loss.SFTRow, len(part))
	for j, k := range part {
		rows[j] = o.rows[k]
	}
	if o.smoothing > 0 {
		return o.smoothed(b, part, rows)
	}
	res, err := loss.SFT(o.kind, rows, o.total)
	if err != nil {
		return 0, nil, err
	}
	for j, k := range part {
		b.dLogP[k] = res.DLogP[j]
	}
	return res.Loss, nil, nil
}

func (o *sftObjective) smoothed(b *offBatch, part []int, rows []loss.SFTRow) (float64, func(), error) {
	mean := make([][]float64, len(part))
	for j, k := range part {
		mean[j] = b.mean[k]
	}
	res, err := loss.SmoothedSFT(o.smoothing, rows, mean, o.total)
	if err != nil {
		return 0, nil, err
	}
	for j, k := range part {
		b.dLogP[k], b.dMean[k] = res.DLogP[j], res.DMeanLogP[j]
	}
	return res.Loss, nil, nil
}

func (o *sftObjective) metrics() map[string]float64 { return map[string]float64{} }
