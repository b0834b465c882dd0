// Package loss holds the policy-gradient and supervised losses as float64
// functions on the host: per-token log-probabilities in, the scalar and its
// derivative with respect to each of them out. A model's backward pass takes
// it from there, so a loss never needs a graph.
//
// Shapes: a [Row] is one trajectory; its slices are indexed by token [T], T
// differing from row to row (ragged; padding never exists). Everything is
// float64 and in nats.
//
// The GRPO family follows TRL 1.16 (GRPOTrainer._compute_loss): one surrogate
// (clip.go), one ratio (ratio.go), one KL term (kl.go) and four ways to weigh
// the tokens (grpo.go, bnpo.go, dr_grpo.go, dapo.go). RLOO (rloo.go) is another
// choice of the same parts. What was sampled by another policy is corrected
// before a loss sees it (rollout_is.go, m2po.go, staleness.go, proximal.go).
// Departures, each stated
// where it is made:
//
//   - Every denominator is a [Totals] of the whole optimizer step, so that the
//     partition into micro-batches cannot change the result (TRL's grpo, bnpo
//     and dr_grpo divide inside a micro-batch and average those).
//   - A row without a single trained token enters no metric (it still counts as
//     a row in the denominators of grpo and dr_grpo, as in TRL).
//   - The entropy threshold of top_entropy_quantile is float64; TRL rounds it to
//     float32.
package loss
