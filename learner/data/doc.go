// Package data reads what the learner trains on from files: rows of JSONL or
// Parquet in the column sets the field knows, tokenised once, in an order that
// is a pure function of (seed, epoch).
//
//	files -> rows (file:line) -> format -> records -> a model's chat -> Set
//
// Invariants:
//   - A prompt and its completions are encoded apart, so that no token spans the
//     boundary and both completions of a pair have the very same prompt tokens.
//   - Conversations are tokenised by a [Chat], which does it as a rollout would;
//     masks come from who wrote a turn, never from a token's value.
//   - Every row is used, or counted under a reason with its place; none is
//     repaired.
//   - A [Set]'s digest covers every token, weight and rule of its order: a
//     checkpoint of one never goes on with another.
//
// All rows of a set are held in memory, 4 bytes a token and 4 more where tokens
// have weights.
package data
