package loss

import (
	"fmt"
	"math"
)

// SFT loss types.
const (
	NLL = "nll" // cross entropy
	DFT = "dft" // cross entropy weighted by the token's own detached probability
)

// SFTRow is one supervised sequence: log-probabilities and weights of its
// tokens. A weight of 0 leaves a token out (environment text); a nil Weight is
// 1 everywhere.
type SFTRow struct {
	LogP, Weight []float64
}

// SFTResult is the loss and dLoss/dLogP of the rows given.
type SFTResult struct {
	Loss  float64
	DLogP [][]float64
}

// SFTWeight is the sum of weights, the denominator of a step.
func SFTWeight(rows []SFTRow) float64 {
	sum := 0.0
	for _, r := range rows {
		for t := range r.LogP {
			sum += r.weight(t)
		}
	}
	return sum
}

func (r SFTRow) weight(t int) float64 {
	if r.Weight == nil {
		return 1
	}
	return r.Weight[t]
}

// SFT is the masked, weighted cross entropy as a weighted token mean,
//
//	L = Σ w·(-log p) / Σ w,
//
// so that the weight of tool calls changes their relative emphasis and not the
// learning rate. total is Σ w over the whole step (SFTWeight of all its rows;
// 0 gives loss 0). DFT multiplies each term by the detached p (Wu et al. 2025,
// arXiv:2508.05629, eq. 9).
//
// Departure from TRL: TRL has no weights; with weights in {0, 1} and total =
// num_items_in_batch the two agree.
func SFT(kind string, rows []SFTRow, total float64) (SFTResult, error) {
	if kind != NLL && kind != DFT {
		return SFTResult{}, fmt.Errorf("loss_type: unknown %q for sft; use %q or %q", kind, NLL, DFT)
	}
	res := SFTResult{DLogP: make([][]float64, len(rows))}
	for i, r := range rows {
		if r.Weight != nil && len(r.Weight) != len(r.LogP) {
			return SFTResult{}, fmt.Errorf("loss: sft row %d: %d weights for %d tokens", i, len(r.Weight), len(r.LogP))
		}
		d := make([]float64, len(r.LogP))
		res.DLogP[i] = d
		for t, lp := range r.LogP {
			w := r.weight(t)
			if w == 0 {
				continue
			}
			if math.IsNaN(lp) || math.IsInf(lp, 0) || !(w > 0) || math.IsInf(w, 0) {
				return SFTResult{}, fmt.Errorf("loss: sft row %d token %d: log-probability %v with weight %v; need finite values and a weight >= 0", i, t, lp, w)
			}
			if !(total > 0) {
				return SFTResult{}, fmt.Errorf("loss: sft row %d token %d: weight %v but the step's total weight is %v", i, t, w, total)
			}
			if kind == DFT {
				w *= math.Exp(lp)
			}
			res.Loss -= w * lp / total
			d[t] = -w / total
		}
	}
	return res, nil
}
