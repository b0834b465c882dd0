package rollout

import (
	"regexp"
	"strings"
)

// fencedCalls: a fenced block with a call as JSON, or with the arguments under a
// line that is the name. A block that is neither is text. No template teaches
// it: it is chosen by name.
var fencedCalls = &CallFormat{
	Name: "fenced",
	find: func(text string, from int) (at, body int) {
		for at = from; at < len(text); {
			m := fencedOpening.FindStringSubmatchIndex(text[at:])
			if m == nil {
				break
			}
			inner, _, closed := strings.Cut(text[at+m[1]:], "```")
			if m[2] >= 0 && strings.HasPrefix(strings.TrimSpace(inner), "{") || strings.HasPrefix(text[at+m[4]:at+m[5]], "tool") || fencedName.MatchString(inner) {
				return at + m[0], at + m[0]
			}
			if at += m[1] + len(inner); closed {
				at += len("```")
			}
		}
		return -1, 0
	},
	read: func(text string, body int) ([]Part, int, bool) {
		m := fencedOpening.FindStringSubmatchIndex(text[body:])
		inner, _, _ := strings.Cut(text[body+m[1]:], "```")
		if whole := fencedName.MatchString(inner) && fencedArguments.MatchString(inner); m[2] >= 0 && !whole {
			return namedCall(text[body+m[2]:body+m[3]], text, body+m[1], "```", "```")
		}
		return jsonBody(text, body+m[1], "```", "```", anyKeys.calls)
	},
}

var (
	// Group 1 is a name on the line before, group 2 the block's language.
	fencedOpening   = regexp.MustCompile("(?m)(?:^([A-Za-z_][\\w.-]*)[ \t]*\r?\n)?```(json|tool_call|tool_code|tool|)[ \t]*\r?\n")
	fencedName      = regexp.MustCompile(`"(?:name|tool|tool_name|tool_names|function_name)"\s*:`)
	fencedArguments = regexp.MustCompile(`"(?:arguments|parameters|args|input)"\s*:`)
)
