package loss

import (
	"fmt"
	"math"
	"slices"
)

// M2Row is what M2Mask reads of a row: log-probabilities of its tokens [T] when
// they were sampled (NaN = unknown, never masked) and under the policy before
// the update; mask as in [Row].
type M2Row struct {
	Old, Sampling []float64
	Mask          []bool
}

// M2Mask is M2PO's second-moment trust region (Zheng et al. 2025,
// arXiv:2510.01161): over the tokens of a whole step,
//
//	M2 = mean (log π_old/π_sampling)²
//
// and the tokens of largest square are left out until M2 of the rest is at most
// threshold (the paper's 0.04). The result has 1 for a kept token, 0 for one
// left out or masked; multiply it into Row.Ratio (Weigh), so that
// Config.Denominator decides whether those left out still count (the paper:
// fixed). Tokens of equal square go together, so order cannot matter.
//
// Departure: the paper's objective has no clip beside the mask; here the loss
// type's stays.
func M2Mask(threshold float64, rows []M2Row) ([][]float64, error) {
	if !(threshold > 0) || math.IsInf(threshold, 0) {
		return nil, fmt.Errorf("m2_threshold: %v is not a finite number > 0; use e.g. 0.04", threshold)
	}
	var squares []float64
	for i, r := range rows {
		if len(r.Old) != len(r.Sampling) || r.Mask != nil && len(r.Mask) != len(r.Old) {
			return nil, fmt.Errorf("loss: m2po: row %d: %d old, %d sampling log-probabilities, %d mask values", i, len(r.Old), len(r.Sampling), len(r.Mask))
		}
		for t := range r.Old {
			if r.Mask == nil || r.Mask[t] {
				squares = append(squares, r.square(t))
			}
		}
	}
	bound := m2Bound(threshold, squares)
	out := make([][]float64, len(rows))
	for i, r := range rows {
		out[i] = make([]float64, len(r.Old))
		for t := range r.Old {
			if (r.Mask == nil || r.Mask[t]) && r.square(t) <= bound {
				out[i][t] = 1
			}
		}
	}
	return out, nil
}

// square is the squared log-ratio of a token, 0 where it is unknown.
func (r M2Row) square(t int) float64 {
	d := r.Old[t] - r.Sampling[t]
	if math.IsNaN(d) {
		return 0
	}
	return d * d
}

// m2Bound is the largest square to keep; -1 when even the least is too much.
func m2Bound(threshold float64, squares []float64) float64 {
	slices.Sort(squares)
	bound, sum := -1.0, 0.0
	for k, x := range squares {
		if sum += x; sum > threshold*float64(k+1) {
			break // means of sorted numbers only grow
		}
		if k+1 == len(squares) || squares[k+1] != x {
			bound = x
		}
	}
	return bound
}

// Weigh multiplies importance weights of one row's tokens: a slice may be nil
// (1), one value for the row, or one per token [T]. The result is nil, one
// value or [T]. Errors: another length.
func Weigh(tokens int, weights ...[]float64) ([]float64, error) {
	var out []float64
	for k, w := range weights {
		switch {
		case w == nil:
			continue
		case len(w) != 1 && len(w) != tokens:
			return nil, fmt.Errorf("loss: weights %d: %d values for %d tokens; need none, one or one each", k, len(w), tokens)
		case out == nil:
			out = slices.Clone(w)
			continue
		}
		if len(w) > len(out) {
			wide := make([]float64, len(w))
			for t := range wide {
				wide[t] = out[0]
			}
			out = wide
		}
		for t := range out {
			out[t] *= at(w, t)
		}
	}
	return out, nil
}
