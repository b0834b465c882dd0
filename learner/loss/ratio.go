package loss

import "math"

// importance gives the ratio new/old of each counted token of a row.
//
// Token level is PPO's ratio (Schulman et al. 2017, arXiv:1707.06347, eq. 6).
// Sequence level is GSPO's length-normalised ratio (Zheng et al. 2025,
// arXiv:2507.18071, eq. 7): exp of the mean log-ratio over the row's counted
// tokens, the same for all of them; LevelSum leaves the mean out.
func importance(level string, r Row) []float64 {
	c := make([]float64, len(r.LogP))
	if level != LevelToken {
		sum, n := 0.0, 0.0
		for t := range c {
			if r.on(t) {
				sum += r.LogP[t] - r.old(t)
				n++
			}
		}
		if level == LevelSum {
			n = 1
		}
		s := math.Exp(sum / floor1(n))
		for t := range c {
			c[t] = s
		}
		return c
	}
	for t := range c {
		if r.on(t) {
			c[t] = math.Exp(r.LogP[t] - r.old(t))
		}
	}
	return c
}
