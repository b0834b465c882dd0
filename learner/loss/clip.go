package loss

// tokenIn is what a token's term may depend on.
type tokenIn struct {
	ratio, adv, logp float64
	logW             float64 // vespo: log of the row's sequence weight
}

// term is one token's policy term with its partial derivatives with respect to
// the ratio and, where the log-probability stands in it directly, to that.
type term struct{ loss, dRatio, dLogP float64 }

// clippedTerm is the term of the losses that clip.
func clippedTerm(c Config, in tokenIn) term {
	l, d := surrogate(c, in.ratio, in.adv)
	return term{loss: l, dRatio: d}
}

// surrogate is the clipped policy term of one token and its derivative with
// respect to the ratio:
//
//	-min(min(c, delta)·A, clamp(c, 1-low, 1+high)·A)
//
// Clipping is PPO's (arXiv:1707.06347, eq. 7) with separate bounds (clip-higher,
// DAPO, arXiv:2503.14476, eq. 10); delta caps the first branch as well, which
// bounds the loss of a token with negative advantage (INTELLECT-2,
// arXiv:2505.07291, eq. 3).
func surrogate(c Config, ratio, adv float64) (loss, dRatio float64) {
	free, dFree := ratio, 1.0
	if c.Delta != nil && ratio > *c.Delta {
		free, dFree = *c.Delta, 0
	}
	held, dHeld := ratio, 1.0
	switch {
	case ratio < 1-c.EpsilonLow:
		held, dHeld = 1-c.EpsilonLow, 0
	case ratio > 1+c.EpsilonHigh:
		held, dHeld = 1+c.EpsilonHigh, 0
	}
	if free*adv <= held*adv {
		return -free * adv, -dFree * adv
	}
	return -held * adv, -dHeld * adv
}

// clipped reports whether the ratio left the trust region on the side where the
// advantage pushes it, as TRL counts it: after the delta cap.
func clipped(c Config, ratio, adv float64) (low, high bool) {
	if c.Delta != nil {
		ratio = min(ratio, *c.Delta)
	}
	return ratio < 1-c.EpsilonLow && adv < 0, ratio > 1+c.EpsilonHigh && adv > 0
}
