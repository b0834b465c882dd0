package loss

// cispoTerm is CISPO (MiniMax-M1, arXiv:2506.13585, eq. 4): REINFORCE weighted
// by a ratio that is capped and not differentiated, so that no token loses its
// gradient by clipping. EpsilonHigh is the cap itself (ε_high^IS, e.g. 5), not a
// distance from 1, as in TRL; there is no lower bound. Tokens are averaged over
// the step as in DAPO.
func cispoTerm(c Config, in tokenIn) term {
	w := min(in.ratio, c.EpsilonHigh) * in.adv
	return term{loss: -w * in.logp, dLogP: -w}
}

// cispoCapped reports whether the cap held the ratio where the advantage pushes
// it up, as TRL counts it.
func cispoCapped(c Config, ratio, adv float64) bool { return ratio > c.EpsilonHigh && adv > 0 }
