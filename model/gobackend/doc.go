// Package gobackend is the pure-Go model backend: decoding and training of the
// families that model.Config describes, without cgo, a GPU or anything to
// install.
//
// Tensor shapes in comments: N rows (tokens), H hidden, Q query width
// (heads*headDim), KV key/value width, F intermediate, V vocabulary, D head
// dimension, R adapter rank, E experts, K experts of a token, P = N*K pairs of
// row and expert. Activations are flat [N, width], row-major.
//
// # Invariants
//
//   - A row's result never depends on what else is in the batch, on how a
//     prefill is cut into calls, or on the number of goroutines: same tokens,
//     same bits, on any CPU of one instruction-set class (see package f32).
//   - Adapters are inputs of every call, y = Wx + B(scale*Ax), never merged. Rows
//     of a call may be under different ones; Wx is one product for all of them.
//   - The trainer's logprobs are those of the decoder for the same tokens and
//     adapter, up to float32 rounding.
//   - Gradients are those of the packed batch: padding does not exist, a shared
//     prompt is computed once, and cutting a batch into several Forward and
//     Backward calls changes the sum only by rounding.
package gobackend
