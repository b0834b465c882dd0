package rollout

import (
	"encoding/json"
	"strings"
)

// Marks of Harmony messages: HEADER<|message|>BODY and one of the endings.
const (
	harmonyStart   = "<|start|>"
	harmonyMessage = "<|message|>"
	harmonyEnd     = "<|end|>"
	harmonyTo      = "to=functions."
)

// harmonyCalls: a message whose header names a function,
// <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>,
// or with the recipient before the channel, as the template writes it (gpt-oss).
var harmonyCalls = &CallFormat{
	Name:    "harmony",
	thought: [2]string{"<|channel|>analysis<|message|>", harmonyEnd},
	find: func(text string, from int) (at, body int) {
		for at = from; ; {
			end, next := harmonyBody(text, at)
			if i := strings.Index(text[at:end], harmonyTo); i >= 0 {
				return at, at + i + len(harmonyTo)
			}
			if next >= len(text) {
				return -1, 0
			}
			at = next
		}
	},
	read: func(text string, body int) ([]Part, int, bool) {
		end, next := harmonyBody(text, body)
		header := text[body:end]
		if !strings.HasPrefix(text[end:], harmonyMessage) {
			return malformed("no " + harmonyMessage + " follows the recipient"), next, next == len(text)
		}
		name := header
		if i := strings.IndexAny(name, " \t\r\n<"); i >= 0 {
			name = name[:i]
		}
		calls, end, open := jsonBody(text, end+len(harmonyMessage), harmonyStart, "", func(v json.RawMessage) []Part { return []Part{callOf(name, string(v))} })
		if rest := strings.TrimLeft(text[end:], " \r\n"); strings.HasPrefix(rest, "<|call|>") {
			end = len(text) - len(rest) + len("<|call|>")
		}
		return calls, end, open
	},
	fits: contains("<|channel|>commentary", "<|call|>"),
	plain: func(text string) string {
		var out []string
		for at := 0; at < len(text); {
			end, next := harmonyBody(text, at)
			if body, ok := strings.CutPrefix(text[end:next], harmonyMessage); ok {
				for _, mark := range []string{harmonyEnd, "<|return|>", "<|call|>"} {
					body = strings.TrimSuffix(strings.TrimSpace(body), mark)
				}
				out = append(out, strings.TrimSpace(body))
			} else if !strings.HasPrefix(text[at:], "<|") {
				out = append(out, strings.TrimSpace(text[at:next]))
			}
			at = next
		}
		return strings.TrimSpace(strings.Join(out, "\n"))
	},
}

// harmonyBody gives where the header that begins at an offset ends, and where
// the next message begins: where that is, or the text's end, for both when the
// message has no body.
func harmonyBody(text string, at int) (end, next int) {
	end = -1
	for next = at; ; next += len("<|") {
		i := strings.Index(text[next:], "<|")
		if i < 0 {
			next = len(text)
			break
		}
		next += i
		rest := text[next:]
		if strings.HasPrefix(rest, harmonyMessage) && end < 0 {
			end = next
		}
		if strings.HasPrefix(rest, harmonyStart) && next > at {
			break
		}
		if strings.HasPrefix(rest, harmonyEnd) {
			next += len(harmonyEnd)
			break
		}
	}
	if end < 0 {
		end = next
	}
	return end, next
}
