// Package reward judges finished episodes: pure functions from what an agent
// said and called to a score. A score that cannot be computed is unscored, with
// its cause; it is never zero because something broke (P7).
//
// Every scorer here is deterministic and does no I/O. Scorers that call a model
// live in reward/judge.
package reward

import (
	"encoding/json"
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
)

// Sample is what a scorer sees of one episode, together with the truth.
type Sample struct {
	Calls     []tool.Call // executed calls in order
	Results   []string    // their results; len(Results) == len(Calls)
	Malformed int         // calls that did not parse
	Final     string      // last assistant text, "" when there is none
	Truncated bool        // ended by a token, turn or context limit
	// Answer is the reference the scorer understands: a number for
	// numeric_match, an ASTReference for ast_match.
	Answer json.RawMessage
}

// Scorer judges a sample. The value should lie in [0,1].
type Scorer interface {
	Name() string
	Score(Sample) (float64, error)
}

// Score is the outcome of a judgement. Value means something only when Scored.
type Score struct {
	Value  float64
	Scored bool
	Cause  string // why it is unscored; "" when Scored
}

// Guard runs one judgement and turns an error, a panic, NaN or an infinity into
// an unscored outcome with its cause.
func Guard(judge func() (float64, error)) (s Score) {
	defer func() {
		if p := recover(); p != nil {
			s = Score{Cause: fmt.Sprintf("panic: %v", p)}
		}
	}()
	v, err := judge()
	switch {
	case err != nil:
		return Score{Cause: err.Error()}
	case math.IsNaN(v) || math.IsInf(v, 0):
		return Score{Cause: fmt.Sprintf("score is %v, not a finite number", v)}
	}
	return Score{Value: v, Scored: true}
}

// Mean averages the scored outcomes; unscored ones do not count as zero. ok is
// false when none is scored.
func Mean(scores []Score) (mean float64, ok bool) {
	n := 0
	for _, s := range scores {
		if s.Scored {
			mean += s.Value
			n++
		}
	}
	if n == 0 {
		return 0, false
	}
	return mean / float64(n), true
}

var builtin = map[string]Scorer{
	"ast_match":     astScorer{},
	"numeric_match": numericScorer{},
}

// Open returns a scorer by name. The error lists the valid names.
func Open(name string) (Scorer, error) {
	if s, ok := builtin[name]; ok {
		return s, nil
	}
	return nil, fmt.Errorf("reward: unknown scorer %q; scorers: %s", name, strings.Join(Names(), ", "))
}

// Names lists the scorers in alphabetical order.
func Names() []string {
	out := make([]string, 0, len(builtin))
	for n := range builtin {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}
