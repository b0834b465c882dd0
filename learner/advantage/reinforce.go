package advantage

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ReinforceConfig says how REINFORCE++'s rewards become advantages.
type ReinforceConfig struct {
	// Weights, RewardClipRange and Beta as RLOOConfig's; Beta's KL is per token.
	Weights         []float64
	RewardClipRange *[2]float64
	Beta            float64
	// GroupBaseline subtracts the group's mean reward first (REINFORCE++ with
	// baseline, for several samples per prompt).
	GroupBaseline bool
}

// Validate reports every problem with field, value and remedy.
func (c ReinforceConfig) Validate() error {
	return errors.Join(checkWeights(c.Weights), checkShaping(c.RewardClipRange, c.Beta))
}

// Tokens is what REINFORCE++ reads of a sample's tokens.
type Tokens struct {
	// KL has an estimate of each token's KL [T] (loss.TokenKL); its length is the
	// sample's, so it is needed even when Beta is 0 (its values are not).
	KL []float64
	// Mask marks the policy's tokens; nil marks all.
	Mask []bool
}

func (t Tokens) on(k int) bool { return t.Mask == nil || t.Mask[k] }

// variance below which REINFORCE++ does not scale further (OpenRLHF).
const varianceFloor = 1e-8

// Reinforce gives every token its advantage (REINFORCE++, Hu 2025,
// arXiv:2501.03262):
//
//	A_t = r - β Σ_{i>=t} KL_i,  then (A - mean) / std over all counted tokens of the batch
//
// with r less the group's mean when GroupBaseline. The deviation is that of the
// population (divided by n), its square at least 1e-8. Tokens under the mask and
// unscored samples get 0 and enter no statistic. Result.Advantages has each
// sample's mean over its tokens; the second result is per token, in the shape
// of Tokens.KL, for loss.Row.Adv. Errors as Compute's, and lengths.
func Reinforce(c ReinforceConfig, samples []Sample, tokens []Tokens) (Result, [][]float64, error) {
	if err := c.Validate(); err != nil {
		return Result{}, nil, err
	}
	if len(tokens) != len(samples) {
		return Result{}, nil, fmt.Errorf("advantage: reinforce: tokens of %d samples for %d samples", len(tokens), len(samples))
	}
	res, members, err := gather(c.Weights, samples)
	if err != nil {
		return Result{}, nil, err
	}
	base := make([]float64, len(samples))
	for i, r := range res.Rewards {
		base[i] = clip(r, c.RewardClipRange)
	}
	for g, m := range members {
		group := summarise(pick(base, m))
		res.Groups[g] = group
		if c.GroupBaseline {
			for _, i := range m {
				base[i] -= group.Mean
			}
		}
	}
	out := make([][]float64, len(samples))
	var all []float64
	for i, tk := range tokens {
		if tk.Mask != nil && len(tk.Mask) != len(tk.KL) {
			return Result{}, nil, fmt.Errorf("advantage: sample %d of group %q: %d KL values, %d mask values", i, samples[i].Group, len(tk.KL), len(tk.Mask))
		}
		out[i] = make([]float64, len(tk.KL))
		if math.IsNaN(base[i]) {
			continue
		}
		togo := 0.0
		for t := len(tk.KL) - 1; t >= 0; t-- {
			if !tk.on(t) {
				continue
			}
			if c.Beta != 0 {
				togo += c.Beta * tk.KL[t]
			}
			if out[i][t] = base[i] - togo; math.IsNaN(out[i][t]) || math.IsInf(out[i][t], 0) {
				return Result{}, nil, fmt.Errorf("advantage: sample %d of group %q token %d: KL is %v", i, samples[i].Group, t, tk.KL[t])
			}
			all = append(all, out[i][t])
		}
	}
	scale := normaliser(all)
	for i, tk := range tokens {
		n := 0.0
		for t := range out[i] {
			if tk.on(t) && !math.IsNaN(base[i]) {
				out[i][t] = scale(out[i][t])
				res.Advantages[i] += out[i][t]
				n++
			}
		}
		res.Advantages[i] /= max(n, 1)
	}
	return res, out, nil
}

// normaliser scales by the mean and population deviation of v, which it sorts.
func normaliser(v []float64) func(float64) float64 {
	slices.Sort(v)
	mu, n := mean(v), float64(len(v))
	sum := 0.0
	for _, x := range v {
		sum += (x - mu) * (x - mu)
	}
	sd := math.Sqrt(max(sum/n, varianceFloor))
	if len(v) > 0 && v[0] == v[len(v)-1] {
		mu = v[0] // no rounding residue: equal advantages become exactly 0
	}
	return func(x float64) float64 { return (x - mu) / sd }
}
