package preference

import "math"

// discopopTerm is DiscoPOP, the loss found by a language model (Lu et al. 2024,
// arXiv:2406.08414, eq. 5): with x = βΔ and m = σ(x/τ),
//
//	(1-m)(-log σ(x)) + m e^-x
//
// τ is DiscopopTau in (0, 1]: beyond 1 the second part has no bound as x → -∞.
func discopopTerm(c DPOConfig, w, l side) term {
	x := c.Beta * (w.score - l.score)
	m, rest := sigmoid(x/c.DiscopopTau), sigmoid(-x/c.DiscopopTau)
	logistic := -logSigmoid(x)
	exp := math.Exp(logSigmoid(x/c.DiscopopTau) - x) // m e^-x, where e^-x alone may overflow
	dm := m * rest / c.DiscopopTau
	d := -rest*sigmoid(-x) - logistic*dm - exp + exp*rest/c.DiscopopTau
	return ofMargin(w, l, rest*logistic+exp, c.Beta*d)
}
