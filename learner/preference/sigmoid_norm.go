package preference

// sigmoidNormTerm is DPO on scores per token, so that length is no advantage
// (Meng et al. 2024, arXiv:2405.14734, the normalisation of eq. 4, with the
// reference kept; Tülu 3, Lambert et al. 2024, arXiv:2411.15124):
//
//	-log σ(β(s(chosen)/|chosen| - s(rejected)/|rejected|))
func sigmoidNormTerm(c DPOConfig, w, l side) term {
	x := c.Beta * (w.score/w.n - l.score/l.n)
	d := -c.Beta * sigmoid(-x)
	return term{-logSigmoid(x), d * w.dScore / w.n, -d * l.dScore / l.n}
}
