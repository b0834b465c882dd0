package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// decoder turns tokens into text. Its parts, in order: mappings of single
// tokens; bytes, of which runs of byte tokens or all tokens consist; and what is
// stripped from the ends of the whole text.
type decoder struct {
	each      []func(tok string, first bool) string
	byteLevel bool // every token is bytes, in the byte-level alphabet
	fallback  bool // tokens <0x00> to <0xFF> are bytes
	strip     []stripSpec
}

type stripSpec struct {
	char        rune
	start, stop int
}

// decSpec is a decoder object of tokenizer.json.
type decSpec struct {
	Type           string            `json:"type"`
	Decoders       []json.RawMessage `json:"decoders"`
	Pattern        json.RawMessage   `json:"pattern"`
	Content        *string           `json:"content"` // of Replace and Strip
	Start          *int              `json:"start"`
	Stop           *int              `json:"stop"`
	Prefix         *string           `json:"prefix"`
	Cleanup        *bool             `json:"cleanup"`
	Replacement    *string           `json:"replacement"`
	PrependScheme  *string           `json:"prepend_scheme"`
	Split          *bool             `json:"split"`
	StrRep         *string           `json:"str_rep"`
	AddPrefixSpace *bool             `json:"add_prefix_space"`
	TrimOffsets    *bool             `json:"trim_offsets"`
	UseRegex       *bool             `json:"use_regex"`
}

// parseDecoder compiles a decoder. Without one, tokens are joined by spaces.
func parseDecoder(raw json.RawMessage) (*decoder, error) {
	d := &decoder{}
	if isNull(raw) {
		d.each = append(d.each, func(tok string, first bool) string {
			if first {
				return tok
			}
			return " " + tok
		})
		return d, nil
	}
	c := decoderCompiler{decoder: d, growth: 1}
	return d, c.add(raw, 0)
}

// decoderCompiler adds the steps of a decoder.
type decoderCompiler struct {
	*decoder
	fused  bool // all tokens are one from here on
	growth int
}

// maxTokenGrowth bounds how many times longer decoding makes a token.
const maxTokenGrowth = 64

const maxStrip = 1024

func (d *decoderCompiler) add(raw json.RawMessage, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("decoder: sequences more than %d deep", maxDepth)
	}
	var s decSpec
	if err := strictJSON(raw, &s); err != nil {
		return fmt.Errorf("decoder: %w", err)
	}
	// each adds a mapping of single tokens, which must come before bytes do.
	each := func(f func(tok string, first bool) string) error {
		if d.fused || d.fallback {
			return fmt.Errorf("decoder: step %q after ByteLevel, ByteFallback or Fuse is not implemented", s.Type)
		}
		d.each = append(d.each, f)
		return nil
	}
	switch s.Type {
	case "Sequence":
		for _, r := range s.Decoders {
			if err := d.add(r, depth+1); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		if d.fused || d.fallback {
			return errors.New("decoder: step ByteLevel after ByteLevel, ByteFallback or Fuse is not implemented")
		}
		d.byteLevel, d.fused = true, true
		return nil
	case "ByteFallback":
		if d.fused || d.fallback {
			return errors.New("decoder: step ByteFallback after ByteLevel, ByteFallback or Fuse is not implemented")
		}
		d.fallback = true
		return nil
	case "Fuse":
		d.fused = true
		return nil
	case "Strip":
		c := []rune(or(s.Content, ""))
		spec := stripSpec{start: or(s.Start, 0), stop: or(s.Stop, 0)}
		if len(c) != 1 || spec.start < 0 || spec.stop < 0 || spec.start > maxStrip || spec.stop > maxStrip {
			return fmt.Errorf("decoder Strip: content %q, start %d, stop %d: want one character and 0 to %d", string(c), spec.start, spec.stop, maxStrip)
		}
		spec.char = c[0]
		if d.fused {
			d.strip = append(d.strip, spec)
			return nil
		}
		return each(func(tok string, _ bool) string { return spec.apply(tok) })
	case "Replace":
		if s.Content == nil {
			return errors.New("decoder Replace: content is missing")
		}
		f, grow, err := replacer("decoder Replace", s.Pattern, *s.Content)
		if err != nil {
			return err
		}
		if d.growth *= grow; d.growth > maxTokenGrowth {
			return fmt.Errorf("decoder: its Replace steps may make a token more than %d times longer", maxTokenGrowth)
		}
		return each(func(tok string, _ bool) string { return f(tok) })
	case "Metaspace":
		m, err := parseMetaspace("decoder", s.Replacement, s.PrependScheme, s.AddPrefixSpace)
		if err != nil {
			return err
		}
		return each(func(tok string, first bool) string {
			if first && m.scheme != "never" {
				return strings.ReplaceAll(tok, m.mark, "")
			}
			return strings.ReplaceAll(tok, m.mark, " ")
		})
	case "WordPiece":
		prefix, clean := or(s.Prefix, "##"), or(s.Cleanup, true)
		return each(func(tok string, first bool) string {
			if !first {
				if rest, ok := strings.CutPrefix(tok, prefix); ok {
					tok = rest
				} else {
					tok = " " + tok
				}
			}
			if clean {
				tok = wordPieceCleanup(tok)
			}
			return tok
		})
	}
	return fmt.Errorf("decoder %q is not implemented (have Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, WordPiece)", s.Type)
}

// apply strips one token.
func (p stripSpec) apply(s string) string {
	c := string(p.char)
	for i := 0; i < p.start && strings.HasPrefix(s, c); i++ {
		s = s[len(c):]
	}
	for i := 0; i < p.stop && strings.HasSuffix(s, c); i++ {
		s = s[:len(s)-len(c)]
	}
	return s
}

var cleanups = [][2]string{
	{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"},
	{" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
}

func wordPieceCleanup(s string) string {
	for _, c := range cleanups {
		s = strings.ReplaceAll(s, c[0], c[1])
	}
	return s
}

// piece is what one token contributes.
type piece struct {
	text   string
	isByte bool // a byte-fallback token: one byte
}

// token decodes one token; first tells that no token stands before it.
func (d *decoder) token(tok string, first bool) piece {
	for _, f := range d.each {
		tok = f(tok, first)
	}
	if d.byteLevel {
		if raw, ok := rawBytes(tok); ok {
			tok = string(raw)
		}
		return piece{text: tok}
	}
	if d.fallback && len(tok) == 6 && tok[:3] == "<0x" && tok[5] == '>' {
		if b, err := strconv.ParseUint(tok[3:5], 16, 8); err == nil {
			return piece{text: string([]byte{byte(b)}), isByte: true}
		}
	}
	return piece{text: tok}
}
