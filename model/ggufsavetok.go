package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// ggufTextMeta adds tokenizer, chat template and stop tokens to a file's
// metadata. notes tell what GGUF has no key for.
func ggufTextMeta(meta map[string]any, m *Model) (notes []string, err error) {
	if m.Template != nil {
		meta["tokenizer.chat_template"] = m.Template.Source()
	}
	// Readers end a generation at each of these.
	keys := []string{"eos", "eot", "eom"}
	stops := m.StopIDs
	if eos := m.Config.EOSTokenID; eos >= 0 { // first
		stops = append([]int32{eos}, slices.DeleteFunc(slices.Clone(stops), func(id int32) bool { return id == eos })...)
	}
	for i, id := range stops {
		if i == len(keys) {
			notes = append(notes, fmt.Sprintf("the stop tokens %v are not written: GGUF names three", stops[i:]))
			break
		}
		meta["tokenizer.ggml."+keys[i]+"_token_id"] = uint32(id)
	}
	if m.Tokenizer == nil {
		meta["tokenizer.ggml.model"] = "no_vocab"
		return append(notes, "there is no tokenizer to write; llama.cpp needs one to work with text"), nil
	}
	more, err := m.Tokenizer.ggufMeta(meta, m.Config.VocabSize)
	if err != nil {
		return nil, fmt.Errorf("model: save gguf: tokenizer: %w", err)
	}
	return append(notes, more...), nil
}

// tokenizerFile is what GGUF needs of a tokenizer.json.
type tokenizerFile struct {
	Normalizer   json.RawMessage `json:"normalizer"`
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Added        []AddedToken    `json:"added_tokens"`
	Model        struct {
		Type         string          `json:"type"`
		IgnoreMerges bool            `json:"ignore_merges"`
		ByteFallback bool            `json:"byte_fallback"`
		Unk          *string         `json:"unk_token"`
		Vocab        json.RawMessage `json:"vocab"`
		Merges       mergeList       `json:"merges"`
	} `json:"model"`
}

// ggufMeta adds the keys of a tokenizer with rows tokens in all; ids without
// one become unused.
func (t *Tokenizer) ggufMeta(meta map[string]any, rows int) (notes []string, err error) {
	data, err := t.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var f tokenizerFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	if f.Model.Type != "BPE" {
		return nil, fmt.Errorf("model type %q is not written to GGUF (have BPE)", f.Model.Type)
	}
	var vocab map[string]int32
	if err := json.Unmarshal(f.Model.Vocab, &vocab); err != nil {
		return nil, err
	}
	tokens, types := make([]string, rows), make([]int32, rows)
	for i := range tokens {
		tokens[i], types[i] = fmt.Sprintf("[PAD%d]", i), ggufTokenUnused
	}
	for tok, id := range vocab {
		tokens[id], types[id] = tok, ggufTokenNormal
	}
	for _, a := range f.Added {
		tokens[a.ID], types[a.ID] = a.Content, ggufTokenUser
		if a.Special {
			types[a.ID] = ggufTokenControl
		}
		if a.LStrip || a.RStrip || a.SingleWord {
			notes = append(notes, fmt.Sprintf("token %q strips or needs white space around it, which GGUF can't say", a.Content))
		}
	}
	if f.Model.ByteFallback {
		err = f.sentencePieceMeta(meta, tokens, types)
	} else {
		err = f.byteLevelMeta(meta)
	}
	if err != nil {
		return nil, err
	}
	meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"] = tokens, types
	bos, hasBOS := meta["tokenizer.ggml.bos_token_id"].(uint32)
	addBOS := len(t.prefix) > 0
	switch {
	case len(t.suffix) > 0:
		return nil, fmt.Errorf("its post-processor appends %v, which is not implemented for GGUF", t.suffix)
	case addBOS && (len(t.prefix) > 1 || !hasBOS || uint32(t.prefix[0]) != bos):
		return nil, fmt.Errorf("its post-processor prepends %v, GGUF can only prepend the beginning-of-sequence token", t.prefix)
	}
	meta["tokenizer.ggml.add_bos_token"] = addBOS
	return notes, nil
}

const (
	ggufTokenNormal = 1
	ggufTokenByte   = 6
)

// byteLevelMeta is GGUF's "gpt2": merges, and a name for the pre-tokenizer.
func (f *tokenizerFile) byteLevelMeta(meta map[string]any) error {
	pre, err := f.preName()
	if err != nil {
		return err
	}
	merges := make([]string, len(f.Model.Merges))
	for i, p := range f.Model.Merges {
		if strings.Contains(p[0], " ") || strings.Contains(p[1], " ") {
			return fmt.Errorf("merge %d, %q and %q, has a space, which GGUF can't write", i, p[0], p[1])
		}
		merges[i] = p[0] + " " + p[1]
	}
	meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"], meta["tokenizer.ggml.merges"] = "gpt2", pre, merges
	return nil
}

// preName finds the name that GGUF has for this pre-tokenizer and normalizer.
func (f *tokenizerFile) preName() (string, error) {
	var have any
	if err := json.Unmarshal(f.PreTokenizer, &have); err != nil {
		return "", err
	}
	nfc := strings.Contains(string(f.Normalizer), `"NFC"`)
	for _, name := range slices.Sorted(maps.Keys(ggufPre)) {
		def := ggufPre[name]
		var want any
		if err := json.Unmarshal([]byte(def.pre), &want); err != nil {
			return "", err
		}
		if reflect.DeepEqual(have, want) && nfc == def.nfc && f.Model.IgnoreMerges == def.ignoreMerges {
			return name, nil
		}
	}
	return "", fmt.Errorf("GGUF has no name for its pre-tokenizer %.200s", f.PreTokenizer)
}

// sentencePieceMeta is GGUF's "llama": instead of a list of merges a score for
// every token, by which whatever pair joins to the best one is merged first. A
// merge list says the same when the pairs that give one token stand together.
func (f *tokenizerFile) sentencePieceMeta(meta map[string]any, tokens []string, types []int32) error {
	scores := make([]float32, len(tokens))
	ids := make(map[string]int, len(tokens))
	for i, tok := range tokens {
		ids[tok] = i
		switch {
		case types[i] == ggufTokenNormal && isByteToken(tok):
			types[i] = ggufTokenByte
		case types[i] == ggufTokenNormal:
			scores[i] = -1e9 // joined from nothing
		}
	}
	seen, last, rank := map[string]bool{}, "", float32(0)
	for i, p := range f.Model.Merges {
		tok := p[0] + p[1]
		if tok == last {
			continue
		}
		id, ok := ids[tok]
		if seen[tok] || !ok {
			return fmt.Errorf("merge %d, %q and %q, can't be written as a score", i, p[0], p[1])
		}
		seen[tok], last = true, tok
		scores[id] = rank
		rank--
	}
	if f.Model.Unk != nil {
		if id, ok := ids[*f.Model.Unk]; ok {
			types[id] = ggufTokenUnknown
			meta["tokenizer.ggml.unknown_token_id"] = uint32(id)
		}
	}
	meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"], meta["tokenizer.ggml.scores"] = "llama", "default", scores
	meta["tokenizer.ggml.add_space_prefix"] = f.prependsSpace()
	return nil
}

// isByteToken: "<0x0A>".
func isByteToken(s string) bool {
	var b byte
	n, err := fmt.Sscanf(s, "<0x%02X>", &b)
	return n == 1 && err == nil && len(s) == 6
}

// prependsSpace: a text starts as if a space stood before it.
func (f *tokenizerFile) prependsSpace() bool {
	norm, pre := string(f.Normalizer), string(f.PreTokenizer)
	return strings.Contains(norm, `"Prepend"`) || strings.Contains(pre, `"Metaspace"`) && !strings.Contains(pre, `"never"`)
}
