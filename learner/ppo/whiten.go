package ppo

import "math"

// whiten scales numbers of all rows to variance 1 (Bessel-corrected) and, with
// shift, mean 0; on says which count, the others become 0. Fewer than two have
// variance 0.
func whiten(rows [][]float64, on func(i, t int) bool, shift bool) {
	n, mean := 0.0, 0.0
	each := func(f func(x *float64)) {
		for i := range rows {
			for t := range rows[i] {
				if on(i, t) {
					f(&rows[i][t])
				} else {
					rows[i][t] = 0
				}
			}
		}
	}
	each(func(x *float64) { n++; mean += *x })
	if n == 0 {
		return
	}
	mean /= n
	v := 0.0
	each(func(x *float64) { v += (*x - mean) * (*x - mean) })
	if n > 1 {
		v /= n - 1
	}
	keep := mean
	if shift {
		keep = 0
	}
	each(func(x *float64) { *x = (*x-mean)/math.Sqrt(v+1e-8) + keep })
}
