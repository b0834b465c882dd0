package model

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// This file stands between a template's text and the engine. The engine's own
// white-space control reaches across tags that it shouldn't, it prints None and
// floats unlike Python, and its tojson and string differ. So the source is
// lexed here by Jinja's rules (trim_blocks and lstrip_blocks on, as transformers
// sets them) and handed on in a form that leaves the engine no choice: literal
// text as string expressions, every printed value through skein_out, the two
// filters under names of ours.

// jinjaTag is a piece of a template: a tag's inside, or literal text.
type jinjaTag struct {
	kind byte // 't' text, '{' expression, '%' statement
	body string
	// For statements: the word it starts with.
	word string
}

// filterNames matches the filters that are replaced: tojson (indentation, float
// forms, key order) and string (repr of containers and floats).
var filterNames = regexp.MustCompile(`\|\s*(tojson|string)\b`)

var wordPrefix = regexp.MustCompile(`^\s*(\w+)`)

// rewriteTemplate prepares a template for the engine. asksTools reports that a
// tag mentions the variable tools.
func rewriteTemplate(source string) (out string, asksTools bool, err error) {
	tags, err := lexTemplate(source)
	if err != nil {
		return "", false, err
	}
	var b strings.Builder
	for _, t := range tags {
		switch t.kind {
		case 't':
			b.WriteString(`{{"` + literalEscapes.Replace(t.body) + `"}}`)
			continue
		case '{':
			b.WriteString("{{skein_out(" + t.body + ")}}")
		default:
			b.WriteString("{% " + t.body + " %}")
		}
		asksTools = asksTools || toolsWord.MatchString(literals.ReplaceAllString(t.body, `""`))
	}
	return b.String(), asksTools, nil
}

var (
	literalEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`)
	literals       = regexp.MustCompile(`'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"`)
	toolsWord      = regexp.MustCompile(`\btools\b`)
)

// lexTemplate cuts a template into text and tags, white space already trimmed.
func lexTemplate(source string) ([]jinjaTag, error) {
	// Jinja normalises line ends and drops one at the very end.
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	source = strings.TrimSuffix(source, "\n")
	var tags []jinjaTag
	text := func(s string) {
		if s != "" {
			tags = append(tags, jinjaTag{kind: 't', body: s})
		}
	}
	lineStart := true // the text before ended a line
	line := 1
	for {
		open := openTag(source)
		if open < 0 {
			text(source)
			return tags, nil
		}
		before, kind := source[:open], source[open+1]
		rest := source[open+2:]
		sign := byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			sign, rest = rest[0], rest[1:]
		}
		line += strings.Count(before, "\n")
		switch {
		case sign == '-':
			before = strings.TrimRightFunc(before, unicode.IsSpace)
		case sign == 0 && kind != '{':
			before = stripIndent(before, lineStart)
		}
		text(before)
		closer := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[kind]
		body, n, err := tagBody(rest, closer, kind == '#')
		if err != nil {
			return nil, fmt.Errorf("line %d: {%c: %w", line, kind, err)
		}
		line += strings.Count(rest[:n], "\n")
		end := byte(0)
		if body != "" && (body[len(body)-1] == '-' || body[len(body)-1] == '+' && kind != '{') {
			end, body = body[len(body)-1], body[:len(body)-1]
		}
		source = rest[n:]
		consumed := ""
		switch {
		case end == '-':
			trimmed := strings.TrimLeftFunc(source, unicode.IsSpace)
			consumed, source = source[:len(source)-len(trimmed)], trimmed
		case end == 0 && kind != '{' && strings.HasPrefix(source, "\n"):
			consumed, source = "\n", source[1:]
		}
		line += strings.Count(consumed, "\n")
		lineStart = strings.HasSuffix(consumed, "\n")
		if kind == '#' {
			continue
		}
		tag := jinjaTag{kind: kind, body: rewriteOutsideLiterals(strings.TrimSpace(body))}
		if m := wordPrefix.FindStringSubmatch(body); m != nil && kind == '%' {
			tag.word = m[1]
		}
		if tag.word == "raw" {
			if source, err = lexRaw(source, text); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			lineStart = false
			continue
		}
		tags = append(tags, tag)
	}
}

// openTag finds the next {{, {% or {#.
func openTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '{' && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return -1
}

// stripIndent is lstrip_blocks: white space between the start of a line and a
// block tag goes.
func stripIndent(text string, lineStart bool) string {
	at := strings.LastIndexByte(text, '\n') + 1
	if (at > 0 || lineStart) && strings.TrimFunc(text[at:], unicode.IsSpace) == "" {
		return text[:at]
	}
	return text
}

// tagBody finds the end of a tag: the closer outside string literals and
// brackets. n counts the closer as well.
func tagBody(s, closer string, comment bool) (body string, n int, err error) {
	depth := 0
	for i := 0; i < len(s); i++ {
		// A closing bracket of an expression may look like the closer.
		if strings.HasPrefix(s[i:], closer) && (comment || depth == 0) {
			return s[:i], i + len(closer), nil
		}
		if comment {
			continue
		}
		switch s[i] {
		case '\'', '"':
			i += literalLen(s[i:]) - 1
		case '{', '[', '(':
			depth++
		case '}', ']', ')':
			depth = max(0, depth-1)
		}
	}
	return "", 0, fmt.Errorf("no %s closes it", closer)
}

var endRaw = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*([-+]?)%\}`)

// lexRaw gives out the text up to endraw and returns what follows.
func lexRaw(s string, text func(string)) (string, error) {
	m := endRaw.FindStringSubmatchIndex(s)
	if m == nil {
		return "", fmt.Errorf("no endraw closes raw")
	}
	body, after := s[:m[0]], s[m[1]:]
	switch s[m[2]:m[3]] {
	case "-":
		body = strings.TrimRightFunc(body, unicode.IsSpace)
	case "":
		body = stripIndent(body, false)
	}
	switch s[m[4]:m[5]] {
	case "-":
		after = strings.TrimLeftFunc(after, unicode.IsSpace)
	case "":
		after = strings.TrimPrefix(after, "\n")
	}
	text(body)
	return after, nil
}

// rewriteOutsideLiterals renames our filters and keeps closing braces apart,
// since the engine takes the first "}}" for the end of a tag.
func rewriteOutsideLiterals(tag string) string {
	var b strings.Builder
	for tag != "" {
		quote := strings.IndexAny(tag, `'"`)
		if quote < 0 {
			quote = len(tag)
		}
		part := filterNames.ReplaceAllString(tag[:quote], "|skein_$1")
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(part, "}}", "} }"), "}}", "} }"))
		tag = tag[quote:]
		if tag != "" {
			n := literalLen(tag)
			b.WriteString(rareEscapes.ReplaceAllStringFunc(tag[:n], unescapeRare))
			tag = tag[n:]
		}
	}
	return b.String()
}

// rareEscapes are Python's escapes that the engine leaves as they stand. The
// first alternative keeps an escaped backslash from starting one.
var rareEscapes = regexp.MustCompile(`\\\\|\\[rbfva0]|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}`)

func unescapeRare(e string) string {
	if e == `\\` {
		return e
	}
	if c, ok := map[byte]string{'r': "\r", 'b': "\b", 'f': "\f", 'v': "\v", 'a': "\a", '0': "\x00"}[e[1]]; ok {
		return c
	}
	r, err := strconv.ParseUint(e[2:], 16, 32)
	if err != nil {
		return e
	}
	return literalEscapes.Replace(string(rune(r)))
}

// literalLen is the length of the quoted string that s starts with.
func literalLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return len(s)
}
