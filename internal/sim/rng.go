package sim

import (
	"math"
	"time"
)

// rng is splitmix64: small, seeded by any number, the same in every Go release.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	x := uint64(*r)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// float is in [0, 1).
func (r *rng) float() float64 { return float64(r.next()>>11) / (1 << 53) }

func (r *rng) intn(n int) int { return int(r.next() % uint64(n)) }

func (r *rng) chance(p float64) bool { return p > 0 && r.float() < p }

// exp is the time to the next of events that come so often on average.
func (r *rng) exp(mean time.Duration) time.Duration {
	return time.Duration(-math.Log(1-r.float()) * float64(mean))
}

// Spread is a log-normal time: half are below Median, and Sigma is the standard
// deviation of the logarithm. The mean is Median*exp(Sigma²/2); Sigma 0 is a
// constant, 1 gives a hundredth above ten times the median.
type Spread struct {
	Median time.Duration
	Sigma  float64
}

// Mean of the distribution.
func (s Spread) Mean() time.Duration {
	return time.Duration(float64(s.Median) * math.Exp(s.Sigma*s.Sigma/2))
}

func (r *rng) draw(s Spread) time.Duration {
	if s.Sigma == 0 {
		return s.Median
	}
	normal := math.Sqrt(-2*math.Log(1-r.float())) * math.Cos(2*math.Pi*r.float())
	return time.Duration(float64(s.Median) * math.Exp(s.Sigma*normal))
}
