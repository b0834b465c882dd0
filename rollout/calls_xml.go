package rollout

import (
	"encoding/json"
	"strings"
)

// xmlCalls: <tool_call><function=NAME><parameter=KEY>\nVALUE\n</parameter>…
// </function></tool_call> (Qwen3-Coder, Qwen 3.5, Nemotron 3).
var xmlCalls = &CallFormat{
	Name: "qwen-xml",
	find: findMark(callOpen),
	read: func(text string, body int) ([]Part, int, bool) {
		if strings.HasPrefix(strings.TrimSpace(text[body:]), "{") {
			return jsonCalls(text, body, callOpen, callClose)
		}
		inner, end, open := within(text, body, callClose, callOpen)
		inner = strings.TrimSpace(inner)
		head, rest, ok := strings.Cut(inner, ">")
		name, isFunction := strings.CutPrefix(head, "<function=")
		if !ok || !isFunction {
			return malformed("the call does not begin with <function=NAME>"), end, open
		}
		rest, closed := strings.CutSuffix(strings.TrimSpace(rest), "</function>")
		if !closed {
			return malformed("no </function> closes the call"), end, open
		}
		var args arguments
		for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
			after, ok := strings.CutPrefix(rest, "<parameter=")
			key, after, hasKey := strings.Cut(after, ">")
			value, after, hasEnd := strings.Cut(after, "</parameter>")
			if !ok || !hasKey || !hasEnd {
				return malformed("expected <parameter=KEY>value</parameter>"), end, open
			}
			args.add(key, strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n"))
			rest = after
		}
		return []Part{callOf(name, args.json())}, end, open
	},
	fits: contains("<function=", "<parameter="),
}

// glmCalls: <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…
// </tool_call> (GLM 4.5 and later).
var glmCalls = &CallFormat{
	Name: "glm",
	find: findMark(callOpen),
	read: func(text string, body int) ([]Part, int, bool) {
		if strings.HasPrefix(strings.TrimSpace(text[body:]), "{") {
			return jsonCalls(text, body, callOpen, callClose)
		}
		inner, end, open := within(text, body, callClose, callOpen)
		name, rest, _ := strings.Cut(inner, "<arg_key>")
		var args arguments
		for rest != "" {
			key, after, hasKey := strings.Cut(rest, "</arg_key>")
			after, hasOpen := strings.CutPrefix(strings.TrimSpace(after), "<arg_value>")
			value, after, hasEnd := strings.Cut(after, "</arg_value>")
			if !hasKey || !hasOpen || !hasEnd {
				return malformed("expected <arg_key>key</arg_key><arg_value>value</arg_value>"), end, open
			}
			args.add(strings.TrimSpace(key), value)
			if rest = strings.TrimSpace(after); rest == "" {
				break
			}
			var more bool
			if rest, more = strings.CutPrefix(rest, "<arg_key>"); !more {
				return malformed("expected <arg_key> or the end of the call"), end, open
			}
		}
		return []Part{callOf(strings.TrimSpace(name), args.json())}, end, open
	},
	fits: contains("<arg_key>", "<arg_value>"),
}

// arguments collects the values of formats that write them as bare text. One
// that is JSON other than a string is taken as such, as those templates write
// strings as they are and everything else as JSON.
type arguments struct{ b strings.Builder }

func (a *arguments) add(key, value string) {
	if v := strings.TrimSpace(value); json.Valid([]byte(v)) && v[0] != '"' {
		a.put(key, v)
		return
	}
	a.text(key, value)
}

// text adds a value that is text whatever it looks like.
func (a *arguments) text(key, value string) {
	a.put(key, quoteJSON(value))
}

// put adds a value that is JSON.
func (a *arguments) put(key, value string) {
	if a.b.Len() > 0 {
		a.b.WriteByte(',')
	}
	a.b.WriteString(quoteJSON(key) + ":" + value)
}

func (a *arguments) json() string { return "{" + a.b.String() + "}" }
