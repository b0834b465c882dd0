package loss

import "math"

// drift is the mean of sampling - new log-probability over a row's counted
// tokens; tokens whose sampling log-probability is unknown count as 0.
func drift(r Row) float64 {
	sum, n := 0.0, 0.0
	for t := range r.LogP {
		if !r.on(t) {
			continue
		}
		n++
		s := r.old(t)
		if r.Sampling != nil {
			s = r.Sampling[t]
		}
		if d := s - r.LogP[t]; !math.IsNaN(d) {
			sum += d
		}
	}
	return sum / floor1(n)
}

// offPolicyKeep is the off-policy sequence mask (DeepSeek-V3.2,
// arXiv:2512.02556, eq. 9): a token is dropped when its advantage is negative
// and its row drifted by more than the threshold.
func offPolicyKeep(c Config, drift, adv float64) bool {
	return c.OffPolicyMaskThreshold == nil || adv >= 0 || drift <= *c.OffPolicyMaskThreshold
}
