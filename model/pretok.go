package model

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// gpt2Pattern is the split of the ByteLevel step (GPT-2's encoder).
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// preStep cuts each piece into smaller pieces, in order. first tells that the
// piece begins where the text does.
type preStep func(piece string, first bool, emit func(piece string, first bool))

// preSpec is a pre_tokenizer object of tokenizer.json.
type preSpec struct {
	Type             string            `json:"type"`
	Pretokenizers    []json.RawMessage `json:"pretokenizers"`
	IndividualDigits *bool             `json:"individual_digits"`
	Pattern          json.RawMessage   `json:"pattern"`
	Behavior         splitBehavior     `json:"behavior"`
	Invert           *bool             `json:"invert"`
	AddPrefixSpace   *bool             `json:"add_prefix_space"`
	TrimOffsets      *bool             `json:"trim_offsets"` // offsets are not kept
	UseRegex         *bool             `json:"use_regex"`
	Replacement      *string           `json:"replacement"`
	PrependScheme    *string           `json:"prepend_scheme"`
	Split            *bool             `json:"split"`
	StrRep           *string           `json:"str_rep"` // of old files: the replacement again
	Delimiter        *string           `json:"delimiter"`
}

// maxPreSteps bounds the work on a text: each ByteLevel step doubles what is not
// ASCII.
const maxPreSteps = 12

// buildPre flattens a pre_tokenizer into steps.
func buildPre(raw json.RawMessage, depth int) ([]preStep, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("pre_tokenizer: sequences more than %d deep", maxDepth)
	}
	if isNull(raw) {
		return nil, nil
	}
	var spec preSpec
	if err := strictJSON(raw, &spec); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	switch spec.Type {
	case "Sequence":
		var steps []preStep
		for _, r := range spec.Pretokenizers {
			more, err := buildPre(r, depth+1)
			if err != nil {
				return nil, err
			}
			if steps = append(steps, more...); len(steps) > maxPreSteps {
				return nil, fmt.Errorf("pre_tokenizer: more than %d steps", maxPreSteps)
			}
		}
		return steps, nil
	case "ByteLevel":
		var steps []preStep
		if or(spec.AddPrefixSpace, true) {
			steps = append(steps, prefixSpace)
		}
		if or(spec.UseRegex, true) {
			steps = append(steps, patternStep(gpt2Pattern))
		}
		return append(steps, byteLevelStep), nil
	case "Metaspace":
		m, err := parseMetaspace("pre_tokenizer", spec.Replacement, spec.PrependScheme, spec.AddPrefixSpace)
		if err != nil {
			return nil, err
		}
		return []preStep{m.step(or(spec.Split, true))}, nil
	case "Digits":
		b := contiguous
		if or(spec.IndividualDigits, false) {
			b = isolated
		}
		return []preStep{classStep(isNumeric, b)}, nil
	case "Punctuation":
		b := spec.Behavior
		if b == "" {
			b = isolated
		}
		return []preStep{classStep(isPunctuation, b)}, b.check("Punctuation")
	case "BertPreTokenizer":
		return []preStep{classStep(unicode.IsSpace, removed), classStep(isPunctuation, isolated)}, nil
	case "WhitespaceSplit":
		return []preStep{classStep(unicode.IsSpace, removed)}, nil
	case "Whitespace":
		return []preStep{wordStep}, nil
	case "CharDelimiterSplit":
		d := []rune(or(spec.Delimiter, ""))
		if len(d) != 1 {
			return nil, fmt.Errorf("pre_tokenizer CharDelimiterSplit: delimiter %q is not one character", string(d))
		}
		return []preStep{classStep(func(r rune) bool { return r == d[0] }, removed)}, nil
	case "Split":
		lit, re, err := parsePattern("pre_tokenizer Split", spec.Pattern)
		if err != nil {
			return nil, err
		}
		if err := spec.Behavior.check("Split"); err != nil {
			return nil, err
		}
		find := func(s string) []span { return literalSpans(lit, s) }
		if re != nil {
			find = spanFinder(re)
		}
		return []preStep{splitStep(find, spec.Behavior, or(spec.Invert, false))}, nil
	}
	return nil, fmt.Errorf("pre_tokenizer %q is not implemented (have Sequence, ByteLevel, Metaspace, Digits, Punctuation, BertPreTokenizer, "+
		"Whitespace, WhitespaceSplit, CharDelimiterSplit, Split)", spec.Type)
}

// patternStep isolates the matches of a pattern of ours.
func patternStep(source string) preStep {
	re, err := compilePattern(source)
	if err != nil {
		panic("model: constant pattern: " + err.Error())
	}
	return splitStep(spanFinder(re), isolated, false)
}

// byteLevelStep writes bytes in the printable alphabet.
func byteLevelStep(piece string, first bool, emit func(string, bool)) {
	emit(byteLevel([]byte(piece)), first)
}

func prefixSpace(piece string, first bool, emit func(string, bool)) {
	if piece != "" && piece[0] != ' ' {
		piece = " " + piece
	}
	emit(piece, first)
}

// isPunctuation is BERT's punctuation: every ASCII symbol and category P.
func isPunctuation(r rune) bool {
	if r < 0x80 {
		return '!' <= r && r <= '/' || ':' <= r && r <= '@' || '[' <= r && r <= '`' || '{' <= r && r <= '~'
	}
	return inRanges(punctuation, r)
}

// classStep splits at the code points of a class, each one a match.
func classStep(in func(rune) bool, b splitBehavior) preStep {
	return splitStep(func(s string) []span {
		var spans []span
		at := 0
		for i, r := range s {
			if !in(r) {
				continue
			}
			if i > at {
				spans = append(spans, span{at, i, false})
			}
			n := utf8.RuneLen(r)
			if r == utf8.RuneError {
				_, n = utf8.DecodeRuneInString(s[i:])
			}
			spans = append(spans, span{i, i + n, true})
			at = i + n
		}
		if at < len(s) {
			spans = append(spans, span{at, len(s), false})
		}
		return spans
	}, b, false)
}

// wordStep is \w+|[^\w\s]+ without what lies between.
func wordStep(piece string, first bool, emit func(string, bool)) {
	class := func(r rune) int {
		switch {
		case isWord(r):
			return 1
		case unicode.IsSpace(r):
			return 0
		}
		return 2
	}
	start, last := 0, 0
	for i, r := range piece {
		c := class(r)
		if c != last {
			if last != 0 {
				emit(piece[start:i], first && start == 0)
			}
			start, last = i, c
		}
	}
	if last != 0 {
		emit(piece[start:], first && start == 0)
	}
}

// literalSpans finds a string.
func literalSpans(lit, s string) []span {
	var spans []span
	at := 0
	for {
		i := strings.Index(s[at:], lit)
		if i < 0 {
			break
		}
		if i > 0 {
			spans = append(spans, span{at, at + i, false})
		}
		spans = append(spans, span{at + i, at + i + len(lit), true})
		at += i + len(lit)
	}
	if at < len(s) {
		spans = append(spans, span{at, len(s), false})
	}
	return spans
}

// splitBehavior says what becomes of the matches of a Split.
type splitBehavior string

const (
	isolated           splitBehavior = "Isolated"
	removed            splitBehavior = "Removed"
	mergedWithPrevious splitBehavior = "MergedWithPrevious"
	mergedWithNext     splitBehavior = "MergedWithNext"
	contiguous         splitBehavior = "Contiguous"
)

// span is a byte range of a piece and whether the pattern matched it.
type span struct {
	start, end int
	match      bool
}

func (b splitBehavior) check(where string) error {
	switch b {
	case isolated, removed, mergedWithPrevious, mergedWithNext, contiguous:
		return nil
	}
	return fmt.Errorf("pre_tokenizer %s: behavior %q is not implemented", where, b)
}

func splitStep(find func(string) []span, behavior splitBehavior, invert bool) preStep {
	return func(piece string, first bool, emit func(string, bool)) {
		spans := find(piece)
		if invert {
			for i := range spans {
				spans[i].match = !spans[i].match
			}
		}
		for _, s := range mergeSpans(spans, behavior) {
			if s.start < s.end {
				emit(piece[s.start:s.end], first && s.start == 0)
			}
		}
	}
}

// spanFinder finds a pattern.
func spanFinder(re *pattern) func(string) []span {
	return func(s string) []span { return matchSpans(re, s) }
}

// matchSpans cuts the piece into matches and the text between them.
func matchSpans(p *pattern, piece string) []span {
	runes := make([]rune, 0, len(piece))
	offsets := make([]int, 0, len(piece)+1)
	for i := 0; i < len(piece); {
		r, n := utf8.DecodeRuneInString(piece[i:])
		if !p.literal {
			r = shadow(r)
		}
		runes = append(runes, r)
		offsets = append(offsets, i)
		i += n
	}
	offsets = append(offsets, len(piece))
	var spans []span
	at := 0
	err := p.re.FindRunesMatches(runes, 0, func(v regexp2.MatchView) bool {
		start, n, _ := v.GroupRange(0)
		if n == 0 {
			return true // an empty match cuts nothing
		}
		from, to := offsets[start], offsets[start+n]
		if from > at {
			spans = append(spans, span{at, from, false})
		}
		spans = append(spans, span{from, to, true})
		at = to
		return true
	})
	if err != nil {
		// No timeout and no stack limit are set, so no error is left.
		panic(fmt.Sprintf("model: pre-tokenizer pattern %s: %v", p.re, err))
	}
	if at < len(piece) {
		spans = append(spans, span{at, len(piece), false})
	}
	return spans
}

func mergeSpans(spans []span, behavior splitBehavior) []span {
	var out []span
	switch behavior {
	case removed:
		for _, s := range spans {
			if !s.match {
				out = append(out, s)
			}
		}
	case contiguous:
		for _, s := range spans {
			if n := len(out); n > 0 && out[n-1].match == s.match {
				out[n-1].end = s.end
			} else {
				out = append(out, s)
			}
		}
	case mergedWithPrevious:
		prev := false
		for _, s := range spans {
			if n := len(out); s.match && !prev && n > 0 {
				out[n-1].end = s.end
			} else {
				out = append(out, s)
			}
			prev = s.match
		}
	case mergedWithNext:
		next := false
		for i := len(spans) - 1; i >= 0; i-- {
			s := spans[i]
			if n := len(out); s.match && !next && n > 0 {
				out[n-1].start = s.start
			} else {
				out = append(out, s)
			}
			next = s.match
		}
		for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
			out[i], out[j] = out[j], out[i]
		}
	default:
		out = spans
	}
	return out
}
