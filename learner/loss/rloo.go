package loss

// RLOO (Ahmadian et al. 2024, arXiv:2402.14740) takes the whole
// completion for one action: with Level LevelSum the ratio is that of the
// trajectory, clipped as in TRL, and grpoWeight's mean over a row's tokens,
// whose terms are all equal, followed by the mean over rows is the mean over
// completions. Advantages are advantage.RLOO's; the KL is part of the reward
// there, so Beta is 0 here.
//
// Departure from TRL: a row without counted tokens adds 0, not the constant
// -A; rows are those of the whole step.
func (c Config) validateRLOO(bad func(string, ...any)) {
	if c.Level != LevelSum {
		bad("importance_sampling_level: %q, but rloo's action is the whole completion; use %q", c.Level, LevelSum)
	}
	if c.Beta != 0 {
		bad("beta: %v in the loss, but rloo's KL is part of the reward; use 0 here and give it to the advantages", c.Beta)
	}
}
