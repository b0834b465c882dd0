package ppo

import "fmt"

// GAE is generalised advantage estimation (Schulman et al. 2015,
// arXiv:1506.02438, eqs. 11, 12 and 16):
//
//	δ_t = r_t + γ V_{t+1} - V_t,  A_t = δ_t + γλ A_{t+1},  returns = A + V
//
// over steps [T]. done[t] says that the episode ended with step t, so nothing
// flows back over it (nil = nowhere); bootstrap is V after the last step, 0
// where the episode is over. Errors: slices of different length.
func GAE(rewards, values []float64, done []bool, bootstrap, gamma, lambda float64) (adv, returns []float64, err error) {
	T := len(rewards)
	if len(values) != T || done != nil && len(done) != T {
		return nil, nil, fmt.Errorf("ppo: gae: %d rewards, %d values, %d done flags", T, len(values), len(done))
	}
	adv, returns = make([]float64, T), make([]float64, T)
	next, last := bootstrap, 0.0
	for t := T - 1; t >= 0; t-- {
		if done != nil && done[t] {
			next, last = 0, 0
		}
		last = rewards[t] + gamma*next - values[t] + gamma*lambda*last
		adv[t], returns[t] = last, last+values[t]
		next = values[t]
	}
	return adv, returns, nil
}
