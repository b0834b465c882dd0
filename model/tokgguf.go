package model

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// GGUF's token types are those of SentencePiece.
const (
	ggufTokenUnknown = pieceUnknown
	ggufTokenControl = pieceControl
	ggufTokenUser    = pieceUser
	ggufTokenUnused  = pieceUnused
)

// ggufVocab is the tokenizer part of a GGUF's metadata.
type ggufVocab struct {
	meta   map[string]any
	kind   string
	tokens []string
	types  []int64 // nil = all normal
}

func (v *ggufVocab) errorf(format string, args ...any) error {
	return fmt.Errorf("%w: gguf: tokenizer.ggml.%s", ErrFormat, fmt.Sprintf(format, args...))
}

// ggufTokenizer builds the tokenizer from a file's metadata; nil when the file
// has none.
func ggufTokenizer(g *GGUF) (*Tokenizer, error) {
	v := &ggufVocab{meta: g.Meta}
	var ok bool
	if v.kind, ok = g.Meta["tokenizer.ggml.model"].(string); !ok || v.kind == "none" || v.kind == "no_vocab" {
		return nil, nil
	}
	if v.tokens, ok = g.Meta["tokenizer.ggml.tokens"].([]string); !ok {
		return nil, v.errorf("tokens is missing")
	}
	if types, ok := g.Meta["tokenizer.ggml.token_type"].([]int64); ok {
		if len(types) != len(v.tokens) {
			return nil, v.errorf("token_type has %d entries, tokens %d", len(types), len(v.tokens))
		}
		v.types = types
	}
	build, ok := map[string]func() (tokenizerSpec, error){
		"gpt2": v.byteLevel, "gemma4": v.gemma4, "llama": v.sentencePiece, "t5": v.sentencePiece, "bert": v.wordPiece,
	}[v.kind]
	if !ok {
		return nil, v.errorf("model %q is not implemented (have gpt2, llama, t5, bert, gemma4)", v.kind)
	}
	spec, err := build()
	if err != nil {
		return nil, err
	}
	t, err := newTokenizer(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: gguf tokenizer: %w", ErrFormat, err)
	}
	return t, nil
}

// id reads a token id; fallback is for a missing one, -1 = none.
func (v *ggufVocab) id(key string, fallback int32) (int32, error) {
	raw, ok := v.meta["tokenizer.ggml."+key]
	if !ok {
		if int(fallback) >= len(v.tokens) {
			return -1, nil
		}
		return fallback, nil
	}
	n, ok := raw.(uint64)
	if !ok || n >= uint64(len(v.tokens)) {
		return -1, v.errorf("%s %v is no token of %d", key, raw, len(v.tokens))
	}
	return int32(n), nil
}

func (v *ggufVocab) flag(key string, fallback bool) bool {
	if b, ok := v.meta["tokenizer.ggml."+key].(bool); ok {
		return b
	}
	return fallback
}

// around reads which tokens are put before and after a text.
func (v *ggufVocab) around(addBOS, addEOS bool, bosDefault, eosDefault int32) (before, after []int32, err error) {
	for _, e := range []struct {
		add   bool
		key   string
		other int32
		ids   *[]int32
	}{{v.flag("add_bos_token", addBOS), "bos", bosDefault, &before}, {v.flag("add_eos_token", addEOS), "eos", eosDefault, &after}} {
		if !e.add {
			continue
		}
		id, err := v.id(e.key+"_token_id", e.other)
		if err != nil {
			return nil, nil, err
		}
		if id < 0 {
			return nil, nil, v.errorf("%s_token_id is missing, yet add_%s_token is set", e.key, e.key)
		}
		*e.ids = []int32{id}
	}
	return before, after, nil
}

// type of a token.
func (v *ggufVocab) typeOf(i int) int {
	if v.types == nil {
		return pieceNormal
	}
	return int(v.types[i])
}

// vocab maps tokens to ids, without unused ones, and lists the added ones.
func (v *ggufVocab) vocab() (vocabMap, []AddedToken, error) {
	vocab := make(vocabMap, len(v.tokens))
	var added []AddedToken
	for i, tok := range v.tokens {
		switch v.typeOf(i) {
		case pieceControl, pieceUnknown:
			added = append(added, AddedToken{ID: int32(i), Content: tok, Special: true})
		case pieceUser:
			added = append(added, AddedToken{ID: int32(i), Content: tok})
		case pieceUnused:
			continue // padding rows
		}
		if old, dup := vocab[tok]; dup {
			return nil, nil, v.errorf("tokens: %q has ids %d and %d", tok, old, i)
		}
		vocab[tok] = int32(i)
	}
	return vocab, added, nil
}

// merges splits "a b" at the first space that ends a part.
func (v *ggufVocab) merges() (mergeList, error) {
	raw, ok := v.meta["tokenizer.ggml.merges"].([]string)
	if !ok {
		return nil, v.errorf("merges is missing")
	}
	list := make(mergeList, len(raw))
	for i, m := range raw {
		at := -1
		if len(m) > 1 {
			at = strings.Index(m[1:], " ") + 1
		}
		if at < 1 || at == len(m)-1 || strings.Contains(m[at+1:], " ") {
			return nil, v.errorf("merges: entry %d %q is not a pair", i, m)
		}
		list[i] = [2]string{m[:at], m[at+1:]}
	}
	return list, nil
}

func (v *ggufVocab) post(before, after []int32) (json.RawMessage, error) {
	p, err := templatePost(before, after, func(id int32) string { return v.tokens[id] })
	if err != nil {
		return nil, v.errorf("bos_token_id or eos_token_id: %v", err)
	}
	return p, nil
}

// byteLevel is model gpt2.
func (v *ggufVocab) byteLevel() (spec tokenizerSpec, err error) {
	pre, _ := v.meta["tokenizer.ggml.pre"].(string)
	name := pre
	if to, ok := ggufPreAlias[pre]; ok {
		name = to
	}
	def, ok := ggufPre[name]
	if !ok {
		return spec, v.errorf("pre %q is not implemented (have %s); a directory with the model's tokenizer.json says what it means", pre, ggufPreNames())
	}
	spec = tokenizerSpec{
		PreTokenizer: json.RawMessage(def.pre),
		Decoder:      json.RawMessage(`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`),
		Model:        modelSpec{BPE: &bpeSpec{Type: "BPE", IgnoreMerges: def.ignoreMerges}},
	}
	if def.nfc {
		spec.Normalizer = json.RawMessage(`{"type":"NFC"}`)
	}
	if spec.Model.BPE.Vocab, spec.AddedTokens, err = v.vocab(); err != nil {
		return spec, err
	}
	if spec.Model.BPE.Merges, err = v.merges(); err != nil {
		return spec, err
	}
	before, after, err := v.around(def.bos, false, -1, -1)
	if err != nil {
		return spec, err
	}
	spec.PostProcessor, err = v.post(before, after)
	return spec, err
}

// gemma4 is BPE over text with merges spelled out.
func (v *ggufVocab) gemma4() (spec tokenizerSpec, err error) {
	unk, err := v.id("unknown_token_id", -1)
	if err != nil {
		return spec, err
	}
	spec = tokenizerSpec{
		Normalizer:   json.RawMessage(`{"type":"Replace","pattern":{"String":" "},"content":"▁"}`),
		PreTokenizer: json.RawMessage(`{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false}`),
		Decoder:      json.RawMessage(`{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]}`),
		Model:        modelSpec{BPE: &bpeSpec{Type: "BPE", FuseUnk: true, ByteFallback: true}},
	}
	if unk >= 0 {
		spec.Model.BPE.Unk = &v.tokens[unk]
	}
	if spec.Model.BPE.Vocab, spec.AddedTokens, err = v.vocab(); err != nil {
		return spec, err
	}
	if spec.Model.BPE.Merges, err = v.merges(); err != nil {
		return spec, err
	}
	before, after, err := v.around(true, false, -1, -1)
	if err != nil {
		return spec, err
	}
	spec.PostProcessor, err = v.post(before, after)
	return spec, err
}

// sentencePiece is models llama (BPE by scores) and t5 (Unigram).
func (v *ggufVocab) sentencePiece() (spec tokenizerSpec, err error) {
	scores, ok := v.meta["tokenizer.ggml.scores"].([]float64)
	if !ok || len(scores) < len(v.tokens) {
		return spec, v.errorf("scores has %d entries, tokens %d", len(scores), len(v.tokens))
	}
	m := sentencePiece{unigram: v.kind == "t5", everyStretch: true, prefix: v.flag("add_space_prefix", v.kind == "llama"), collapse: v.flag("remove_extra_whitespaces", false)}
	if v.flag("treat_whitespace_as_suffix", false) {
		return spec, v.errorf("treat_whitespace_as_suffix is not implemented")
	}
	unkDefault, bosDefault, eosDefault := int32(0), int32(1), int32(2)
	if m.unigram {
		unkDefault, bosDefault, eosDefault = 2, -1, 1
	}
	if m.unk, err = v.id("unknown_token_id", unkDefault); err != nil {
		return spec, err
	}
	for i, tok := range v.tokens {
		p := spmPiece{tok, scores[i], v.typeOf(i)}
		if p.kind == pieceByte {
			m.byteFallback = true
		}
		if tok == "" { // a hole in the vocabulary
			p.text, p.kind = fmt.Sprintf("[EMPTY_%d]", i), pieceUnused
		}
		m.pieces = append(m.pieces, p)
	}
	if raw, ok := v.meta["tokenizer.ggml.precompiled_charsmap"]; ok {
		if m.charsmap, ok = asBytes(raw); !ok {
			return spec, v.errorf("precompiled_charsmap is no array of bytes")
		}
	}
	if m.before, m.after, err = v.around(!m.unigram, m.unigram, bosDefault, eosDefault); err != nil {
		return spec, err
	}
	if err := m.checkScores(); err != nil {
		return spec, v.errorf("scores: %v", err)
	}
	if spec, err = m.spec(); err != nil {
		return spec, v.errorf("tokens: %v", err)
	}
	return spec, nil
}

// wordPiece is model bert, whose tokens GGUF spells "▁word" and "ing" for
// tokenizer.json's "word" and "##ing".
func (v *ggufVocab) wordPiece() (spec tokenizerSpec, err error) {
	lower := v.flag("normalizer.lowercase", true)
	strip := v.flag("normalizer.strip_accents", lower)
	spec = tokenizerSpec{
		Normalizer:   json.RawMessage(fmt.Sprintf(`{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":%t,"lowercase":%t}`, strip, lower)),
		PreTokenizer: json.RawMessage(`{"type":"BertPreTokenizer"}`),
		Decoder:      json.RawMessage(`{"type":"WordPiece","prefix":"##","cleanup":true}`),
	}
	unk, err := v.id("unknown_token_id", 100)
	if err != nil {
		return spec, err
	}
	if unk < 0 {
		return spec, v.errorf("unknown_token_id is missing")
	}
	cls, err := v.id("cls_token_id", -1)
	if err != nil {
		return spec, err
	}
	if cls < 0 {
		if cls, err = v.id("bos_token_id", 101); err != nil {
			return spec, err
		}
	}
	sep, err := v.id("seperator_token_id", 102) // as GGUF spells it
	if err != nil {
		return spec, err
	}
	w := &wordPieceSpec{Type: "WordPiece", Unk: &v.tokens[unk], Prefix: new(string), MaxChars: new(int), Vocab: make(vocabMap, len(v.tokens))}
	*w.Prefix, *w.MaxChars = "##", 100
	spec.Model.WordPiece = w
	for i, tok := range v.tokens {
		switch v.typeOf(i) {
		case pieceControl, pieceUnknown:
			spec.AddedTokens = append(spec.AddedTokens, AddedToken{ID: int32(i), Content: tok, Special: true})
		case pieceUser:
			spec.AddedTokens = append(spec.AddedTokens, AddedToken{ID: int32(i), Content: tok})
		case pieceUnused:
			if strings.HasPrefix(tok, "[PAD") {
				continue
			}
			fallthrough
		default:
			if word, ok := strings.CutPrefix(tok, "▁"); ok && word != "" {
				tok = word
			} else {
				tok = "##" + tok
			}
		}
		if old, dup := w.Vocab[tok]; dup {
			return spec, v.errorf("tokens: %q has ids %d and %d", tok, old, i)
		}
		w.Vocab[tok] = int32(i)
	}
	var before, after []int32
	if cls >= 0 && v.flag("add_bos_token", true) {
		before = []int32{cls}
	}
	if sep >= 0 && v.flag("add_sep_token", true) {
		after = []int32{sep}
	}
	spec.PostProcessor, err = v.post(before, after)
	return spec, err
}

// asBytes reads an array of bytes, signed or not.
func asBytes(raw any) ([]byte, bool) {
	switch a := raw.(type) {
	case []uint64:
		out := make([]byte, len(a))
		for i, n := range a {
			if n > math.MaxUint8 {
				return nil, false
			}
			out[i] = byte(n)
		}
		return out, true
	case []int64:
		out := make([]byte, len(a))
		for i, n := range a {
			if n < math.MinInt8 || n > math.MaxUint8 {
				return nil, false
			}
			out[i] = byte(n)
		}
		return out, true
	}
	return nil, false
}
