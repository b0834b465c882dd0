package model

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// gpt2Pattern is the split of the ByteLevel step (GPT-2's encoder).
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// preStep cuts each piece into smaller pieces, in order.
type preStep func(piece string, emit func(string))

// preSpec is a pre_tokenizer object of tokenizer.json.
type preSpec struct {
	Type             string          `json:"type"`
	Pretokenizers    []preSpec       `json:"pretokenizers,omitempty"`
	IndividualDigits *bool           `json:"individual_digits,omitempty"`
	Pattern          json.RawMessage `json:"pattern,omitempty"`
	Behavior         string          `json:"behavior,omitempty"`
	Invert           *bool           `json:"invert,omitempty"`
	AddPrefixSpace   *bool           `json:"add_prefix_space,omitempty"`
	TrimOffsets      *bool           `json:"trim_offsets,omitempty"`
	UseRegex         *bool           `json:"use_regex,omitempty"`
}

// buildPre flattens a pre_tokenizer into steps. byteLevel reports that the last
// step is ByteLevel, without which this is no byte-level tokenizer.
func buildPre(spec preSpec) (steps []preStep, byteLevel bool, err error) {
	switch spec.Type {
	case "Sequence":
		for _, s := range spec.Pretokenizers {
			if byteLevel {
				return nil, false, fmt.Errorf("pre_tokenizer: step %q after ByteLevel is not implemented", s.Type)
			}
			more, bl, err := buildPre(s)
			if err != nil {
				return nil, false, err
			}
			steps = append(steps, more...)
			byteLevel = bl
		}
		return steps, byteLevel, nil
	case "ByteLevel":
		if or(spec.AddPrefixSpace, true) {
			steps = append(steps, prefixSpace)
		}
		if or(spec.UseRegex, true) {
			re, err := compilePattern(gpt2Pattern)
			if err != nil {
				return nil, false, err
			}
			steps = append(steps, splitStep(re, isolated, false))
		}
		return steps, true, nil
	case "Digits":
		return []preStep{digitsStep(or(spec.IndividualDigits, false))}, false, nil
	case "Split":
		var p struct{ Regex, String *string }
		if err := json.Unmarshal(spec.Pattern, &p); err != nil || (p.Regex == nil) == (p.String == nil) {
			return nil, false, fmt.Errorf("pre_tokenizer Split: pattern %s is neither {\"Regex\": ...} nor {\"String\": ...}", spec.Pattern)
		}
		pattern := ""
		if p.Regex != nil {
			pattern = *p.Regex
		} else {
			pattern = regexp2.Escape(*p.String)
		}
		re, err := compilePattern(pattern)
		if err != nil {
			return nil, false, err
		}
		b := splitBehavior(spec.Behavior)
		switch b {
		case isolated, removed, mergedWithPrevious, mergedWithNext, contiguous:
		default:
			return nil, false, fmt.Errorf("pre_tokenizer Split: behavior %q is not implemented", spec.Behavior)
		}
		return []preStep{splitStep(re, b, or(spec.Invert, false))}, false, nil
	}
	return nil, false, fmt.Errorf("pre_tokenizer %q is not implemented (have Sequence, ByteLevel, Digits, Split)", spec.Type)
}

// contractions is how Llama 3, Qwen and their relatives spell English
// contractions; the reference engine folds ſ (U+017F) with s, regexp2 doesn't.
const contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`

func compilePattern(p string) (*regexp2.Regexp, error) {
	q := strings.ReplaceAll(p, contractions, `(?:'[sS\u017F]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`)
	re, err := regexp2.Compile(q, regexp2.OptionMaxBacktrackingStackSize(-1))
	if err != nil {
		return nil, fmt.Errorf("pre_tokenizer: pattern %q: %w", p, err)
	}
	return re, nil
}

func prefixSpace(piece string, emit func(string)) {
	if piece != "" && piece[0] != ' ' {
		piece = " " + piece
	}
	emit(piece)
}

func digitsStep(individual bool) preStep {
	return func(piece string, emit func(string)) {
		start := 0 // of the run not yet emitted
		inDigits := false
		for i, r := range piece {
			d := isNumeric(r)
			if i > start && (d != inDigits || d && individual) {
				emit(piece[start:i])
				start = i
			}
			inDigits = d
		}
		if start < len(piece) {
			emit(piece[start:])
		}
	}
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

func splitStep(re *regexp2.Regexp, behavior splitBehavior, invert bool) preStep {
	return func(piece string, emit func(string)) {
		spans := matchSpans(re, piece)
		if invert {
			for i := range spans {
				spans[i].match = !spans[i].match
			}
		}
		for _, s := range mergeSpans(spans, behavior) {
			if s.start < s.end {
				emit(piece[s.start:s.end])
			}
		}
	}
}

// matchSpans cuts the piece into matches and the text between them.
func matchSpans(re *regexp2.Regexp, piece string) []span {
	runes := make([]rune, 0, len(piece))
	offsets := make([]int, 0, len(piece)+1)
	for i := 0; i < len(piece); {
		r, n := utf8.DecodeRuneInString(piece[i:])
		runes = append(runes, shadow(r))
		offsets = append(offsets, i)
		i += n
	}
	offsets = append(offsets, len(piece))
	var spans []span
	at := 0
	err := re.FindRunesMatches(runes, 0, func(v regexp2.MatchView) bool {
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
		panic(fmt.Sprintf("model: pre-tokenizer pattern %s: %v", re, err))
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
