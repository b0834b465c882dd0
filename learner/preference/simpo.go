package preference

// simpoTerm is SimPO (Meng et al. 2024, arXiv:2405.14734, eq. 6), which has no
// reference:
//
//	-log σ(β log π(chosen)/|chosen| - β log π(rejected)/|rejected| - γ)
func simpoTerm(c DPOConfig, w, l side) term {
	x := c.Beta*(w.lp/w.n-l.lp/l.n) - c.SimPOGamma
	d := -c.Beta * sigmoid(-x)
	return term{-logSigmoid(x), d / w.n, -d / l.n}
}
