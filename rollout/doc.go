// Package rollout runs agents: a local engine that batches the completions of
// many episodes over one decoder, the multi-turn tool loop that writes each
// episode's EventLog, and the worker that turns the replay store's tickets into
// complete groups.
//
// Invariants:
//   - Token ids are what the engine emitted or was given; nothing is ever
//     tokenised twice (P4). A chat template that would rewrite earlier turns
//     forks the trajectory into a new branch instead.
//   - Every sampled token carries the policy version it was sampled under and
//     its logprob under the distribution sampled from, computed on a cache of
//     that same version: a policy swap invalidates every cached token.
//   - A failure is recorded data with its cause and harms no sibling (P7).
//   - Every wait has a deadline: tool, turn, rollout, group (P8).
package rollout
