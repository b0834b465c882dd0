package preference

// robustTerm is robust DPO (Chowdhury et al. 2024, arXiv:2403.00409):
// an unbiased estimate of the loss without label noise, when each label was
// flipped with probability ε = LabelSmoothing < 0.5:
//
//	[(1-ε)(-log σ(βΔ)) - ε(-log σ(-βΔ))] / (1-2ε)
func robustTerm(c DPOConfig, w, l side) term {
	e, x := c.LabelSmoothing, c.Beta*(w.score-l.score)
	v := (-(1-e)*logSigmoid(x) + e*logSigmoid(-x)) / (1 - 2*e)
	d := (-(1-e)*sigmoid(-x) - e*sigmoid(x)) / (1 - 2*e)
	return ofMargin(w, l, v, c.Beta*d)
}
