package model

import (
	"encoding/json"
	"fmt"
	"strings"
)

// ggufPre are the pre-tokenizers that GGUF names instead of spelling out, as
// tokenizer.json of the models they stand for spells them.
var ggufPre = map[string]struct {
	pre          string
	nfc          bool
	ignoreMerges bool
}{
	"gpt-2":     {pre: `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`},
	"smollm":    {pre: `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]}`},
	"llama-bpe": {pre: splitThenBytes(contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`), ignoreMerges: true},
	"qwen2":     {pre: splitThenBytes(contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`), nfc: true},
}

func splitThenBytes(pattern string) string {
	p, err := marshalPlain(pattern)
	if err != nil {
		panic("model: constant pattern: " + err.Error())
	}
	return `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + string(p) +
		`},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]}`
}

// GGUF's token types.
const (
	ggufTokenUnknown = 2
	ggufTokenControl = 3
	ggufTokenUser    = 4
	ggufTokenUnused  = 5
)

// ggufTokenizer builds the tokenizer from a file's metadata; nil when the file
// has none.
func ggufTokenizer(g *GGUF) (*Tokenizer, error) {
	kind, ok := g.Meta["tokenizer.ggml.model"].(string)
	if !ok {
		return nil, nil
	}
	fail := func(format string, args ...any) (*Tokenizer, error) {
		return nil, fmt.Errorf("%w: gguf: tokenizer.ggml.%s", ErrFormat, fmt.Sprintf(format, args...))
	}
	if kind != "gpt2" {
		return fail("model %q is not implemented (have gpt2, byte-level BPE)", kind)
	}
	pre, _ := g.Meta["tokenizer.ggml.pre"].(string)
	def, ok := ggufPre[pre]
	if !ok {
		return fail("pre %q is not implemented (have gpt-2, smollm, llama-bpe, qwen2)", pre)
	}
	tokens, ok := g.Meta["tokenizer.ggml.tokens"].([]string)
	if !ok {
		return fail("tokens is missing")
	}
	types, ok := g.Meta["tokenizer.ggml.token_type"].([]int64)
	if ok && len(types) != len(tokens) {
		return fail("token_type has %d entries, tokens %d", len(types), len(tokens))
	}
	merges, ok := g.Meta["tokenizer.ggml.merges"].([]string)
	if !ok {
		return fail("merges is missing")
	}
	spec := tokenizerSpec{
		PreTokenizer: new(preSpec),
		Decoder:      json.RawMessage(`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`),
		Model:        bpeSpec{Type: "BPE", IgnoreMerges: def.ignoreMerges, Vocab: make(vocabMap, len(tokens))},
	}
	if def.nfc {
		spec.Normalizer = json.RawMessage(`{"type":"NFC"}`)
	}
	if err := json.Unmarshal([]byte(def.pre), spec.PreTokenizer); err != nil {
		return nil, fmt.Errorf("model: pre-tokenizer %q: %w", pre, err)
	}
	for i, tok := range tokens {
		if old, dup := spec.Model.Vocab[tok]; dup {
			return fail("tokens: %q has ids %d and %d", tok, old, i)
		}
		spec.Model.Vocab[tok] = int32(i)
		if types == nil {
			continue
		}
		switch types[i] {
		case ggufTokenControl, ggufTokenUnknown:
			spec.AddedTokens = append(spec.AddedTokens, AddedToken{ID: int32(i), Content: tok, Special: true})
		case ggufTokenUser:
			spec.AddedTokens = append(spec.AddedTokens, AddedToken{ID: int32(i), Content: tok})
		case ggufTokenUnused:
			delete(spec.Model.Vocab, tok) // padding rows
		}
	}
	for i, m := range merges {
		a, b, ok := strings.Cut(m, " ")
		if !ok || strings.Contains(b, " ") {
			return fail("merges: entry %d %q is not a pair", i, m)
		}
		spec.Model.Merges = append(spec.Model.Merges, [2]string{a, b})
	}
	if add, _ := g.Meta["tokenizer.ggml.add_bos_token"].(bool); add {
		id, ok := g.Meta["tokenizer.ggml.bos_token_id"].(uint64)
		if !ok || id >= uint64(len(tokens)) {
			return fail("bos_token_id %v is no token, yet add_bos_token is set", g.Meta["tokenizer.ggml.bos_token_id"])
		}
		name, err := marshalPlain(tokens[id])
		if err != nil {
			return fail("bos_token_id: %v", err)
		}
		spec.PostProcessor = json.RawMessage(fmt.Sprintf(`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":%s,"type_id":0}},{"Sequence":{"id":"A","type_id":0}}],`+
			`"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{%s:{"id":%s,"ids":[%d],"tokens":[%s]}}}`, name, name, name, id, name))
	}
	t, err := newTokenizer(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: gguf tokenizer: %w", ErrFormat, err)
	}
	return t, nil
}
