package sample

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// ErrNonFinite marks logits that hold a NaN or +Inf, or nothing but -Inf.
var ErrNonFinite = errors.New("sample: logits are not finite")

// Draw samples one token. Position is the index in the sequence of the token
// to be drawn; with Seed it determines the uniform number of the draw.
//
// The logits are divided by the temperature before the softmax; then the TopK
// most likely tokens are kept; then the smallest set of most likely ones whose
// renormalised mass reaches TopP, the token that crosses it included (Holtzman
// et al. 2020, arXiv:1904.09751, equation 2). Of equal logits the lower id
// counts as more likely. The logprob is that of the distribution actually
// sampled from. MinP then drops tokens less likely than MinP times the likeliest
// (Nguyen et al. 2024, arXiv:2407.01082, section 3). Temperature 0 takes the most likely token (filters have no
// effect on it) and returns its logprob under the untempered softmax. Penalties
// need the row's history: DrawRow.
//
// Logits are not changed. Minus infinity is a token that cannot be drawn.
func Draw(logits []float32, s model.Sampling, position int) (id int32, logprob float32, err error) {
	if err := Check(s); err != nil {
		return 0, 0, err
	}
	top, err := finiteTop(logits)
	if err != nil {
		return 0, 0, err
	}
	if s.Temperature == 0 {
		norm := logSumExp(logits)
		if norm != norm {
			return 0, 0, nonFinite(logits)
		}
		return int32(slices.Index(logits, top)), float32(float64(top) - norm), nil
	}
	u := uniform(s.Seed, uint64(position))
	inv := 1 / s.Temperature
	if (s.TopK == 0 || s.TopK >= len(logits)) && (s.TopP == 0 || s.TopP == 1) && s.MinP == 0 {
		return drawAll(logits, top, inv, u)
	}
	return drawFiltered(logits, top, inv, u, s)
}

// finiteTop is the largest logit. It may overlook a NaN beside larger logits,
// which then shows in the sum of their softmax.
func finiteTop(logits []float32) (float32, error) {
	if len(logits) == 0 {
		return 0, fmt.Errorf("%w: there are none", ErrNonFinite)
	}
	top := f32.Max(logits)
	if !(top >= -math.MaxFloat32 && top <= math.MaxFloat32) {
		return 0, nonFinite(logits)
	}
	return top, nil
}

// nonFinite says which logit is not finite.
func nonFinite(logits []float32) error {
	for i, v := range logits {
		if v != v || v > math.MaxFloat32 {
			return fmt.Errorf("%w: logit of token %d is %v", ErrNonFinite, i, v)
		}
	}
	return fmt.Errorf("%w: all %d are -Inf", ErrNonFinite, len(logits))
}

// checkFinite is finiteTop that overlooks nothing.
func checkFinite(logits []float32) error {
	_, err := finiteTop(logits)
	if err == nil && slices.ContainsFunc(logits, func(v float32) bool { return v != v }) {
		err = nonFinite(logits)
	}
	return err
}

// drawAll inverts the cumulative distribution in the order of ids.
func drawAll(logits []float32, top float32, inv, u float64) (int32, float32, error) {
	m := masses.Get().(*mass)
	defer masses.Put(m)
	m.softmax(logits, top, inv)
	if m.sum != m.sum {
		return 0, 0, nonFinite(logits)
	}
	id := m.invert(u)
	return int32(id), float32((float64(logits[id])-float64(top))*inv - math.Log(m.sum)), nil
}

// ranked is a token with its unnormalised probability.
type ranked struct {
	id int32
	z  float32
	p  float64
}

func byLikelihood(a, b ranked) int {
	switch {
	case a.z > b.z:
		return -1
	case a.z < b.z:
		return 1
	}
	return int(a.id) - int(b.id)
}

func drawFiltered(logits []float32, top float32, inv, u float64, s model.Sampling) (int32, float32, error) {
	m := masses.Get().(*mass)
	defer masses.Put(m)
	m.softmax(logits, top, inv)
	if m.sum != m.sum {
		return 0, 0, nonFinite(logits)
	}
	mass := m.sum
	// Tokens under an even share of the mass that top-p drops add up to less than
	// it: none of them is needed to reach top-p.
	floor := 0.0
	if s.TopK == 0 {
		if s.TopP > 0 {
			floor = (1 - s.TopP) * mass / float64(len(logits))
		}
		floor = max(floor, s.MinP) // the likeliest token's p is 1
	}
	var heap []ranked
	for i, p := range m.p {
		if p > 0 && float64(p) >= floor {
			heap = append(heap, ranked{int32(i), logits[i], float64(p)})
		}
	}
	// Tokens leave a heap in order of likelihood: a filter usually keeps few of many.
	heapify(heap)
	n := len(heap)
	var kept []ranked
	pull := func(i int) ranked {
		for len(kept) <= i {
			kept, heap = append(kept, heap[0]), pop(heap)
		}
		return kept[i]
	}
	if s.TopK > 0 && s.TopK < n {
		n, mass = s.TopK, 0
		for i := range n {
			mass += pull(i).p
		}
	}
	if s.TopP > 0 && s.TopP < 1 {
		cum := 0.0
		for i := range n {
			if cum += pull(i).p; cum >= s.TopP*mass {
				n = i + 1
				break
			}
		}
	}
	pull(n - 1)
	kept = kept[:n]
	for kept[n-1].p < s.MinP {
		n--
		kept = kept[:n]
	}
	// Ids ascend, as in drawAll: a filter that keeps every token changes nothing.
	slices.SortFunc(kept, func(a, b ranked) int { return int(a.id) - int(b.id) })
	m.p = m.p[:n]
	for i, r := range kept {
		m.p[i] = float32(r.p)
	}
	m.add()
	r := kept[m.invert(u)]
	return r.id, float32((float64(r.z)-float64(top))*inv - math.Log(m.sum)), nil
}

// heapify makes h a heap with the most likely token first.
func heapify(h []ranked) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		sift(h, i)
	}
}

func pop(h []ranked) []ranked {
	n := len(h) - 1
	h[0] = h[n]
	sift(h[:n], 0)
	return h[:n]
}

func sift(h []ranked, i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && byLikelihood(h[child+1], h[child]) < 0 {
			child++
		}
		if byLikelihood(h[i], h[child]) <= 0 {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

// uniform is a number in [0, 1) from a counter hash of seed and position: the
// finaliser of SplitMix64 (Steele et al. 2014) over both, twice.
func uniform(seed, position uint64) float64 {
	h := mix(mix(seed+0x9e3779b97f4a7c15) + position*0xd1342543de82ef95)
	return float64(h>>11) / (1 << 53)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
