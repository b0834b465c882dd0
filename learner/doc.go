// Package learner turns leased groups of EventLogs into the next policy.
//
//	lease -> fetch, verify -> Build (rows, advantages, micro-batches)
//	      -> Trainer.Forward -> loss on the host -> Trainer.Backward
//	      -> clip, AdamW -> adapter and checkpoint blobs -> one Commit
//
// [Learner.Step] is the pure middle: same state, same groups, same trainer, same
// numbers. For ppo ([NewPPO]) the critic's values are taken before the first
// update, and it is trained beside the policy; package ppo has the formulas.
// [Loop] is the I/O around it, over a store; [RunOffline] trains on rows of a
// data.Set (sft, dpo, kto, bco, reward); [RewardModel] scores with what reward
// made; [VerifyStep] recomputes a committed step from the store alone.
//
// Invariants:
//   - Token ids, masks, versions and behaviour log-probabilities come from the
//     log's columns; nothing is re-tokenised, and no mask comes from a token's
//     value.
//   - Every token weight is 1/(a total of the whole step), so micro-batching
//     cannot change the result.
//   - A failed, unscored or empty rollout is excluded from every statistic and
//     counted under a reason; it never scores zero.
//   - A step that fails leaves parameters, optimizer and counters untouched.
//
// What survives a crash: the last committed step, whose checkpoint and adapter
// are blobs of the store. Work after it is done again from the same lease's
// groups, which the store returns.
package learner
