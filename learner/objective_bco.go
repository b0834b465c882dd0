package learner

import (
	"fmt"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/preference"
)

// bcoObjective is BCO on completions with verdicts. The reward shift runs over
// all training steps and is part of the learner's state; an evaluation uses it
// as it stands.
type bcoObjective struct {
	cfg     preference.BCOConfig
	l       *Learner
	density *preference.Density // of prompts; nil without
	next    preference.BCOState
	shift   float64
	stats   preference.UnpairedStats
}

func (o *bcoObjective) sequences(e *data.Example) []sequence {
	s, _ := scored(e.Prompt, e.Chosen)
	return []sequence{s}
}

func (o *bcoObjective) reference() bool { return true }
func (o *bcoObjective) whole() bool     { return true }
func (o *bcoObjective) reset()          { *o = bcoObjective{cfg: o.cfg, l: o.l, density: o.density} }

func (o *bcoObjective) begin(_ *rowRun, _ *offBatch) error { return nil }

func (o *bcoObjective) loss(b *offBatch, part []int) (float64, func(), error) {
	rows := verdicts(b, part)
	if o.density != nil {
		for j, k := range part {
			if e := b.rows[k]; !e.Label {
				x, err := o.density.Ratio(e.Embedding)
				if err != nil {
					return 0, nil, err
				}
				rows[j].Weight = x * e.RowWeight()
			}
		}
	}
	tot := preference.BCOTotals{Rows: float64(len(rows)), Shift: o.l.bco.Shift(o.cfg)}
	o.next = o.l.bco
	if b.train {
		var err error
		if tot, o.next, err = preference.NewBCOTotals(o.cfg, o.l.bco, rows); err != nil {
			return 0, nil, err
		}
	}
	res, err := preference.BCO(o.cfg, rows, tot)
	if err != nil {
		return 0, nil, err
	}
	o.shift = tot.Shift
	for j, k := range part {
		b.dLogP[k] = res.DLogP[j]
	}
	return res.Loss, func() { o.stats.Merge(res.Stats) }, nil
}

func (o *bcoObjective) metrics() map[string]float64 {
	m := o.stats.Metrics()
	m["delta"] = o.shift
	return m
}

func (o *bcoObjective) done() { o.l.bco = o.next }

// fitDensity trains the classifier of prompts on a set. It is a pure function of
// the set, so that a resumed training has the same one.
func fitDensity(c preference.DensityConfig, set *data.Set) (*preference.Density, error) {
	var up, down [][]float64
	for i, e := range set.Rows() {
		if e.Embedding == nil {
			return nil, fmt.Errorf("learner: bco: density_ratio: row %d (%s) has no embedding; give a column \"embedding\" or set density_ratio: false", i, e.Where)
		}
		if e.Label {
			up = append(up, e.Embedding)
		} else {
			down = append(down, e.Embedding)
		}
	}
	d, err := preference.FitDensity(c, up, down)
	if err != nil {
		return nil, fmt.Errorf("learner: bco: density_ratio: %w", err)
	}
	return &d, nil
}
