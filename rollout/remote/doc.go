// Package remote is a rollout.Engine whose model runs in a server: vLLM, another
// machine's skein serve, llama.cpp's server, or what speaks vLLM's completions.
//
// What the learner is promised (P4) decides what is asked of a server: prompts go
// as token ids, and every answer brings the ids it emitted, a logprob for each,
// and proof that the prompt was read as it was sent. Nothing is ever tokenised
// again. An answer that lacks any of this, or contradicts itself, is an error
// that names what is missing, never a guess. Open finds out before any work is
// taken.
//
// The logprobs recorded are those of the distribution sampled from, as
// LocalEngine's are. Where a server can only give those of the model's own
// distribution (vLLM without --logprobs-mode processed_logprobs) it trains only
// runs for which both are the same: temperature 1 and no filter.
//
// Adapters have names that say run, version and content
// (skein-RUN-vN-DIGEST), so that a request in flight keeps the weights it began
// with, several workers can share a server, and a server's prefix cache, which
// goes by name, never mixes weights. A server that lost its adapters (it was
// restarted) is given them again.
//
// Generation has no effect but its answer, so failed requests are repeated; but
// not those that took too long: what is slow is likely long, and repeating only
// these would prefer short answers.
package remote
