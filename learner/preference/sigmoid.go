package preference

// sigmoidTerm is DPO (Rafailov et al. 2023, arXiv:2305.18290, eq. 7):
//
//	-log σ(βΔ),  Δ = score(chosen) - score(rejected)
//
// LabelSmoothing ε takes the verdict for wrong with probability ε (conservative
// DPO, Mitchell 2023, "A note on DPO with noisy preferences"):
// (1-ε)(-log σ(βΔ)) + ε(-log σ(-βΔ)).
//
// Departure from TRL 1.16, which ignores label_smoothing here.
func sigmoidTerm(c DPOConfig, w, l side) term {
	v, d := smoothed(c, c.Beta*(w.score-l.score))
	return ofMargin(w, l, v, c.Beta*d)
}

// smoothed is the label-smoothed logistic loss of x and its derivative.
func smoothed(c DPOConfig, x float64) (v, d float64) {
	e := c.LabelSmoothing
	return -(1-e)*logSigmoid(x) - e*logSigmoid(-x), -(1-e)*sigmoid(-x) + e*sigmoid(x)
}

// ofMargin is a loss v of Δ with slope d.
func ofMargin(w, l side, v, d float64) term {
	return term{v, d * w.dScore, -d * l.dScore}
}
