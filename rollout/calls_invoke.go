package rollout

import (
	"encoding/json"
	"regexp"
	"strings"
)

// invokeCalls: <invoke name="NAME"><parameter name="KEY">VALUE</parameter>…
// </invoke>, the tags with any prefix, function for invoke, and param, arg or
// argument for parameter; often inside <function_calls> or <tool_calls>
// (MiniMax-M2, DeepSeek 3.2 and later, MiniCPM 5). string="true" and "false"
// say whether a value is text or JSON; without it a value that is JSON is that.
var invokeCalls = &CallFormat{
	Name: "xml",
	find: func(text string, from int) (at, body int) {
		m := invokeOpening.FindStringSubmatchIndex(text[from:])
		if m == nil {
			return -1, 0
		}
		return from + m[0], from + m[2]
	},
	read: func(text string, body int) ([]Part, int, bool) {
		m := invokeTag.FindStringSubmatchIndex(text[body:])
		prefix, tag, name := text[body+m[2]:body+m[3]], text[body+m[4]:body+m[5]], text[body+m[6]:body+m[7]]
		inner, end, open := within(text, body+m[1], "</"+prefix+tag+">", "<"+prefix+tag+" name=")
		if w := invokeClosing.FindString(text[end:]); !open && w != "" {
			end += len(w)
		}
		if inner = strings.TrimSpace(inner); open {
			return []Part{malformedNamed(name, "no </"+prefix+tag+"> closes the call")}, end, open
		}
		if strings.HasPrefix(inner, "{") {
			return []Part{callOf(name, inner)}, end, open
		}
		var args arguments
		for ; inner != ""; inner = strings.TrimSpace(inner) {
			p := invokeParameter.FindStringSubmatch(inner)
			if p == nil {
				return []Part{malformedNamed(name, `expected <parameter name="KEY">value</parameter>`)}, end, open
			}
			value, after, ok := strings.Cut(inner[len(p[0]):], "</"+p[1]+">")
			if !ok {
				return []Part{malformedNamed(name, "no </"+p[1]+"> closes the value of "+p[2])}, end, open
			}
			switch {
			case strings.Contains(p[3], `string="true"`):
				args.text(p[2], value)
			case strings.Contains(p[3], `string="false"`) && !json.Valid([]byte(value)):
				return []Part{malformedNamed(name, "the value of "+p[2]+" is not JSON")}, end, open
			default:
				args.add(p[2], strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n"))
			}
			inner = after
		}
		return []Part{callOf(name, args.json())}, end, open
	},
	fits: func(t string) bool {
		return (strings.Contains(t, `invoke name="`) || strings.Contains(t, `<function name="`)) && !strings.Contains(t, "]<]minimax[>[")
	},
}

var (
	invokeOpening   = regexp.MustCompile(`(?:<[^<>\s/]{0,60}(?:tool_call|function_call)s?>\s*)?(<[^<>\s/="]{0,40}?(?:invoke|function) name="[^"<>]{1,200}"\s*>)`)
	invokeTag       = regexp.MustCompile(`^<([^<>\s/="]{0,40}?)(invoke|function) name="([^"<>]{1,200})"\s*>`)
	invokeParameter = regexp.MustCompile(`^<([^<>\s/="]{0,40}?(?:parameter|param|argument|arg)) (?:name|key)="([^"<>]{1,200})"([^<>]{0,200})>`)
	invokeClosing   = regexp.MustCompile(`^\s*</[^<>\s/]{0,60}(?:tool_call|function_call)s?>`)
)
