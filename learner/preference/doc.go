// Package preference holds the losses of learning from preferences as float64
// functions on the host, beside package loss: pairs of a chosen and a rejected
// completion (DPO and its relatives), single completions with a verdict (KTO,
// BCO), and the scores of a reward model (Bradley-Terry).
//
// Shapes: a [Seq] is one completion; its slices are indexed by token [T], T
// differing from one to the next. Tokens outside Mask may hold anything.
// Everything is in nats. A loss gives its value, dLoss/dLogP for every token in
// the same shape, and sums behind its metrics.
//
// A result is a share of an optimizer step: denominators come from totals of
// the whole step ([NewDPOTotals], [NewBCOTotals], ...), so that the partition
// into micro-batches cannot change it and shares add up. Where a loss needs a
// statistic of the step's log-probabilities themselves (aot sorts them, BCO
// averages them, KTO estimates a KL) the step is scored once before its first
// backward pass; the function says so.
//
// Numbers equal TRL 1.16's DPOTrainer, KTOTrainer and RewardTrainer and TRL
// 0.24's BCOTrainer in float64. Departures, each stated where it is made:
//
//   - options that the chosen loss type ignores are refused, not ignored;
//   - label smoothing applies to sigmoid too (conservative DPO), which TRL 1.16
//     leaves out;
//   - exponentials of forward_kl and alpha_divergence go on as straight lines
//     beyond e^80, so that value and slope stay finite and point the right way.
package preference
