package model

import (
	"sort"
	"unicode"
)

// shadowRange maps code points lo..hi to a rune of the category that the
// reference tokenizers give them.
type shadowRange struct{ lo, hi, as rune }

// shadow gives the rune to show to a pattern instead of r. The Hugging Face
// library matches with newer Unicode tables than Go's, so a letter that is
// unassigned here would split there differently; shadowing keeps rune counts,
// and so offsets, while patterns see the right category. Unassigned code points
// stay as they are.
func shadow(r rune) rune {
	if r < shadowRanges[0].lo {
		return r
	}
	i := sort.Search(len(shadowRanges), func(i int) bool { return shadowRanges[i].hi >= r })
	if i < len(shadowRanges) && shadowRanges[i].lo <= r {
		return shadowRanges[i].as
	}
	return r
}

// isNumeric is the library's notion of a number: categories Nd, Nl and No.
func isNumeric(r rune) bool {
	if r < 0x80 {
		return '0' <= r && r <= '9'
	}
	if unicode.IsNumber(r) {
		return true
	}
	return inRanges(numericRanges, r)
}

func inRanges(ranges [][2]rune, r rune) bool {
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i][1] >= r })
	return i < len(ranges) && ranges[i][0] <= r
}
