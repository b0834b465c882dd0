package loss

import (
	"math"
	"slices"
)

// entropyFloor is the q-quantile (linear interpolation) of the counted tokens'
// entropies, and how many of them reach it ("Beyond the 80/20 rule",
// arXiv:2506.01939, eq. 5). Without tokens the floor is +Inf.
func entropyFloor(rows []Row, q float64) (floor, reached float64) {
	var all []float64
	for _, r := range rows {
		for t := range r.LogP {
			if r.on(t) {
				all = append(all, r.Entropy[t])
			}
		}
	}
	if len(all) == 0 {
		return math.Inf(1), 0
	}
	slices.Sort(all)
	at := q * float64(len(all)-1)
	lo := int(math.Floor(at))
	floor = all[lo]
	if lo+1 < len(all) {
		floor += (at - float64(lo)) * (all[lo+1] - all[lo])
	}
	for _, e := range all {
		if e >= floor {
			reached++
		}
	}
	return floor, reached
}
