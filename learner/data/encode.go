package data

import (
	"errors"
	"fmt"
	"slices"
)

// Encoding says how records become examples.
type Encoding struct {
	// CallWeight weighs the tokens of assistant turns that call tools, others
	// weigh 1 (SPEC 1.3: 2.0).
	CallWeight float64
	// LastTurnOnly trains the last assistant turn of a conversation alone.
	LastTurnOnly bool
	// StepSeparator stands between the steps of stepwise rows.
	StepSeparator string
}

// encoder turns records into examples.
type encoder struct {
	Encoding
	chat Chat
	want Want
}

// examples tokenises a record: one example, or one per verdict it holds.
func (e encoder) examples(r record) ([]Example, error) {
	out, err := e.rows(r)
	for i := range out {
		x := &out[i]
		x.Where, x.Weight, x.Margin, x.Difficulty, x.Embedding = r.where, r.weight, r.margin, r.difficulty, r.embedding
		switch {
		case err != nil:
		case len(x.Prompt) == 0:
			err = errors.New("the prompt has no tokens")
		case e.want != WantPrompts && x.Chosen.Trained() == 0, x.Pair() && x.Rejected.Trained() == 0:
			err = errors.New("no token to train: every turn has weight 0, or the completion is empty")
		}
	}
	return out, err
}

func (e encoder) rows(r record) ([]Example, error) {
	if r.format == FormatSteps {
		return e.steps(r)
	}
	if r.format == FormatPrompt {
		ids, err := e.opening(r)
		return []Example{{Prompt: ids}}, err
	}
	x, err := e.complete(r, r.chosen)
	if err != nil || r.rejected.text == "" && !r.rejected.chat() {
		if len(r.labels) > 0 {
			x.Label = r.labels[0]
		}
		return []Example{x}, err
	}
	y, err := e.complete(r, r.rejected)
	if err != nil {
		return nil, fmt.Errorf("rejected: %w", err)
	}
	if !slices.Equal(x.Prompt, y.Prompt) {
		return nil, errors.New("the template renders the prompt differently before the two completions, so that they cannot be compared")
	}
	if slices.Equal(x.Chosen.Tokens, y.Chosen.Tokens) {
		return nil, errors.New("chosen and rejected are the same tokens; there is nothing to prefer")
	}
	if e.want == WantVerdicts {
		x.Label = true
		return []Example{x, y}, nil
	}
	x.Rejected = y.Chosen
	return []Example{x}, nil
}

func (e encoder) opening(r record) ([]int32, error) {
	if r.prompt.chat() {
		return e.chat.Opening(r.tools, r.prompt.messages)
	}
	return e.chat.Text(r.prompt.text, true), nil
}

// complete tokenises a record's prompt with one of its completions.
func (e encoder) complete(r record, c side) (Example, error) {
	if c.chat() {
		return e.conversation(r.tools, r.prompt.messages, c.messages)
	}
	if r.format == FormatText {
		ids := append(e.chat.Text(c.text, true), e.chat.End())
		return Example{Prompt: ids[:1], Chosen: Completion{Tokens: ids[1:]}}, nil
	}
	prompt := e.chat.Text(r.prompt.text, true)
	return Example{Prompt: prompt, Chosen: Completion{Tokens: append(e.chat.Text(c.text, false), e.chat.End())}}, nil
}

// conversation trains the assistant's turns of the completion; with no prompt,
// every turn of it.
func (e encoder) conversation(tools []Tool, prompt, completion []Message) (Example, error) {
	all := slices.Concat(prompt, completion)
	for len(all) > len(prompt) && all[len(all)-1].Role != "assistant" {
		return Example{}, fmt.Errorf("the last message is of role %q; a completion ends with the assistant", all[len(all)-1].Role)
	}
	ids, turns, err := e.chat.Conversation(tools, all)
	if err != nil {
		return Example{}, err
	}
	var spoken []Message
	skip := 0
	for i, m := range all {
		if m.Role == "assistant" {
			spoken = append(spoken, m)
			if i < len(prompt) {
				skip++
			}
		}
	}
	if len(turns) != len(spoken) {
		return Example{}, fmt.Errorf("the tokenised conversation has %d assistant turns for %d assistant messages; no two may follow each other directly", len(turns), len(spoken))
	}
	if skip == len(turns) {
		return Example{}, errors.New("the completion has no assistant message")
	}
	from := skip
	if e.LastTurnOnly {
		from = len(turns) - 1
	}
	start := turns[skip].Start
	tokens := ids[start:turns[len(turns)-1].End]
	weights := make([]float32, len(tokens))
	ones := true
	for k := from; k < len(turns); k++ {
		w := spoken[k].Weight
		if turns[k].Calls {
			w *= e.CallWeight
		}
		for t := turns[k].Start; t < turns[k].End; t++ {
			weights[t-start] = float32(w)
		}
	}
	for _, w := range weights {
		ones = ones && w == 1
	}
	if ones {
		weights = nil
	}
	return Example{Prompt: ids[:start], Chosen: Completion{Tokens: tokens, Weights: weights}}, nil
}

// steps gives, for demonstrations, one example whose wrong steps have weight 0;
// for verdicts, one example a step, after the steps before it.
func (e encoder) steps(r record) ([]Example, error) {
	prompt := e.chat.Text(r.prompt.text, true)
	whole := Example{Prompt: prompt}
	var each []Example
	for i, text := range r.steps {
		ids := e.chat.Text(text+e.StepSeparator, false)
		if i == len(r.steps)-1 {
			ids = append(e.chat.Text(text, false), e.chat.End())
		}
		before := slices.Concat(prompt, whole.Chosen.Tokens)
		each = append(each, Example{Prompt: before, Chosen: Completion{Tokens: ids}, Label: r.labels[i]})
		w := float32(0)
		if r.labels[i] {
			w = 1
		}
		whole.Chosen.Tokens = append(whole.Chosen.Tokens, ids...)
		whole.Chosen.Weights = append(whole.Chosen.Weights, slices.Repeat([]float32{w}, len(ids))...)
	}
	if e.want == WantVerdicts {
		return each, nil
	}
	return []Example{whole}, nil
}
