package preference

// sppoTerm is SPPO with hard verdicts (Wu et al. 2024, arXiv:2405.00675, eq. 4.7
// with P = 1 for the chosen and 0 for the rejected):
//
//	(log(π/π_ref)_w - 1/(2β))² + (log(π/π_ref)_l + 1/(2β))²
func sppoTerm(c DPOConfig, w, l side) term {
	a, b := w.ratio-.5/c.Beta, l.ratio+.5/c.Beta
	return term{a*a + b*b, 2 * a, 2 * b}
}
