package rollout

import (
	"encoding/json"
	"regexp"
	"strings"
)

// functionaryCalls: >>>NAME\n{…}, with >>>all\n before what is said to the user
// (Functionary 3.2). The prompt may already end with the first >>>.
var functionaryCalls = &CallFormat{
	Name: "functionary",
	find: func(text string, from int) (at, body int) {
		if from == 0 {
			if name := functionaryFirst.FindStringSubmatchIndex(text); name != nil && text[name[2]:name[3]] != "all" {
				return 0, 0
			}
		}
		for at = from; ; at += len(functionaryMark) {
			i := strings.Index(text[at:], functionaryMark)
			if i < 0 {
				return -1, 0
			}
			at += i
			if name, _, _ := strings.Cut(text[at+len(functionaryMark):], "\n"); strings.TrimSpace(name) != "all" {
				return at, at + len(functionaryMark)
			}
		}
	},
	read: func(text string, body int) ([]Part, int, bool) {
		name, _, ok := strings.Cut(text[body:], "\n")
		if !ok {
			return malformed("no arguments follow the name"), len(text), true
		}
		return jsonBody(text, body+len(name)+1, functionaryMark, "", func(v json.RawMessage) []Part {
			return []Part{callOf(strings.TrimSpace(name), string(v))}
		})
	},
	fits: contains(">>>${recipient}"),
	plain: func(text string) string {
		return strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(text), functionaryMark), "all\n"))
	},
}

const functionaryMark = ">>>"

// functionaryFirst is a turn that begins with a name and an object under it.
var functionaryFirst = regexp.MustCompile(`^([A-Za-z_][\w.-]*)[ \t\r]*\n\s*\{`)
