package rollout

import "strings"

// mistralCalls: [TOOL_CALLS][{"name": …, "arguments": {…}}], or the newer
// [TOOL_CALLS]NAME[ARGS]{…} with an optional [CALL_ID]… before [ARGS].
var mistralCalls = &CallFormat{
	Name:    "mistral",
	thought: [2]string{"[THINK]", "[/THINK]"},
	find:    findMark("[TOOL_CALLS]"),
	read: func(text string, body int) ([]Part, int, bool) {
		const mark, args = "[TOOL_CALLS]", "[ARGS]"
		rest := strings.TrimLeft(text[body:], " \n")
		if rest == "" || rest[0] == '[' || rest[0] == '{' {
			return jsonCalls(text, body, mark, "")
		}
		stop := len(text)
		if i := strings.Index(text[body:], mark); i >= 0 {
			stop = body + i
		}
		at := strings.Index(text[body:stop], args)
		if at < 0 {
			return malformed("no [ARGS] follows the name"), stop, stop == len(text)
		}
		name, _, _ := strings.Cut(text[body:body+at], "[CALL_ID]")
		return namedCall(strings.TrimSpace(name), text, body+at+len(args), mark, "")
	},
	fits: contains("[TOOL_CALLS]"),
}

// llamaCalls: the whole turn is {"name": …, "parameters": {…}}, or follows
// <|python_tag|>; several are parted by ; or a line end (Llama 3.1 to 3.3).
var llamaCalls = &CallFormat{
	Name:  "llama3",
	local: true,
	find: func(text string, from int) (at, body int) {
		if at, body = findMark("<|python_tag|>")(text, from); at >= 0 {
			return at, body
		}
		blank := len(text) - len(strings.TrimLeft(text, " \r\n\t"))
		if from <= blank && strings.HasPrefix(text[blank:], "{") && strings.Contains(text, `"name"`) {
			return from, from
		}
		// Another call after one that was read.
		rest := strings.TrimLeft(text[from:], "; \r\n\t")
		if from > blank && strings.HasPrefix(strings.TrimSpace(text), "{") && strings.HasPrefix(rest, `{"name"`) {
			return from, len(text) - len(rest)
		}
		return -1, 0
	},
	read: func(text string, body int) ([]Part, int, bool) {
		const mark = "<|python_tag|>"
		if rest := strings.TrimSpace(text[body:]); rest != "" && rest[0] != '{' && rest[0] != '[' {
			return malformed("code after <|python_tag|> is not a call with a name and parameters"), len(text), false
		}
		return jsonCalls(text, body, mark, ";")
	},
	fits: func(t string) bool {
		return strings.Contains(t, "<|python_tag|>") || strings.Contains(t, `"parameters"`) && strings.Contains(t, "<|start_header_id|>")
	},
}

// phiCalls: <|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|> (Phi-4
// mini; Granite without the closing mark).
var phiCalls = &CallFormat{
	Name: "phi",
	find: findMark("<|tool_call|>"),
	read: func(text string, body int) ([]Part, int, bool) {
		return jsonCalls(text, body, "<|tool_call|>", "<|/tool_call|>")
	},
	fits: contains("<|tool_call|>"),
}

// functoolsCalls: functools[{"name": …, "arguments": {…}}] (Phi-4, FireFunction).
var functoolsCalls = &CallFormat{
	Name: "functools",
	find: func(text string, from int) (at, body int) {
		if i := strings.Index(text[from:], "functools["); i >= 0 {
			return from + i, from + i + len("functools")
		}
		return -1, 0
	},
	read: func(text string, body int) ([]Part, int, bool) { return jsonCalls(text, body, "functools[", "") },
	fits: contains("functools["),
}

// deepSeekCalls: <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>,
// before V3.1 with "function" for NAME, and NAME and a fenced JSON after it;
// all calls stand between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>.
var deepSeekCalls = &CallFormat{
	Name: "deepseek",
	find: findMark("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
	read: func(text string, body int) (calls []Part, end int, open bool) {
		const begin, sep, closing, all = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
		skip := func(mark string) {
			rest := strings.TrimLeft(text[body:], " \r\n")
			if after, ok := strings.CutPrefix(rest, mark); ok {
				body = len(text) - len(after)
			}
		}
		skip(begin)
		inner, end, open := within(text, body, closing, begin)
		name, args, ok := strings.Cut(inner, sep)
		if strings.TrimSpace(name) == "function" {
			name, args, _ = strings.Cut(args, "\n")
		}
		args = strings.TrimSpace(args)
		args = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(args, "```json"), "```"), "```")
		body = end
		skip(all)
		if !ok {
			return malformed("no " + sep + " follows the name"), body, open
		}
		return []Part{callOf(strings.TrimSpace(name), args)}, body, open
	},
	fits: contains("<｜tool▁call▁begin｜>"),
}

// functionTagCalls: <function=NAME>{…}</function> (Llama 3.1's custom tools,
// Functionary).
var functionTagCalls = &CallFormat{
	Name: "function-tag",
	find: findMark("<function="),
	read: func(text string, body int) ([]Part, int, bool) {
		inner, end, open := within(text, body, "</function>", "<function=")
		name, args, ok := strings.Cut(inner, ">")
		if !ok {
			return malformed("no > follows the name"), end, open
		}
		return []Part{callOf(strings.TrimSpace(name), args)}, end, open
	},
	fits: func(t string) bool {
		return strings.Contains(t, "<function=") && !strings.Contains(t, "<parameter=") && !strings.Contains(t, callOpen)
	},
}
