package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// spmConfig is what tokenizer_config.json says of a tokenizer.model beside it.
type spmConfig struct {
	Class  string                `json:"tokenizer_class"`
	AddBOS *bool                 `json:"add_bos_token"`
	AddEOS *bool                 `json:"add_eos_token"`
	Legacy *bool                 `json:"legacy"`
	Added  map[string]AddedToken `json:"added_tokens_decoder"` // by id; the ids inside are empty
}

// parseTokenizerModel reads SentencePiece's tokenizer.model (sentencepiece_model.proto).
// Without a configuration, BPE models put a beginning-of-sequence token before
// a text and Unigram models an end-of-sequence token after it, as the models of
// Llama and T5 do.
func parseTokenizerModel(data []byte, config []byte) (*Tokenizer, error) {
	fail := func(err error) (*Tokenizer, error) {
		return nil, fmt.Errorf("%w: tokenizer.model: %w", ErrFormat, err)
	}
	p := spmProto{bos: 1, eos: 2}
	p.m = sentencePiece{prefix: true, collapse: true, everyStretch: true, userMerged: true}
	if err := p.decode(data); err != nil {
		return fail(err)
	}
	m := p.m
	if len(m.pieces) == 0 {
		return fail(errors.New("it has no pieces"))
	}
	var conf spmConfig
	if config != nil {
		if err := json.Unmarshal(config, &conf); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrFormat, hfTokConfigFile, err)
		}
	}
	switch strings.TrimSuffix(conf.Class, "Fast") {
	case "", "LlamaTokenizer", "GemmaTokenizer", "T5Tokenizer", "PreTrainedTokenizer":
	default: // some shift ids
		return fail(fmt.Errorf("tokenizer_class %q of %s is not implemented (have LlamaTokenizer, GemmaTokenizer, T5Tokenizer); a tokenizer.json says what it means", conf.Class, hfTokConfigFile))
	}
	m.everyStretch = or(conf.Legacy, true)
	for key, a := range conf.Added {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 || id >= maxVocab {
			return fail(fmt.Errorf("added_tokens_decoder of %s: id %q", hfTokConfigFile, key))
		}
		a.ID = int32(id)
		if a.ID < int32(len(m.pieces)) {
			m.pieces[a.ID].text = a.Content
		}
		m.extra = append(m.extra, a)
	}
	for _, e := range []struct {
		add  bool
		name string
		id   int64
		ids  *[]int32
	}{{or(conf.AddBOS, !m.unigram), "bos_id", p.bos, &m.before}, {or(conf.AddEOS, m.unigram), "eos_id", p.eos, &m.after}} {
		if !e.add {
			continue
		}
		if e.id < 0 || e.id >= int64(len(m.pieces)) {
			return fail(fmt.Errorf("%s %d is no piece of %d", e.name, e.id, len(m.pieces)))
		}
		*e.ids = []int32{int32(e.id)}
	}
	if err := m.checkScores(); err != nil {
		return fail(err)
	}
	spec, err := m.spec()
	if err != nil {
		return fail(err)
	}
	t, err := newTokenizer(spec)
	if err != nil {
		return fail(err)
	}
	return t, nil
}

// spmProto decodes ModelProto.
type spmProto struct {
	m        sentencePiece
	bos, eos int64
}

// protoFields calls f for each field of a message. v holds varints and fixed
// 32-bit values, b byte strings.
func protoFields(data []byte, f func(num protowire.Number, v uint64, b []byte) error) error {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		var v uint64
		var b []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(data)
			v = uint64(x)
		case protowire.BytesType:
			b, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		if n < 0 {
			return fmt.Errorf("field %d: %w", num, protowire.ParseError(n))
		}
		data = data[n:]
		if err := f(num, v, b); err != nil {
			return err
		}
	}
	return nil
}

func (p *spmProto) decode(data []byte) error {
	return protoFields(data, func(num protowire.Number, _ uint64, b []byte) error {
		switch num {
		case 1:
			return p.piece(b)
		case 2:
			return p.trainer(b)
		case 3:
			return p.normalizer(b)
		case 5: // the denormalizer
			return protoFields(b, func(num protowire.Number, _ uint64, b []byte) error {
				if num == 2 && len(b) > 0 {
					return errors.New("a denormalizer is not implemented")
				}
				return nil
			})
		}
		return nil
	})
}

func (p *spmProto) piece(data []byte) error {
	piece := spmPiece{kind: pieceNormal}
	err := protoFields(data, func(num protowire.Number, v uint64, b []byte) error {
		switch num {
		case 1:
			piece.text = string(b)
		case 2:
			piece.score = float64(math.Float32frombits(uint32(v)))
		case 3:
			piece.kind = int(v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if piece.kind < pieceNormal || piece.kind > pieceByte {
		return fmt.Errorf("piece %d %q has type %d", len(p.m.pieces), piece.text, piece.kind)
	}
	if len(p.m.pieces) >= maxVocab {
		return fmt.Errorf("more than %d pieces", maxVocab)
	}
	p.m.pieces = append(p.m.pieces, piece)
	return nil
}

func (p *spmProto) trainer(data []byte) error {
	p.m.unigram = true // the default
	return protoFields(data, func(num protowire.Number, v uint64, _ []byte) error {
		switch num {
		case 3:
			switch v {
			case 1:
				p.m.unigram = true
			case 2:
				p.m.unigram = false
			default:
				return fmt.Errorf("trainer_spec.model_type %d is not implemented (have 1, unigram, and 2, bpe)", v)
			}
		case 24:
			if v != 0 {
				return errors.New("trainer_spec.treat_whitespace_as_suffix is not implemented")
			}
		case 35:
			p.m.byteFallback = v != 0
		case 40:
			p.m.unk = int32(v)
		case 41:
			p.bos = int64(int32(v))
		case 42:
			p.eos = int64(int32(v))
		}
		return nil
	})
}

func (p *spmProto) normalizer(data []byte) error {
	return protoFields(data, func(num protowire.Number, v uint64, b []byte) error {
		switch num {
		case 2:
			p.m.charsmap = b
		case 3:
			p.m.prefix = v != 0
		case 4:
			p.m.collapse = v != 0
		case 5:
			if v == 0 {
				return errors.New("normalizer_spec.escape_whitespaces false is not implemented")
			}
		}
		return nil
	})
}
