package model

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// metaspace writes spaces as a visible character, SentencePiece's "▁".
type metaspace struct {
	mark   string
	scheme string // always, first or never: where a mark is put before the text
}

func parseMetaspace(where string, replacement, scheme *string, addPrefix *bool) (metaspace, error) {
	m := metaspace{or(replacement, "▁"), or(scheme, "always")}
	if addPrefix != nil && !*addPrefix {
		if scheme != nil && m.scheme != "never" {
			return m, fmt.Errorf("%s Metaspace: add_prefix_space false, yet prepend_scheme %q", where, m.scheme)
		}
		m.scheme = "never"
	}
	if utf8.RuneCountInString(m.mark) != 1 {
		return m, fmt.Errorf("%s Metaspace: replacement %q is not one character", where, m.mark)
	}
	switch m.scheme {
	case "always", "first", "never":
		return m, nil
	}
	return m, fmt.Errorf("%s Metaspace: prepend_scheme %q is not implemented (have always, first, never)", where, m.scheme)
}

func (m metaspace) step(split bool) preStep {
	cut := splitStep(func(s string) []span { return literalSpans(m.mark, s) }, mergedWithNext, false)
	return func(piece string, first bool, emit func(string, bool)) {
		piece = strings.ReplaceAll(piece, " ", m.mark)
		if piece != "" && !strings.HasPrefix(piece, m.mark) && (m.scheme == "always" || m.scheme == "first" && first) {
			piece = m.mark + piece
		}
		if split {
			cut(piece, first, emit)
		} else {
			emit(piece, first)
		}
	}
}
