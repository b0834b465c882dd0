package ppo

import (
	"fmt"
	"math"

	"github.com/skein-rl/skein/learner/loss"
)

// Trajectory is a scored rollout before its first update.
type Trajectory struct {
	// Old is the policy's log-probability of each token [T], Ref the reference's
	// (needed when KLCoef > 0).
	Old, Ref []float64
	// Mask marks the policy's tokens; nil marks all.
	Mask []bool
	// Values are the critic's, [T] or [T+1]; see the package comment.
	Values []float64
	// Score is the reward of the whole trajectory.
	Score float64
	// Rewards are rewards of single tokens [T] (of steps, of a process); nil for
	// none. One at a masked token is an error: it would be lost.
	Rewards []float64
	// Bootstrap is the critic's value of where the trajectory was cut; 0 when it
	// ended by itself.
	Bootstrap float64
}

func (r Trajectory) on(t int) bool { return t >= len(r.Old) || r.Mask == nil || r.Mask[t] }

// Estimate is what the updates on a trajectory are trained towards.
type Estimate struct {
	// Rewards, Adv and Returns are in the shape of Values, 0 where masked. A last
	// state of its own has Adv 0: no token is chosen there.
	Rewards, Adv, Returns []float64
}

// Policy is Adv in the shape of the tokens, for loss.Row.
func (e Estimate) Policy(tokens int) []float64 { return e.Adv[:tokens] }

// Stats are means over the step.
type Stats struct{ Rows, Tokens, Score, KL, NonScore float64 }

// Metrics names the means as TRL does; none without tokens.
func (s Stats) Metrics() map[string]float64 {
	if s.Tokens == 0 {
		return map[string]float64{}
	}
	return map[string]float64{
		"objective/scores": s.Score / s.Rows, "objective/kl": s.KL / s.Rows,
		"objective/non_score_reward": s.NonScore / s.Rows, "objective/rlhf_reward": (s.Score + s.NonScore) / s.Rows,
	}
}

// Estimates turns the trajectories of a whole optimizer step into advantages
// and returns: the reward of a token is -KLCoef·KL (Ziegler et al. 2019,
// arXiv:1909.08593, eq. 2) plus its own, the score is paid at the end; then GAE
// per trajectory. A trajectory without counted tokens estimates nothing.
// Errors: an invalid configuration, missing or non-finite numbers, lengths.
func Estimates(c Config, rows []Trajectory) ([]Estimate, Stats, error) {
	if err := c.Validate(); err != nil {
		return nil, Stats{}, err
	}
	var st Stats
	rewards, advs := make([][]float64, len(rows)), make([][]float64, len(rows))
	out := make([]Estimate, len(rows))
	for i, r := range rows {
		if err := r.check(i, c); err != nil {
			return nil, Stats{}, err
		}
		rewards[i] = r.reward(c, &st)
	}
	on := func(i, t int) bool { return rows[i].on(t) && rows[i].counted() > 0 }
	if c.WhitenRewards {
		whiten(rewards, on, false)
	}
	for i, r := range rows {
		out[i] = Estimate{Rewards: rewards[i]}
		if err := out[i].gae(c, r); err != nil {
			return nil, Stats{}, fmt.Errorf("ppo: row %d: %w", i, err)
		}
		advs[i] = out[i].Policy(len(r.Old))
		clear(out[i].Adv[len(r.Old):])
	}
	if c.WhitenAdvantages {
		whiten(advs, on, true)
	}
	for i := range out {
		for t := range out[i].Adv {
			if !finite(out[i].Adv[t]) || !finite(out[i].Returns[t]) {
				return nil, Stats{}, fmt.Errorf("ppo: row %d token %d: advantage %v, return %v; the values or the KL have diverged", i, t, out[i].Adv[t], out[i].Returns[t])
			}
		}
	}
	return out, st, nil
}

// reward is the reward of each step, in the shape of Values.
func (r Trajectory) reward(c Config, st *Stats) []float64 {
	out := make([]float64, len(r.Values))
	last := -1
	for t := range r.Old {
		if !r.on(t) {
			continue
		}
		last = t
		st.Tokens++
		if c.KLCoef != 0 {
			kl, _ := loss.KL(c.KLEstimator, r.Old[t], r.Ref[t])
			st.KL += kl
			st.NonScore -= c.KLCoef * kl
			out[t] = -c.KLCoef * kl
		}
		if r.Rewards != nil {
			out[t] += r.Rewards[t]
			st.NonScore += r.Rewards[t]
		}
	}
	if last < 0 {
		return out
	}
	st.Rows++
	st.Score += r.Score
	if len(out) > len(r.Old) {
		last = len(r.Old)
	}
	out[last] += r.Score
	return out
}

func (r Trajectory) counted() int {
	n := 0
	for t := range r.Old {
		if r.on(t) {
			n++
		}
	}
	return n
}

// gae runs over the steps alone and brings them back to their tokens.
func (e *Estimate) gae(c Config, r Trajectory) error {
	e.Adv, e.Returns = make([]float64, len(r.Values)), make([]float64, len(r.Values))
	if r.counted() == 0 {
		return nil
	}
	var at []int
	var reward, value []float64
	for t := range r.Values {
		if r.on(t) {
			at, reward, value = append(at, t), append(reward, e.Rewards[t]), append(value, r.Values[t])
		}
	}
	adv, ret, err := GAE(reward, value, nil, r.Bootstrap, c.Gamma, c.Lambda)
	if err != nil {
		return err
	}
	for k, t := range at {
		e.Adv[t], e.Returns[t] = adv[k], ret[k]
	}
	return nil
}

func (r Trajectory) check(i int, c Config) error {
	T := len(r.Old)
	if r.Mask != nil && len(r.Mask) != T {
		return fmt.Errorf("ppo: row %d: Mask has %d values for %d tokens", i, len(r.Mask), T)
	}
	if len(r.Values) != T && len(r.Values) != T+1 {
		return fmt.Errorf("ppo: row %d: Values has %d values for %d tokens; need one each, or one more for the last state", i, len(r.Values), T)
	}
	if !finite(r.Score) || !finite(r.Bootstrap) {
		return fmt.Errorf("ppo: row %d: Score is %v, Bootstrap %v; leave a trajectory without a score out of the step", i, r.Score, r.Bootstrap)
	}
	for _, f := range []struct {
		name   string
		v      []float64
		needed bool
	}{{"Old", r.Old, false}, {"Ref", r.Ref, c.KLCoef != 0 && T > 0}, {"Rewards", r.Rewards, false}, {"Values", r.Values, false}} {
		if f.v == nil {
			if f.needed {
				return fmt.Errorf("ppo: row %d: %s is missing but kl_coef %v needs it", i, f.name, c.KLCoef)
			}
			continue
		}
		if len(f.v) != T && f.name != "Values" {
			return fmt.Errorf("ppo: row %d: %s has %d values for %d tokens", i, f.name, len(f.v), T)
		}
		for t, x := range f.v {
			switch {
			case r.on(t) && !finite(x):
				return fmt.Errorf("ppo: row %d token %d: %s is %v", i, t, f.name, x)
			case !r.on(t) && f.name == "Rewards" && x != 0 && !math.IsNaN(x):
				return fmt.Errorf("ppo: row %d token %d: reward %v at a token the policy did not choose; pay it at the policy's token before", i, t, x)
			}
		}
	}
	return nil
}
