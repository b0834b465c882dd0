package preference

// apoZeroTerm is APO-zero (D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 7):
// the chosen goes up and the rejected down, each against the reference. For
// chosen completions that are better than the model's own.
//
//	1 - σ(r_w) + σ(r_l)
func apoZeroTerm(c DPOConfig, w, l side) term {
	a, b := c.Beta*w.ratio, c.Beta*l.ratio
	return term{sigmoid(-a) + sigmoid(b), -c.Beta * dSigmoid(a), c.Beta * dSigmoid(b)}
}

// apoDownTerm is APO-down (the same, eq. 8): the chosen goes down and the
// rejected further. For chosen completions that are worse than the model's own.
//
//	σ(r_w) + 1 - σ(r_w - r_l)
func apoDownTerm(c DPOConfig, w, l side) term {
	a := c.Beta * w.ratio
	m := c.Beta * (w.ratio - l.ratio)
	return term{sigmoid(a) + sigmoid(-m), c.Beta * (dSigmoid(a) - dSigmoid(m)), c.Beta * dSigmoid(m)}
}

func dSigmoid(x float64) float64 { return sigmoid(x) * sigmoid(-x) }
