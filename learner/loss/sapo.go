package loss

import "math"

// sapoTerm is SAPO (Gao et al. 2025, arXiv:2511.20347, eqs. 5 and 6): instead of
// clipping, the ratio r passes a soft gate f(r) = 4/τ·sigmoid(τ(r-1)), whose
// slope is 1 at r = 1 and falls off on both sides; τ is SAPOTemperaturePos for
// positive advantages and SAPOTemperatureNeg for the others. Rows are averaged
// as in GRPO.
func sapoTerm(c Config, in tokenIn) term {
	tau := c.SAPOTemperatureNeg
	if in.adv > 0 {
		tau = c.SAPOTemperaturePos
	}
	s := 1 / (1 + math.Exp(-tau*(in.ratio-1)))
	return term{loss: -4 / tau * s * in.adv, dRatio: -4 * s * (1 - s) * in.adv}
}
