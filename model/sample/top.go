package sample

import (
	"math"
	"slices"

	"github.com/skein-rl/skein/model"
)

func rawLogprob(logit float32, norm float64) float32 { return float32(float64(logit) - norm) }

// top lists the n likeliest tokens, likeliest first and of equal ones the lower
// id; fewer when fewer can be drawn at all.
func top(logits []float32, norm float64, n int) []model.TokenLogprob {
	n = min(n, len(logits))
	best := make([]ranked, 0, n) // a few of many: insertion into a sorted list
	for i, v := range logits {
		r := ranked{id: int32(i), z: v}
		if v < -math.MaxFloat32 || len(best) == n && byLikelihood(best[n-1], r) < 0 {
			continue
		}
		if len(best) == n {
			best = best[:n-1]
		}
		at, _ := slices.BinarySearchFunc(best, r, byLikelihood)
		best = slices.Insert(best, at, r)
	}
	out := make([]model.TokenLogprob, len(best))
	for i, r := range best {
		out[i] = model.TokenLogprob{ID: r.id, Logprob: rawLogprob(r.z, norm)}
	}
	return out
}

// Likelihood is a given token's logprob under the model's own distribution, and
// the n likeliest tokens of that.
func Likelihood(logits []float32, id int32, n int) (logprob float32, best []model.TokenLogprob, err error) {
	if err := checkFinite(logits); err != nil {
		return 0, nil, err
	}
	norm := logSumExp(logits)
	if n > 0 {
		best = top(logits, norm, n)
	}
	return rawLogprob(logits[id], norm), best, nil
}
