package preference

// ipoTerm is IPO (Azar et al. 2023, arXiv:2310.12036, eq. 17) on scores per
// token:
//
//	(s(chosen)/|chosen| - s(rejected)/|rejected| - 1/(2β))²
//
// where β is the paper's τ. The division by the number of scored tokens is not
// in the paper; TRL has it from its authors.
func ipoTerm(c DPOConfig, w, l side) term {
	x := w.score/w.n - l.score/l.n - 1/(2*c.Beta)
	return term{x * x, 2 * x * w.dScore / w.n, -2 * x * l.dScore / l.n}
}
