package jinja

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// token is a piece of a template. Kinds: 't' literal text, '{' and '}' the marks
// of a printed expression, '%' and '/' those of a statement, 'n' a name, 'i' an
// integer, 'f' a float, 's' a string, 'o' an operator, 0 the end.
type token struct {
	kind byte
	text string
	line int
}

// lexer cuts a template into tokens by Jinja's rules, white space trimmed as
// trim_blocks and lstrip_blocks say.
type lexer struct {
	src    string
	pos    int
	line   int
	tokens []token
}

func lex(source string) ([]token, error) {
	// Jinja normalises line ends and drops one at the very end.
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	l := &lexer{src: strings.TrimSuffix(source, "\n"), line: 1}
	if err := l.template(); err != nil {
		return nil, fmt.Errorf("line %d: %w", l.line, err)
	}
	l.add(0, "")
	return l.tokens, nil
}

func (l *lexer) add(kind byte, s string) { l.tokens = append(l.tokens, token{kind, s, l.line}) }

// take moves on by n bytes.
func (l *lexer) take(n int) string {
	s := l.src[l.pos : l.pos+n]
	l.pos += n
	l.line += strings.Count(s, "\n")
	return s
}

func (l *lexer) text(s string) {
	if s != "" {
		l.add('t', s)
	}
}

func (l *lexer) template() error {
	lineStart := true // the text before ended a line
	for {
		open := openTag(l.src[l.pos:])
		if open < 0 {
			l.text(l.take(len(l.src) - l.pos))
			return nil
		}
		before := l.take(open)
		kind := l.take(2)[1]
		sign := l.sign()
		switch {
		case sign == '-':
			before = strings.TrimRightFunc(before, isSpace)
		case sign == 0 && kind != '{':
			before = stripIndent(before, lineStart)
		}
		l.text(before)
		consumed, err := "", error(nil)
		switch {
		case kind == '#':
			consumed, err = l.comment()
		case kind == '%' && rawTag.MatchString(l.src[l.pos:]):
			err = l.raw()
		default:
			l.add(kind, "")
			consumed, err = l.expression(kind)
		}
		if err != nil {
			return err
		}
		lineStart = strings.HasSuffix(consumed, "\n")
	}
}

// sign takes the white-space mark after an opening.
func (l *lexer) sign() byte {
	if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
		return l.take(1)[0]
	}
	return 0
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
	if (at > 0 || lineStart) && strings.TrimFunc(text[at:], isSpace) == "" {
		return text[:at]
	}
	return text
}

// trimAfter takes what a tag's end swallows and returns it.
func (l *lexer) trimAfter(sign byte, block bool) string {
	rest := l.src[l.pos:]
	switch {
	case sign == '-':
		return l.take(len(rest) - len(strings.TrimLeftFunc(rest, isSpace)))
	case sign == 0 && block && strings.HasPrefix(rest, "\n"):
		return l.take(1)
	}
	return ""
}

func (l *lexer) comment() (string, error) {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		return "", fmt.Errorf("no #} closes the comment")
	}
	sign := byte(0)
	if i > 0 && (l.src[l.pos+i-1] == '-' || l.src[l.pos+i-1] == '+') {
		sign = l.src[l.pos+i-1]
	}
	l.take(i + 2)
	return l.trimAfter(sign, true), nil
}

var (
	rawTag   = regexp.MustCompile(`^\s*raw\s*([-+]?)%\}`)
	endRaw   = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*([-+]?)%\}`)
	numbers  = regexp.MustCompile(`^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[0-9a-fA-F])+|\d+(?:_\d+)*(?:(?:\.\d+(?:_\d+)*)(?:[eE][-+]?\d+(?:_\d+)*)?|[eE][-+]?\d+(?:_\d+)*)?)`)
	operands = []string{"**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}
)

// raw gives out the text up to endraw.
func (l *lexer) raw() error {
	m := rawTag.FindStringSubmatch(l.src[l.pos:])
	l.take(len(m[0]))
	l.trimAfter(signOf(m[1]), true)
	e := endRaw.FindStringSubmatchIndex(l.src[l.pos:])
	if e == nil {
		return fmt.Errorf("no endraw closes raw")
	}
	all := l.take(e[1])
	body := all[:e[0]]
	switch all[e[2]:e[3]] {
	case "-":
		body = strings.TrimRightFunc(body, isSpace)
	case "":
		body = stripIndent(body, false)
	}
	l.text(body)
	l.trimAfter(signOf(all[e[4]:e[5]]), true)
	return nil
}

func signOf(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}

// expression lexes the inside of a tag and its end.
func (l *lexer) expression(kind byte) (consumed string, err error) {
	closer, end := "}}", byte('}')
	if kind == '%' {
		closer, end = "%}", '/'
	}
	var brackets []byte
	for {
		rest := l.src[l.pos:]
		rest = rest[len(l.take(len(rest)-len(strings.TrimLeftFunc(rest, isSpace)))):]
		if rest == "" {
			return "", fmt.Errorf("no %s closes the tag", closer)
		}
		if len(brackets) == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' && kind == '%' {
				sign = rest[0]
			}
			n := 0
			if sign != 0 {
				n = 1
			}
			if strings.HasPrefix(rest[n:], closer) {
				l.take(n + 2)
				l.add(end, "")
				return l.trimAfter(sign, kind == '%'), nil
			}
		}
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case r == '_' || unicode.IsLetter(r):
			n := size
			for n < len(rest) {
				r, size := utf8.DecodeRuneInString(rest[n:])
				if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) {
					break
				}
				n += size
			}
			l.add('n', l.take(n))
		case r >= '0' && r <= '9':
			n := l.take(len(numbers.FindString(rest)))
			kind := byte('i')
			if !strings.HasPrefix(strings.ToLower(n), "0x") && strings.ContainsAny(n, ".eE") {
				kind = 'f'
			}
			l.add(kind, strings.ReplaceAll(n, "_", ""))
		case r == '\'' || r == '"':
			n := literalLen(rest)
			if n < 0 {
				return "", fmt.Errorf("a string is not closed")
			}
			s, err := unescape(rest[1 : n-1])
			if err != nil {
				return "", err
			}
			l.add('s', s)
			l.take(n)
		default:
			op := ""
			for _, o := range operands {
				if strings.HasPrefix(rest, o) {
					op = o
					break
				}
			}
			switch op {
			case "":
				return "", fmt.Errorf("unexpected character %q", r)
			case "(", "[", "{":
				brackets = append(brackets, map[string]byte{"(": ')', "[": ']', "{": '}'}[op])
			case ")", "]", "}":
				if len(brackets) == 0 || brackets[len(brackets)-1] != op[0] {
					return "", fmt.Errorf("unexpected %q", op)
				}
				brackets = brackets[:len(brackets)-1]
			}
			l.add('o', l.take(len(op)))
		}
	}
}

// literalLen is the length of the quoted string that s starts with, -1 when
// nothing closes it.
func literalLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return -1
}

var (
	escapes = regexp.MustCompile(`(?s)\\(?:[0-7]{1,3}|x[0-9a-fA-F]{0,2}|u[0-9a-fA-F]{0,4}|U[0-9a-fA-F]{0,8}|N|.)`)
	simple  = map[byte]string{'\n': "", '\\': `\`, '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v"}
)

// unescape is Python's unicode-escape decoding.
func unescape(s string) (out string, err error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	out = escapes.ReplaceAllStringFunc(s, func(e string) string {
		if t, ok := simple[e[1]]; ok {
			return t
		}
		digits, base := e[2:], 16
		switch e[1] {
		case 'x', 'u', 'U':
			if want := map[byte]int{'x': 2, 'u': 4, 'U': 8}[e[1]]; len(digits) != want {
				err = fmt.Errorf("escape %s is cut short", e)
			}
		case 'N':
			err = fmt.Errorf(`escape \N is not supported`)
		default:
			if e[1] < '0' || e[1] > '7' {
				return e
			}
			digits, base = e[1:], 8
		}
		n, perr := strconv.ParseUint(digits, base, 32)
		if err == nil && (perr != nil || n > unicode.MaxRune || n >= 0xd800 && n < 0xe000) {
			err = fmt.Errorf("escape %s is no character", e)
		}
		return string(rune(n))
	})
	return out, err
}
