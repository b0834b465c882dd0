// Package xla runs the model families of model.Config on PJRT devices through
// XLA: the CPU plugin by default, NVIDIA GPUs ("cuda") through the same
// programs.
//
// Every program is StableHLO text that this package emits (emit.go) and go-xla's
// PJRT client compiles: loops, aliased outputs and the precision of products are
// ours to say. One client and one copy of the base weights serve both halves,
// which share the layer (net.go, layer.go, experts.go) and differ in attention:
//
//   - the decoder is one program per cache size that makes many tokens per call:
//     every layer inside one while loop, KV caches updated in place (donated and
//     aliased), sampling and logprobs on the device. Rows that the device's
//     sampler can't draw (penalties, bias, constraints, top lists) get their
//     logits on the host, one token per call, while the other rows of the batch
//     stay on the device;
//   - the trainer is a handful of programs per batch shape and kind of layer
//     (window, rope table, mixture or not): embed, layer forward, layer backward,
//     head, run once per layer. A layer's activations are recomputed in its
//     backward, so only its input is kept; gradients are written by hand.
//
// LoRA parameters are run-time inputs of every program; a program never holds an
// adapter as a constant. The decoder keeps its adapters as one stack (stack.go),
// so rows of a batch use different ones. A row computes the same bits in any
// company; a stack that grows (a higher rank, another target) or a cache of
// another size is another program, whose f32 numbers differ in the last place.
//
// Several devices (Options.Devices) train together: a batch of groups is computed
// whole on one device, batch i on device i mod their number, and the gradients
// are added on the host in the order of batches, so any number of equal devices
// gives the same bits. With Options.Shard each layer's base weights, and the
// embedding, lie on one device; the others copy them when they compute with them.
// LoRA's optimizer is the learner's, on the host: there is nothing of it to share.
//
// Mixtures of experts are computed densely: every expert for every token, which
// costs experts/experts-per-token times a sparse kernel's arithmetic and suits
// small counts. Training them (LoRA on attention) works the same way.
//
// Numbers: with Dtype "f32" everything is float32, products on accelerators in
// full precision (no TF32). With "bf16" the base weights, the KV caches and the
// operands of products are bfloat16, products accumulate in float32; the residual
// stream, norms, routers, softmax, logits and gradients of LoRA stay float32. On
// accelerators the vendor's kernels may depend on the number of rows of a
// prefill call, so there bit equality in any company holds for decoding only.
//
// The package needs cgo and a PJRT plugin, so everything but Options is behind
// the build tag xla; without it Open returns an error that says what to do.
package xla
