// Package xla runs Llama-family models on PJRT devices through XLA: the CPU
// plugin by default, any other plugin (CUDA, for one) through the same code.
//
// One PJRT client and one copy of the base weights serve both halves:
//
//   - the decoder is one StableHLO program per cache size that makes many tokens
//     per call: every layer inside one while loop, KV caches updated in place
//     (donated and aliased), sampling and logprobs on the device;
//   - the trainer is a handful of GoMLX programs per batch shape (embed, layer
//     forward, layer backward, head), run once per layer. A layer's activations
//     are recomputed in its backward, so only its input is kept; gradients of
//     products are products, written by hand.
//
// LoRA parameters are run-time inputs of every program, one flat f32 vector per
// layer; a program never holds an adapter as a constant.
//
// Numbers: with Dtype "f32" everything is float32. With "bf16" the base weights,
// the KV caches and the operands of products are bfloat16; the residual stream,
// norms, softmax, logits and gradients of LoRA stay float32.
//
// The package needs cgo and a PJRT plugin, so everything but Options is behind
// the build tag xla; without it Open returns an error that says what to do.
package xla
