package rollout

import (
	"regexp"
	"strings"
)

// reactCalls: a line "Action: NAME" and under it "Action Input: {…}", the JSON
// in a fence or not (ReAct, Yao et al. 2022, arXiv:2210.03629, in the notation
// that agent frameworks made common). No template teaches it: it is chosen by
// name, for models that are prompted so.
var reactCalls = &CallFormat{
	Name: "react",
	find: func(text string, from int) (at, body int) {
		for at = from; ; {
			m := reactAction.FindStringIndex(text[at:])
			if m == nil {
				return -1, 0
			}
			// An earlier call may end in the middle of a line.
			if start := at + m[0]; start == 0 || text[start] == '\n' || text[start-1] == '\n' {
				return start, at + m[1]
			}
			at += m[1]
		}
	},
	read: func(text string, body int) ([]Part, int, bool) {
		stop := len(text)
		for _, next := range []string{"\nAction:", "\nObservation:"} {
			if i := strings.Index(text[body:stop], next); i >= 0 {
				stop = body + i
			}
		}
		name, rest, _ := strings.Cut(text[body:stop], "\n")
		name = strings.Trim(name, " \t\r`\"'*")
		rest, ok := strings.CutPrefix(strings.TrimLeft(rest, " \t\r\n"), "Action Input:")
		if !ok {
			return malformed("no Action Input: follows the action"), stop, stop == len(text)
		}
		rest = strings.TrimLeft(rest, " \t\r\n")
		rest, fenced := strings.CutPrefix(rest, "```")
		if fenced {
			rest = strings.TrimPrefix(rest, "json")
		}
		calls, end, open := namedCall(name, text[:stop], stop-len(rest), "\nAction:", "")
		if after := strings.TrimLeft(text[end:stop], " \t\r\n"); fenced && strings.HasPrefix(after, "```") {
			end = stop - len(after) + len("```")
		}
		return calls, end, open && stop == len(text)
	},
	plain: func(text string) string {
		if _, answer, ok := strings.Cut(text, "Final Answer:"); ok {
			text = answer
		}
		return strings.TrimSpace(text)
	},
}

var reactAction = regexp.MustCompile(`(?:^|\n)[ \t]*Action:[ \t]*`)
