package model

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Kinds of SentencePiece pieces, the numbers of tokenizer.model and of GGUF's
// token_type.
const (
	pieceNormal  = 1
	pieceUnknown = 2
	pieceControl = 3
	pieceUser    = 4
	pieceUnused  = 5
	pieceByte    = 6
)

type spmPiece struct {
	text  string
	score float64
	kind  int
}

// sentencePiece is what a SentencePiece model says, read from tokenizer.model or
// from GGUF.
type sentencePiece struct {
	pieces       []spmPiece // by id
	unigram      bool       // otherwise BPE
	unk          int32
	byteFallback bool
	charsmap     []byte // normalization; empty = none
	prefix       bool   // a space is put before the text (add_dummy_prefix)
	// everyStretch puts it before every stretch between special tokens, as
	// transformers' "legacy" tokenizers and llama.cpp do.
	everyStretch bool
	collapse     bool // spaces at the ends go, runs become one (remove_extra_whitespaces)
	// userMerged pieces are looked for after normalising, without a prefix of
	// their own, as in SentencePiece; otherwise in the text as it is.
	userMerged bool
	extra      []AddedToken
	before     []int32 // what WithSpecials puts around a text
	after      []int32
}

// spec spells the model out as a tokenizer.json that encodes as SentencePiece
// does: BPE merges ranked by the score of their result, user-defined pieces
// found whole.
func (m sentencePiece) spec() (tokenizerSpec, error) {
	spec := tokenizerSpec{}
	if m.unk < 0 || int(m.unk) >= len(m.pieces) {
		return spec, fmt.Errorf("unknown token %d is no token of %d", m.unk, len(m.pieces))
	}
	if m.unigram {
		u := &unigramSpec{Type: "Unigram", UnkID: &m.unk, ByteFallback: m.byteFallback, Vocab: make([]unigramPiece, len(m.pieces))}
		for i, p := range m.pieces {
			u.Vocab[i] = unigramPiece{p.text, p.score}
		}
		spec.Model.Unigram = u
	} else {
		unk := m.pieces[m.unk].text
		b := &bpeSpec{Type: "BPE", Unk: &unk, FuseUnk: true, ByteFallback: m.byteFallback, Vocab: make(vocabMap, len(m.pieces))}
		for i, p := range m.pieces {
			if old, dup := b.Vocab[p.text]; dup {
				return spec, fmt.Errorf("piece %q has ids %d and %d", p.text, old, i)
			}
			b.Vocab[p.text] = int32(i)
		}
		b.Merges = m.merges(b.Vocab)
		spec.Model.BPE = b
	}
	var users []string
	for i, p := range m.pieces {
		switch p.kind {
		case pieceControl, pieceUnknown:
			spec.AddedTokens = append(spec.AddedTokens, AddedToken{ID: int32(i), Content: p.text, Special: true})
		case pieceUser:
			if m.userMerged && m.prefix {
				users = append(users, p.text)
				continue
			}
			spec.AddedTokens = append(spec.AddedTokens, AddedToken{ID: int32(i), Content: p.text, Normalized: m.userMerged})
		}
	}
	for _, a := range m.extra {
		at := slices.IndexFunc(spec.AddedTokens, func(o AddedToken) bool { return o.ID == a.ID })
		if at >= 0 {
			spec.AddedTokens[at] = a
		} else {
			spec.AddedTokens = append(spec.AddedTokens, a)
		}
	}
	m.pipeline(&spec)
	if len(users) > 0 {
		if err := m.isolate(&spec, users); err != nil {
			return spec, err
		}
	}
	post, err := templatePost(m.before, m.after, func(id int32) string {
		if int(id) < len(m.pieces) {
			return m.pieces[id].text
		}
		return ""
	})
	spec.PostProcessor = post
	return spec, err
}

// pipeline sets the steps around the model.
func (m sentencePiece) pipeline(spec *tokenizerSpec) {
	const meta = `{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}`
	var norms []string
	if len(m.charsmap) > 0 {
		c, _ := json.Marshal(m.charsmap) // []byte always marshals
		norms = append(norms, `{"type":"Precompiled","precompiled_charsmap":`+string(c)+`}`)
	}
	if m.collapse {
		norms = append(norms, `{"type":"Replace","pattern":{"Regex":"\\A +| +\\z"},"content":""}`, `{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}`)
	}
	// SentencePiece puts its prefix before a text that begins with ▁ too.
	legacy := m.prefix && m.everyStretch
	if legacy {
		norms = append(norms, `{"type":"Prepend","prepend":"▁"}`)
	}
	if !m.prefix || legacy || m.collapse {
		norms = append(norms, `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`)
	}
	if m.collapse { // a ▁ that ends the text is a space too
		norms = append(norms, `{"type":"Replace","pattern":{"Regex":"▁+\\z"},"content":""}`)
	}
	if m.prefix && !legacy {
		spec.PreTokenizer = json.RawMessage(meta)
	}
	if len(norms) > 0 {
		spec.Normalizer = json.RawMessage(`{"type":"Sequence","normalizers":[` + strings.Join(norms, ",") + `]}`)
	}
	decs := []string{`{"type":"Replace","pattern":{"String":"▁"},"content":" "}`}
	if m.byteFallback {
		decs = append(decs, `{"type":"ByteFallback"}`)
	}
	decs = append(decs, `{"type":"Fuse"}`)
	if m.prefix {
		decs = append(decs, `{"type":"Strip","content":" ","start":1,"stop":0}`)
	}
	spec.Decoder = json.RawMessage(`{"type":"Sequence","decoders":[` + strings.Join(decs, ",") + `]}`)
}

// isolate makes the pre-tokenizer cut user-defined pieces out, longest first;
// the model then takes each one whole.
func (m sentencePiece) isolate(spec *tokenizerSpec, users []string) error {
	slices.SortStableFunc(users, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for i, u := range users {
		users[i] = escapePattern(u)
	}
	var steps []string
	if !isNull(spec.PreTokenizer) {
		steps = append(steps, string(spec.PreTokenizer))
	}
	spec.PreTokenizer = json.RawMessage(sequence(append(steps, split(strings.Join(users, "|")))...))
	if spec.Model.BPE != nil {
		spec.Model.BPE.IgnoreMerges = true
		return nil
	}
	return errors.New("user-defined pieces of a Unigram model with a prefix are not implemented")
}

func escapePattern(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune(`\.+*?()[]{}|^$/-`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// merges lists every way to join two normal pieces into a third, best score
// first; of one score, the smaller id first, then the smaller parts.
func (m sentencePiece) merges(vocab vocabMap) mergeList {
	type merge struct {
		score float64
		id    int32
		cut   int
	}
	normal := func(s string) bool {
		id, ok := vocab[s]
		return ok && m.pieces[id].kind == pieceNormal
	}
	var all []merge
	for i, p := range m.pieces {
		if p.kind != pieceNormal || len(p.text) > maxMergeBytes {
			continue
		}
		for cut := range p.text {
			if cut > 0 && normal(p.text[:cut]) && normal(p.text[cut:]) {
				all = append(all, merge{p.score, int32(i), cut})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b merge) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.id, b.id), cmp.Compare(a.cut, b.cut))
	})
	list := make(mergeList, len(all))
	for i, mg := range all {
		t := m.pieces[mg.id].text
		list[i] = [2]string{t[:mg.cut], t[mg.cut:]}
	}
	return list
}

// maxMergeBytes bounds the work on one piece; real ones have under 200 bytes.
const maxMergeBytes = 512

// templatePost writes a post-processor that puts tokens around a text; nil when
// there are none.
func templatePost(before, after []int32, name func(int32) string) (json.RawMessage, error) {
	if len(before)+len(after) == 0 {
		return nil, nil
	}
	type special struct {
		ID     string   `json:"id"`
		IDs    []int32  `json:"ids"`
		Tokens []string `json:"tokens"`
	}
	type part map[string]map[string]any
	specials := map[string]special{}
	token := func(list []part, id int32, typeID int) ([]part, error) {
		n := name(id)
		if n == "" {
			return nil, fmt.Errorf("special token %d is no token", id)
		}
		specials[n] = special{n, []int32{id}, []string{n}}
		return append(list, part{"SpecialToken": {"id": n, "type_id": typeID}}), nil
	}
	build := func(sequences ...string) (list []part, err error) {
		for typeID, seq := range sequences {
			for _, id := range before {
				if list, err = token(list, id, typeID); err != nil {
					return nil, err
				}
			}
			list = append(list, part{"Sequence": {"id": seq, "type_id": typeID}})
			for _, id := range after {
				if list, err = token(list, id, typeID); err != nil {
					return nil, err
				}
			}
		}
		return list, nil
	}
	single, err := build("A")
	if err != nil {
		return nil, err
	}
	pair, err := build("A", "B")
	if err != nil {
		return nil, err
	}
	return marshalPlain(struct {
		Type   string             `json:"type"`
		Single []part             `json:"single"`
		Pair   []part             `json:"pair"`
		Tokens map[string]special `json:"special_tokens"`
	}{"TemplateProcessing", single, pair, specials})
}

// checkScores reports scores that are no numbers.
func (m sentencePiece) checkScores() error {
	for i, p := range m.pieces {
		if math.IsNaN(p.score) || math.IsInf(p.score, 0) {
			return fmt.Errorf("piece %d %q has score %v", i, p.text, p.score)
		}
	}
	return nil
}
