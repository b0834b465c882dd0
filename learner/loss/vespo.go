package loss

import "math"

// Bounds of VESPO's log-ratios, as in the paper's implementation and TRL.
const (
	vespoTop    = 20.0
	vespoBottom = -18.420680743952367 // log 1e-8
)

// vespoTerm is VESPO (arXiv:2602.10693, section 4): REINFORCE weighted by a
// smooth function φ(w) of the whole sequence's importance weight, not
// differentiated (see vespoPhi). Tokens are averaged over the step as in DAPO.
func vespoTerm(c Config, in tokenIn) term {
	w := vespoPhi(c, in.logW, in.adv) * in.adv
	return term{loss: -w * in.logp, dLogP: -w}
}

// vespoLogW is the log of a row's sequence weight, new over sampling policy: the
// sum of its clamped token log-ratios and of the logs of its rollout importance
// weights, which enter here and nowhere else.
func vespoLogW(r Row) float64 {
	sum := 0.0
	for t := range r.LogP {
		if !r.on(t) {
			continue
		}
		sum += min(max(r.LogP[t]-r.old(t), -vespoTop), vespoTop)
		if len(r.Ratio) == len(r.LogP) {
			sum += vespoClamp(math.Log(r.Ratio[t]))
		}
	}
	if len(r.Ratio) == 1 && len(r.LogP) > 1 { // one weight for the row
		sum += vespoClamp(math.Log(r.Ratio[0]))
	}
	return vespoClamp(sum)
}

func vespoClamp(x float64) float64 { return min(max(x, vespoBottom), vespoTop) }

// vespoPhi is φ(w) = exp(λ)·w^k·exp(-λw), which is 1 at w = 1; k and λ depend on
// the sign of the advantage (0 counts as positive).
func vespoPhi(c Config, logW, adv float64) float64 {
	k, lambda := c.VESPOKPos, c.VESPOLambdaPos
	if adv < 0 {
		k, lambda = c.VESPOKNeg, c.VESPOLambdaNeg
	}
	lambda = max(lambda, 1e-4)
	phi := math.Exp(lambda + k*logW - lambda*math.Exp(logW))
	if math.IsNaN(phi) || math.IsInf(phi, 0) {
		return 0
	}
	return phi
}
