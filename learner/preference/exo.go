package preference

import "math"

// exoTerm is EXO for pairs (Ji et al. 2024, arXiv:2402.00856, eq. 16): the
// reverse KL between the policy's preference q = σ(βΔ) and the smoothed label,
//
//	q (log q - log(1-ε)) + (1-q) (log(1-q) - log ε)
//
// ε is LabelSmoothing and must exceed 0.
func exoTerm(c DPOConfig, w, l side) term {
	x := c.Beta * (w.score - l.score)
	q, p := sigmoid(x), sigmoid(-x)
	a := logSigmoid(x) - math.Log1p(-c.LabelSmoothing)
	b := logSigmoid(-x) - math.Log(c.LabelSmoothing)
	return ofMargin(w, l, q*a+p*b, c.Beta*q*p*(a-b))
}
