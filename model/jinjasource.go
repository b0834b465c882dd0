package model

import (
	"regexp"
	"strings"
)

// filterNames matches the two filters whose library version differs from
// Python's: tojson (indentation, float forms, key order) and string (repr of
// containers and floats).
var filterNames = regexp.MustCompile(`\|\s*(tojson|string)\b`)

// rewriteFilters renames these filters inside tags to callables of ours; the
// engine looks filters up among its own before the caller's, so they cannot be
// replaced under their own names.
func rewriteFilters(source string) string {
	return mapTags(source, func(tag string) string {
		return filterNames.ReplaceAllString(tag, "|skein_$1")
	})
}

// mapTags applies f to the parts of each {{ }} and {% %} tag that lie outside
// string literals.
func mapTags(source string, f func(string) string) string {
	var out strings.Builder
	for source != "" {
		open := strings.IndexByte(source, '{')
		if open < 0 || open+1 >= len(source) {
			break
		}
		closer := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[source[open+1]]
		if closer == "" {
			out.WriteString(source[:open+1])
			source = source[open+1:]
			continue
		}
		out.WriteString(source[:open+2])
		comment := source[open+1] == '#'
		source = source[open+2:]
		for source != "" {
			end := strings.Index(source, closer)
			if comment || end < 0 {
				if end < 0 {
					end = len(source)
				}
				out.WriteString(source[:end])
				source = source[end:]
				break
			}
			quote := strings.IndexAny(source, `'"`)
			if quote < 0 || quote > end {
				out.WriteString(f(source[:end]))
				source = source[end:]
				break
			}
			n := literalLen(source[quote:])
			out.WriteString(f(source[:quote]))
			out.WriteString(source[quote : quote+n])
			source = source[quote+n:]
		}
		if strings.HasPrefix(source, closer) {
			out.WriteString(closer)
			source = source[2:]
		}
	}
	out.WriteString(source)
	return out.String()
}

// literalLen is the length of the quoted string that s starts with.
func literalLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return len(s)
}
