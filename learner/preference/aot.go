package preference

import "slices"

// aotTerms is AOT (Melnyk et al. 2024, arXiv:2406.05882): not pair against
// pair, but the distribution of preferences against the reference's, by optimal
// transport, which in one dimension is sorting. The k-th smallest x meets the
// k-th smallest y of the whole step:
//
//	mean_k -log σ(β(x_(k) - y_(k)))     (label-smoothed as sigmoid is)
//
// aot (paired): x = log π(w)/π(l), y = the same under the reference.
// aot_unpaired: x = log(π/π_ref)(w), y = log(π/π_ref)(l).
//
// Equal values share their derivatives, so the order of pairs cannot matter
// (torch.sort gives each of them another's).
func aotTerms(c DPOConfig, paired bool, w, l []side) []term {
	n := len(w)
	x, y := make([]float64, n), make([]float64, n)
	for i := range w {
		if paired {
			x[i], y[i] = w[i].lp-l[i].lp, w[i].ref-l[i].ref
		} else {
			x[i], y[i] = w[i].ratio, l[i].ratio
		}
	}
	ox, oy := order(x), order(y)
	v, d := make([]float64, n), make([]float64, n)
	for k := range n {
		v[k], d[k] = smoothed(c, c.Beta*(x[ox[k]]-y[oy[k]]))
		d[k] *= c.Beta
	}
	dx, dy := shared(x, ox, d), shared(y, oy, d)
	out := make([]term, n)
	for k := range n {
		out[ox[k]].loss = v[k]
	}
	for i := range out {
		out[i].dChosen = dx[i]
		out[i].dRejected = -dx[i]
		if !paired {
			out[i].dRejected = -dy[i]
		}
	}
	return out
}

// order lists the indices of v by value.
func order(v []float64) []int {
	o := make([]int, len(v))
	for i := range o {
		o[i] = i
	}
	slices.SortStableFunc(o, func(a, b int) int {
		switch {
		case v[a] < v[b]:
			return -1
		case v[a] > v[b]:
			return 1
		}
		return 0
	})
	return o
}

// shared brings d, by rank, back to the order of v; equal values get the mean
// of theirs.
func shared(v []float64, o []int, d []float64) []float64 {
	out := make([]float64, len(v))
	for k := 0; k < len(o); {
		end, sum := k, 0.0
		for end < len(o) && v[o[end]] == v[o[k]] {
			sum += d[end]
			end++
		}
		for j := k; j < end; j++ {
			out[o[j]] = sum / float64(end-k)
		}
		k = end
	}
	return out
}
