package model

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normStep rewrites a stretch of text between added tokens.
type normStep struct {
	apply func(string) string
	grow  int // a bound on how many times longer it makes a text, but for a constant
}

// maxGrowth bounds what all steps together may make of a text, so that a
// tokenizer.json cannot ask for memory without bound.
const maxGrowth = 4096

// maxDepth bounds sequences in sequences.
const maxDepth = 8

// compileNorm compiles a normalizer.
func compileNorm(raw json.RawMessage) ([]normStep, error) {
	steps, err := buildNorm(raw, 0)
	if err != nil {
		return nil, err
	}
	growth := 1
	for _, s := range steps {
		if growth *= s.grow; growth > maxGrowth {
			return nil, fmt.Errorf("normalizer: its steps may make a text more than %d times longer", maxGrowth)
		}
	}
	return steps, nil
}

// normSpec is a normalizer object of tokenizer.json.
type normSpec struct {
	Type         string            `json:"type"`
	Normalizers  []json.RawMessage `json:"normalizers"`
	Pattern      json.RawMessage   `json:"pattern"`
	Content      *string           `json:"content"`
	Prepend      *string           `json:"prepend"`
	StripLeft    *bool             `json:"strip_left"`
	StripRight   *bool             `json:"strip_right"`
	CleanText    *bool             `json:"clean_text"`
	Chinese      *bool             `json:"handle_chinese_chars"`
	StripAccents *bool             `json:"strip_accents"`
	Lowercase    *bool             `json:"lowercase"`
	Charsmap     *[]byte           `json:"precompiled_charsmap"`
	AddPrefix    *bool             `json:"add_prefix_space"` // of ByteLevel, as are the next two: no effect
	TrimOffsets  *bool             `json:"trim_offsets"`
	UseRegex     *bool             `json:"use_regex"`
}

// buildNorm flattens a normalizer into steps.
func buildNorm(raw json.RawMessage, depth int) ([]normStep, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("normalizer: sequences more than %d deep", maxDepth)
	}
	if isNull(raw) {
		return nil, nil
	}
	var n normSpec
	if err := strictJSON(raw, &n); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	one := func(grow int, f func(string) string) ([]normStep, error) { return []normStep{{f, grow}}, nil }
	missing := func(field string) ([]normStep, error) {
		return nil, fmt.Errorf("normalizer %s: %s is missing", n.Type, field)
	}
	switch n.Type {
	case "Sequence":
		var steps []normStep
		for _, r := range n.Normalizers {
			more, err := buildNorm(r, depth+1)
			if err != nil {
				return nil, err
			}
			steps = append(steps, more...)
		}
		return steps, nil
	case "NFC":
		return one(3, func(s string) string { return normalForm(norm.NFC, s) })
	case "NFD":
		return one(4, func(s string) string { return normalForm(norm.NFD, s) })
	case "NFKC":
		return one(11, func(s string) string { return normalForm(norm.NFKC, s) })
	case "NFKD":
		return one(18, func(s string) string { return normalForm(norm.NFKD, s) })
	case "Lowercase":
		return one(2, lowerCase)
	case "StripAccents":
		return one(1, func(s string) string { return dropRanges(s, combiningMarks) })
	case "Strip":
		left, right := or(n.StripLeft, true), or(n.StripRight, true)
		return one(1, func(s string) string {
			if left {
				s = strings.TrimLeftFunc(s, unicode.IsSpace)
			}
			if right {
				s = strings.TrimRightFunc(s, unicode.IsSpace)
			}
			return s
		})
	case "Prepend":
		if n.Prepend == nil {
			return missing("prepend")
		}
		return one(1, func(s string) string {
			if s == "" {
				return s
			}
			return *n.Prepend + s
		})
	case "Replace":
		if n.Content == nil {
			return missing("content")
		}
		f, grow, err := replacer("normalizer Replace", n.Pattern, *n.Content)
		if err != nil {
			return nil, err
		}
		return one(grow, f)
	case "Nmt":
		return one(1, nmtClean)
	case "BertNormalizer":
		lower := or(n.Lowercase, true)
		return one(6, bertNormalizer{or(n.CleanText, true), or(n.Chinese, true), or(n.StripAccents, lower), lower}.apply)
	case "ByteLevel":
		return one(2, func(s string) string { return byteLevel([]byte(s)) })
	case "Precompiled":
		if n.Charsmap == nil {
			return missing("precompiled_charsmap")
		}
		m, err := parseCharsmap(*n.Charsmap)
		if err != nil {
			return nil, fmt.Errorf("normalizer Precompiled: %w", err)
		}
		return one(m.longest, m.apply)
	}
	return nil, fmt.Errorf("normalizer %q is not implemented (have Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, "+
		"Prepend, Replace, Nmt, BertNormalizer, ByteLevel, Precompiled)", n.Type)
}

// replacer replaces every match of a {"String"} or {"Regex"} pattern. grow
// bounds how many times longer a text gets.
func replacer(where string, source json.RawMessage, content string) (f func(string) string, grow int, err error) {
	lit, re, err := parsePattern(where, source)
	if err != nil {
		return nil, 0, err
	}
	if re == nil {
		return func(s string) string { return strings.ReplaceAll(s, lit, content) }, max(1, (len(content)+len(lit)-1)/len(lit)), nil
	}
	return func(s string) string {
		var b strings.Builder
		for _, p := range matchSpans(re, s) {
			if p.match {
				b.WriteString(content)
			} else {
				b.WriteString(s[p.start:p.end])
			}
		}
		return b.String()
	}, max(1, len(content)), nil
}

// parsePattern reads {"String": ...} or {"Regex": ...}; re is nil for the first.
func parsePattern(where string, raw json.RawMessage) (literal string, re *pattern, err error) {
	var p struct{ Regex, String *string }
	if err := json.Unmarshal(raw, &p); err != nil || (p.Regex == nil) == (p.String == nil) {
		return "", nil, fmt.Errorf("%s: pattern %s is neither {\"Regex\": ...} nor {\"String\": ...}", where, raw)
	}
	if p.String != nil {
		if *p.String == "" {
			return "", nil, fmt.Errorf("%s: pattern is empty", where)
		}
		return *p.String, nil, nil
	}
	re, err = compilePattern(*p.Regex)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", where, err)
	}
	return "", re, nil
}

// lowerCase maps each code point by itself: no final sigma.
func lowerCase(s string) string {
	ascii := true
	for i := 0; i < len(s) && ascii; i++ {
		ascii = s[i] < 0x80
	}
	if ascii {
		return strings.ToLower(s)
	}
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range s {
		if to, ok := lowerExceptions[r]; ok {
			b.WriteString(to)
		} else {
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}

func dropRanges(s string, ranges [][2]rune) string {
	return strings.Map(func(r rune) rune {
		if r >= ranges[0][0] && inRanges(ranges, r) {
			return -1
		}
		return r
	}, s)
}

// nmtClean is SentencePiece's clean-up for machine translation: control
// characters go, white space of all kinds becomes a space.
func nmtClean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 0x1 <= r && r <= 0x8, r == 0xb, 0xe <= r && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
			return -1
		case r == 0x9, r == 0xa, r == 0xc, r == 0xd, r == 0x1680, 0x200b <= r && r <= 0x200f,
			r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
			return ' '
		}
		return r
	}, s)
}

// bertNormalizer is the clean-up of BERT's tokenizer (Devlin et al. 2019).
type bertNormalizer struct{ clean, chinese, strip, lower bool }

func (n bertNormalizer) apply(s string) string {
	if n.clean {
		s = strings.Map(func(r rune) rune {
			switch {
			case r == '\t', r == '\n', r == '\r':
				return ' '
			case inRanges(bertDropped, r):
				return -1
			case unicode.IsSpace(r):
				return ' '
			}
			return r
		}, s)
	}
	if n.chinese {
		s = padChinese(s)
	}
	if n.strip {
		s = dropRanges(normalForm(norm.NFD, s), bertMarks)
	}
	if n.lower {
		s = lowerCase(s)
	}
	return s
}

// padChinese puts spaces around CJK ideographs.
func padChinese(s string) string {
	if strings.IndexFunc(s, isChinese) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isChinese(r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isChinese is BERT's range of ideographs, with its gap before U+2B920.
func isChinese(r rune) bool {
	return 0x4E00 <= r && r <= 0x9FFF || 0x3400 <= r && r <= 0x4DBF || 0x20000 <= r && r <= 0x2A6DF ||
		0x2A700 <= r && r <= 0x2B73F || 0x2B740 <= r && r <= 0x2B81F || 0x2B920 <= r && r <= 0x2CEAF ||
		0xF900 <= r && r <= 0xFAFF || 0x2F800 <= r && r <= 0x2FA1F
}
