package preference

import "math"

// Divergences: what keeps the policy near the reference. Each is the f of an
// f-divergence; the loss compares f'(π/π_ref) of the two completions (Wang et
// al. 2023, "Beyond Reverse KL", arXiv:2309.16240, table 1).
const (
	ReverseKL       = "reverse_kl"       // f' = log t + 1: standard DPO
	ForwardKL       = "forward_kl"       // f' = -1/t
	JSDivergence    = "js_divergence"    // f' = log(2t/(1+t))
	AlphaDivergence = "alpha_divergence" // f' = (t^(α-1) - 1)/(α-1); α = 0.5 is TRL's default, α → 1 is reverse_kl
)

// Divergences lists them.
var Divergences = []string{ReverseKL, ForwardKL, JSDivergence, AlphaDivergence}

// alphaLimit is how near to 1 alpha is taken for 1, as in TRL.
const alphaLimit = 1e-6

// score is f' at log t = ratio up to a constant that cancels in the pair, and
// its derivative with respect to ratio.
func (c DPOConfig) score(ratio float64) (s, d float64) {
	switch c.FDivergence {
	case ForwardKL:
		e, de := expLinear(-ratio)
		return 1 - e, de
	case JSDivergence:
		return math.Ln2 + logSigmoid(ratio), sigmoid(-ratio)
	case AlphaDivergence:
		if a := c.FAlpha - 1; math.Abs(a) >= alphaLimit {
			e, de := expLinear(a * ratio)
			return (e - 1) / a, de
		}
	}
	return ratio, 1
}
