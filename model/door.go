package model

import (
	"context"
)

// This file is the door between the model room and its users (rollout engines
// and the learner): what a backend must do, whatever computes it.

// Backend loads a model on a device and hands out decoders and trainers.
// Implementations: model/gobackend (pure Go, no cgo) and model/xla (PJRT).
type Backend interface {
	// Name is "go", "xla:cpu", "xla:cuda".
	Name() string
	// NewDecoder makes a generator with its own KV cache.
	NewDecoder(DecoderConfig) (Decoder, error)
	// NewTrainer makes a differentiable view of the same base weights.
	NewTrainer(TrainerConfig) (Trainer, error)
	Close() error
}

// DecoderConfig sizes a decoder.
type DecoderConfig struct {
	Slots  int // sequences held at once (the batch)
	MaxLen int // tokens per sequence, prompt included
}

// Sampling is how one token is drawn. The draw is a pure function of the
// logits, Seed and the token's position, never of what else is in the batch.
type Sampling struct {
	Temperature float64 // 0 = greedy
	TopP        float64 // 1 or 0 = off
	TopK        int     // 0 = off
	Seed        uint64
}

// DecodeRow asks for up to MaxNew tokens in one slot. Last is the newest token
// of the sequence, not yet in the cache; decoding appends it, then samples.
type DecodeRow struct {
	Slot     int
	Last     int32
	MaxNew   int
	Stop     []int32 // token ids that end the row (emitted, then stop)
	Sampling Sampling
}

// DecodeOut is what one row produced. len(IDs) == len(Logprobs). Logprobs are
// of the distribution actually sampled from (temperature and filters applied;
// for greedy, of the untempered softmax).
type DecodeOut struct {
	IDs      []int32
	Logprobs []float32
	Stopped  bool // the last id is in Stop
}

// PrefillRow appends tokens to a slot's cached sequence without sampling.
type PrefillRow struct {
	Slot   int
	Tokens []int32
}

// Decoder owns Slots KV caches. Not safe for concurrent use: one engine
// goroutine owns it. Cached tokens are those of the adapter they were computed
// under; SetAdapter does not touch the caches, so the engine resets or keeps
// slots by its own policy (a prefix cache is keyed by version).
type Decoder interface {
	// SetAdapter swaps the LoRA adapter used by later calls; nil is the base.
	SetAdapter(*Adapter) error
	// Len is the number of tokens cached in a slot.
	Len(slot int) int
	// Truncate forgets cached tokens from position n on; 0 resets the slot.
	Truncate(slot, n int)
	// CopyPrefix makes dst's first n cached tokens equal to src's.
	CopyPrefix(dst, src, n int) error
	// Prefill appends tokens to caches. Error when a slot would exceed MaxLen.
	Prefill(ctx context.Context, rows []PrefillRow) error
	// Decode runs all rows together for at most n tokens each and returns one
	// DecodeOut per row, in order. Error when a slot would exceed MaxLen.
	Decode(ctx context.Context, rows []DecodeRow, n int) ([]DecodeOut, error)
	Close() error
}

// TrainerConfig says which parameters a trainer differentiates.
type TrainerConfig struct {
	LoRA LoRAConfig // used unless Full
	Full bool       // every base weight is a parameter (pure-Go backend only)
}

// Sequence is one member of a prefix group: the tokens after the prompt, and
// which of them are scored.
type Sequence struct {
	Tokens []int32
	// Train marks tokens whose logprob is wanted (policy-sampled tokens).
	// len(Train) == len(Tokens). Positions are prompt length + index.
	Train []bool
}

// PrefixGroup is a prompt shared by its members; the prompt is computed once,
// forward and backward. Token 0 of a member is predicted by the last prompt
// token, so Prompt is never empty. A lone sequence is a group of one.
type PrefixGroup struct {
	Prompt  []int32
	Members []Sequence
}

// Scores holds, for every trained token of every member of every group in
// order, the logprob under softmax(logits/temperature) and the entropy of that
// distribution.
type Scores struct {
	LogProbs []float32
	Entropy  []float32
}

// Trainer computes logprobs and the gradient of any scalar of them with
// respect to one flat f32 parameter vector. The loss itself is computed by the
// caller on the host: loss -> dLoss/dLogProb -> Backward. Not safe for
// concurrent use.
type Trainer interface {
	// Layout names the parameters inside the flat vector, in order.
	Layout() Layout
	// SetParams replaces the parameters (copied). len == Layout().Size().
	SetParams([]float32) error
	// Score runs forward only, with the given parameters instead of the
	// trainer's own (nil = the base model without adapter).
	Score(ctx context.Context, groups []PrefixGroup, temperature float64, params []float32) (Scores, error)
	// Forward runs forward with the trainer's parameters and keeps what
	// Backward needs; a new Forward drops the previous one.
	Forward(ctx context.Context, groups []PrefixGroup, temperature float64) (Scores, error)
	// Backward adds to the gradient, given dLoss/dLogProbs and (nil allowed)
	// dLoss/dEntropy for the last Forward.
	Backward(ctx context.Context, dLogProbs, dEntropy []float32) error
	// Grad returns the accumulated gradient (owned by the trainer, valid until
	// the next call); ZeroGrad clears it.
	Grad() []float32
	ZeroGrad()
	Close() error
}

// Layout is the order of named parameters in a flat vector.
type Layout []Param

// Param is one named tensor; Name is the PEFT or HF tensor name.
type Param struct {
	Name   string
	Shape  []int
	Offset int
}

// Size is the length of the flat vector.
func (l Layout) Size() int {
	n := 0
	for _, p := range l {
		n += p.Len()
	}
	return n
}

// Len is the number of elements.
func (p Param) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}
