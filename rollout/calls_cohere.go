package rollout

import (
	"slices"
	"strings"
)

// cohereCalls: <|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>
// (Command R7B, A), or Action: and the list in a fence (Command R, R+). The tool
// "directly-answer" is how those say that they call none.
var cohereCalls = &CallFormat{
	Name:    "cohere",
	thought: [2]string{"<|START_THINKING|>", "<|END_THINKING|>"},
	find: func(text string, from int) (at, body int) {
		at, body = findMark("<|START_ACTION|>")(text, from)
		stop := len(text)
		if at >= 0 {
			stop = at
		}
		for old := from; ; {
			i := strings.Index(text[old:stop], cohereAction)
			if i < 0 {
				return at, body
			}
			after := old + i + len(cohereAction)
			if rest := strings.TrimLeft(text[after:], " \r\n"); strings.HasPrefix(rest, "```") || strings.HasPrefix(rest, "[") {
				return old + i, after
			}
			old = after
		}
	},
	read: func(text string, body int) ([]Part, int, bool) {
		opening, closing := "<|START_ACTION|>", "<|END_ACTION|>"
		if strings.HasSuffix(text[:body], cohereAction) {
			opening, closing = cohereAction, ""
		}
		rest := strings.TrimLeft(text[body:], " \r\n")
		fenced := false
		if rest, fenced = strings.CutPrefix(rest, "```"); fenced {
			rest = strings.TrimPrefix(rest, "json")
			if closing == "" {
				closing = "```"
			}
		}
		calls, end, open := jsonBody(text, len(text)-len(rest), opening, closing, cohereKeys.calls)
		calls = slices.DeleteFunc(calls, func(p Part) bool {
			return p.Err == nil && strings.ReplaceAll(p.Call.Name, "_", "-") == "directly-answer"
		})
		return calls, end, open
	},
	fits: func(t string) bool {
		return strings.Contains(t, "<|START_ACTION|>") || strings.Contains(t, cohereAction) && strings.Contains(t, `"tool_name"`)
	},
	plain: func(text string) string { return strings.TrimSpace(cohereMarks.Replace(text)) },
}

const cohereAction = "Action:"

var (
	cohereKeys  = callKeys{names: []string{"tool_name", "name"}, args: []string{"parameters"}}
	cohereMarks = strings.NewReplacer("<|START_RESPONSE|>", "", "<|END_RESPONSE|>", "", "<|START_TEXT|>", "", "<|END_TEXT|>", "")
)
