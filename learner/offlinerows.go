package learner

import (
	"fmt"
	"math"
	"slices"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
)

// checkRows refuses rows that the algorithm cannot train, with their count.
func checkRows(c Config, set *data.Set) error {
	rows := set.Rows()
	if len(rows) == 0 || len(set.Epoch(c.Seed, 0)) == 0 {
		return fmt.Errorf("learner: %s: no rows in %s", c.Algorithm, set.Name())
	}
	reasons := map[string]int{}
	first, n := -1, 0
	for i := range rows {
		why := badRow(c, &rows[i])
		if why == "" {
			continue
		}
		reasons[why]++
		if n++; first < 0 {
			first = i
		}
	}
	if n == 0 {
		return nil
	}
	where := ""
	if w := rows[first].Where; w != "" {
		where = " (" + w + ")"
	}
	return fmt.Errorf("learner: %s: %d of %d rows cannot be trained (%s), the first is row %d%s; drop or mend them", c.Algorithm, n, len(rows), histogram(reasons), first, where)
}

// badRow says why a row cannot be trained, "" when it can.
func badRow(c Config, e *data.Example) string {
	pairs := c.Algorithm == DPO || c.Algorithm == Reward
	switch {
	case len(e.Prompt) == 0:
		return "no_prompt"
	case pairs && !e.Pair():
		return "no_pair"
	case !pairs && e.Pair():
		return "unexpected_pair"
	case !(e.RowWeight() > 0) || math.IsInf(e.Weight, 0):
		return "weight_invalid"
	case math.IsNaN(e.Margin) || math.IsInf(e.Margin, 0):
		return "margin_invalid"
	case e.RowWeight() != 1 && c.Algorithm == DPO && c.dpo().WholeStep():
		return "weight_with_aot" // it compares ranks, not rows
	}
	sides := []data.Completion{e.Chosen}
	if pairs {
		sides = append(sides, e.Rejected)
	}
	for _, s := range sides {
		switch {
		case s.Weights != nil && len(s.Weights) != len(s.Tokens):
			return "weights_length"
		case slices.ContainsFunc(s.Weights, func(w float32) bool { return !(w >= 0) || math.IsInf(float64(w), 0) }):
			return "weight_invalid"
		case s.Trained() == 0:
			return "no_trained_tokens"
		}
	}
	return ""
}

// scored is a completion for the trainer, cut after its last trained token, and
// the weights of its trained tokens; nil = 1 everywhere.
func scored(prompt []int32, c data.Completion) (sequence, []float64) {
	train := make([]bool, len(c.Tokens))
	last, n := 0, 0
	var w []float64
	for t := range c.Tokens {
		x := float32(1)
		if c.Weights != nil {
			x = c.Weights[t]
		}
		if x > 0 {
			train[t], last = true, t
			w = append(w, float64(x))
			n++
		}
	}
	return sequence{prompt: prompt, Sequence: model.Sequence{Tokens: c.Tokens[:last+1], Train: train[:last+1]}, trained: n}, w
}

// endValued is a completion of which the trainer reads the value head once, after
// its last token.
func endValued(prompt, tokens []int32) sequence {
	n := len(tokens)
	v := make([]bool, n)
	v[n-1] = true
	return sequence{prompt: prompt, Sequence: model.Sequence{Tokens: tokens, Train: make([]bool, n), Value: v}}
}
