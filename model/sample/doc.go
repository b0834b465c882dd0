// Package sample draws tokens from logits. A draw is a pure function of the
// logits, the sampling parameters, the row's own history and the position: no
// state, no order of calls, nothing of the rest of a batch. Replaying a recorded
// rollout with the same logits gives the same tokens.
//
// # Order
//
// Repetition penalty, frequency and presence penalty, bias, constraint,
// temperature, top-k, top-p, min-p: model.Sampling's. Hugging Face transformers
// applies its warpers in this order too. vLLM adds the bias before the
// penalties, so that a repetition penalty scales the bias as well, and applies
// min-p before top-k and top-p, so that its nucleus is a share of what min-p
// left and never larger than ours. Used one at a time they agree.
//
// # Logprobs
//
// DecodeOut.Logprobs are of the distribution sampled from, after everything
// above. vLLM calls that logprobs_mode "processed_logprobs" and TRL asks for it;
// vLLM's default, "raw_logprobs", is DecodeOut.Raw, but for a constraint, which
// vLLM applies before it takes the raw logprobs and we don't. A greedy row's are
// of the untempered softmax after penalties, bias and constraint.
//
// A learner computes logprobs as log-softmax(logits/temperature) over the whole
// vocabulary (TRL likewise). They equal Logprobs only when nothing but the
// temperature is set; with filters, penalties or a constraint the difference
// shows up as an importance ratio other than 1 on policy.
package sample
