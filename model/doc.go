// Package model holds open-weight causal language models: what a Llama-family
// checkpoint is (configuration, weights, tokenizer, chat template), how it is
// read from a Hugging Face directory or a GGUF file, and LoRA adapters over it
// in PEFT's format. How a model is computed is the business of its backends,
// model/gobackend (pure Go) and model/xla (PJRT), behind the door of door.go.
//
// Invariants:
//   - Weights are f32 and row-major [out, in] in the half-split rope convention
//     of HF, whatever file they came from.
//   - A Model's Digest names exactly the numbers it computes with; an Adapter
//     records the digest of its base and is refused on another.
//   - Loading never guesses: a field or a tensor that this package doesn't
//     implement is an error that names it.
//
// Shape legend used in comments: V vocabulary, H hidden, I intermediate,
// r LoRA rank; a weight [out, in] maps in features to out features.
package model
