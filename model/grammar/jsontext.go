package grammar

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// jsonRules are the rules that JSON text is made of, made when first asked for.
type jsonRules struct {
	rules
	compact bool
	made    map[string]ref
}

func (j *jsonRules) rule(name string, body func() expr) ref {
	if r, ok := j.made[name]; ok {
		return r
	}
	r := j.add(name)
	j.made[name] = r
	j.bodies[r] = body()
	return r
}

// space is what may stand between the parts of objects and lists: nothing, a
// blank, or a line end with its indentation. More would let a model that has
// lost its way write blanks for ever.
func (j *jsonRules) space() expr {
	if j.compact {
		return literal("")
	}
	return j.rule("space", func() expr {
		return alt{literal(""), literal(" "), seq{literal("\n"), rep{runes{{' ', ' '}, {'\t', '\t'}}, 0, 64}}}
	})
}

var (
	digit  = runes{{'0', '9'}}
	nonzer = runes{{'1', '9'}}
	hex    = runes{{'0', '9'}, {'a', 'f'}, {'A', 'F'}}
	// plain characters stand for themselves in a JSON string.
	plain = runes{{0x20, '!'}, {'#', '['}, {']', utf8.MaxRune}}
)

// char is one character of a string, in any spelling.
func (j *jsonRules) char() ref {
	return j.rule("char", func() expr {
		dDf := runes{{'d', 'd'}, {'D', 'D'}}
		unicode := alt{
			seq{runes{{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}}, hex, hex, hex},
			seq{dDf, runes{{'0', '7'}}, hex, hex},
			seq{dDf, runes{{'8', '9'}, {'a', 'b'}, {'A', 'B'}}, hex, hex, literal(`\u`), dDf, runes{{'c', 'f'}, {'C', 'F'}}, hex, hex},
		}
		return alt{plain, seq{literal(`\`), alt{
			runes{{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}},
			seq{literal("u"), unicode},
		}}}
	})
}

// str is a string of min to max characters.
func (j *jsonRules) str(min, max int) expr {
	return seq{literal(`"`), rep{j.char(), min, max}, literal(`"`)}
}

func (j *jsonRules) digits() expr { return rep{digit, 1, 20} }

// integer is what fits 64 bits for sure: up to 18 digits.
func (j *jsonRules) integer() ref {
	return j.rule("integer", func() expr {
		return seq{opt(literal("-")), alt{literal("0"), seq{nonzer, rep{digit, 0, 17}}}}
	})
}

func (j *jsonRules) number() ref {
	return j.rule("number", func() expr {
		return seq{opt(literal("-")), alt{literal("0"), seq{nonzer, rep{digit, 0, 24}}}, opt(seq{literal("."), j.digits()}), opt(seq{runes{{'e', 'e'}, {'E', 'E'}}, opt(runes{{'+', '+'}, {'-', '-'}}), rep{digit, 1, 2}})}
	})
}

// anything is any JSON value.
func (j *jsonRules) anything() ref {
	if r, ok := j.made["value"]; ok {
		return r
	}
	return j.rule("value", func() expr {
		v := j.made["value"]
		return alt{j.str(0, unlimited), j.number(), literal("true"), literal("false"), literal("null"),
			j.list(nil, v, 0, unlimited), j.object(nil, j.entry(j.str(0, unlimited), v))}
	})
}

func (j *jsonRules) entry(key, value expr) expr {
	return seq{key, j.space(), literal(":"), j.space(), value}
}

func (j *jsonRules) comma() expr { return seq{j.space(), literal(","), j.space()} }

func (j *jsonRules) object(props []property, extra expr) expr {
	return object{props: props, extra: extra, open: j.space(), next: j.comma()}
}

// list is a JSON list: first the items of prefix, then item (nil = none), min
// to max of all.
func (j *jsonRules) list(prefix []expr, item expr, min, max int) expr {
	whole := func(e expr) expr { return seq{literal("["), j.space(), e, j.space(), literal("]")} }
	empty := seq{literal("["), j.space(), literal("]")}
	var choices alt
	if min == 0 {
		choices = append(choices, empty)
	}
	var start seq
	for n := 1; n <= len(prefix) && (max == unlimited || n <= max); n++ {
		if n > 1 {
			start = append(start, j.comma())
		}
		start = append(start, prefix[n-1])
		if n >= min && (n < len(prefix) || item == nil) {
			choices = append(choices, whole(slices.Clone(start)))
		}
	}
	n := len(prefix)
	if item != nil && (max == unlimited || max > 0 && n <= max) {
		more := rep{seq{j.comma(), item}, 0, unlimited}
		if n == 0 {
			start, n = seq{item}, 1
		}
		if min > n {
			more.min = min - n
		}
		if max != unlimited {
			more.max = max - n
		}
		choices = append(choices, whole(append(slices.Clone(start), more)))
	}
	return choices
}

// quoted are the spellings of a string: as Go and Python write it, and with
// everything beyond ASCII escaped.
func quoted(s string) []string {
	var raw, ascii strings.Builder
	for _, r := range s {
		short := map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}[r]
		switch {
		case short != "":
			raw.WriteString(short)
			ascii.WriteString(short)
		case r < 0x20:
			fmt.Fprintf(&raw, `\u%04x`, r)
			fmt.Fprintf(&ascii, `\u%04x`, r)
		case r < 0x7f:
			raw.WriteRune(r)
			ascii.WriteRune(r)
		default:
			raw.WriteRune(r)
			if r > 0xffff {
				fmt.Fprintf(&ascii, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			} else {
				fmt.Fprintf(&ascii, `\u%04x`, r)
			}
		}
	}
	if raw.String() == ascii.String() {
		return []string{`"` + raw.String() + `"`}
	}
	return []string{`"` + raw.String() + `"`, `"` + ascii.String() + `"`}
}

func (j *jsonRules) key(name string) expr {
	var spellings alt
	for _, s := range quoted(name) {
		spellings = append(spellings, literal(s))
	}
	return spellings
}

// constants are the values of enum and const.
func (j *jsonRules) constants(values []any) expr {
	var out alt
	var texts []string
	for _, v := range values {
		switch v := v.(type) {
		case string:
			texts = append(texts, quoted(v)...)
		case []any:
			items := make([]expr, len(v))
			for i, e := range v {
				items[i] = j.constants([]any{e})
			}
			out = append(out, j.list(items, nil, len(v), len(v)))
		case map[string]any:
			var props []property
			for _, k := range sortedKeys(v) {
				props = append(props, property{j.entry(j.key(k), j.constants([]any{v[k]})), true})
			}
			out = append(out, j.object(props, nil))
		default:
			text, _ := json.Marshal(v) // nil, bool and json.Number always marshal
			texts = append(texts, string(text))
		}
	}
	if len(texts) > 0 {
		out = append(out, oneText(texts))
	}
	r := j.add("constant")
	j.bodies[r] = out
	return r
}

// oneText is one of the texts, their common beginnings shared.
func oneText(texts []string) expr {
	slices.Sort(texts)
	return shared(slices.Compact(texts))
}

func shared(texts []string) expr {
	if len(texts) == 1 {
		return literal(texts[0])
	}
	first, last := texts[0], texts[len(texts)-1]
	n := 0
	for n < len(first) && first[n] == last[n] {
		n++
	}
	out := alt{}
	for i := 0; i < len(texts); {
		if len(texts[i]) == n {
			out = append(out, literal(""))
			i++
			continue
		}
		k := i
		for k < len(texts) && texts[k][n] == texts[i][n] {
			k++
		}
		tails := make([]string, k-i)
		for t := range tails {
			tails[t] = texts[i+t][n:]
		}
		out = append(out, shared(tails))
		i = k
	}
	return seq{literal(first[:n]), out}
}

// otherKey is a key that is none of names. Where it begins as one of them,
// escapes by number are left out, since they could spell it.
func (j *jsonRules) otherKey(names []string) expr {
	if len(names) == 0 {
		return j.str(0, unlimited)
	}
	return seq{literal(`"`), j.otherRest(names)}
}

func (j *jsonRules) otherRest(names []string) expr {
	rest := seq{rep{j.char(), 0, unlimited}, literal(`"`)}
	next := map[rune][]string{}
	ends := false
	for _, n := range names {
		if n == "" {
			ends = true
			continue
		}
		r, size := utf8.DecodeRuneInString(n)
		next[r] = append(next[r], n[size:])
	}
	var out alt
	if !ends {
		out = append(out, literal(`"`))
	}
	var taken runes
	for r := range next {
		taken = append(taken, runeRange{r, r})
	}
	taken = taken.sorted()
	for _, t := range taken {
		spelled := quoted(string(t.lo))[0]
		out = append(out, seq{literal(spelled[1 : len(spelled)-1]), j.otherRest(next[t.lo])})
	}
	if free := plain.and(taken.negate()); len(free) > 0 {
		out = append(out, seq{free, rest})
	}
	var escapes runes
	for c, r := range map[rune]rune{'"': '"', '\\': '\\', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'} {
		if next[r] == nil {
			escapes = append(escapes, runeRange{c, c})
		}
	}
	if len(escapes) > 0 {
		out = append(out, seq{literal(`\`), escapes.sorted(), rest})
	}
	return out
}
