package rollout

import "strings"

// hermesCalls: <tool_call>{"name": …, "arguments": {…}}</tool_call> (Hermes,
// Qwen 2.5 and 3, SmolLM, Granite's newer ones).
var hermesCalls = &CallFormat{
	Name: "hermes",
	find: findMark(callOpen),
	read: func(text string, body int) ([]Part, int, bool) { return jsonCalls(text, body, callOpen, callClose) },
	fits: func(t string) bool {
		return strings.Contains(t, callOpen) && (strings.Contains(t, `"name"`) || strings.Contains(t, `\"name\"`) || strings.Contains(t, "tojson"))
	},
}
