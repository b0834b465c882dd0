package ppo

import (
	"fmt"
	"math"
)

// ValueRow is one trajectory for the value loss; slices are [T] or [T+1].
type ValueRow struct {
	// Pred is the critic's value now, which is differentiated; Old the one that
	// estimated Returns.
	Pred, Old, Returns []float64
	// Mask marks the policy's tokens [T]; nil marks all. A last state beyond it
	// counts.
	Mask []bool
}

func (r ValueRow) on(t int) bool { return r.Mask == nil || t >= len(r.Mask) || r.Mask[t] }

// count is the number of values trained; a row without a token has none.
func (r ValueRow) count() float64 {
	n, tokens := 0.0, 0.0
	for t := range r.Pred {
		if r.on(t) {
			n++
			if r.Mask == nil || t < len(r.Mask) {
				tokens++
			}
		}
	}
	if tokens == 0 {
		return 0
	}
	return n
}

// ValueCount is the number of values in a step, the loss's denominator.
func ValueCount(rows []ValueRow) float64 {
	n := 0.0
	for _, r := range rows {
		n += r.count()
	}
	return n
}

// ValueResult is a micro-batch's share of the step's value loss.
type ValueResult struct {
	Loss   float64     // with VFCoef
	DValue [][]float64 // dLoss/dPred, in the shape of Pred, 0 where masked
	Stats  ValueStats
}

// ValueStats are sums over values; those of micro-batches merge.
type ValueStats struct{ Values, Loss, Clipped, Pred, Return, Return2, Error, Error2 float64 }

// Merge adds another micro-batch.
func (s *ValueStats) Merge(o ValueStats) {
	s.Values += o.Values
	s.Loss += o.Loss
	s.Clipped += o.Clipped
	s.Pred += o.Pred
	s.Return += o.Return
	s.Return2 += o.Return2
	s.Error += o.Error
	s.Error2 += o.Error2
}

// Metrics: the loss without VFCoef, the share of values whose clipped loss was
// the larger, means, and the share of the returns' variance explained. None
// without values.
func (s ValueStats) Metrics() map[string]float64 {
	if s.Values == 0 {
		return map[string]float64{}
	}
	m := map[string]float64{
		"loss/value": s.Loss / s.Values, "value/clipfrac": s.Clipped / s.Values,
		"value/mean": s.Pred / s.Values, "value/returns_mean": s.Return / s.Values,
	}
	if v := s.Return2/s.Values - math.Pow(s.Return/s.Values, 2); v > 1e-12 {
		m["value/explained_variance"] = 1 - (s.Error2/s.Values-math.Pow(s.Error/s.Values, 2))/v
	}
	return m
}

// Value is the clipped value loss of a micro-batch in a step of count values
// (ValueCount of all its rows), as in OpenAI's PPO and TRL:
//
//	VFCoef · ½ · mean max((V - R)², (clip(V, V_old ± CliprangeValue) - R)²)
//
// (Schulman et al. 2017, arXiv:1707.06347, eq. 9, with the clipping of its
// implementation: Engstrom et al. 2020, arXiv:2005.12729, section 3.) Errors: an
// invalid configuration, lengths, numbers that are not finite.
func Value(c Config, rows []ValueRow, count float64) (ValueResult, error) {
	if err := c.Validate(); err != nil {
		return ValueResult{}, err
	}
	res := ValueResult{DValue: make([][]float64, len(rows))}
	for i, r := range rows {
		if len(r.Old) != len(r.Pred) || len(r.Returns) != len(r.Pred) || r.Mask != nil && len(r.Pred) != len(r.Mask) && len(r.Pred) != len(r.Mask)+1 {
			return ValueResult{}, fmt.Errorf("ppo: value row %d: %d predictions, %d old values, %d returns, %d mask values", i, len(r.Pred), len(r.Old), len(r.Returns), len(r.Mask))
		}
		d := make([]float64, len(r.Pred))
		res.DValue[i] = d
		n := r.count()
		if n == 0 {
			continue
		}
		if !(count >= n && finite(count)) {
			return ValueResult{}, fmt.Errorf("ppo: value row %d: %v values, but the step counts %v; use ValueCount of all its rows", i, n, count)
		}
		for t := range d {
			if !r.on(t) {
				continue
			}
			l, slope, clipped := valueTerm(c, r.Pred[t], r.Old[t], r.Returns[t])
			if !finite(l) || !finite(slope) {
				return ValueResult{}, fmt.Errorf("ppo: value row %d token %d: value %v, old %v, return %v; only finite values can be trained on", i, t, r.Pred[t], r.Old[t], r.Returns[t])
			}
			res.Loss += c.VFCoef * l / count
			d[t] = c.VFCoef * slope / count
			e := r.Returns[t] - r.Pred[t]
			res.Stats.Merge(ValueStats{1, l, clipped, r.Pred[t], r.Returns[t], r.Returns[t] * r.Returns[t], e, e * e})
		}
	}
	return res, nil
}

// valueTerm is one value's loss, its derivative, and 1 if the clipped branch is
// the larger (where the value, held, has no derivative).
func valueTerm(c Config, v, old, ret float64) (l, d, clipped float64) {
	l, d = (v-ret)*(v-ret)/2, v-ret
	if c.CliprangeValue == nil {
		return l, d, 0
	}
	held := min(max(v, old-*c.CliprangeValue), old+*c.CliprangeValue)
	if h := (held - ret) * (held - ret) / 2; h > l {
		return h, 0, 1
	}
	return l, d, 0
}
