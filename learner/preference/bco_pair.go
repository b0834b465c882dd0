package preference

// bcoPairTerm is BCO's binary classifier on a pair without reward shift (Jung
// et al. 2024, arXiv:2404.04656, with δ = 0), on r = β log(π/π_ref):
//
//	-log σ(r_w) - log σ(-r_l)
func bcoPairTerm(c DPOConfig, w, l side) term {
	a, b := c.Beta*w.ratio, c.Beta*l.ratio
	return term{-logSigmoid(a) - logSigmoid(-b), -c.Beta * sigmoid(-a), c.Beta * sigmoid(b)}
}
