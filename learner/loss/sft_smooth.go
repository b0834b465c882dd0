package loss

import (
	"fmt"
	"math"
)

// SmoothedSFTResult is SFTResult with the derivative with respect to the mean
// log-probability of the vocabulary at each token.
type SmoothedSFTResult struct {
	SFTResult
	DMeanLogP [][]float64
}

// SmoothedSFT is SFT of type NLL with label smoothing ε in [0, 1) (Szegedy et
// al. 2015, arXiv:1512.00567, section 7, uniform over the vocabulary, as torch's
// cross_entropy):
//
//	L = Σ w [(1-ε)(-log p) + ε(-m)] / Σ w,  m = mean over the vocabulary of log p
//
// mean has m of every token of every row. Both m and its derivative concern all
// logits, so the trainer's head computes them (model.TrainerConfig.MeanLogProb).
func SmoothedSFT(epsilon float64, rows []SFTRow, mean [][]float64, total float64) (SmoothedSFTResult, error) {
	if !(epsilon >= 0 && epsilon < 1) {
		return SmoothedSFTResult{}, fmt.Errorf("label_smoothing: %v is outside [0, 1); use e.g. 0.1, or 0 for none", epsilon)
	}
	if len(mean) != len(rows) {
		return SmoothedSFTResult{}, fmt.Errorf("loss: sft: mean log-probabilities of %d rows for %d rows", len(mean), len(rows))
	}
	hard, err := SFT(NLL, rows, total)
	if err != nil {
		return SmoothedSFTResult{}, err
	}
	res := SmoothedSFTResult{hard, make([][]float64, len(rows))}
	res.Loss *= 1 - epsilon
	for i, r := range rows {
		if len(mean[i]) != len(r.LogP) {
			return SmoothedSFTResult{}, fmt.Errorf("loss: sft row %d: %d mean log-probabilities for %d tokens", i, len(mean[i]), len(r.LogP))
		}
		res.DMeanLogP[i] = make([]float64, len(r.LogP))
		for t, m := range mean[i] {
			w := r.weight(t)
			if w == 0 {
				continue
			}
			if math.IsNaN(m) || math.IsInf(m, 0) {
				return SmoothedSFTResult{}, fmt.Errorf("loss: sft row %d token %d: mean log-probability is %v", i, t, m)
			}
			res.Loss -= epsilon * w * m / total
			res.DMeanLogP[i][t] = -epsilon * w / total
			res.DLogP[i][t] *= 1 - epsilon
		}
	}
	return res, nil
}
