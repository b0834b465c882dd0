package preference

// hingeTerm is SLiC's hinge on the normalised likelihood (Zhao et al. 2023,
// arXiv:2305.10425; RSO, Liu et al. 2023, arXiv:2309.06657):
//
//	max(0, 1 - βΔ)
func hingeTerm(c DPOConfig, w, l side) term {
	v := 1 - c.Beta*(w.score-l.score)
	if v <= 0 {
		return term{}
	}
	return ofMargin(w, l, v, -c.Beta)
}
