package rollout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// lfm2Calls: <|tool_call_start|>[NAME(key='text', n=1), …]<|tool_call_end|>, calls
// as Python writes them, or a list of JSON calls (LFM2).
var lfm2Calls = &CallFormat{
	Name: "lfm2",
	find: findMark(lfm2Open),
	read: func(text string, body int) ([]Part, int, bool) {
		p := pythonCalls{text: strings.TrimLeft(text[body:], " \r\n")}
		if strings.HasPrefix(p.text, "{") || strings.HasPrefix(p.text, "[{") {
			return jsonCalls(text, body, lfm2Open, lfm2Close)
		}
		calls, err := p.calls()
		rest := strings.TrimLeft(p.text, " \r\n")
		after, closed := strings.CutPrefix(rest, lfm2Close)
		switch {
		case err == nil && closed:
			return calls, len(text) - len(after), false
		case err == nil && (rest == "" || strings.HasPrefix(rest, lfm2Open)):
			return calls, len(text) - len(rest), false
		case err == nil:
			err = errors.New("data after the calls")
		}
		_, end, open := within(text, body, lfm2Close, lfm2Open)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("unexpected end of the calls")
		}
		return []Part{{Err: err}}, end, open
	},
	fits: func(t string) bool {
		return strings.Contains(t, lfm2Open) || strings.Contains(t, "<|tool_list_start|>")
	},
}

const (
	lfm2Open  = "<|tool_call_start|>"
	lfm2Close = "<|tool_call_end|>"
)

// pythonCalls reads a list of Python calls with keyword arguments of literals;
// text is what is left to read.
type pythonCalls struct{ text string }

func (p *pythonCalls) calls() (calls []Part, err error) {
	p.text = strings.TrimLeft(p.text, " \t\r\n")
	if !p.take("[") {
		part, err := p.call()
		return []Part{part}, err
	}
	for !p.take("]") {
		if len(calls) > 0 && !p.take(",") {
			return nil, p.unexpected("expected , or ]")
		}
		part, err := p.call()
		if err != nil {
			return nil, err
		}
		calls = append(calls, part)
	}
	if len(calls) == 0 {
		return nil, errors.New("an empty list of calls")
	}
	return calls, nil
}

func (p *pythonCalls) call() (Part, error) {
	name := p.word(".-")
	if name == "" || !p.take("(") {
		return Part{}, p.unexpected("expected NAME(")
	}
	var args arguments
	seen := map[string]bool{}
	for first := true; !p.take(")"); first = false {
		if !first && !p.take(",") {
			return Part{}, p.unexpected("expected , or )")
		}
		key := p.word("")
		if key == "" || !p.take("=") {
			return Part{}, p.unexpected("expected KEY=VALUE")
		}
		if seen[key] {
			return Part{}, fmt.Errorf("argument %s is given twice", key)
		}
		seen[key] = true
		v, err := p.value(0)
		if err != nil {
			return Part{}, err
		}
		args.put(key, v)
	}
	return callOf(name, args.json()), nil
}

// value reads a literal as JSON.
func (p *pythonCalls) value(depth int) (string, error) {
	if depth > 100 {
		return "", errors.New("arguments are nested deeper than 100")
	}
	p.blank()
	switch {
	case p.text == "":
		return "", io.ErrUnexpectedEOF
	case p.text[0] == '\'' || p.text[0] == '"':
		s, err := p.quoted()
		return quoteJSON(s), err
	case p.take("["):
		return p.group(depth, "[", "]", false)
	case p.take("("):
		return p.group(depth, "[", ")", false)
	case p.take("{"):
		return p.group(depth, "{", "}", true)
	}
	word := p.word("+-.")
	switch word {
	case "True", "true":
		return "true", nil
	case "False", "false":
		return "false", nil
	case "None", "null":
		return "null", nil
	}
	number := strings.TrimPrefix(strings.ReplaceAll(word, "_", ""), "+")
	if number == "" || !json.Valid([]byte(number)) {
		return "", p.unexpected("expected a value, got " + clip(word+p.text, 40))
	}
	return number, nil
}

// group reads the members of a list, tuple or dict after its opening.
func (p *pythonCalls) group(depth int, open, end string, keyed bool) (string, error) {
	var b strings.Builder
	b.WriteString(open)
	for first := true; !p.take(end); first = false {
		if !first {
			if !p.take(",") {
				return "", p.unexpected("expected , or " + end)
			}
			if p.take(end) {
				break // a comma after the last member
			}
			b.WriteByte(',')
		}
		if keyed {
			k, err := p.value(depth + 1)
			if err != nil {
				return "", err
			}
			if k[0] != '"' || !p.take(":") {
				return "", p.unexpected("expected 'key': value")
			}
			b.WriteString(k + ":")
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return "", err
		}
		b.WriteString(v)
	}
	if open == "{" {
		b.WriteByte('}')
	} else {
		b.WriteByte(']')
	}
	return b.String(), nil
}

// quoted reads a Python string; an unknown escape stands for itself.
func (p *pythonCalls) quoted() (string, error) {
	quote, s := p.text[0], p.text[1:]
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == quote:
			p.text = s[i+1:]
			return b.String(), nil
		case c != '\\' || i+1 == len(s):
			b.WriteByte(c)
		default:
			i++
			if r := strings.IndexByte("ntrbf0", s[i]); r >= 0 {
				b.WriteByte("\n\t\r\b\f\x00"[r])
				continue
			}
			if n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]; n > 0 && i+n < len(s) {
				if code, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32); err == nil && code <= utf8.MaxRune {
					b.WriteRune(rune(code))
					i += n
					continue
				}
			}
			if strings.IndexByte("'\"\\", s[i]) < 0 {
				b.WriteByte('\\')
			}
			b.WriteByte(s[i])
		}
	}
	p.text = ""
	return "", io.ErrUnexpectedEOF
}

func (p *pythonCalls) blank() { p.text = strings.TrimLeft(p.text, " \t\r\n") }

// take passes over a mark, if it is next.
func (p *pythonCalls) take(mark string) bool {
	p.blank()
	rest, ok := strings.CutPrefix(p.text, mark)
	p.text = rest
	return ok
}

// word reads letters, digits, _ and the extra characters.
func (p *pythonCalls) word(extra string) string {
	p.blank()
	n := strings.IndexFunc(p.text, func(r rune) bool {
		return !(r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune(extra, r))
	})
	if n < 0 {
		n = len(p.text)
	}
	w := p.text[:n]
	p.text = p.text[n:]
	return w
}

// unexpected is the error, or the end of the text when that is what is wrong.
func (p *pythonCalls) unexpected(what string) error {
	if p.text == "" {
		return io.ErrUnexpectedEOF
	}
	return errors.New(what)
}
