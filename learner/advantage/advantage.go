// Package advantage turns the rewards of sibling rollouts into advantages:
// group-relative, as in GRPO (Shao et al. 2024, arXiv:2402.03300, section
// 4.1.2), with TRL 1.16's scalings and aggregations; against the mean of the
// others (RLOO); over the whole batch, token by token (REINFORCE++).
//
// Invariants: groups are opaque ids, never parsed and never positions, so any
// order of the samples gives the same numbers, bit for bit (sums run over
// sorted values). A reward that nobody gave (NaN) is left out of every mean and
// deviation; it is never zero.
package advantage

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Scalings: what advantages are divided by.
const (
	ScaleGroup = "group" // the group's standard deviation (GRPO)
	ScaleBatch = "batch" // that of the whole batch (arXiv:2508.08221)
	ScaleNone  = "none"  // nothing (Dr. GRPO, arXiv:2503.20783)
)

// Aggregations of several reward functions.
const (
	SumThenNormalize = "sum_then_normalize" // weighted sum, then group-relative
	NormalizeThenSum = "normalize_then_sum" // each function group-relative first (GDPO, arXiv:2601.05242)
)

// epsilon is added to standard deviations, as in TRL.
const epsilon = 1e-4

// Config says how rewards become advantages.
type Config struct {
	// Scale is ScaleGroup, ScaleBatch or ScaleNone. NormalizeThenSum ignores it
	// (it always ends with a batch normalisation), as TRL does.
	Scale string
	// Aggregation is SumThenNormalize or NormalizeThenSum.
	Aggregation string
	// Weights has one weight per reward function.
	Weights []float64
}

// Validate reports every problem with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	if !slices.Contains([]string{ScaleGroup, ScaleBatch, ScaleNone}, c.Scale) {
		errs = append(errs, fmt.Errorf("scale_rewards: unknown %q; use %q, %q or %q", c.Scale, ScaleGroup, ScaleBatch, ScaleNone))
	}
	if c.Aggregation != SumThenNormalize && c.Aggregation != NormalizeThenSum {
		errs = append(errs, fmt.Errorf("multi_objective_aggregation: unknown %q; use %q or %q", c.Aggregation, SumThenNormalize, NormalizeThenSum))
	}
	return errors.Join(append(errs, checkWeights(c.Weights))...)
}

// Sample is one rollout: its group and one reward per function, NaN where the
// function gave none.
type Sample struct {
	Group   string
	Rewards []float64
}

// Group summarises one group's weighted rewards.
type Group struct {
	Scored   int
	Mean     float64 // NaN without scored samples
	Std      float64 // Bessel-corrected; NaN with fewer than two
	Constant bool    // two or more scored samples, all equal
}

// Result is in the order of the samples.
type Result struct {
	Advantages []float64
	// Rewards are the weighted sums; NaN where no function scored the sample.
	Rewards []float64
	Groups  map[string]Group
	// Unscored counts samples whose every reward is NaN. Their advantage is 0.
	Unscored int
}

// Compute gives each sample its advantage. Errors: an invalid configuration, a
// sample without group, a reward count other than the weights', an infinite
// reward.
func Compute(c Config, samples []Sample) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	res, members, err := gather(c.Weights, samples)
	if err != nil {
		return Result{}, err
	}
	for g, m := range members {
		res.Groups[g] = summarise(pick(res.Rewards, m))
	}
	if c.Aggregation == NormalizeThenSum {
		res.normalizeThenSum(c, samples, members)
	} else {
		res.sumThenNormalize(c, members)
	}
	zeroNaN(res.Advantages)
	return res, nil
}

// gather checks the samples, weighs their rewards and lists each group's
// members.
func gather(weights []float64, samples []Sample) (Result, map[string][]int, error) {
	res := Result{Rewards: make([]float64, len(samples)), Advantages: make([]float64, len(samples)), Groups: map[string]Group{}}
	members := map[string][]int{}
	for i, s := range samples {
		if s.Group == "" {
			return Result{}, nil, fmt.Errorf("advantage: sample %d has no group", i)
		}
		if len(s.Rewards) != len(weights) {
			return Result{}, nil, fmt.Errorf("advantage: sample %d of group %q has %d rewards for %d reward_weights", i, s.Group, len(s.Rewards), len(weights))
		}
		for k, r := range s.Rewards {
			if math.IsInf(r, 0) {
				return Result{}, nil, fmt.Errorf("advantage: sample %d of group %q: reward %d is %v", i, s.Group, k, r)
			}
		}
		members[s.Group] = append(members[s.Group], i)
		res.Rewards[i] = weigh(s.Rewards, weights)
		if math.IsNaN(res.Rewards[i]) {
			res.Unscored++
		}
	}
	return res, members, nil
}

func (res *Result) sumThenNormalize(c Config, members map[string][]int) {
	batch := std(res.Rewards)
	for g, m := range members {
		sum := res.Groups[g]
		for _, i := range m {
			a := res.Rewards[i] - sum.Mean
			switch c.Scale {
			case ScaleGroup:
				a /= sum.Std + epsilon
			case ScaleBatch:
				a /= batch + epsilon
			}
			res.Advantages[i] = a
		}
	}
}

// normalizeThenSum normalises each function within each group, then the
// weighted sum within the batch. A function that scored fewer than two samples
// of a group says nothing about that group.
func (res *Result) normalizeThenSum(c Config, samples []Sample, members map[string][]int) {
	norm := make([][]float64, len(samples))
	for i, s := range samples {
		norm[i] = make([]float64, len(s.Rewards))
	}
	for _, m := range members {
		for k := range c.Weights {
			v := make([]float64, len(m))
			for j, i := range m {
				v[j] = samples[i].Rewards[k]
			}
			mu, sd := mean(v), std(v)
			if len(m) == 1 {
				sd = 0
			}
			for j, i := range m {
				norm[i][k] = (v[j] - mu) / (sd + epsilon)
			}
		}
	}
	total := make([]float64, len(samples))
	for i := range samples {
		total[i] = nanSum(norm[i], c.Weights)
		if math.IsNaN(res.Rewards[i]) {
			total[i] = math.NaN()
		}
	}
	mu, sd := mean(total), std(total)
	if len(total) == 1 {
		sd = 0
	}
	for i := range total {
		res.Advantages[i] = (total[i] - mu) / (sd + epsilon)
	}
}

// weigh is the weighted sum of the rewards given; NaN when none was.
func weigh(r, w []float64) float64 {
	for _, x := range r {
		if !math.IsNaN(x) {
			return nanSum(r, w)
		}
	}
	return math.NaN()
}

func nanSum(r, w []float64) float64 {
	sum := 0.0
	for k, x := range r {
		if !math.IsNaN(x) {
			sum += x * w[k]
		}
	}
	return sum
}

func summarise(v []float64) Group {
	v = scored(v)
	g := Group{Scored: len(v), Mean: mean(v), Std: std(v)}
	if len(v) >= 2 {
		g.Constant = v[0] == v[len(v)-1]
		if g.Constant {
			g.Mean, g.Std = v[0], 0 // no rounding residue: a constant group's advantages are exactly 0
		}
	}
	return g
}

func pick(v []float64, at []int) []float64 {
	out := make([]float64, len(at))
	for j, i := range at {
		out[j] = v[i]
	}
	return out
}

// scored is the values that are not NaN, sorted.
func scored(v []float64) []float64 {
	out := make([]float64, 0, len(v))
	for _, x := range v {
		if !math.IsNaN(x) {
			out = append(out, x)
		}
	}
	slices.Sort(out)
	return out
}

// mean of the scored values; NaN without any.
func mean(v []float64) float64 {
	v = scored(v)
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// std is the Bessel-corrected deviation of the scored values; NaN for fewer
// than two.
func std(v []float64) float64 {
	v = scored(v)
	if len(v) < 2 {
		return math.NaN()
	}
	mu, sum := mean(v), 0.0
	for _, x := range v {
		sum += (x - mu) * (x - mu)
	}
	return math.Sqrt(sum / float64(len(v)-1))
}
