package preference

import "math"

// orpoTerm is the odds-ratio part of ORPO (Hong et al. 2024, arXiv:2403.07691,
// eq. 7) times β, the paper's λ; it has no reference:
//
//	-β log σ(log odds(chosen) - log odds(rejected)),  odds = p/(1-p)
//
// where log p is the mean log-probability per token. The paper's whole loss
// (eq. 6) adds the cross entropy of the chosen completion: LossTypes ["orpo",
// "sft"].
func orpoTerm(c DPOConfig, w, l side) term {
	a, da := logOdds(w.lp / w.n)
	b, db := logOdds(l.lp / l.n)
	d := -c.Beta * sigmoid(b-a)
	return term{-c.Beta * logSigmoid(a-b), d * da / w.n, -d * db / l.n}
}

// orpoCertain is the log-probability from where log odds go on as their
// tangent: odds are infinite at 0.
const orpoCertain = -1e-6

// logOdds is log(p/(1-p)) of log p, and its derivative 1/(1-p).
func logOdds(lp float64) (v, d float64) {
	at := min(lp, orpoCertain)
	q := -math.Expm1(at) // 1-p
	return at - math.Log(q) + (lp-at)/q, 1 / q
}
