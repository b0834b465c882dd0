package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// parsePost reads which tokens stand around a lone text.
func (t *Tokenizer) parsePost(raw json.RawMessage, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("post_processor: sequences more than %d deep", maxDepth)
	}
	if isNull(raw) {
		return nil
	}
	var p struct {
		Type       string            `json:"type"`
		Processors []json.RawMessage `json:"processors"`
		Single     []struct {
			Special  *struct{ ID string } `json:"SpecialToken"`
			Sequence *struct{ ID string } `json:"Sequence"`
		} `json:"single"`
		Tokens map[string]struct{ IDs []int32 } `json:"special_tokens"`
		Sep    json.RawMessage                  `json:"sep"`
		Cls    json.RawMessage                  `json:"cls"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return fmt.Errorf("post_processor: %w", err)
	}
	known := func(id int32) error {
		if !t.has(id) {
			return fmt.Errorf("post_processor %s: id %d is no token", p.Type, id)
		}
		return nil
	}
	var before, after []int32
	switch p.Type {
	case "ByteLevel": // trims offsets only
		return nil
	case "Sequence":
		for _, r := range p.Processors {
			if err := t.parsePost(r, depth+1); err != nil {
				return err
			}
		}
		return nil
	case "BertProcessing", "RobertaProcessing":
		for _, e := range []struct {
			name string
			raw  json.RawMessage
			ids  *[]int32
		}{{"cls", p.Cls, &before}, {"sep", p.Sep, &after}} {
			var pair []json.RawMessage
			var id int32
			if err := json.Unmarshal(e.raw, &pair); err != nil || len(pair) != 2 || json.Unmarshal(pair[1], &id) != nil {
				return fmt.Errorf("post_processor %s: %s %s is not a token and its id", p.Type, e.name, e.raw)
			}
			*e.ids = []int32{id}
		}
	case "TemplateProcessing":
		sequences := 0
		for _, s := range p.Single {
			switch {
			case s.Sequence != nil:
				sequences++
			case s.Special == nil:
				return errors.New("post_processor TemplateProcessing: a part of single is neither SpecialToken nor Sequence")
			default:
				ids, ok := p.Tokens[s.Special.ID]
				if !ok {
					return fmt.Errorf("post_processor TemplateProcessing: special token %q has no ids", s.Special.ID)
				}
				if sequences > 0 {
					after = append(after, ids.IDs...)
				} else {
					before = append(before, ids.IDs...)
				}
			}
		}
		if sequences != 1 {
			return fmt.Errorf("post_processor TemplateProcessing: single holds the text %d times, want once", sequences)
		}
	default:
		return fmt.Errorf("post_processor %q is not implemented (have ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence)", p.Type)
	}
	for _, id := range slices.Concat(before, after) {
		if err := known(id); err != nil {
			return err
		}
	}
	t.prefix = append(before, t.prefix...)
	t.suffix = append(t.suffix, after...)
	return nil
}
