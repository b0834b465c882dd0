package jinja

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// format is str.format: automatic and numbered fields, names, attributes and
// indices, !r and !s, and the format specifications of strings and numbers.
func (in *interp) format(s string, args []any, kw kwargs) string {
	var b strings.Builder
	auto := 0
	for s != "" {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			in.write(&b, s)
			break
		}
		in.write(&b, s[:i])
		if i+1 < len(s) && s[i+1] == s[i] {
			b.WriteByte(s[i])
			s = s[i+2:]
			continue
		}
		end := strings.IndexByte(s[i:], '}')
		if s[i] == '}' || end < 0 {
			fail("format: a single %q in the format string", s[i])
		}
		field, spec, _ := strings.Cut(s[i+1:i+end], ":")
		field, conv, _ := strings.Cut(field, "!")
		s = s[i+end+1:]
		n := strings.IndexAny(field, ".[")
		if n < 0 {
			n = len(field)
		}
		first, rest := field[:n], field[n:]
		if first == "" {
			first = strconv.Itoa(auto)
			auto++
		}
		var v any
		if at, err := strconv.Atoi(first); err == nil {
			if at >= len(args) {
				fail("format: there is no argument %d", at)
			}
			v = args[at]
		} else if named, ok := kw.get(first); ok {
			v = named
		} else {
			fail("format: there is no argument %q", first)
		}
		for _, part := range fieldPath.FindAllString(rest, -1) {
			if part[0] == '.' {
				v = in.attr(v, part[1:])
				continue
			}
			key := part[1 : len(part)-1]
			if at, err := strconv.ParseInt(key, 10, 64); err == nil {
				v = in.item(v, at)
			} else {
				v = in.item(v, key)
			}
		}
		switch conv {
		case "":
		case "s":
			v = in.text(v)
		case "r":
			in.weigh(v)
			v = repr(v)
		default:
			fail("format: conversion %q is not supported", conv)
		}
		in.write(&b, in.formatSpec(v, spec))
	}
	return b.String()
}

var (
	fieldPath  = regexp.MustCompile(`\.[^.\[]+|\[[^\]]*\]`)
	specForm   = regexp.MustCompile(`^(?:(.)?([<>=^]))?([-+ ]?)(#?)(0?)(\d*)([,_]?)(?:\.(\d+))?([a-zA-Z%]?)$`)
	percentage = regexp.MustCompile(`%(?:\((\w+)\))?([-+ #0]*)(\d*)(?:\.(\d+))?([a-zA-Z%])`)
)

func (in *interp) formatSpec(v any, spec string) string {
	if spec == "" {
		return in.text(v)
	}
	m := specForm.FindStringSubmatch(spec)
	if m == nil {
		fail("format: specification %q is not supported", spec)
	}
	fill, align, sign, group, kind := m[1], m[2], m[3], m[7], m[9]
	width, precision := atoi(m[6]), -1
	if m[8] != "" {
		precision = atoi(m[8])
	}
	if m[5] == "0" && align == "" {
		fill, align = "0", "="
	}
	if fill == "" {
		fill = " "
	}
	i, f, isInt, isNum := number(v)
	var body string
	switch {
	case isNum:
		if _, isBool := v.(bool); isBool && kind == "" {
			body = in.text(v)
			break
		}
		body = in.formatNumber(i, f, isInt, kind, precision, sign)
		if group != "" {
			body = grouped(body, group)
		}
		if align == "" {
			align = ">"
		}
	default:
		if kind != "" && kind != "s" || align == "=" {
			fail("format: specification %q does not fit a %s", spec, typeName(v))
		}
		body = in.text(v)
		if precision >= 0 {
			body = string([]rune(body)[:min(precision, utf8.RuneCountInString(body))])
		}
	}
	missing := int64(max(0, width-utf8.RuneCountInString(body)))
	switch align {
	case ">":
		return in.repeat(fill, missing) + body
	case "^":
		return in.repeat(fill, missing/2) + body + in.repeat(fill, missing-missing/2)
	case "=":
		n := 0
		if body != "" && strings.ContainsRune("+- ", rune(body[0])) {
			n = 1
		}
		return body[:n] + in.repeat(fill, missing) + body[n:]
	}
	return body + in.repeat(fill, missing)
}

// atoi reads a width or precision; what is absurd is refused.
func atoi(s string) int {
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n > 1000 {
		fail("format: width or precision %s is over 1000", s)
	}
	return n
}

func (in *interp) formatNumber(i int64, f float64, isInt bool, kind string, precision int, sign string) string {
	var s string
	switch {
	case isInt && (kind == "" || kind == "d" || kind == "n"):
		s = strconv.FormatInt(i, 10)
	case isInt && kind == "x":
		s = strconv.FormatInt(i, 16)
	case isInt && kind == "X":
		s = strings.ToUpper(strconv.FormatInt(i, 16))
	case isInt && kind == "o":
		s = strconv.FormatInt(i, 8)
	case isInt && kind == "b":
		s = strconv.FormatInt(i, 2)
	case isInt && kind == "c":
		return string(rune(i))
	case kind == "" && precision < 0:
		s = pyFloat(f, false)
	default:
		if precision < 0 {
			precision = 6
		}
		switch kind {
		case "f", "F":
			s = strconv.FormatFloat(f, 'f', precision, 64)
		case "e", "E":
			s = strconv.FormatFloat(f, kind[0], precision, 64)
		case "%":
			s = strconv.FormatFloat(f*100, 'f', precision, 64) + "%"
		case "", "g", "G":
			s = strconv.FormatFloat(f, 'g', max(1, precision), 64)
		default:
			fail("format: type %q does not fit a number", kind)
		}
		if math.IsInf(f, 0) || math.IsNaN(f) {
			s = pyFloat(f, false)
		}
	}
	if sign != "" && sign != "-" && s[0] != '-' {
		s = sign + s
	}
	return s
}

func grouped(s, mark string) string {
	start := 0
	if s[0] == '-' || s[0] == '+' || s[0] == ' ' {
		start = 1
	}
	end := start
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	for at := end - 3; at > start; at -= 3 {
		s = s[:at] + mark + s[at:]
	}
	return s
}

// percent is the % operator of strings.
func (in *interp) percent(s string, arg any) string {
	var args []any
	tuple, isTuple := arg.(*List)
	if isTuple = isTuple && tuple.Tuple; isTuple {
		args = tuple.Items
	} else {
		args = []any{arg}
	}
	used, at := 0, 0
	var b strings.Builder
	for _, m := range percentage.FindAllStringSubmatchIndex(s, -1) {
		in.write(&b, s[at:m[0]])
		at = m[1]
		kind := s[m[10]]
		if kind == '%' {
			b.WriteByte('%')
			continue
		}
		var v any
		switch {
		case m[2] >= 0:
			d, ok := arg.(*Dict)
			if !ok {
				fail("%%: format requires a mapping")
			}
			if v, ok = d.Get(s[m[2]:m[3]]); !ok {
				fail("%%: there is no key %q", s[m[2]:m[3]])
			}
			used = len(args)
		case used < len(args):
			v = args[used]
			used++
		default:
			fail("not enough arguments for format string")
		}
		in.write(&b, in.percentOne(v, s[m[4]:m[5]], atoi(s[m[6]:m[7]]), m, s, kind))
	}
	if _, isDict := arg.(*Dict); used < len(args) && !isDict {
		fail("not all arguments converted during string formatting")
	}
	in.write(&b, s[at:])
	return b.String()
}

func (in *interp) percentOne(v any, flags string, width int, m []int, s string, kind byte) string {
	precision := -1
	if m[8] >= 0 {
		precision = atoi(s[m[8]:m[9]])
	}
	var body string
	switch kind {
	case 's', 'r':
		body = in.text(v)
		if kind == 'r' {
			body = repr(v)
		}
		if precision >= 0 {
			body = string([]rune(body)[:min(precision, utf8.RuneCountInString(body))])
		}
	default:
		i, f, isInt, ok := number(v)
		if !ok {
			fail("%%%c: a number is required, not %s", kind, typeName(v))
		}
		if strings.IndexByte("diu", kind) >= 0 {
			if !isInt {
				i, isInt = int64(f), true
			}
			kind = 'd'
		}
		sign := ""
		if strings.Contains(flags, "+") {
			sign = "+"
		}
		body = in.formatNumber(i, f, isInt, string(kind), precision, sign)
	}
	missing := int64(max(0, width-utf8.RuneCountInString(body)))
	switch {
	case strings.Contains(flags, "-"):
		return body + in.repeat(" ", missing)
	case strings.Contains(flags, "0") && kind != 's' && kind != 'r':
		n := 0
		if body[0] == '-' || body[0] == '+' {
			n = 1
		}
		return body[:n] + in.repeat("0", missing) + body[n:]
	}
	return fmt.Sprint(in.repeat(" ", missing), body)
}
