package rollout

import (
	"encoding/json"
	"errors"
	"strings"
)

// gemma4Calls: <|tool_call>call:NAME{key:<|"|>text<|"|>,n:1}<tool_call|>.
var gemma4Calls = gemmaFormat("gemma4", "<|tool_call>", "<tool_call|>", `<|"|>`)

// functionGemmaCalls: <start_function_call>call:NAME{key:<escape>text<escape>}
// <end_function_call>.
var functionGemmaCalls = gemmaFormat("function-gemma", "<start_function_call>", "<end_function_call>", "<escape>")

func gemmaFormat(name, opening, closing, quote string) *CallFormat {
	return &CallFormat{
		Name:    name,
		thought: [2]string{"<|channel>thought", "<channel|>"},
		find:    findMark(opening),
		read: func(text string, body int) ([]Part, int, bool) {
			inner, end, open := within(text, body, closing, opening)
			rest, ok := strings.CutPrefix(strings.TrimSpace(inner), "call:")
			at := strings.IndexByte(rest, '{')
			if !ok || at < 0 {
				return malformed("the call does not begin with call:NAME{"), end, open
			}
			g := gemmaValue{text: rest[at:], quote: quote}
			args, err := g.value(0)
			if err == nil && strings.TrimSpace(g.text) != "" {
				err = errors.New("data after the arguments")
			}
			if err != nil {
				return malformed(err.Error()), end, open
			}
			return []Part{callOf(strings.TrimSpace(rest[:at]), args)}, end, open
		},
		fits: contains(opening),
	}
}

// gemmaValue turns Gemma's notation, JSON with bare keys and marks for quotes,
// into JSON.
type gemmaValue struct{ text, quote string }

func (g *gemmaValue) value(depth int) (string, error) {
	if depth > 100 {
		return "", errors.New("arguments are nested deeper than 100")
	}
	g.text = strings.TrimLeft(g.text, " \n\t")
	switch {
	case strings.HasPrefix(g.text, g.quote):
		s, rest, ok := strings.Cut(g.text[len(g.quote):], g.quote)
		if !ok {
			return "", errors.New("a text is not closed")
		}
		g.text = rest
		return quoteJSON(s), nil
	case strings.HasPrefix(g.text, "{"), strings.HasPrefix(g.text, "["):
		return g.group(depth)
	}
	n := strings.IndexAny(g.text, ",]} \n")
	if n < 0 {
		n = len(g.text)
	}
	word := g.text[:n]
	g.text = g.text[n:]
	if word == "None" { // as Gemma's template prints null
		return "null", nil
	}
	if !json.Valid([]byte(word)) {
		return "", errors.New("expected a value, got " + clip(word, 40))
	}
	return word, nil
}

// group reads {key:value,…} or [value,…].
func (g *gemmaValue) group(depth int) (string, error) {
	open, end := g.text[:1], "}"
	if open == "[" {
		end = "]"
	}
	g.text = g.text[1:]
	var parts []string
	for {
		g.text = strings.TrimLeft(g.text, " \n\t")
		if rest, ok := strings.CutPrefix(g.text, end); ok && len(parts) == 0 {
			g.text = rest
			return open + end, nil
		}
		part := ""
		if open == "{" {
			key, rest, ok := strings.Cut(g.text, ":")
			if !ok {
				return "", errors.New("expected key:value")
			}
			key = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(key), g.quote), g.quote)
			part, g.text = quoteJSON(key)+":", rest
		}
		v, err := g.value(depth + 1)
		if err != nil {
			return "", err
		}
		parts = append(parts, part+v)
		g.text = strings.TrimLeft(g.text, " \n\t")
		if rest, ok := strings.CutPrefix(g.text, end); ok {
			g.text = rest
			return open + strings.Join(parts, ",") + end, nil
		}
		rest, ok := strings.CutPrefix(g.text, ",")
		if !ok {
			return "", errors.New("expected , or " + end)
		}
		g.text = rest
	}
}
