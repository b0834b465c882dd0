// Package openai speaks the OpenAI HTTP API for a local engine: chat and text
// completions, models and embeddings, with the extensions that RL trainers know
// from vLLM (token ids in and out, guided decoding, adapters loaded and unloaded
// while serving).
//
// It only translates: requests become rollout.GenerateRequest values, tokens
// become JSON. A field it does not implement is refused by name; nothing is
// ignored that would change the answer.
package openai
