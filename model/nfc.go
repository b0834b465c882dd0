package model

import (
	"slices"

	"golang.org/x/text/unicode/norm"
)

// normalForm is a Unicode normalization form as the tokenizers library computes
// it: with older tables, to which nfcBarriers are unassigned, and without
// x/text's limit of 30 combining marks in a row.
func normalForm(form norm.Form, s string) string {
	if form.IsNormalString(s) {
		// Barriers only block moves, compositions and mappings, so this is stable.
		return s
	}
	decompose := norm.NFD
	if form == norm.NFKC || form == norm.NFKD {
		decompose = norm.NFKD
	}
	var runes []rune
	var class []uint8
	for _, r := range s {
		if inRanges(nfcBarriers, r) {
			runes, class = append(runes, r), append(class, 0)
			continue
		}
		if r < 0x80 {
			runes, class = append(runes, r), append(class, 0)
			continue
		}
		for _, q := range decompose.String(string(r)) {
			runes = append(runes, q)
			class = append(class, norm.NFC.PropertiesString(string(q)).CCC())
		}
	}
	order(runes, class)
	if form == norm.NFD || form == norm.NFKD {
		return string(runes)
	}
	return string(compose(runes, class))
}

// order sorts each run of combining marks by class, stably.
func order(runes []rune, class []uint8) {
	for i := 0; i < len(runes); i++ {
		start := i
		for i < len(runes) && class[i] > 0 {
			i++
		}
		if i-start < 2 {
			continue
		}
		marks := make([]int, i-start)
		for j := range marks {
			marks[j] = start + j
		}
		slices.SortStableFunc(marks, func(a, b int) int { return int(class[a]) - int(class[b]) })
		r, c := slices.Clone(runes[start:i]), slices.Clone(class[start:i])
		for j, m := range marks {
			runes[start+j], class[start+j] = r[m-start], c[m-start]
		}
	}
}

// compose joins each starter with the marks after it that nothing blocks.
func compose(runes []rune, class []uint8) []rune {
	out := runes[:0]
	starter := -1 // index in out
	last := uint8(0)
	for i, r := range runes {
		c := class[i]
		if starter >= 0 && (last < c || last == 0 && len(out)-1 == starter) {
			if joined, ok := pair(out[starter], r); ok {
				out[starter] = joined
				continue
			}
		}
		if c == 0 {
			starter, last = len(out), 0
		} else {
			last = c
		}
		out = append(out, r)
	}
	return out
}

// pair is the canonical composition of two code points.
func pair(a, b rune) (rune, bool) {
	if a < 0x80 && b < 0x300 || inRanges(nfcBarriers, a) || inRanges(nfcBarriers, b) {
		return 0, false
	}
	joined := []rune(norm.NFC.String(string(a) + string(b)))
	// Only a true composition decomposes back.
	if len(joined) != 1 || joined[0] == a {
		return 0, false
	}
	return joined[0], true
}
