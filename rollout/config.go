package rollout

import (
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/model"
)

// LoopConfig bounds and samples a rollout. Names follow TRL.
type LoopConfig struct {
	// Temperature divides the logits before the softmax; 0 is greedy.
	Temperature float64 `yaml:"temperature"`
	// TopP keeps the smallest set of tokens of at least this mass; 1 or 0 is off.
	TopP float64 `yaml:"top_p"`
	// TopK keeps the likeliest tokens; 0 is off.
	TopK int `yaml:"top_k"`
	// MaxCompletionLength bounds everything after the prompt, in tokens: what
	// the policy wrote and what its tools answered.
	MaxCompletionLength int `yaml:"max_completion_length"`
	// MaxTurnLength bounds what the policy writes in one turn, in tokens; 0
	// leaves it to MaxCompletionLength.
	MaxTurnLength int `yaml:"max_turn_length"`
	// MaxToolCallingIterations bounds the turns whose calls are executed; a turn
	// that calls again after that ends the episode as truncated.
	MaxToolCallingIterations int `yaml:"max_tool_calling_iterations"`
	// MaxCallsPerTurn bounds the calls executed in one turn; the others get an
	// error as their result.
	MaxCallsPerTurn int `yaml:"max_calls_per_turn"`
	// MaxToolResultLength bounds one tool result, in bytes; what is beyond is
	// cut with a note.
	MaxToolResultLength int `yaml:"max_tool_result_length"`
	// ToolTimeout bounds one call, the making of an environment, and scoring.
	ToolTimeout time.Duration `yaml:"tool_timeout"`
	// TurnTimeout bounds the sampling of one turn, waiting included.
	TurnTimeout time.Duration `yaml:"turn_timeout"`
	// RolloutTimeout bounds the whole episode.
	RolloutTimeout time.Duration `yaml:"rollout_timeout"`
}

// DefaultLoopConfig returns the defaults.
func DefaultLoopConfig() LoopConfig {
	return LoopConfig{
		Temperature:              1,
		TopP:                     1,
		MaxCompletionLength:      512,
		MaxToolCallingIterations: 8,
		MaxCallsPerTurn:          8,
		MaxToolResultLength:      4096,
		ToolTimeout:              10 * time.Second,
		TurnTimeout:              2 * time.Minute,
		RolloutTimeout:           5 * time.Minute,
	}
}

// Validate reports every problem with field, value and remedy.
func (c LoopConfig) Validate() error {
	var errs []error
	bad := func(field string, value any, remedy string) {
		errs = append(errs, fmt.Errorf("rollout: %s is %v; %s", field, value, remedy))
	}
	if !(c.Temperature >= 0 && c.Temperature <= 100) {
		bad("temperature", c.Temperature, "give 0 (greedy) to 100")
	}
	if !(c.TopP >= 0 && c.TopP <= 1) {
		bad("top_p", c.TopP, "give a share in [0,1]; 1 is off")
	}
	if c.TopK < 0 {
		bad("top_k", c.TopK, "give 0 (off) or more")
	}
	if c.MaxTurnLength < 0 {
		bad("max_turn_length", c.MaxTurnLength, "give 0 (off) or more tokens")
	}
	if c.MaxToolCallingIterations < 0 {
		bad("max_tool_calling_iterations", c.MaxToolCallingIterations, "give 0 (no tools) or more")
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"max_completion_length", c.MaxCompletionLength},
		{"max_calls_per_turn", c.MaxCallsPerTurn},
		{"max_tool_result_length", c.MaxToolResultLength},
	} {
		if f.value < 1 {
			bad(f.name, f.value, "give at least 1")
		}
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"tool_timeout", c.ToolTimeout},
		{"turn_timeout", c.TurnTimeout},
		{"rollout_timeout", c.RolloutTimeout},
	} {
		if f.value <= 0 {
			bad(f.name, f.value, "give a positive duration such as 30s; nothing waits without a deadline")
		}
	}
	return errors.Join(errs...)
}

func (c LoopConfig) sampling(seed uint64, greedy bool) model.Sampling {
	if greedy {
		return model.Sampling{Seed: seed}
	}
	return model.Sampling{Temperature: c.Temperature, TopP: c.TopP, TopK: c.TopK, Seed: seed}
}
