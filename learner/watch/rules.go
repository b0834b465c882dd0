package watch

import "fmt"

// Kinds of warnings.
const (
	EntropyCollapse = "entropy_collapse"
	ConstantGroups  = "constant_groups"
	RewardFlat      = "reward_without_variance"
	LogprobGap      = "logprob_gap"
	LengthExplosion = "length_explosion"
	KLExplosion     = "kl_explosion"
	Truncated       = "truncated_completions"
	Rejected        = "rejected_tokens"
)

// Kinds lists them.
func Kinds() []string {
	out := make([]string, len(rules))
	for i, r := range rules {
		out[i] = r.kind
	}
	return out
}

// rule is one condition; check fills all of a warning but step and kind.
type rule struct {
	kind  string
	check func(Config, view) (Warning, bool)
}

var rules = []rule{
	{EntropyCollapse, entropyCollapse}, {ConstantGroups, constantGroups}, {RewardFlat, rewardFlat}, {LogprobGap, logprobGap},
	{LengthExplosion, lengthExplosion}, {KLExplosion, klExplosion}, {Truncated, truncated}, {Rejected, rejected},
}

// entropyCollapse: the policy has become nearly deterministic, so siblings are
// alike and nothing new is tried (Cui et al. 2025, "The Entropy Mechanism of
// Reinforcement Learning", arXiv:2505.22617).
func entropyCollapse(c Config, v view) (Warning, bool) {
	h, ok := v.recent("entropy")
	if !ok {
		return Warning{}, false
	}
	w := Warning{Value: h, Limit: c.EntropyMin,
		Cause:  "updates favour what is already likely: learning_rate too high, no clip-higher, many passes over a batch",
		Remedy: "raise epsilon_high (0.28) or entropy_coef (use_adaptive_entropy), lower learning_rate or num_iterations"}
	if h < c.EntropyMin {
		w.What = fmt.Sprintf("entropy is %.3g nats a token, below %.3g", h, c.EntropyMin)
		return w, true
	}
	h0, ok := v.start("entropy")
	w.Limit = c.EntropyDrop * h0
	w.What = fmt.Sprintf("entropy fell from %.3g to %.3g nats a token", h0, h)
	return w, ok && h < w.Limit
}

// constantGroups: nothing to compare within groups, so no gradient.
func constantGroups(c Config, v view) (Warning, bool) {
	x, least, ok := v.constant()
	if !ok || c.ConstantGroups == 0 || least < c.ConstantGroups {
		return Warning{}, false
	}
	r, _ := v.recent("reward")
	w := Warning{Value: x, Limit: c.ConstantGroups,
		What:   fmt.Sprintf("in %.0f%% of the groups all rewards are equal (mean reward %.3g)", 100*x, r),
		Cause:  "every sibling fails alike: the tasks are too hard for this policy, or the reward never fires",
		Remedy: "easier tasks, a warm-up, partial rewards, larger num_generations; read some logs with skein log"}
	if h, ok := v.recent("entropy"); ok && h < c.EntropyMin {
		w.Cause = "entropy has collapsed: siblings are copies of one another"
		w.Remedy = "go back to an earlier checkpoint with a lower learning_rate or an entropy bonus"
	} else if r >= .9 {
		w.Cause = "the tasks are solved: every sibling succeeds"
		w.Remedy = "harder tasks, constant_groups: drop, or stop here"
	}
	return w, true
}

// rewardFlat: rewards differ so little that dividing by their deviation trains
// on noise (arXiv:2503.20783, section 3.1, on the bias of that division).
func rewardFlat(c Config, v view) (Warning, bool) {
	s, ok := v.recent("reward_std")
	z, least, zok := v.constant()
	if !ok || !zok || z >= 1 || !(s < c.RewardStdMin) || c.ConstantGroups > 0 && least >= c.ConstantGroups {
		return Warning{}, false
	}
	return Warning{Value: s, Limit: c.RewardStdMin,
		What:   fmt.Sprintf("rewards differ within groups, by %.3g only", s),
		Cause:  "the component that should teach is constant and a small one (length, format) decides; dividing by the deviation makes that noise large",
		Remedy: "look at rewards/*/std, weigh the components (reward_weights), or set scale_rewards: none"}, true
}

// logprobGap: learner and engine disagree about the same tokens, so every update
// is off-policy (Yao et al. 2025, "Your efficient RL framework secretly brings
// you off-policy RL training").
func logprobGap(c Config, v view) (Warning, bool) {
	metric, where := "logprob_gap/same_version_mean_abs", "the learner's own version"
	x, ok := v.recent(metric)
	if !ok {
		metric, where = "logprob_gap/mean_abs", "any version"
		x, ok = v.recent(metric)
	}
	if !ok || c.LogprobGap == 0 {
		return Warning{}, false
	}
	w := Warning{Value: x, Limit: c.LogprobGap,
		What:   fmt.Sprintf("engine and learner differ by %.3g nats a token (%s)", x, where),
		Cause:  "different numerics (dtype, quantisation, kernels), another temperature or template, or an adapter the workers did not load",
		Remedy: "compare backends and dtype, keep rollout_importance_sampling_correction on, run skein verify step"}
	if metric == "logprob_gap/mean_abs" {
		w.Cause = "tokens are stale: workers lag behind the learner, or updates are large"
		w.Remedy = "lower max_staleness or learning_rate, add workers"
	}
	if x > c.LogprobGap {
		return w, true
	}
	x0, ok := v.start(metric)
	w.Limit = max(c.LogprobGapGrowth*x0, c.LogprobGap/10)
	w.What = fmt.Sprintf("the difference between engine and learner grew from %.3g to %.3g nats a token (%s)", x0, x, where)
	return w, ok && c.LogprobGapGrowth > 0 && x > w.Limit
}

// lengthExplosion: longer completions without better ones (the length bias of
// the row mean, arXiv:2503.20783, section 3.1).
func lengthExplosion(c Config, v view) (Warning, bool) {
	const metric = "completions/mean_length"
	n, ok := v.recent(metric)
	n0, ok0 := v.start(metric)
	r, okr := v.recent("reward")
	r0, okr0 := v.start("reward")
	if !ok || !ok0 || !okr || !okr0 || c.LengthGrowth == 0 {
		return Warning{}, false
	}
	return Warning{Value: n, Limit: c.LengthGrowth * n0,
		What:   fmt.Sprintf("completions grew from %.0f to %.0f tokens, the reward went from %.3g to %.3g", n0, n, r0, r),
		Cause:  "the loss or the reward favours length: a mean over each row punishes long wrong answers less",
		Remedy: "loss_type dr_grpo or dapo, a length penalty in the reward, mask_truncated_completions"}, n > c.LengthGrowth*n0 && r <= r0
}

func klExplosion(c Config, v view) (Warning, bool) {
	x, ok := v.recent("kl")
	return Warning{Value: x, Limit: c.KL,
		What:   fmt.Sprintf("the policy is %.3g nats a token away from the reference", x),
		Cause:  "updates are too large for the penalty: learning_rate too high or beta too low",
		Remedy: "lower learning_rate, raise beta, or move the reference (reference: moving)"}, ok && c.KL > 0 && x > c.KL
}

func truncated(c Config, v view) (Warning, bool) {
	x, ok := v.recent("completions/clipped_ratio")
	return Warning{Value: x, Limit: c.Truncated,
		What:   fmt.Sprintf("%.0f%% of the completions are cut off", 100*x),
		Cause:  "the token limit is too low for these tasks, or the policy no longer ends its turns",
		Remedy: "raise rollout.max_len and max_completion_length, or set mask_truncated_completions: true"}, ok && c.Truncated > 0 && x > c.Truncated
}

func rejected(c Config, v view) (Warning, bool) {
	kept, ok := v.recent("rollout_is/kept_tokens")
	out, ok2 := v.recent("rollout_is/rejected_tokens")
	if !ok || !ok2 || c.Rejected == 0 || kept+out == 0 {
		return Warning{}, false
	}
	x := out / (kept + out)
	return Warning{Value: x, Limit: c.Rejected,
		What:   fmt.Sprintf("the off-policy correction rejects %.0f%% of the tokens", 100*x),
		Cause:  "sequence modes multiply over a whole rollout, so long ones leave the bounds; or rollouts are stale",
		Remedy: "a token or geometric rollout_importance_sampling_mode, wider bounds, lower max_staleness"}, x > c.Rejected
}
