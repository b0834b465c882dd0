package table

import "math"

// pow returns p^e for p > 0 with the same bits on every machine. math.Pow may
// not: assembly on some architectures, fused multiply-add on others. Products
// are rounded by their conversion, which forbids fusing; the error is a few
// units in the last place, far below what a weight keeps.
func pow(p, e float64) float64 {
	switch e {
	case 0:
		return 1
	case 1:
		return p
	}
	// p = m * 2^x with m in [sqrt(1/2), sqrt(2)).
	m, x := math.Frexp(p)
	if m < math.Sqrt2/2 {
		m, x = m+m, x-1
	}
	// ln m = 2 artanh s, s = (m-1)/(m+1), |s| < 0.172.
	s := (m - 1) / (m + 1)
	s2 := float64(s * s)
	var sum float64
	for k := 25; k >= 1; k -= 2 {
		sum = float64(sum*s2) + 1/float64(k)
	}
	ln := float64(2*float64(s*sum)) + float64(float64(x)*math.Ln2)
	y := float64(e * ln)
	// e^y = 2^k * e^f, |f| <= ln(2)/2.
	k := math.Floor(float64(y/math.Ln2) + 0.5)
	if k > 1100 {
		return math.Inf(1)
	}
	if k < -1100 {
		return 0
	}
	f := y - float64(k*math.Ln2)
	r := 1.0
	for n := 16; n >= 1; n-- {
		r = 1 + float64(r*f)/float64(n)
	}
	return math.Ldexp(r, int(k))
}

// Weights are fixed-point so that sums are exact: no drift, whatever the order
// of updates.
const (
	weightBits = 20      // below the point: the smallest weight is 2^-20
	maxWeight  = 1 << 39 // p^exponent of at most 2^19
	maxEntries = 1 << 24 // of one structure: sums fit 64 bits
)

// weight is the share of priority p in a prioritised choice: 0 for p <= 0, at
// least 2^-20 otherwise.
func weight(p, exponent float64) uint64 {
	if p <= 0 {
		return 0
	}
	w := float64(pow(p, exponent) * (1 << weightBits))
	if !(w < maxWeight) {
		return maxWeight
	}
	return max(uint64(w+0.5), 1)
}
