// Package supervised is training on demonstrations: the rows a warm-up learns
// from, and the recipe of the embedded tiny model.
package supervised

import (
	"fmt"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner/data"
)

// Row is a full-tier demonstration as a supervised row: the prompt, what
// follows it, and each token's segment weight (eventlog.TokenWeights): the
// expert's tool calls count twice its texts, the environment not at all.
func Row(l *eventlog.Log) (data.Example, error) {
	branch, ok := l.Accepted()
	if !ok {
		return data.Example{}, fmt.Errorf("supervised: demonstration %s has no accepted branch", l.ID)
	}
	weights, err := l.TokenWeights(branch)
	if err != nil {
		return data.Example{}, err
	}
	b := &l.Branches[branch]
	if len(b.Runs) == 0 || b.Runs[0].Writer != eventlog.Prompt {
		return data.Example{}, fmt.Errorf("supervised: demonstration %s does not begin with a prompt", l.ID)
	}
	first := b.Runs[0].End
	return data.Example{Prompt: b.IDs[:first], Chosen: data.Completion{Tokens: b.IDs[first:], Weights: weights[first:]}, Where: l.ID}, nil
}
