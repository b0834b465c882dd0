package preference

// ncaTerm is NCA for pairs (Chen et al. 2024, arXiv:2402.05369, with
// K = 2 and rewards in {0, 1}), on rewards r = β log(π/π_ref):
//
//	-log σ(r_w) - ½ log σ(-r_w) - ½ log σ(-r_l)
func ncaTerm(c DPOConfig, w, l side) term {
	a, b := c.Beta*w.ratio, c.Beta*l.ratio
	return term{
		-logSigmoid(a) - logSigmoid(-a)/2 - logSigmoid(-b)/2,
		c.Beta * (sigmoid(a)/2 - sigmoid(-a)),
		c.Beta * sigmoid(b) / 2,
	}
}
