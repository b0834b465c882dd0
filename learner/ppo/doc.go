// Package ppo holds what PPO with a critic adds to package loss: rewards per
// token, generalised advantage estimation, and the clipped value loss. PPO's
// policy loss is loss.Compute itself, type "dapo" (a token mean) at token
// level, with EpsilonLow = EpsilonHigh = the clip range and Row.Adv =
// Estimate.Adv; any other type works as well.
//
// Shapes: a row is one trajectory, its slices indexed by token [T]. Tokens that
// the mask leaves out (tool results, environment text) are not steps: they
// neither carry reward nor decay credit, whatever they hold.
//
// A value V_t is the critic's estimate before token t was chosen. A row may
// have one value more than tokens, [T+1]: the state after the last token is
// then a step of its own, in which the score is paid (TRL 0.24's PPO, where
// room is left). Without it the score is paid with the last counted token.
//
// Numbers equal TRL 0.24's PPOTrainer in float64. Departure: statistics and
// denominators are those of the whole optimizer step, so that the partition
// into micro-batches cannot change the result.
package ppo
