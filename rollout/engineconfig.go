package rollout

import (
	"errors"
	"fmt"
)

// SwapMode is what a new policy, or a new adapter under a loaded name, does to
// requests in flight. Tokens carry the version they were sampled under in either
// mode, and caches of an old version never serve a request that arrives later.
type SwapMode uint8

const (
	// SwapRecompute computes the whole sequence again under the new version
	// before the next token: every logprob is the one a cold cache gives under
	// the version recorded for it, at the price of one prefill per request and
	// swap.
	SwapRecompute SwapMode = iota
	// SwapKeep goes on over the keys and values of the old version, as in-flight
	// weight updates usually do (PipelineRL, Piché et al. 2025,
	// arXiv:2509.19128). Nothing is computed again, but later tokens are sampled
	// from a distribution that no single version has: their VersionRun is marked
	// Stale, and a learner that recomputes them sees another logprob. The mixed
	// cache serves no other request, the session's next turn included.
	SwapKeep
)

// TextStream turns ids into text as they come; what Push and Flush return is the
// text, and no piece ends inside a character. model.Tokenizer's streams are.
type TextStream interface {
	Push(ids ...int32) string
	Flush() string
}

// EngineConfig sizes a LocalEngine. Slots, MaxLen and Adapters must be those the
// decoder was made with.
type EngineConfig struct {
	// Slots is the number of sequences decoded together.
	Slots int
	// MaxLen is the context limit of one sequence in tokens, prompt included.
	MaxLen int
	// Adapters is the number of adapters resident at once, the policy's
	// included. 0 means 1: the policy alone.
	Adapters int
	// Quantum is the number of tokens decoded between two looks at the queue:
	// arrivals, cancellations and policy swaps wait for at most that many. While
	// a request streams it is 1. 0 means 8.
	Quantum int
	// Chunk is the most prompt tokens computed between two decode quanta, and the
	// most tokens scored there: running requests wait for no more. 0 means 512;
	// at least 2.
	Chunk int
	// MaxWaiting is how many requests may wait for a slot before Generate answers
	// ErrBusy. 0 means any number.
	MaxWaiting int
	// OnSwap is what a swap does to requests in flight.
	OnSwap SwapMode
	// Text starts the text of one completion, which goes on after a prompt of at
	// least one token; nil: generations have no text and stop strings are
	// refused.
	Text func(prompt []int32) TextStream
}

const (
	defaultQuantum = 8
	defaultChunk   = 512
)

// Validate reports every problem with field, value and remedy.
func (c EngineConfig) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("engine: "+format, a...)) }
	if c.Slots < 1 {
		bad("Slots is %d; give at least 1", c.Slots)
	}
	if c.MaxLen < 2 {
		bad("MaxLen is %d; give at least 2 tokens", c.MaxLen)
	}
	if c.Adapters < 0 {
		bad("Adapters is %d; give 0 for the policy alone, or more", c.Adapters)
	}
	if c.Quantum < 0 {
		bad("Quantum is %d; give 0 for the default of %d, or more", c.Quantum, defaultQuantum)
	}
	if c.Chunk < 0 || c.Chunk == 1 {
		bad("Chunk is %d; give 0 for the default of %d, or 2 or more", c.Chunk, defaultChunk)
	}
	if c.MaxWaiting < 0 {
		bad("MaxWaiting is %d; give 0 for no limit, or more", c.MaxWaiting)
	}
	if c.OnSwap > SwapKeep {
		bad("OnSwap is %d; give SwapRecompute or SwapKeep", c.OnSwap)
	}
	return errors.Join(errs...)
}

func (c *EngineConfig) defaults() {
	if c.Adapters == 0 {
		c.Adapters = 1
	}
	if c.Quantum == 0 {
		c.Quantum = defaultQuantum
	}
	if c.Chunk == 0 {
		c.Chunk = defaultChunk
	}
}
