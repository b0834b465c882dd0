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
	Slots    int // sequences held at once (the batch)
	MaxLen   int // tokens per sequence, prompt included
	Adapters int // adapters resident at once, the base aside; 0 means 1
}

// Sampling is how one token is drawn. The draw is a pure function of the
// logits, the row's own history, Seed and the token's position, never of what
// else is in the batch. Order: penalties and bias, constraint, temperature,
// top-k, top-p, min-p.
type Sampling struct {
	Temperature float64 // 0 = greedy
	TopP        float64 // 1 or 0 = off
	TopK        int     // 0 = off
	MinP        float64 // drop tokens below MinP times the likeliest; 0 = off
	// RepetitionPenalty divides positive and multiplies negative logits of every
	// token seen in prompt or output (Keskar et al. 2019, arXiv:1909.05858,
	// section 4.1); 1 or 0 = off.
	RepetitionPenalty float64
	// FrequencyPenalty per occurrence and PresencePenalty once are subtracted
	// from the logits of tokens seen in the output (OpenAI's definition).
	FrequencyPenalty, PresencePenalty float64
	Seed                              uint64
}

// Constraint says which tokens may come next in one row: a grammar. Used by one
// goroutine at a time.
type Constraint interface {
	// Allow clears the bits of tokens that may not come next; bit id%64 of
	// mask[id/64], all set on entry. Leaving none is an error of the draw.
	Allow(mask []uint64)
	// Accept moves on by a sampled token.
	Accept(id int32) error
}

// TokenBias is added to a token's logit before sampling; -Inf forbids the token.
type TokenBias struct {
	ID   int32
	Bias float32
}

// DecodeRow asks for up to MaxNew tokens in one slot. Last is the newest token
// of the sequence, not yet in the cache; decoding appends it, then samples.
type DecodeRow struct {
	Slot     int
	Adapter  int // place of the adapter (SetAdapter); 0 = base
	Last     int32
	MaxNew   int
	Stop     []int32 // token ids that end the row (emitted, then stop)
	Sampling Sampling
	// History is the sequence up to and including Last, its first Prompt tokens
	// being the prompt; wanted when Sampling has penalties, else ignored.
	History    []int32
	Prompt     int
	Bias       []TokenBias
	Constraint Constraint // nil = free
	// Raw asks for the logprobs of the model's own distribution too (no
	// temperature, penalty, filter or constraint), Top for its likeliest tokens.
	Raw bool
	Top int
}

// TokenLogprob is one token of a distribution.
type TokenLogprob struct {
	ID      int32
	Logprob float32
}

// DecodeOut is what one row produced. len(IDs) == len(Logprobs). Logprobs are
// of the distribution actually sampled from (penalties, constraint, temperature
// and filters applied; for greedy, of the untempered softmax after penalties
// and constraint).
type DecodeOut struct {
	IDs      []int32
	Logprobs []float32
	Raw      []float32        // when asked: one per id
	Top      [][]TokenLogprob // when asked: one list per id, likeliest first
	Stopped  bool             // the last id is in Stop
	// Err says that this row failed alone (sample.DrawRow's errors: a constraint
	// that broke or allows nothing, logits that are not finite). What stands
	// before it holds; the row is not decoded further.
	Err error
}

// PrefillRow appends tokens to a slot's cached sequence without sampling.
type PrefillRow struct {
	Slot    int
	Adapter int
	Tokens  []int32
}

// ScoreRow appends tokens to a slot's cached sequence, as PrefillRow does, and
// asks how likely the model itself finds them.
type ScoreRow struct {
	Slot    int
	Adapter int
	Tokens  []int32
	Top     int // likeliest tokens wanted at each place; 0 = none
}

// ScoreOut holds, for every token of a ScoreRow but the first, its logprob given
// all tokens before it (no temperature or filter), and the likeliest tokens
// there when asked.
type ScoreOut struct {
	Logprobs []float32
	Top      [][]TokenLogprob
}

// Scorer is what a decoder does besides generating: tell the logprobs of tokens
// that are given. Every decoder of this repository is one.
type Scorer interface {
	// Score checks all rows, then computes them one after the other. Error when a
	// slot would exceed MaxLen; what was computed by then stays cached.
	Score(ctx context.Context, rows []ScoreRow) ([]ScoreOut, error)
}

// Decoder owns Slots KV caches. Not safe for concurrent use: one engine
// goroutine owns it. Cached tokens are those of the adapter they were computed
// under; SetAdapter does not touch the caches, so the engine resets or keeps
// slots by its own policy (a prefix cache is keyed by adapter and version).
// Rows of one call may use different adapters; a row's result does not depend
// on its company.
type Decoder interface {
	// SetAdapter puts an adapter at a place, 1 to Adapters, or empties it (nil). A
	// full one is for the pure-Go backend only. Adapters of different rank and targets may stand side by side.
	SetAdapter(place int, a *Adapter) error
	// Len is the number of tokens cached in a slot.
	Len(slot int) int
	// Truncate forgets cached tokens from position n on; 0 resets the slot.
	Truncate(slot, n int)
	// CopyPrefix makes dst's first n cached tokens equal to src's.
	CopyPrefix(dst, src, n int) error
	// Prefill appends tokens to caches. Error when a slot would exceed MaxLen.
	Prefill(ctx context.Context, rows []PrefillRow) error
	// Decode runs all rows together for at most n tokens each and returns one
	// DecodeOut per row, in order. Error when a slot would exceed MaxLen or an
	// adapter's place is empty; then and when the device fails no row's result
	// holds. What concerns one row only is its DecodeOut.Err.
	Decode(ctx context.Context, rows []DecodeRow, n int) ([]DecodeOut, error)
	Close() error
}

// TrainerConfig says which parameters a trainer differentiates.
type TrainerConfig struct {
	LoRA LoRAConfig // used unless Full
	Full bool       // every base weight is a parameter (pure-Go backend only)
	// Value adds a scalar head on the final normed hidden state, v = w.h, whose
	// weights [1, hidden] stand last in the parameter vector under the name
	// "score.weight" (that of HF's sequence classifiers, without bias): a critic
	// (PPO) or a reward model.
	Value bool
	// MeanLogProb and LogSumSq ask for further numbers of every trained token's
	// distribution (Scores). Each reads the token's logits once more; what is not
	// asked for costs nothing.
	MeanLogProb, LogSumSq bool
}

// Sequence is one member of a prefix group: the tokens after the prompt, and
// which of them are scored.
type Sequence struct {
	Tokens []int32
	// Train marks tokens whose logprob is wanted (policy-sampled tokens).
	// len(Train) == len(Tokens).
	Train []bool
	// Value marks tokens after which the value head is read (TrainerConfig.Value);
	// nil = none, else len(Value) == len(Tokens).
	Value []bool
	// Parent is what the tokens go on from: 0 the prompt, i all of member i-1.
	Parent int
}

// PrefixGroup is a tree of sequences: a prompt, the members that go on from it,
// and those that go on from members. Every token is computed once, forward and
// backward, however many sequences pass through it. Members stand depth first:
// each goes on from the prompt, from the member before it or from one that that
// one goes on from. The first token of a member is predicted by the last one of
// what it goes on from, so Prompt is empty only where no such token is trained. A
// lone sequence is a group of one.
type PrefixGroup struct {
	Prompt  []int32
	Members []Sequence
	// Dropout is applied to the adapter in Score and Forward; see Dropout. Its zero
	// value, and an adapter that is not there, drop nothing.
	Dropout Dropout `json:",omitzero"`
}

// Scores holds, for every trained token of every member of every group in
// order, the logprob under π = softmax(logits/temperature) and the entropy of
// that distribution.
type Scores struct {
	LogProbs []float32
	Entropy  []float32
	// MeanLogProb is the mean of log π over the vocabulary (label smoothing),
	// LogSumSq is log Σ π² (the log of the probability that π expects of its own
	// draw). One a trained token, nil unless TrainerConfig asks for them. LogSumSq
	// is not differentiated: Backward refuses a derivative of it.
	MeanLogProb, LogSumSq []float32
	// Values are the value head's outputs, one per marked token of every member
	// in order; nil without a value head.
	Values []float32
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
	// Backward adds to the gradient, given the derivatives of the loss with
	// respect to the last Forward's Scores, in their shape; nil parts are zero.
	Backward(ctx context.Context, d Scores) error
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

// Joiner is a backend that lets several trainers compute at once: their products
// with base weights are done together, those with adapters by adapter. Adapters
// may differ in rank, targets and everything else.
type Joiner interface {
	// Together calls every Do, at the same time, and returns their errors in
	// order. A Do makes calls of its own trainer only (Forward, Score, Backward);
	// each gives to the bit what it gives alone. Calls of one kind (Forward and
	// Score, or Backward) gain most. A trainer of another backend, or named twice,
	// fails all calls before any is made.
	Together(calls []JointCall) []error
}

// JointCall is one trainer's part in Joiner.Together.
type JointCall struct {
	Trainer Trainer
	Do      func() error
}
