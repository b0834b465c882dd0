package model

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/dlclark/regexp2/v2"
)

// contractions is how Llama 3, Qwen and their relatives spell English
// contractions; the reference engine folds ſ (U+017F) with s, regexp2 doesn't.
const contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`

// foldings spell out the case-insensitive groups of known patterns.
var foldings = strings.NewReplacer(
	contractions, `(?:'[sS\u017F]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`,
	`(?i:[sdmt]|ll|ve|re)`, `(?:[sS\u017FdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])`,
)

// pattern is a compiled pattern of tokenizer.json.
type pattern struct {
	re *regexp2.Regexp
	// literal patterns name code points beyond ASCII, and spell out what Go's
	// tables lack of a category; others see stand-ins for these code points.
	literal bool
}

// compilePattern compiles a pattern. What the reference's engine (Oniguruma
// with Ruby's syntax) and regexp2 read differently is translated or refused by
// name.
func compilePattern(p string) (*pattern, error) {
	c := &pattern{literal: strings.ContainsFunc(p, func(r rune) bool { return r >= 0x80 }) || strings.Contains(p, `\u`) || strings.Contains(p, `\x`)}
	q, err := translatePattern(foldings.Replace(p), c.literal)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", p, err)
	}
	if c.re, err = regexp2.Compile(q, regexp2.OptionMaxBacktrackingStackSize(-1)); err != nil {
		return nil, fmt.Errorf("pattern %q: %w", p, err)
	}
	return c, nil
}

// newerRanges spells the code points of a category ("L", "Lu") that Go's tables
// don't have in it, as members of a class.
func newerRanges(category string) string {
	var b strings.Builder
	for _, r := range shadowRanges {
		if unicode.Is(unicode.Categories[category], r.as) && !unicode.Is(unicode.Categories[category], r.lo) {
			b.WriteRune(r.lo)
			if r.hi > r.lo {
				b.WriteByte('-')
				b.WriteRune(r.hi)
			}
		}
	}
	return b.String()
}

// knownEscapes mean the same to both engines.
const knownEscapes = `pPsSrntvfAz\.+*?()[]{}|^$/-,'"!#%&:;<=>@_~` + "`"

func translatePattern(p string, literal bool) (string, error) {
	refuse := func(what string) (string, error) { return "", fmt.Errorf("%s is not implemented", what) }
	var b strings.Builder
	inClass, classStart := false, 0
	quantified := false // what precedes is a quantifier
	for i := 0; i < len(p); i++ {
		c, rest := p[i], p[i:]
		was := quantified
		quantified = false
		switch {
		case c == '\\':
			if i+1 == len(p) {
				return refuse(`\ at the end`)
			}
			end := i + 2
			switch e := p[i+1]; {
			case e == 'u', e == 'x':
				// \u0041, \x41; regexp2 has no \x{...}.
				n := map[byte]int{'u': 4, 'x': 2}[e]
				if end+n > len(p) || strings.Trim(p[end:end+n], "0123456789abcdefABCDEF") != "" {
					return refuse(fmt.Sprintf("escape %.4s", rest))
				}
				end += n
			case e == 'd' && literal && inClass:
				b.WriteString(`\d` + newerRanges("Nd"))
				i = end - 1
				continue
			case e == 'd' && literal:
				b.WriteString(`[\d` + newerRanges("Nd") + `]`)
				i = end - 1
				continue
			case e == 'd':
			case e == 'p', e == 'P':
				shut := strings.IndexByte(rest, '}')
				if len(rest) < 3 || rest[2] != '{' || shut < 0 {
					return refuse(fmt.Sprintf("escape %.4s", rest))
				}
				name := rest[3:shut]
				if unicode.Categories[name] == nil {
					return refuse(fmt.Sprintf("escape \\%c{%s} (have general categories)", e, name))
				}
				end = i + shut + 1
				if !literal {
					break
				}
				if e == 'P' {
					return refuse("\\P beside literals beyond ASCII")
				}
				members := p[i:end] + newerRanges(name)
				if !inClass {
					members = "[" + members + "]"
				}
				b.WriteString(members)
				i = end - 1
				continue
			case e < 0x80 && strings.IndexByte(knownEscapes, e) < 0:
				return refuse(fmt.Sprintf("escape \\%c", e))
			}
			if p[i+1] == 'A' || p[i+1] == 'z' {
				if inClass {
					return refuse("an anchor in a class")
				}
			}
			b.WriteString(p[i:end])
			i = end - 1
		case inClass:
			switch {
			case c == ']' && i > classStart:
				inClass = false
			case c == '[':
				return refuse("a class in a class")
			case strings.HasPrefix(rest, "&&"):
				return refuse("&& in a class")
			case c == '-' && strings.HasPrefix(rest, "-["):
				return refuse("-[ in a class")
			}
			b.WriteByte(c)
		case c == '[':
			inClass, classStart = true, i+1
			b.WriteByte(c)
			if strings.HasPrefix(p[i+1:], "^") {
				b.WriteByte('^')
				i++
				classStart++
			}
		case c == '^':
			b.WriteString(`(?:\A|(?<=\n)(?!\z))`)
		case c == '$':
			b.WriteString(`(?=\n|\z)`)
		case c == '(' && strings.HasPrefix(rest, "(?"):
			known := false
			for _, k := range []string{"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"} {
				known = known || strings.HasPrefix(rest, k)
			}
			if !known {
				return refuse(fmt.Sprintf("group %.4s", rest))
			}
			b.WriteString("(?")
			i++ // the rest of the opening is no quantifier
			if i+1 < len(p) {
				b.WriteByte(p[i+1])
				i++
			}
		case c == '+' || c == '*' || c == '?' || c == '}':
			if c == '+' && was {
				return refuse("a possessive quantifier")
			}
			quantified = c != '?' || !was // a lazy one can't be quantified further
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}
