package advantage

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// TurnConfig says how the rewards of turns become advantages.
type TurnConfig struct {
	// Scale is ScaleGroup, ScaleBatch or ScaleNone.
	Scale string
	// Gamma discounts what later turns earn, by turn and not by token; in [0, 1].
	Gamma float64
	// Weight of the turns' rewards beside the episode's.
	Weight float64
}

// Validate reports every problem with field, value and remedy.
func (c TurnConfig) Validate() error {
	var errs []error
	if !slices.Contains([]string{ScaleGroup, ScaleBatch, ScaleNone}, c.Scale) {
		errs = append(errs, fmt.Errorf("scale_rewards: unknown %q; use %q, %q or %q", c.Scale, ScaleGroup, ScaleBatch, ScaleNone))
	}
	if !(c.Gamma >= 0 && c.Gamma <= 1) {
		errs = append(errs, fmt.Errorf("turn_gamma: %v is outside [0, 1]; 1 does not discount", c.Gamma))
	}
	if math.IsNaN(c.Weight) || math.IsInf(c.Weight, 0) {
		errs = append(errs, fmt.Errorf("turn_reward_weight: %v is not finite; use e.g. 1", c.Weight))
	}
	return errors.Join(errs...)
}

// TurnSample is one scored rollout: its group, what each of its turns earned (0
// where nobody judged the turn) and what the episode earned.
type TurnSample struct {
	Group   string
	Turns   []float64
	Episode float64
}

// Returns are what a rollout earns from each turn on, the episode's reward paid
// with the last:
//
//	G_k = w r_k + γ G_{k+1},  G_K = w r_K + R
func (c TurnConfig) Returns(s TurnSample) []float64 {
	out := make([]float64, len(s.Turns))
	next := 0.0
	for k := len(out) - 1; k >= 0; k-- {
		if out[k] = c.Weight*s.Turns[k] + c.Gamma*next; k == len(out)-1 {
			out[k] += s.Episode
		}
		next = out[k]
	}
	return out
}

// Turns gives every turn its advantage: its return against those of all turns of
// the group, A = (G - mean) / std. It follows process supervision (Shao et al.
// 2024, arXiv:2402.03300, section 4.1.3), with three departures: returns are
// compared instead of rewards, so that a turn is not credited for how many follow
// it; they may be discounted; and a rollout counts once in mean and deviation
// however many turns it has (each of its K turns by 1/K), so that without turn
// rewards and discount the result is Compute's. Deviations are Bessel-corrected
// by the number of rollouts.
//
// The second result summarises each group's returns. Errors: an invalid
// configuration, a sample without group or turns, numbers that are not finite.
func Turns(c TurnConfig, samples []TurnSample) ([][]float64, map[string]Group, error) {
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	out := make([][]float64, len(samples))
	members := map[string][]weighted{}
	counts := map[string]int{}
	var all []weighted
	for i, s := range samples {
		if s.Group == "" || len(s.Turns) == 0 {
			return nil, nil, fmt.Errorf("advantage: sample %d of group %q has %d turns; a group and at least one turn are needed", i, s.Group, len(s.Turns))
		}
		out[i] = c.Returns(s)
		counts[s.Group]++
		for k, g := range out[i] {
			if math.IsNaN(g) || math.IsInf(g, 0) {
				return nil, nil, fmt.Errorf("advantage: sample %d of group %q turn %d: return is %v", i, s.Group, k, g)
			}
			w := weighted{g, 1 / float64(len(out[i]))}
			members[s.Group], all = append(members[s.Group], w), append(all, w)
		}
	}
	batch := spreadOf(all, len(samples))
	groups := map[string]Group{}
	for g, v := range members {
		groups[g] = spreadOf(v, counts[g])
	}
	for i, s := range samples {
		group := groups[s.Group]
		for k := range out[i] {
			a := out[i][k] - group.Mean
			switch {
			case group.Scored < 2:
				a = 0 // nothing to compare it with
			case c.Scale == ScaleGroup:
				a /= group.Std + epsilon
			case c.Scale == ScaleBatch:
				a /= batch.Std + epsilon
			}
			out[i][k] = a
		}
	}
	return out, groups, nil
}

// weighted is a number and how much it counts.
type weighted struct{ x, w float64 }

// spreadOf summarises the returns of n rollouts, whose weights add up to 1 each.
// It sorts them, so that their order cannot matter.
func spreadOf(v []weighted, n int) Group {
	slices.SortFunc(v, func(a, b weighted) int { return cmp.Or(cmp.Compare(a.x, b.x), cmp.Compare(a.w, b.w)) })
	g := Group{Scored: n, Std: math.NaN()}
	if n == 0 {
		return g
	}
	if v[0].x == v[len(v)-1].x {
		g.Mean, g.Constant = v[0].x, n > 1 // no rounding residue
		if n > 1 {
			g.Std = 0
		}
		return g
	}
	for _, y := range v {
		g.Mean += y.w * y.x
	}
	g.Mean /= float64(n)
	if n > 1 {
		sum := 0.0
		for _, y := range v {
			sum += y.w * (y.x - g.Mean) * (y.x - g.Mean)
		}
		g.Std = math.Sqrt(sum / float64(n-1))
	}
	return g
}
