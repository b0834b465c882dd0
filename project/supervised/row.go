// Package supervised is training on demonstrations: the rows a warm-up learns
// from, and the recipe of the embedded tiny model.
package supervised

import (
	"strings"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/rollout"
)

// toolCallWeight emphasises the tokens of turns that call tools over those of
// plain text (SPEC 1.1's segment weights).
const toolCallWeight = 2

// Row tokenises a demonstration as a rollout of it would be; the tokens of
// turns with tool calls weigh toolCallWeight, those of the environment nothing.
func Row(c rollout.Chat, t rollout.Task, messages []rollout.Message) (learner.SFTRow, error) {
	ids, train, err := rollout.EncodeDemo(c, t.Tools, messages)
	if err != nil {
		return learner.SFTRow{}, err
	}
	first := 0
	for first < len(train) && !train[first] {
		first++
	}
	weights := make([]float32, len(ids)-first)
	for at := first; at < len(ids); {
		end := at
		for end < len(ids) && train[end] == train[at] {
			end++
		}
		if train[at] {
			w := float32(1)
			if strings.Contains(c.Decode(ids[at:end]), "<tool_call>") {
				w = toolCallWeight
			}
			for i := at; i < end; i++ {
				weights[i-first] = w
			}
		}
		at = end
	}
	return learner.SFTRow{Prompt: ids[:first], Tokens: ids[first:], Weights: weights}, nil
}
